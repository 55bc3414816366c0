"""The controller's lane of an island: for how long its dispatcher dispatched, and what it waited for."""

from __future__ import annotations

from collections.abc import Callable

from pathways_nb.runtime.launch_causes import enqueue_label
from pathways_nb.runtime.run_state import RunState
from pathways_nb.timing.waits import MESSAGE
from pathways_nb.trace.rows import BY, Cause, Row, label_of

_NOTABLE = 5e-5
"""Seconds from which on a wait is no part of dispatching; shorter ones are not worth two events of the record."""


class EnqueueLane:
    """Records the dispatching of one island.

    Args:
        island: its index.
        clock: the controller's clock, in seconds.
        latency: seconds between the sending of a range and its arrival.
    """

    def __init__(self, island: int, clock: Callable[[], float], latency: float):
        self.island, self.clock, self.latency = island, clock, latency
        self._began = 0.0
        """When the dispatching under way began, on the clock: at the start of a range, or after its last wait."""
        self._cause, self._over = BY[MESSAGE], 0.0
        """Why it began then, and when the last range was dispatched."""

    def begin(self, sent: float, cause: Cause) -> None:
        """Begin to dispatch a range that was sent for a reason."""
        # Behind another range, that one's end is what it waited for, and not what the controller sent it for.
        self._cause = BY[MESSAGE] if self.latency or sent < self._over else cause
        self._began = self.clock()

    def end(self, run: RunState) -> None:
        """End the dispatching of a range."""
        self._over = self.clock()
        self._record(run, self._over)

    def arrive(self, run: RunState, sent: float, cause: Cause) -> None:
        """Wait until a message sent at ``sent`` would arrive; a cancelled run is not waited for."""
        run.launched.wait(lambda: run.stopped, max(sent + self.latency - self.clock(), 0.0))
        label = label_of("stall", f"message to island {self.island} on its way", run.compiled_plan.name, run.client,
                         island=self.island, route="DCN")  # fmt: skip
        until = min(sent + self.latency, self.clock())
        run.record.add(Row(label, sent, until, run.serial, "exact", cause=cause))

    def wait(self, run: RunState, wait: Callable[[], object], cause: Callable[[], Cause], reason: str = "") -> None:
        """Wait; waiting is not dispatching, so it is left out of the lane.

        Args:
            run: whose step waits.
            wait: returns when the wait is over.
            cause: returns what ended the wait.
            reason: under which the wait itself is recorded; empty if other events tell what it was for.
        """
        began = self.clock()
        wait()
        if self.clock() - began <= _NOTABLE:
            return
        self._record(run, began)
        self._began, self._cause = self.clock(), cause()
        if reason:
            label = label_of("stall", reason, run.compiled_plan.name, run.client, island=self.island)
            run.record.add(Row(label, began, self._began, run.serial, "exact"))

    def _record(self, run: RunState, until: float) -> None:
        label = enqueue_label(run, self.island)
        run.record.add(Row(label, self._began, until, run.serial, "exact", cause=self._cause))
