"""The memory that each client holds over time, as events of the record.

The controller tells changes; an event is written when a level ends, because events have a start and an end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pathways_nb.controller.messages import MemoryHeld
from pathways_nb.trace.record import Row, label_of


class MemoryEvents:
    """The levels of memory held now; any thread may call.

    Args:
        clock: returns seconds.
        note: receives each level as an event when it ends.
    """

    def __init__(self, clock: Callable[[], float], note: Callable[[Row], None]):
        self.clock, self.note = clock, note
        self._now: dict[tuple[int, str], dict[int, tuple[MemoryHeld, float]]] = {}
        """By island and client, then by first device: the level and the time since when it holds."""
        self._lock = threading.Lock()

    def change(self, level: MemoryHeld) -> None:
        """Record that a client holds another amount on these devices from now on."""
        with self._lock:
            now = self.clock()
            mine = self._now.setdefault((level.island, level.client), {})
            for first, (old, since) in list(mine.items()):
                if first < level.first + level.count and level.first < first + old.count:
                    del mine[first]
                    self._end(old, since, now)
            if level.bytes:
                mine[level.first] = level, now

    def mark(self) -> None:
        """Write the levels of now up to now and let them go on, where a recording begins or ends."""
        with self._lock:
            now = self.clock()
            for mine in self._now.values():
                for first, (level, since) in list(mine.items()):
                    self._end(level, since, now)
                    mine[first] = level, now

    def _end(self, level: MemoryHeld, since: float, now: float) -> None:
        if now == since:  # several changes at one time, which are one
            return
        label = label_of("memory", "memory", client=level.client, island=level.island,
                         device=level.first, devices=level.count, bytes=level.bytes)  # fmt: skip
        self.note(Row(label, since, now, quality="exact"))
