"""Simulated time: a clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

Rank = tuple[float | str, ...]
"""Sort key of entries at the same time; the lowest comes first."""


class EventQueue:
    """A clock of simulated seconds and a heap of functions to call; at equal times by rank, then in order of insertion.

    The serial number makes the order of equal entries deterministic, as in SimPy.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.paused = False
        """Set by a function that is called to end ``run``."""
        self._until = -math.inf
        """Up to which time ``run`` calls entries; before everything while it does not."""
        self._entries: list[tuple[float, Rank, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serials = itertools.count()

    def clock(self) -> float:
        """Return the current time in seconds."""
        return self.now

    def at(self, time: float, happen: Callable[..., object], *args: Any, rank: Rank = (1,)) -> None:
        """Schedule ``happen(*args)``.

        Args:
            time: when it is called, in seconds; a time in the past means now.
            happen: the function.
            args: its arguments.
            rank: its place among entries of the same time.
        """
        # (time, rank, serial, …): the serial decides before functions would be compared, which Python cannot.
        heapq.heappush(self._entries, (time, rank, next(self._serials), happen, args))

    @property
    def next(self) -> float | None:
        """Time of the next entry; ``None`` if the queue is empty."""
        return self._entries[0][0] if self._entries else None

    @property
    def free_until(self) -> float:
        """Time before which nothing is called, whatever an entry that is called now does with time up to then.

        An entry that knows what happens next may carry out all of that before this time, and advance the clock.
        """
        if self.paused:
            return -math.inf
        return min(self._entries[0][0], self._until) if self._entries else self._until

    def step(self) -> bool:
        """Advance time to the next entry and call it, and return whether there was one."""
        if not self._entries:
            return False
        time, _, _, happen, args = heapq.heappop(self._entries)
        # A time in the past means now: the clock never goes back.
        if time > self.now:
            self.now = time
        happen(*args)
        return True

    def clear(self) -> None:
        """Remove all entries and reset the clock to 0."""
        self._entries.clear()
        self.now = 0.0

    def run(self, until: float = math.inf) -> bool:
        """Call entries up to time ``until``, or until one sets ``paused``, and return whether one did."""
        entries, self._until = self._entries, until
        try:
            # What an entry adds at the same time is called in this loop as well.
            while entries and entries[0][0] <= until:
                self.step()
                if self.paused:
                    return True
            return False
        finally:
            self._until = -math.inf
