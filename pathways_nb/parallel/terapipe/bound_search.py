"""The exact search for the best bound: which slice may be the largest.

The latency is ``S(m) + (K - 1) m`` with the least sum S under the bound m (TeraPipe, equation 6). S never grows with m.
So all bounds of an interval cost at least the sum at its upper end and (K - 1) times its smallest bound; an interval in
which that is no better than what is known is dropped (branch and bound), others are divided. A solved bound also shows
the largest slice that it used: bounds between both have the same sum, and are dropped. Nothing is skipped by a
tolerance, so the result is the optimum. The authors solve each bound that differs by a tolerance instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from pathways_nb.parallel.terapipe.batches import Batches, divide_batch, least_bound
from pathways_nb.parallel.terapipe.recurrence import SlicesByEnd, least_sums

AT_ONCE = 16
"""Bounds that are solved in one round."""
CELLS = 4_000_000
"""Cells of the arrays of one round, 8 bytes each."""


class Interval(NamedTuple):
    """Neighbouring bounds that may be the best one.

    Attributes:
        first: index of the smallest bound.
        end: index after the largest bound.
        groups: seconds that each group size needs at least under any of them.
        batches: seconds that 0, 1, … sequences need at least.
    """

    first: int
    end: int
    groups: np.ndarray
    batches: np.ndarray


class Search:
    """The search for the bound of the best slicing.

    Args:
        slices: seconds of all slices.
        batch: number of sequences.
        stages: K.

    Attributes:
        bound: the best bound known.
        latency: seconds that a slicing under it takes, at most.
    """

    def __init__(self, slices: SlicesByEnd, batch: int, stages: int):
        self.slices, self.batch, self.waits = slices, batch, stages - 1
        self.bottlenecks = slices.bottlenecks()
        self.bounds = np.empty(0)
        self.bound, self.latency = np.inf, np.inf

    def best(self) -> float:
        """Return the seconds of the largest slice of an optimum."""
        # Without a bound first: no bound has a smaller sum, and none above the largest slice used here changes it.
        sums, batches = self._solve([(np.arange(self.slices.groups), np.inf)])
        self._note(batches, np.array([np.inf]))
        # With one stage nothing waits for the largest slice: the least sum is the optimum.
        if self.waits:
            self._note_uniform()
            todo = self._begin(sums[:, 0], batches)
            while todo := self._open(todo):
                todo = self._round(todo)
        return self.bound

    def _begin(self, groups: np.ndarray, batches: Batches) -> list[Interval]:
        """Return the interval of all bounds that may be better than none."""
        least, sums = least_bound(self.bottlenecks, self.batch), batches.sums[:, 0]
        # From there on even the least sum of all is no better with that bound than what is known.
        most = min(batches.largest[-1, 0], (self.latency - sums[-1]) / self.waits)
        seconds = self.slices.seconds
        # Between two values that slices take, the same slices are allowed: only these values are bounds to try.
        self.bounds = np.unique(seconds[(seconds >= least) & (seconds < most)])
        return [Interval(0, len(self.bounds), groups, sums)]

    def _open(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Return the intervals that may have a better bound, without the bounds that are too large, best first."""
        found = []
        for first, end, groups, batches in intervals:
            # A bound m is of use if sum + (K − 1) m < latency, and the sum of the interval is one that none of its
            # bounds goes below.
            end = min(end, int(np.searchsorted(self.bounds, (self.latency - batches[-1]) / self.waits)))
            if first < end and batches[-1] + self.waits * self.bounds[first] < self.latency:
                found.append(Interval(first, end, groups, batches))
        # The most promising first: what they find makes others fall away.
        return sorted(found, key=lambda one: one.batches[-1] + self.waits * self.bounds[one.first])

    def _round(self, intervals: list[Interval]) -> list[Interval]:
        """Return the intervals that are left after some bounds of the best intervals were solved."""
        chosen = list(self._chosen(intervals))
        places = [(interval, groups, place) for interval, groups, several in chosen for place in several]
        sums, batches = self._solve([(groups, self.bounds[place]) for _, groups, place in places])
        self._note(batches, self.bounds[[place for _, _, place in places]])
        left, column = intervals[len(chosen) :], 0
        for interval, _, several in chosen:
            columns = range(column, column := column + len(several))
            left += self._parts(interval, several, columns, sums, batches)
        return left

    def _chosen(self, intervals: list[Interval]) -> Iterator[tuple[Interval, np.ndarray, np.ndarray]]:
        """Yield the best intervals with the group sizes that matter in each, and the indices of bounds to solve."""
        # Few intervals get several bounds each, many get one: a round costs about the same.
        share = max(1, AT_ONCE // len(intervals))
        top = self.bounds[max(interval.end for interval in intervals[:AT_ONCE]) - 1]
        # One row for each pair of bound and group size; its cells are units times the longest slice that is allowed.
        rows = CELLS // (self.slices.units * self.slices.longest(np.arange(self.slices.groups), top))
        for interval in intervals[:AT_ONCE]:
            # (groups,) what is left of the batch without a group of 1, 2, … sequences, and needs at least so long.
            others = interval.batches[self.batch - 1 - np.arange(self.slices.groups)]
            most = self.latency - self.waits * self.bounds[interval.first]
            groups = np.flatnonzero(interval.groups + others < most)
            count = min(share, interval.end - interval.first, max(1, rows // max(1, len(groups))))
            # Evenly between the ends: each solved bound cuts the interval in two.
            steps = np.arange(1, count + 1) * (interval.end - interval.first) // (count + 1)
            yield interval, groups, interval.first + np.unique(steps)
            rows -= count * len(groups)
            if rows <= 0:
                return

    def _solve(self, asked: list[tuple[np.ndarray, float]]) -> tuple[np.ndarray, Batches]:
        """Return the least sums of each group size, and of the batch, under each of some bounds.

        Args:
            asked: for each bound the group sizes to consider, and the bound.
        """
        shape = (self.slices.groups, len(asked))
        sums, largest = np.full(shape, np.inf), np.full(shape, np.inf)
        # A group that cannot be sliced under a bound needs no row: it stays infinite.
        can = [groups[self.bottlenecks[groups] <= bound] for groups, bound in asked]
        rows, columns = np.concatenate(can), np.repeat(np.arange(len(asked)), [len(groups) for groups in can])
        if len(rows):
            bounds = np.array([bound for _, bound in asked])
            found = least_sums(self.slices, rows, bounds[columns])
            sums[rows, columns], largest[rows, columns] = found.sums, found.largest
        return sums, divide_batch(sums, largest, self.batch)

    def _note(self, batches: Batches, bounds: np.ndarray) -> None:
        """Keep the best of some solved bounds, if it is better than what is known."""
        latencies = batches.sums[-1] + self.waits * batches.largest[-1] if self.waits else batches.sums[-1]
        best = int(latencies.argmin())
        if latencies[best] < self.latency:
            self.latency, self.bound = float(latencies[best]), float(batches.largest[-1, best])

    def _note_uniform(self) -> None:
        """Keep the best uniform slicing of single sequences, if it is better: fewer bounds are left then."""
        n = self.slices.units
        for units in range(1, n + 1):
            if n % units == 0:
                seconds = self.slices.seconds[units - 1 :: units, 0, n - units]
                latency = float(self.batch * seconds.sum() + self.waits * seconds.max())
                if latency < self.latency:
                    self.latency, self.bound = latency, float(seconds.max())

    def _parts(
        self, whole: Interval, places: np.ndarray, columns: range, sums: np.ndarray, batches: Batches
    ) -> Iterator[Interval]:
        """Yield what is left of an interval, some of whose bounds were solved.

        Args:
            whole: the interval.
            places: indices of the solved bounds, ascending.
            columns: columns of their results.
            sums: least sums of each group size.
            batches: least sums of the batch.
        """
        first = whole.first
        for place, column in zip(places, columns, strict=True):
            # below the largest slice used; where nothing was found, no smaller bound is of use
            if np.isfinite(batches.sums[-1, column]):
                end = int(np.searchsorted(self.bounds, batches.largest[-1, column]))
                yield Interval(first, end, sums[:, column], batches.sums[:, column])
            first = int(place) + 1
        yield Interval(first, whole.end, whole.groups, whole.batches)


def best_scheme(slices: SlicesByEnd, batch: int, stages: int) -> list[tuple[int, list[int]]]:
    """Return an optimal slicing: for each group its number of sequences, and the units of its slices.

    Args:
        slices: seconds of all slices.
        batch: number of sequences.
        stages: K.
    """
    bound = Search(slices, batch, stages).best()
    # Once more for this bound alone: the search keeps sums only, not the slices of every bound that it tried.
    able = np.flatnonzero(slices.bottlenecks() <= bound)
    found = least_sums(slices, able, np.full(len(able), bound))
    sums, largest = np.full((slices.groups, 1), np.inf), np.full((slices.groups, 1), np.inf)
    sums[able, 0], largest[able, 0] = found.sums, found.largest
    rows = {int(group) + 1: row for row, group in enumerate(able)}
    return [(size, found.lengths(rows[size])) for size in sorted(divide_batch(sums, largest, batch).groups(0))]
