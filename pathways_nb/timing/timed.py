"""Timed tasks and what follows from their times: what released each, gaps, slack, chains of causes.

Times may have been solved for or observed. A task begins a *gap* after the last of its edges lets it: 0 where times
were solved for, and what nothing explains where they were observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pathways_nb.timing.fixed_order import FixedOrder
from pathways_nb.timing.waits import Waits


class StartCause(NamedTuple):
    """What let each of (tasks,) start: the task before, -1 for those that waited for none, and the lag of the edge."""

    source: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class Timed:
    """Tasks with times, as columns (tasks,).

    Args:
        waits: what they wait for.
        start: when each starts, in seconds.
        durations: how long each takes, in seconds.
        same: seconds up to which two times count as equal.
        recorded_why: why each began, a position in ``WHY``, where that was observed; -1 where it follows from times.
    """

    waits: Waits
    start: np.ndarray
    durations: np.ndarray
    same: float = 0.0
    recorded_why: np.ndarray | None = None

    @classmethod
    def solved(cls, waits: Waits, durations: np.ndarray) -> Timed:
        """Return tasks that start as soon as they can; each must stand behind all that it waits for."""
        return cls(waits, FixedOrder.of_waits(len(durations), waits).evaluate(durations).start, durations)

    @property
    def end(self) -> np.ndarray:
        """When each task ends."""
        return self.start + self.durations

    @cached_property
    def releases(self) -> np.ndarray:
        """When each edge lets its target start."""
        # (edges,) seconds
        source, _, _, part, lag = self.waits
        durations = self.durations[source]
        return self.start[source] + (durations if part is None else part * durations) + lag

    @cached_property
    def latest(self) -> np.ndarray:
        """When the last edge of each task lets it start; 0 for tasks without edges."""
        return self._latest_of(np.ones(len(self.waits.target), bool))

    def _latest_of(self, edges: np.ndarray) -> np.ndarray:
        # (tasks,) seconds; ``maximum.at``, since a task has several edges.
        found = np.full(len(self.start), -np.inf)
        np.maximum.at(found, self.waits.target[edges], self.releases[edges])
        return np.where(np.isfinite(found), found, 0.0)

    @property
    def gap(self) -> np.ndarray:
        """Seconds by which each task starts later than its edges let it."""
        return self.start - self.latest

    @cached_property
    def edge(self) -> np.ndarray:
        """The edge that released each task, the last one in time that may have; -1 for tasks without edges."""
        target = self.waits.target
        # Of edges that let go at the same time the last one wins below, as they are sorted by ``why``.
        tight = np.flatnonzero(self._may_release & (self.releases >= self._latest_release[target] - self.same))
        found = np.full(len(self.start), -1)
        found[target[tight]] = tight
        return found

    @cached_property
    def has_recorded_why(self) -> np.ndarray:
        """Which tasks have an edge of the reason that was told."""
        found = np.zeros(len(self.start), bool)
        if self.recorded_why is not None:
            found[self.waits.target[self.waits.why == self.recorded_why[self.waits.target]]] = True
        return found

    @cached_property
    def _may_release(self) -> np.ndarray:
        """Which edges may have released their targets: those of the reason told, if there are any."""
        if self.recorded_why is None:
            return np.ones(len(self.waits.target), bool)
        fits = self.waits.why == self.recorded_why[self.waits.target]
        # Where no edge has the recorded reason (its source is outside of the record), times decide.
        return fits | ~self.has_recorded_why[self.waits.target]

    @cached_property
    def _latest_release(self) -> np.ndarray:
        """When the last edge that may have released each task lets it start."""
        return self.latest if self.recorded_why is None else self._latest_of(self._may_release)

    @cached_property
    def source(self) -> np.ndarray:
        """The task that released each task; -1 for tasks without edges."""
        # The appended -1 is what an edge of -1 reads, which NumPy takes from the end.
        return np.where(self.edge >= 0, np.append(self.waits.source, -1)[self.edge], -1)

    @property
    def cause(self) -> StartCause:
        """What released each task, with the lag of the edge."""
        return StartCause(self.source, np.append(self.waits.lag, 0.0)[self.edge])

    @cached_property
    def released(self) -> np.ndarray:
        """When each task was released: not after its start, whatever its edges say."""
        return np.minimum(self._latest_release, self.start)

    def earliest_without(self, why: int) -> np.ndarray:
        """Return when each task could start if no edge of one reason held it; at the earliest 0."""
        found, kept = np.zeros(len(self.start)), self.waits.why != why
        np.maximum.at(found, self.waits.target[kept], self.releases[kept])
        return found

    def chain(self, task: int) -> Iterator[int]:
        """Yield a task, the task that released it, and so on back to one that waited for none."""
        while task >= 0:
            yield task
            task = int(self.source[task])

    def with_durations(self, durations: np.ndarray, gap: np.ndarray | None = None) -> Timed:
        """Return the tasks with other durations: the same edges, and the same gaps behind them.

        Every task must stand behind all that it waits for.

        Args:
            durations: of each task, in seconds.
            gap: how much later each task starts than its edges let it, in seconds; None for the same as now.
        """
        order = FixedOrder.of_waits(len(durations), self.waits)
        start = order.evaluate(durations, self.gap if gap is None else gap).start
        return Timed(self.waits, start, durations, self.same)

    def slack(self, left: np.ndarray) -> np.ndarray:
        """Return how much later each task could end without a later end of the whole, in seconds.

        Every task must stand behind all that it waits for.

        Args:
            left: seconds between each task's end and that of the whole; infinite for tasks that do not count.
        """
        source, target = self.waits.source, self.waits.target
        # (edges,) seconds by which a source could release later without its target starting later.
        free = self.latest[target] - self.releases
        # What released a task leaves it no room, even if another edge seems to be later.
        if self.recorded_why is not None:
            free[self.edge[(self.recorded_why >= 0) & (self.edge >= 0)]] = 0.0
        spare, found = free.tolist(), left.tolist()
        # From the last target to the first: its slack is final before what it waits for reads it.
        for u, v, more in zip(source[::-1].tolist(), target[::-1].tolist(), spare[::-1], strict=True):
            found[u] = min(found[u], found[v] + more)
        return np.array(found)
