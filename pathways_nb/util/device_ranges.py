"""Devices as neighbouring ranges, each with one value: an island of thousands is a few ranges, cut where used apart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Ranges(Generic[Value]):
    """The devices of an island from 0 on, in ranges; at first all of them are one.

    Args:
        value: of all devices. split: makes the value of a range's second part from that of the whole, which stays that
            of the first; by default both have the same.
    """

    def __init__(self, value: Value, split: Callable[[Value], Value] = lambda value: value):
        self._lows, self.values, self._split = [0], [value], split

    def between(self, low: int, high: int) -> slice:
        """Where in ``values`` the devices from ``low`` up to ``high`` are, from now on ranges of their own."""
        return slice(self._cut(low), self._cut(high))

    def replace(self, low: int, high: int, value: Value) -> list[Value]:
        """Devices from ``low`` up to ``high`` are one range with this value; returns those that they had."""
        where = self.between(low, high)
        before = self.values[where]
        self._lows[where], self.values[where] = [low], [value]
        return before

    def _cut(self, device: int) -> int:
        """The range that begins at ``device``."""
        at = bisect_left(self._lows, device)
        if at == len(self._lows) or self._lows[at] != device:
            self._lows.insert(at, device)
            self.values.insert(at, self._split(self.values[at - 1]))
        return at
