"""Where time went along the chains of what tasks waited for.

Every task waited for one before it, so the chains form a forest. Sums from the roots, and jumps of 1, 2, 4, … steps
back, give the seconds of any part of any chain in a number of steps that is logarithmic in its length. Walking each
chain for each task would be quadratic.
"""

from __future__ import annotations

import numpy as np

from pathways_nb.timing.timed import Timed


class Chains:
    """Seconds by reason along chains.

    Args:
        timed: the tasks.
        of_tasks: reason for which time counts in which a task runs that another waits for; from 0.
        of_gaps: reason of the gap before each task.
        count: number of reasons.
    """

    def __init__(self, timed: Timed, of_tasks: np.ndarray, of_gaps: np.ndarray, count: int):
        self.start, self.source, self.released = timed.start, timed.source, timed.released
        self._of_tasks, self._of_gaps, self._count = of_tasks, of_gaps, count
        rows = np.arange(len(self.start))
        known = self.source >= 0
        # (tasks, reasons) seconds: at first of one step back, then from the root of each chain up to each task's start.
        self._sums = np.zeros((len(rows), count))
        np.add.at(self._sums, (rows[known], of_gaps[known]), (self.start - self.released)[known])
        passed = (self.released - self.start[self.source])[known]
        np.add.at(self._sums, (rows[known], of_tasks[self.source[known]]), passed)
        self._leaps = [np.where(known, self.source, rows)]
        self._sum_up()

    def _sum_up(self) -> None:
        """Add up from the root of each chain to each task, by doubling the length of the jumps."""
        leap = self._leaps[0]
        while True:
            # A root jumps to itself and must not be added to itself.
            self._sums += self._sums[leap] * (leap != np.arange(len(leap)))[:, None]
            further = leap[leap]
            if (further == leap).all():
                return
            leap = further
            self._leaps.append(leap)

    def between(self, rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return seconds by reason from ``low`` up to ``high``, at most the task's start, for each of ``rows``."""
        found = np.zeros((len(rows), self._count))
        some = high > low
        found[some] = self._since(rows[some], low[some])
        cut = some & (high < self.start[rows])
        found[cut] -= self._since(rows[cut], high[cut])
        return np.maximum(found, 0.0)

    def _since(self, rows: np.ndarray, since: np.ndarray) -> np.ndarray:
        """Return seconds by reason from ``since`` up to the start of each of ``rows``."""
        first = rows
        # Longest jumps first: go back to the first task of the chain that starts at ``since`` or later.
        for leap in reversed(self._leaps):
            first = np.where(self.start[leap[first]] >= since, leap[first], first)
        # Sums from the root differ by what lies between; the step before ``first`` is cut at ``since``.
        found = self._sums[rows] - self._sums[first]
        source, start, each = self.source[first], self.start[first], np.arange(len(rows))
        let = np.where(source >= 0, np.maximum(self.released[first], since), since)
        found[each, self._of_gaps[first]] += start - let
        found[each, self._of_tasks[source]] += let - since
        return found
