"""Half-open intervals ``low <= x < high`` of integers: devices, bytes per device, times.

``Intervals`` maps intervals to values. An island of thousands of devices is a few intervals, cut only where some
devices are used without others, so that the cost of an operation depends on the number of intervals and not of devices.
``joined``, ``union`` and ``pieces`` combine and cut plain intervals; the last two take NumPy arrays.
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
    """A map from each integer in ``0 <= x < end`` to a value, stored by interval; at first one interval covers all.

    Interval ``k`` is ``edges[k] <= x < edges[k + 1]`` and has ``values[k]``.

    Args:
        value: the first value of all integers.
        split: called when an interval is cut; returns the value of the upper part, given that of the whole. The lower
            part keeps its value. Mutable values need it, because otherwise both parts share one object.
        end: the first integer that is not in the map.
    """

    def __init__(self, value: Value, split: Callable[[Value], Value] = _same, end: int = sys.maxsize):
        self.edges, self.values, self._split = [0, end], [value], split
        self._cuts: dict[tuple[int, int], slice] = {}
        """Results of ``between`` since the edges last changed."""

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        """Yield ``low``, ``high`` and the value of each interval."""
        yield from zip(self.edges, self.edges[1:], self.values, strict=False)

    def between(self, low: int, high: int) -> slice:
        """Cut at ``low`` and ``high``, and return the slice of ``values`` that covers the integers between them."""
        # A run asks for the same few ranges again and again; the positions hold until an edge is added or removed.
        found = self._cuts.get((low, high))
        if found is None:
            found = self._cuts[low, high] = slice(self._cut(low), self._cut(high))
        return found

    def touching(self, low: int, high: int) -> slice:
        """Return the slice of ``values`` whose intervals overlap ``low <= x < high``; nothing is cut."""
        return slice(bisect_right(self.edges, low) - 1, bisect_left(self.edges, high))

    def replace(self, low: int, high: int, value: Value) -> list[Value]:
        """Make ``low <= x < high`` one interval with this value, and return the values that it had."""
        where = self.between(low, high)
        before = self.values[where]
        if len(before) > 1:  # with one value, no edge has moved
            self._cuts.clear()
        self.edges[where], self.values[where] = [low], [value]
        return before

    def merge(self, low: int, high: int) -> None:
        """Join neighbouring intervals with equal values where an edge is at ``low`` or ``high``."""
        for edge in (high, low):
            at = bisect_left(self.edges, edge)
            if 0 < at < len(self.values) and self.edges[at] == edge and self.values[at - 1] == self.values[at]:
                del self.values[at], self.edges[at]
                self._cuts.clear()

    def _cut(self, edge: int) -> int:
        """Return the position of the interval that begins at ``edge``, after cutting there if necessary."""
        at = bisect_left(self.edges, edge)
        if self.edges[at] != edge:
            self._cuts.clear()
            # The lower part keeps the value, the upper one gets what ``split`` returns.
            self.edges.insert(at, edge)
            self.values.insert(at, self._split(self.values[at - 1]))
        return at


def joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return intervals with each joined to the one before it if they touch, and without empty ones."""
    found: list[tuple[int, int]] = []
    for low, high in intervals:
        if found and low == found[-1][1]:
            found[-1] = found[-1][0], high
        elif low < high:
            found.append((low, high))
    return found


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the union of intervals as starts and ends that rise and do not touch.

    Args:
        start: first numbers, in any order.
        end: numbers after the last; an interval that ends before it starts counts as empty.
    """
    # Columns of a record are mostly in order; then the sort is saved.
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if not len(start):
        return start, end
    end = np.maximum(end, start)
    # A piece begins where an interval starts after all before it have ended.
    begins = np.flatnonzero(np.concatenate([[True], start[1:] > np.maximum.accumulate(end)[:-1]]))
    return start[begins], np.maximum.reduceat(end, begins)


def overlaps(start: np.ndarray, end: np.ndarray, others: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return how much of each interval lies in a union of intervals.

    Args:
        start: first numbers.
        end: numbers after the last.
        others: what ``union`` returned.
    """
    if not len(others[0]):
        return np.zeros(len(start))
    # (2 × intervals,): start, end, start, end, …; between them the covered length is linear, so it can be interpolated.
    stamps = np.stack(others, 1).ravel()
    done = np.concatenate([[0.0], np.cumsum(others[1] - others[0])])
    inside = np.repeat(done, 2)[1:-1]  # of ``others``, what lies before each stamp
    found: np.ndarray = np.interp(end, stamps, inside) - np.interp(start, stamps, inside)
    return found


def pieces(start: np.ndarray, end: np.ndarray, *edges: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Cut the integers at every start, every end and every edge.

    Args:
        start: first integers of some intervals.
        end: integers after the last of them.
        *edges: further integers at which to cut.

    Yields:
        Each piece as ``low``, ``high``, and the positions of the intervals that cover it.
    """
    # cuts: (edges,) sorted. ends: the position in ``cuts`` of each start, each end and each further edge.
    cuts, ends = np.unique(np.concatenate([start, end, np.array(edges, start.dtype)]), return_inverse=True)
    # (intervals,) the first piece of each interval, and how many pieces it covers; none if it ends before it starts.
    begin, count = ends[: len(start)], np.maximum(ends[len(start) : 2 * len(start)] - ends[: len(start)], 0)
    # (covers,) one entry for each pair of an interval and a piece of it: the interval, and the piece.
    row = np.repeat(np.arange(len(start)), count)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - begin, count)
    # By piece; stable, so that intervals stay in their order.
    order = np.argsort(piece, kind="stable")
    bounds = np.searchsorted(piece[order], np.arange(len(cuts)))
    for (low, high), (begins, stops) in zip(pairwise(cuts.tolist()), pairwise(bounds.tolist()), strict=True):
        yield low, high, row[order[begins:stops]]
