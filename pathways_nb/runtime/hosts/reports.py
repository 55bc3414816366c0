"""What a host reports to the controller: added by any of its threads, taken in batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pathways_nb.errors import PathwaysError
from pathways_nb.trace.rows import Label, Row, RowRange

_LINGER = 0.05
"""Seconds after which reports that nobody waits for are taken."""
_TOGETHER = 3e-4
"""Seconds that the report on a result waits for that on the end of its range, mostly the next: a batch costs more."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step that others wait for has ended well; ``value`` is its whole only output if that is small."""

    run: int
    step: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step has no outputs and never will."""

    run: int
    step: int
    error: PathwaysError


@dataclass(frozen=True, slots=True)
class RangeEnded:
    """All steps of a range have ended."""

    run: int
    start: int
    stop: int
    device_seconds: float


StepRow = tuple[int, float, float, str, str, int, int, str, int, int]
"""An event of a step, whose label the controller has, as a plain tuple: of all kinds it is the quickest to pickle.

It has step, start, end, quality, status, first device, number of devices, route, bytes and why: route and bytes only
where they differ from the label's, and why it began as a position in ``timing.waits.WHY``, -1 if that is not known.
"""


@dataclass(slots=True)
class StepRows:
    """Events of a run's steps."""

    run: int
    rows: list[StepRow]


class HostRow(NamedTuple):
    """What every range brings about on a host: its message's way there (kind ``"stall"``), and its ``"enqueue"``.

    ``device`` is the first of the host, which tells the host.
    """

    run: int
    kind: str
    start: float
    end: float
    device: int
    why: int = -1


@dataclass(frozen=True, slots=True)
class OtherRow:
    """Another event of a run that is no step."""

    run: int
    row: Row


@dataclass(frozen=True, slots=True)
class Broken:
    """This host cannot go on with its island: a launch may have succeeded on others, or a stranger is among them."""

    error: str


Report = StepEnded | StepFailed | RangeEnded | StepRows | HostRow | OtherRow | Broken


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

    def steps(self, run: int, rows: list[StepRow]) -> None:
        """Add events of steps quietly, to those of the same run that were added just before."""
        with self._ready:
            last = self._waiting[-1] if self._waiting else None
            if isinstance(last, StepRows) and last.run == run:
                last.rows += rows
            else:
                self._waiting.append(StepRows(run, rows))

    def collect(self, patience: float) -> list[Report]:
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
        """Report the events of a range, which are all steps'."""
        made = []
        for label, start, end, _, quality, status, cause in rows:
            device, devices = narrowed(label, *self._devices)
            why = -1 if cause is None else cause.why
            made.append((self._steps[id(label)], start, end, quality, status, device, devices, "", 0, why))
        self._reports.steps(self._run, made)

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
        self._reports.steps(self._run, [(step, start, end, quality, status, device, devices, route, bytes, why)])


def narrowed(label: Label, first: int, count: int) -> tuple[int, int]:
    """Return the part of a label's devices that lies on a host with ``count`` devices from ``first`` on."""
    begin = max(label.device, first)
    return begin, max(min(label.device + label.devices, first + count) - begin, 0)
