"""The recurrence of TeraPipe's slicer, for many bounds and group sizes at once.

For a bound on the seconds of a slice, the least sum of the slices of the first ``i`` units of a sequence is

    S(i) = min over k of S(i - k) + t(k, i - k), among the slices with t(k, i - k) <= bound      (equation 8).

One step of ``i`` is a few NumPy calls on an array with a row for each pair of group size and bound, and a column for
each length of the last slice: all rows share the calls, and lengths that no bound allows have no column. Compiling the
same loop (XLA) takes longer than running it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pathways_nb.parallel.terapipe.slice_costs import SliceCosts


class SlicesByEnd:
    """The seconds of all slices of a problem, by the position at which they end.

    Attributes:
        seconds: of shape (units, groups, units): ``seconds[i - 1, b - 1, units - k]`` is the slice of ``b`` sequences
            that has ``k`` units and ends at ``i``; infinite where it would begin before the sequence.
        cheapest: the least of them for each group and length, of shape (groups, units).
    """

    def __init__(self, costs: SliceCosts):
        self.units, self.groups = costs.problem.units, costs.most_sequences
        n = self.units
        # (n, 1) ends 1 … n, and (1, n) lengths n … 1: lengths fall along a row, so that column j of the slices that end
        # at i and the window of prefixes that begins at i stand for the same cut.
        end, length = np.arange(1, n + 1)[:, None], n - np.arange(n)[None, :]
        inside = length <= end
        tokens = (np.broadcast_to(length, (n, n))[inside]) * costs.problem.granularity
        context = (end - length)[inside] * costs.problem.granularity
        self.seconds = np.full((n, self.groups, n), np.inf)
        for group in range(self.groups):
            self.seconds[:, group][inside] = costs.at(group + 1, tokens, context)
        self.cheapest = self.seconds.min(axis=0)

    def longest(self, groups: np.ndarray, bound: float) -> int:
        """Return the largest number of units that a slice of some of the groups may have under a bound."""
        # The first column that some group may take has the longest slice.
        return self.units - int(np.argmax(self.cheapest[groups].min(axis=0) <= bound))

    def bottlenecks(self) -> np.ndarray:
        """Return for each group size the least bound under which a sequence can be sliced."""
        n = self.units
        # (groups, 2n): column n − 1 + i is the prefix of i units. Those before it would begin before the sequence, and
        # stay infinite.
        least = np.full((self.groups, 2 * n), np.inf)
        least[:, n - 1] = -np.inf
        for end, slices in enumerate(self.seconds):
            # For each last slice the larger of it and of what the prefix before it needs; the least of those.
            least[:, n + end] = np.maximum(least[:, end : end + n], slices).min(axis=1)
        return least[:, -1]


class LeastSums(NamedTuple):
    """The best slicings, one for each row.

    Attributes:
        sums: seconds of all slices together.
        largest: seconds of the largest slice.
        last: units of the last slice of each prefix, of shape (units, rows).
    """

    sums: np.ndarray
    largest: np.ndarray
    last: np.ndarray

    def lengths(self, row: int) -> list[int]:
        """Return the units of the slices of one row, from first to last."""
        found, end = [], len(self.last)
        while end:
            found.append(int(self.last[end - 1, row]))
            end -= found[-1]
        return found[::-1]


def least_sums(slices: SlicesByEnd, groups: np.ndarray, bounds: np.ndarray) -> LeastSums:
    """Return the slicing with the least sum for each pair of a group size and a bound that it can meet.

    Args:
        slices: seconds of all slices.
        groups: index of the group size of each row.
        bounds: largest seconds of a slice in each row.
    """
    n, rows, width = slices.units, np.arange(len(groups)), slices.longest(groups, bounds.max())
    # (ends, rows, width), a copy: indexing by an array makes one, so it may be written to.
    allowed = slices.seconds[:, groups, n - width :]
    np.copyto(allowed, np.inf, where=allowed > bounds[:, None])
    # (rows, width + n): column width − 1 + i is the least sum of the first i units, 0 for none.
    sums = np.full((len(rows), width + n), np.inf)
    sums[:, width - 1] = 0.0
    last, candidates = np.empty((n, len(rows)), np.intp), np.empty((len(rows), width))
    for end in range(n):
        # Equation 8 for one end: each length of the last slice with the prefix before it. One array for all steps:
        # allocating it would cost as much as adding.
        np.add(sums[:, end : end + width], allowed[end], out=candidates)
        column = candidates.argmin(axis=1)
        sums[:, width + end] = candidates[rows, column]
        last[end] = column
    largest = _largest(allowed, last)
    return LeastSums(sums[:, -1], largest, width - last)


def _largest(allowed: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the seconds of the largest slice of each row, following the last slices back to the beginning.

    Args:
        allowed: seconds, of shape (ends, rows, columns).
        last: column of the last slice of each prefix, of shape (ends, rows).
    """
    count, _, width = allowed.shape
    rows, end = np.arange(last.shape[1]), np.full(last.shape[1], count - 1)
    largest = np.zeros(len(rows))
    while len(rows):
        column = last[end, rows]
        largest[rows] = np.maximum(largest[rows], allowed[end, rows, column])
        # To the end of the slice before; rows that are at their first slice are done.
        end = end - (width - column)
        rows, end = rows[end >= 0], end[end >= 0]
    return largest
