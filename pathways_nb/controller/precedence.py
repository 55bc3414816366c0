"""Which runs must be wholly enqueued before another may begin, because of buffers that both use.

Devices run what they are given in order. A run that was enqueued before the producer of its argument, or before a run
that is still to read a buffer that it takes over, would wait for ever: nothing behind it in the queue can start.
Requiring *wholly enqueued*, instead of comparing single gangs, is simple and costs nothing where runs are enqueued
whole.

Order inside a run is given by its plan; see ``RunState.next_on``.
"""

from __future__ import annotations

from pathways_nb.controller.events_and_instructions import Submitted
from pathways_nb.controller.state import RunState


class Precedence:
    """Which runs, among those not wholly enqueued, produce and read each buffer."""

    def __init__(self) -> None:
        self.touching: dict[int, dict[int, RunState]] = {}
        """By buffer: runs that produce or read it."""
        self._making: dict[int, RunState] = {}
        """By buffer: the run that produces it."""

    def find(self, run: RunState) -> None:
        """Put a new run behind the producers of its arguments, and behind runs still to read what it takes over."""
        if not self.touching:
            return
        event = run.submitted
        # Read after write: the producer must be ahead in the queues. Enqueued is enough, since devices keep the order.
        before = [self._making[buffer] for buffer in event.arguments if buffer in self._making]
        # The run will overwrite this buffer: runs that read it must be ahead of it in the queues of all devices.
        for position in event.footprint.taken:
            before += self.touching.get(event.arguments[position], {}).values()
        for other in before:
            # Two runs may share several buffers; that is one precedence all the same.
            if other.submitted.run not in run.behind:
                run.behind.add(other.submitted.run)
                other.ahead_of.append(run)

    def add(self, run: RunState) -> None:
        """Register the buffers of a run that is not wholly enqueued."""
        event = run.submitted
        for buffer in (*event.arguments, *event.results):
            self.touching.setdefault(buffer, {})[event.run] = run
        self._making.update(dict.fromkeys(event.results, run))

    def remove(self, run: RunState) -> None:
        """Remove a run that is wholly enqueued; runs behind it may be enqueued now."""
        event: Submitted = run.submitted
        # A cancelled run is enqueued whatever it is behind, so there may be something left to forget.
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
