"""A run laid over its schedule: the plan with the run's own durations, what ran when, and where both part.

The plan is the schedule evaluated with medians of the run: of each operation by stage and token slice, over
microbatches, and of each transfer by the two stages and the token slice. So it is what the order alone allows: all that
begins later is due to launches, uneven durations or another order. Both begin with their first action at time 0. Where
the record infers starts, they are moved to the arrival of what the action needed (see ``measured_timing``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from pathways_nb.parallel.schedules.actions import Action, actions_of
from pathways_nb.parallel.schedules.boxes import boxes_of
from pathways_nb.parallel.schedules.measured_timing import (
    PART,
    executed_timing,
    in_other_unit,
    medians_of,
    planned_timing,
    with_starts_after_causes,
)
from pathways_nb.parallel.schedules.picture import SchedulePicture, require_cap
from pathways_nb.parallel.schedules.recorded_calls import RecordedCall, find_call
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.parallel.schedules.timing import Timing, activations
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.util.csv_columns import write_columns

LATE = 0.1
"""How much later than planned an action may begin, in median durations of an action."""
_UNITS = {"µs": 1e6, "ms": 1e3, "s": 1.0}


class Deviation(NamedTuple):
    """An action that came otherwise than planned.

    Args:
        action: the action.
        device: that carried it out.
        words: what was planned, and what happened.
    """

    action: Action
    device: int
    words: str


@dataclass(frozen=True, eq=False)
class RunOverSchedule:
    """One call of a pipeline and its plan; all times in seconds.

    Args:
        schedule: the plan's order.
        call: what the record says of the call.
        planned: the plan, with medians of the call.
        ran: the call itself: the order that it had on each device, with its times.
        name: of the run.
        number: which of several calls it is, in words; empty if there is only one.
    """

    schedule: Schedule
    call: RecordedCall
    planned: Timing
    ran: Timing
    name: str
    number: str

    @classmethod
    def of(cls, events: Events, schedule: Schedule, call: int | None = None, name: str = "run") -> Self:
        """Return a run laid over a schedule.

        Args:
            events: of the run.
            schedule: that its pipeline had.
            call: which call of the pipeline, from 0; None for the last.
            name: of the run.

        Raises:
            ScheduleError: the schedule cannot be carried out.
            UsageError: the run has no such call; see ``recorded_calls.find_call``.
        """
        found, number = find_call(events, schedule, call, name)
        found = with_starts_after_causes(schedule, found)
        return cls(schedule, found, planned_timing(schedule, found), executed_timing(schedule, found), name, number)

    @cached_property
    def tolerance(self) -> float:
        """Seconds by which an action may begin later than planned: a tenth of the median action."""
        return LATE * float(np.median([end - start for start, end in self.call.spans.values()]))

    @property
    def unit(self) -> tuple[str, float]:
        """The unit of the pictures, and how many of it a second has."""
        longest = max(self.planned.makespan, self.ran.makespan)
        return next(((unit, scale) for unit, scale in _UNITS.items() if longest * scale < 999.5), ("s", 1.0))

    @cached_property
    def times(self) -> dict[str, float]:
        """Means over stages of the medians, as ``Schedule.timing`` takes them for a whole device; in seconds."""
        size, durations = self.planned.size, medians_of(self.call).items()
        each = {kind: np.mean([value for key, value in durations if key[0] == kind] or [0.0]) for kind in PART}
        # Of a whole backward pass only the sum was measured: half of it is taken for each gradient.
        I, W = (each[kind] if each[kind] else each["B"] / 2 for kind in "IW")  # noqa: E741 - what the field calls it
        whole, wires = size.chunks * size.token_slices, [end - start for start, end in self.call.sent.values()]
        wire = np.median(wires or [0.0]) * size.token_slices
        found = {"F": each["F"] * whole, "I": I * whole, "W": W * whole, "transfer": wire}
        return {name: float(value) for name, value in found.items()}

    @cached_property
    def table(self) -> dict[str, np.ndarray]:
        """Columns, a row for each action in the order of the schedule's rows.

        ``device``, ``position`` and ``ran_position`` (in the schedule's row and in the run), ``action``;
        ``planned_start``, ``planned_end``, ``run_start``, ``run_end`` and ``late`` (by how much it began later) in
        seconds; ``planned_after`` and ``run_after``: the action that it waited for, on its own device or on another;
        ``run_pause``: seconds from the end of that action, or the arrival of its result, to the start.
        """
        plan, ran = _steps(self.planned), _steps(self.ran)
        rows = [
            (one.device, one.position, ran[action].position, str(action), one.start, one.end, ran[action].start,
             ran[action].end, ran[action].start - one.start, one.after, ran[action].after, ran[action].pause)
            for action, one in plan.items()
        ]  # fmt: skip
        names = ("device", "position", "ran_position", "action", "planned_start", "planned_end",
                 "run_start", "run_end", "late", "planned_after", "run_after", "run_pause")  # fmt: skip
        return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}

    @cached_property
    def first_in_other_order(self) -> Deviation | None:
        """The first action, in time, that a device began where its row has another one."""
        row = self._first(self.table["position"] != self.table["ran_position"])
        if row is None:
            return None
        device, position = self.table["device"][row], self.table["ran_position"][row]
        # The action that the plan has at the position that this one got.
        planned = np.flatnonzero((self.table["device"] == device) & (self.table["position"] == position))[0]
        return self._deviation(row, f"as number {position + 1}, planned was {self.table['action'][planned]}")

    @cached_property
    def first_late(self) -> Deviation | None:
        """The first action, in time, that began later than planned by more than ``tolerance``."""
        row = self._first(self.table["late"] > self.tolerance)
        if row is None:
            return None
        late, start, planned = (duration(self.table[name][row]) for name in ("late", "run_start", "planned_start"))
        return self._deviation(row, f"by {late} (at {start}, planned {planned}; {self._why_late(row)})")

    def words(self) -> list[str]:
        """Return the two marked actions in words, each with what is said where there is none."""
        order, late, more = self.first_in_other_order, self.first_late, duration(self.tolerance)
        return [
            f"first in another order: {order.action} on device {order.device} {order.words}" if order
            else "every device kept its order",
            f"first later than planned by more than {more}: {late.action} on device {late.device} {late.words}" if late
            else f"nothing began more than {more} later than planned",
        ]  # fmt: skip

    def pictures(self, cap: float | None = None) -> tuple[SchedulePicture, SchedulePicture]:
        """Return the pictures of the plan and of the run, on one axis, in the unit that their headings name.

        Args:
            cap: memory of a device, in microbatches of activations; None for no limit.

        Raises:
            UsageError: a cap that is no number.
        """
        require_cap(cap)
        unit, scale = self.unit
        title = f"{self.name} ({self.call.origin})" + (f", {self.number}" if self.number else "")
        headings = f"{self.schedule.name} as planned, {self.planned.size}", title
        names = self.schedule.name, self.name
        says = f"planned with medians of the run: {self._medians()}", " · ".join(self.words())
        return tuple(
            OverlaidPicture(name, in_other_unit(timing, scale), cap=cap, title=f"{heading}, in {unit}", says=words,
                            makespan_text=duration(timing.makespan), marks=self._marks(timing))
            for timing, name, heading, words in zip((self.planned, self.ran), names, headings, says, strict=True)
        )  # type: ignore[return-value]  # fmt: skip

    def to_csv(self, path: str | Path) -> None:
        """Write ``table``."""
        write_columns(path, self.table)

    def _why_late(self, row: int) -> str:
        """Return what an action waited for in the plan and in the run, and what of it took longer."""
        after, ran_after, pause = (self.table[name][row] for name in ("planned_after", "run_after", "run_pause"))
        why = f"planned after {after or 'nothing'}, ran after {ran_after or 'nothing'}"
        if after == ran_after:
            why = f"after {after or 'nothing'} in both"
        if pause > self.tolerance:
            return f"{why}, then {duration(pause)} until its launch"
        # At most one row; none if the action waited for nothing.
        for source in np.flatnonzero(self.table["action"] == ran_after):
            later = self.table["run_end"][source] - self.table["planned_end"][source]
            if later > self.tolerance:
                return f"{why}, which ended {duration(later)} later than planned"
            if self.table["device"][source] != self.table["device"][row]:
                return f"{why}, whose transfer took longer"
        return why

    def _first(self, found: np.ndarray) -> int | None:
        """Return the row that began first in the run, of those that are true."""
        rows = np.flatnonzero(found)
        return int(rows[np.argmin(self.table["run_start"][rows])]) if len(rows) else None

    def _deviation(self, row: int, words: str) -> Deviation:
        return Deviation(_actions(self.planned)[row], int(self.table["device"][row]), words)

    def _marks(self, timing: Timing) -> dict[str, int]:
        """Return the rows of the marked actions among the boxes of a timing."""
        found = {"order": self.first_in_other_order, "late": self.first_late}
        actions = _actions(timing)
        return {kind: actions.index(one.action) for kind, one in found.items() if one}

    def _medians(self) -> str:
        """Return the medians of operations and transfers over all stages, in words."""
        spans = self.call.spans.items()
        durations = {kind: [end - start for action, (start, end) in spans if action.operation == kind] for kind in PART}
        durations["transfer"] = [end - start for start, end in self.call.sent.values()]
        said = (f"{kind} {duration(float(np.median(these)))}" for kind, these in durations.items() if these)
        return ", ".join([*said, *([] if self.call.sent else ["transfer 0"])])


@dataclass(frozen=True, eq=False)
class OverlaidPicture(SchedulePicture):
    """The picture of a plan or of a run.

    Args:
        title: the heading.
        says: in place of closed forms, which do not hold for measured times.
        makespan_text: the makespan in words.
    """

    title: str = ""
    says: str = ""
    makespan_text: str = ""

    @property
    def heading(self) -> str:
        """What is drawn, and the unit of time."""
        return self.title

    @cached_property
    def words(self) -> str:
        """Makespan, bubble and peak, and what is special to this picture."""
        assert self.timing is not None
        peak = activations(float(self.peaks.max()))
        known = [f"makespan {self.makespan_text}", f"bubble {self.timing.bubble:.1%}", f"peak {peak}"]
        return " · ".join([*known, *self._cap_words, self.says])


class _Step(NamedTuple):
    """What a timing says of an action: where, as which, when, after which action, and how long after that."""

    device: int
    position: int
    start: float
    end: float
    after: str
    pause: float


def _actions(timing: Timing) -> list[Action]:
    """Return the actions of all cells, in the order of ``boxes_of``."""
    return [action for cell in timing.tasks.cells for action in actions_of(cell)]


def _steps(timing: Timing) -> dict[Action, _Step]:
    """Return what a timing says of each action, device by device."""
    boxes, cells, found = boxes_of(timing), timing.tasks.cells, dict[Action, _Step]()
    columns = (boxes[name].tolist() for name in ("device", "start", "end", "by", "wire"))
    before, position = -1, 0
    for action, device, start, end, by, wire in zip(_actions(timing), *columns, strict=True):
        position = position + 1 if device == before else 0
        before = device
        released = float(timing.end[by]) + wire if by >= 0 else 0.0
        found[action] = _Step(device, position, start, end, str(cells[by]) if by >= 0 else "", start - released)
    return found
