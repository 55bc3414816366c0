"""Half-open intervals ``low <= x < high``: of devices, of bytes per device, of time.

``Intervals`` is a map from neighbouring intervals to values: an island of thousands of devices is a few intervals, cut
only where devices are used apart. ``joined``, ``union`` and ``pieces`` put intervals together and take them apart.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

Value = TypeVar("Value")


def _same(value: Value) -> Value:
    return value


class Intervals(Generic[Value]):
    """A map from every number from 0 up to ``end`` to a value, kept by intervals; at first all of it is one.

    Interval ``k`` goes from ``edges[k]`` up to ``edges[k + 1]`` and has ``values[k]``.

    Args:
        value: of all numbers.
        split: makes the value of an interval's second part from that of the whole, which stays that of the first.
        end: the first number that is not in the map.
    """

    def __init__(self, value: Value, split: Callable[[Value], Value] = _same, end: int = sys.maxsize):
        self.edges, self.values, self._split = [0, end], [value], split
        self._cuts: dict[tuple[int, int], slice] = {}
        """What ``between`` has found since the edges changed last."""

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        """First number, the one after the last, and value of each interval."""
        yield from zip(self.edges, self.edges[1:], self.values, strict=False)

    def between(self, low: int, high: int) -> slice:
        """Where in ``values`` the numbers from ``low`` up to ``high`` are, from now on intervals of their own."""
        found = self._cuts.get((low, high))
        if found is None:
            found = self._cuts[low, high] = slice(self._cut(low), self._cut(high))
        return found

    def touching(self, low: int, high: int) -> slice:
        """Where in ``values`` the intervals are that have a number from ``low`` up to ``high``."""
        return slice(bisect_right(self.edges, low) - 1, bisect_left(self.edges, high))

    def replace(self, low: int, high: int, value: Value) -> list[Value]:
        """Make the numbers from ``low`` up to ``high`` one interval with this value; return the values they had."""
        where = self.between(low, high)
        before = self.values[where]
        if len(before) > 1:
            self._cuts.clear()
        self.edges[where], self.values[where] = [low], [value]
        return before

    def merge(self, low: int, high: int) -> None:
        """Make one of neighbours with equal values where an interval begins at ``low`` or ``high``."""
        for edge in (high, low):
            at = bisect_left(self.edges, edge)
            if 0 < at < len(self.values) and self.edges[at] == edge and self.values[at - 1] == self.values[at]:
                del self.values[at], self.edges[at]
                self._cuts.clear()

    def _cut(self, edge: int) -> int:
        """The interval that begins at ``edge``."""
        at = bisect_left(self.edges, edge)
        if self.edges[at] != edge:
            self._cuts.clear()
            self.edges.insert(at, edge)
            self.values.insert(at, self._split(self.values[at - 1]))
        return at


def joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Make one of each row of intervals that follow each other, and leave out empty ones."""
    found: list[tuple[int, int]] = []
    for low, high in intervals:
        if found and low == found[-1][1]:
            found[-1] = found[-1][0], high
        elif low < high:
            found.append((low, high))
    return found


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of the intervals that make up what is in any of the given ones, rising and apart."""
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if not len(start):
        return start, end
    end = np.maximum(end, start)
    begins = np.flatnonzero(np.concatenate([[True], start[1:] > np.maximum.accumulate(end)[:-1]]))
    return start[begins], np.maximum.reduceat(end, begins)


def pieces(start: np.ndarray, end: np.ndarray, *edges: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Cut whole numbers at every start, every end and ``edges``; return each piece and the positions of who covers it.

    Args:
        start, end: of some intervals. edges: further numbers at which to cut.
    """
    cuts, ends = np.unique(np.concatenate([start, end, np.array(edges, start.dtype)]), return_inverse=True)
    begin, count = ends[: len(start)], np.maximum(ends[len(start) : 2 * len(start)] - ends[: len(start)], 0)
    row = np.repeat(np.arange(len(start)), count)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - begin, count)
    order = np.argsort(piece, kind="stable")
    bounds = np.searchsorted(piece[order], np.arange(len(cuts)))
    for (low, high), (begins, stops) in zip(pairwise(cuts.tolist()), pairwise(bounds.tolist()), strict=True):
        yield low, high, row[order[begins:stops]]
