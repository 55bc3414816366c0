"""What a run's record says of causes: critical path, slack, idle time, what if, and why."""

from __future__ import annotations

from pathways_nb.trace.causality.breakdown import Idle, idle
from pathways_nb.trace.causality.critical_path import CriticalPath, Slack, critical_path, slack
from pathways_nb.trace.causality.what_if import WhatIf, what_if
from pathways_nb.trace.causality.why import Why, why
from pathways_nb.trace.record import Record


class RunCauses:
    """The part of a run that the causes in its record answer."""

    islands: tuple[int, ...]
    record: Record

    def critical_path(self) -> CriticalPath:
        """Return the chain of events and gaps that adds up to the makespan, as far as recorded; gaps have a cause."""
        return critical_path(self.record.events())

    def slack(self) -> Slack:
        """Return how much later each event on a device could end without a longer makespan, in seconds."""
        return slack(self.record.events())

    def idle(self) -> Idle:
        """Return where the time of every device went: busy, or idle by cause; the parts add up to the makespan."""
        return idle(self.record.events(), self.islands)

    def what_if(
        self,
        node: str | None = None,
        program: str | None = None,
        kind: str | None = None,
        client: str | None = None,
        *,
        faster: float,
    ) -> WhatIf:
        """Return the makespan if some events had been faster, computed from the record with its order and gaps.

        Nothing runs again. An event is faster if it matches every argument given.

        Args:
            node: name of a node.
            program: name of a program.
            kind: of event, as in ``events``; alone it also selects those that are not on devices, such as transfers.
            client: name of a client.
            faster: factor; below 1 means slower.

        Raises:
            UsageError: no argument is given, nothing matches (the nearest are listed), or ``faster`` is not above 0.
        """
        return what_if(self.record.events(), node, program, kind, client, faster=faster)

    def why(self, at: float, island: int, device: int = 0) -> Why:
        """Return why a device waited at a time, or why what ran there began when it did, back to the beginning.

        A tap on a gap or a bar of the timeline tells the same.

        Args:
            at: in seconds since the run began.
            island: index of the island.
            device: number of the device within the island.

        Raises:
            UsageError: ``at`` is no number, nothing ran on that device, or nothing runs there any more.
        """
        return why(self.record.events(), at, island, device)
