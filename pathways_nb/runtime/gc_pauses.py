"""Pauses of Python itself: a full garbage collection stops every thread, dispatchers and watchers included.

With JAX loaded, one takes 0.1 to 0.2 s (measured), enough to make a step look twenty times as long as it is. Therefore
each is recorded as a stall, and one is forced where it harms least: after compiling.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from pathways_nb.trace.rows import Row, label_of


class Pauses:
    """Reports each pause of at least ``SHORTEST`` seconds to ``report``, stamped with ``clock``, until stopped."""

    SHORTEST = 2e-3
    """Shorter pauses are too short to see in a timeline."""

    def __init__(self, clock: Callable[[], float], report: Callable[[Row], None]):
        self.clock, self.report = clock, report
        self._began = 0.0
        gc.callbacks.append(self._notice)

    def stop(self) -> None:
        """Stop reporting."""
        if self._notice in gc.callbacks:
            gc.callbacks.remove(self._notice)

    def _notice(self, phase: str, info: dict[str, Any]) -> None:
        now = self.clock()
        if phase == "start":
            self._began = now
        elif now - self._began >= self.SHORTEST:
            label = label_of("stall", "Python's garbage collection")
            self.report(Row(label, self._began, now, quality="exact"))
