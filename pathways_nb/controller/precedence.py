"""Which runs must be wholly enqueued before another may begin, for the sake of the buffers that both touch.

Devices do what they are given in its order: a run given to them before the one that makes its argument, or before one
that is still to read what it takes over, would wait for ever.
"""

from __future__ import annotations

from pathways_nb.controller.messages import Submitted
from pathways_nb.controller.state import RunState


class Precedence:
    """What the runs that are not wholly enqueued make and read."""

    def __init__(self) -> None:
        self.touching: dict[int, dict[int, RunState]] = {}
        """By buffer: runs that make it or read it."""
        self._making: dict[int, RunState] = {}
        """By buffer: the run that makes it."""

    def find(self, run: RunState) -> None:
        """Put a new run behind those that make its arguments, or are still to read what it takes over."""
        if not self.touching:
            return
        event = run.submitted
        before = [self._making[buffer] for buffer in event.arguments if buffer in self._making]
        for position in event.footprint.taken:
            before += self.touching.get(event.arguments[position], {}).values()
        for other in before:
            if other.submitted.run not in run.behind:
                run.behind.add(other.submitted.run)
                other.ahead_of.append(run)

    def add(self, run: RunState) -> None:
        """A run is not wholly enqueued."""
        event = run.submitted
        for buffer in (*event.arguments, *event.results):
            self.touching.setdefault(buffer, {})[event.run] = run
        self._making.update(dict.fromkeys(event.results, run))

    def remove(self, run: RunState) -> None:
        """It is: those behind it may be, too."""
        event: Submitted = run.submitted
        run.behind.clear()
        for other in run.ahead_of:
            other.behind.discard(event.run)
        run.ahead_of.clear()
        if not self.touching:
            return
        for buffer in {*event.arguments, *event.results}:
            if (touching := self.touching.get(buffer)) is not None:
                touching.pop(event.run, None)
                if not touching:
                    del self.touching[buffer]
        for buffer in event.results:
            self._making.pop(buffer, None)
