"""How much memory each client holds, over time: the levels that the controller tells, as events of the record."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pathways_nb.controller.messages import MemoryHeld
from pathways_nb.trace.record import Row, label_of


class MemoryEvents:
    """Levels that hold now. ``note`` is told of each as an event when it ends; any thread may call."""

    def __init__(self, clock: Callable[[], float], note: Callable[[Row], None]):
        self.clock, self.note = clock, note
        self._now: dict[tuple[int, str], dict[int, tuple[MemoryHeld, float]]] = {}
        """By island and client: by first device, the level and since when it holds."""
        self._lock = threading.Lock()

    def change(self, level: MemoryHeld) -> None:
        """From now on this holds, on these devices."""
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
        """What holds now is noted up to now, and goes on: a recording begins or ends."""
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
