"""Values of an island's devices, stored by ranges of neighbouring devices with one value each.

Code that treats devices one by one is slow on islands of thousands. Placements are ranges, so an island is a few
ranges, cut where placements begin and end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Ranges(Generic[Value]):
    """A value for each device of an island, from device 0 on; at first all devices are one range.

    Args:
        value: value of all devices.
        split: makes the value of a range's second part from the value of the whole range, which stays the value of the
            first part; by default both have the same value.
    """

    def __init__(self, value: Value, split: Callable[[Value], Value] = lambda value: value):
        self._lows, self.values, self._split = [0], [value], split

    def between(self, low: int, high: int) -> slice:
        """Return the slice of ``values`` for devices from ``low`` up to ``high``; cut ranges at both ends."""
        return slice(self._cut(low), self._cut(high))

    def replace(self, low: int, high: int, value: Value) -> list[Value]:
        """Make the devices from ``low`` up to ``high`` one range with this value.

        Returns:
            The values that they had, one for each former range.
        """
        where = self.between(low, high)
        before = self.values[where]
        self._lows[where], self.values[where] = [low], [value]
        return before

    def _cut(self, device: int) -> int:
        """Return the position of the range that begins at ``device``; cut one if there is none."""
        at = bisect_left(self._lows, device)
        if at == len(self._lows) or self._lows[at] != device:
            self._lows.insert(at, device)
            self.values.insert(at, self._split(self.values[at - 1]))
        return at
