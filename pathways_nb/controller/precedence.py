"""Which calls must be wholly enqueued before another may begin, because of buffers that both use.

Devices run what they are given in order. A call that was enqueued before the producer of its argument, or before a call
that is still to read a buffer that it takes over, would wait for ever: nothing behind it in the queue can start.
Requiring *wholly enqueued*, instead of comparing single gangs, is simple and costs nothing where calls are enqueued
whole.

Order inside a call is given by its plan; see ``CallState.next_on``.
"""

from __future__ import annotations

from pathways_nb.controller.events_and_instructions import Submitted
from pathways_nb.controller.state import CallState


class Precedence:
    """Which calls, among those not wholly enqueued, produce and read each buffer."""

    def __init__(self) -> None:
        self.touching: dict[int, dict[int, CallState]] = {}
        """By buffer: calls that produce or read it."""
        self._making: dict[int, CallState] = {}
        """By buffer: the call that produces it."""

    def find(self, call: CallState) -> None:
        """Put a new call behind the producers of its arguments, and behind calls still to read what it takes over."""
        if not self.touching:
            return
        event = call.submitted
        # Read after write: the producer must be ahead in the queues. Enqueued is enough, since devices keep the order.
        before = [self._making[buffer] for buffer in event.arguments if buffer in self._making]
        # The call will overwrite this buffer: calls that read it must be ahead of it in the queues of all devices.
        for position in event.footprint.taken:
            before += self.touching.get(event.arguments[position], {}).values()
        for other in before:
            # Two calls may share several buffers; that is one precedence all the same.
            if other.submitted.run not in call.behind:
                call.behind.add(other.submitted.run)
                other.ahead_of.append(call)

    def add(self, call: CallState) -> None:
        """Register the buffers of a call that is not wholly enqueued."""
        event = call.submitted
        for buffer in (*event.arguments, *event.results):
            self.touching.setdefault(buffer, {})[event.run] = call
        self._making.update(dict.fromkeys(event.results, call))

    def remove(self, call: CallState) -> None:
        """Remove a call that is wholly enqueued; calls behind it may be enqueued now."""
        event: Submitted = call.submitted
        # A cancelled call is enqueued whatever it is behind, so there may be something left to forget.
        call.behind.clear()
        for other in call.ahead_of:
            other.behind.discard(event.run)
        call.ahead_of.clear()
        if not self.touching:
            return
        for buffer in {*event.arguments, *event.results}:
            if (touching := self.touching.get(buffer)) is not None:
                touching.pop(event.run, None)
                if not touching:
                    del self.touching[buffer]
        for buffer in event.results:
            self._making.pop(buffer, None)
