"""Reports on their way to the controller: added by any thread of a host, taken in batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pathways_nb.runtime.hosts.messages import HostRow, OtherRow, RangeEnded, Report, StepRow, StepRows, narrowed
from pathways_nb.trace.rows import Label, Row, RowRange

_LINGER = 0.05
"""Seconds after which reports that nobody waits for are taken."""
_TOGETHER = 3e-4
"""Seconds that the report on a result waits for that on the end of its range, mostly the next: a batch costs more."""


class Reports:
    """A queue that is emptied at once."""

    def __init__(self) -> None:
        self._waiting: list[Report] = []
        self._ready = threading.Condition()
        self._life = 0
        self._urgent = self._over = False
        """Whether a report is waited for, and whether it is the end of a range."""

    def add(self, report: Report) -> None:
        """Add a report."""
        with self._ready:
            self._waiting.append(report)
            self._urgent, self._over = True, self._over or isinstance(report, RangeEnded)
            self._ready.notify()

    def quietly(self, report: Report) -> None:
        """Add a report that need not be taken before the next one."""
        with self._ready:
            self._waiting.append(report)

    def step(self, run: int, row: StepRow) -> None:
        """Add an event of a step quietly, to those of the same run that were added just before."""
        with self._ready:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, StepRows) and last.run == run:
                last.rows.append(row)
            else:
                self._waiting.append(StepRows(run, [row]))

    def take(self, patience: float) -> list[Report]:
        """Return all reports, waiting up to ``patience`` seconds for one."""
        with self._ready:
            life, left = self._life, patience
            while not self._ready.wait_for(lambda: self._urgent or self._life != life, min(left, _LINGER)):
                left -= _LINGER
                if self._waiting or left <= 0:
                    break
            if self._urgent:
                self._ready.wait_for(lambda: self._over or self._life != life, _TOGETHER)
            if self._life != life:
                return []
            found, self._waiting = self._waiting, []
            self._urgent = self._over = False
        return found

    def reset(self) -> None:
        """Forget all reports, and return an empty batch to whoever waits."""
        with self._ready:
            self._waiting, self._life = [], self._life + 1
            self._urgent = self._over = False
            self._ready.notify_all()


class RunRecord:
    """Where a run's events go on a host: each becomes a report, with its step in place of its label.

    Args:
        reports: the host's reports.
        run: the run's number.
        steps: the step of each label, by the label's identity.
        devices: first device of this host within its island, and their number.
    """

    def __init__(self, reports: Reports, run: int, steps: Mapping[int, int], devices: tuple[int, int]):
        self._reports, self._run, self._steps, self._devices = reports, run, steps, devices

    def add(self, row: Row) -> None:
        """Report an event."""
        step, why = self._steps.get(id(row.label)), -1 if row.cause is None else row.cause.why
        if step is None and row.label.kind == "enqueue":
            self._add_own("enqueue", row.start, row.end, why)
        elif step is None:
            self._reports.quietly(OtherRow(self._run, row))
        else:
            self.add_step(step, row.label, row.start, row.end, row.quality, row.status, why=why)

    def add_range(self, rows: RowRange) -> None:
        """Report the events of a range."""
        for row in rows:
            self.add(row)

    def arrived(self, sent: float, now: float) -> None:
        """Report that a message arrived at ``now``; an error of this host's clock does not make it arrive early."""
        self._add_own("stall", sent, max(sent, now))

    def _add_own(self, kind: str, start: float, end: float, why: int = -1) -> None:
        self._reports.quietly(HostRow(self._run, kind, start, end, self._devices[0], why))

    def add_step(
        self,
        step: int,
        label: Label,
        start: float,
        end: float,
        quality: str,
        status: str,
        route: str = "",
        bytes: int = 0,
        why: int = -1,
    ) -> None:
        """Report an event of a step; see ``StepRow``."""
        device, devices = narrowed(label, *self._devices)
        self._reports.step(self._run, (step, start, end, quality, status, device, devices, route, bytes, why))
