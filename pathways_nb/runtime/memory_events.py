"""The memory that each client holds over time, as events of the record: one for each category.

The controller tells changes; an event is written when a level ends, because events have a start and an end. What one
change does to several categories happens at one time, so their sum is what the client held at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pathways_nb.controller.events_and_instructions import MemoryHeld
from pathways_nb.trace.rows import Row, label_of


@dataclass
class _Levels:
    """What a client holds on each of ``count`` devices: by category, the bytes and the time since when."""

    count: int
    parts: dict[str, tuple[int, float]] = field(default_factory=dict)


class MemoryEvents:
    """The levels of memory held now; any thread may call.

    Args:
        clock: returns seconds.
        note: receives each level as an event when it ends.
    """

    def __init__(self, clock: Callable[[], float], note: Callable[[Row], None]):
        self.clock, self.note = clock, note
        self._now: dict[tuple[int, str], dict[int, _Levels]] = {}
        """By island and client, then by first device."""
        self._lock = threading.Lock()

    def change(self, level: MemoryHeld) -> None:
        """Record that a client holds other amounts on these devices from now on; unchanged categories go on."""
        with self._lock:
            now = self.clock()
            whose, wanted = (level.island, level.client), dict(level.parts)
            mine, kept = self._now.setdefault(whose, {}), _Levels(level.count)
            for first, old in list(mine.items()):
                if first < level.first + level.count and level.first < first + old.count:
                    del mine[first]
                    if (first, old.count) == (level.first, level.count):
                        kept.parts = {name: part for name, part in old.parts.items() if wanted.get(name) == part[0]}
                        old.parts = {name: part for name, part in old.parts.items() if name not in kept.parts}
                    self._end(whose, first, old, now)
            if wanted:
                kept.parts |= {name: (size, now) for name, size in wanted.items() if name not in kept.parts}
                mine[level.first] = kept

    def mark(self) -> None:
        """Write the levels of now up to now and let them go on, where a recording begins or ends."""
        with self._lock:
            now = self.clock()
            for whose, mine in self._now.items():
                for first, levels in mine.items():
                    self._end(whose, first, levels, now)
                    levels.parts = {name: (size, now) for name, (size, _) in levels.parts.items()}

    def _end(self, whose: tuple[int, str], first: int, levels: _Levels, now: float) -> None:
        island, client = whose
        for category, (size, since) in levels.parts.items():
            if now == since:  # several changes at one time, which are one
                continue
            label = label_of("memory", "memory", client=client, island=island, device=first,
                             devices=levels.count, bytes=size, category=category)  # fmt: skip
            self.note(Row(label, since, now, quality="exact"))
