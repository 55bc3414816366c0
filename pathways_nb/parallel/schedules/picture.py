"""What is drawn of a schedule, as plain columns: boxes in time, memory of each device, and sentences about both.

Widgets, still pictures and the explorer read this and nothing else, and it needs no notebook, so that all of them show
the same numbers and the tests check them without a browser. A cell is one box, an overlapped pair two that touch.
Lightness, ``shade``, tells apart the directions, chunks or token slices of one device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from pathways_nb.errors import UsageError, is_number, three_digits
from pathways_nb.parallel.schedules.boxes import boxes_of, varieties
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, ScheduleSize, Times
from pathways_nb.parallel.schedules.registry import ScheduleKind
from pathways_nb.parallel.schedules.timing import Timing, activations


class HasTiming(Protocol):
    """The part of a schedule that a picture needs; a protocol, because ``schedule`` imports this module."""

    @property
    def name(self) -> str:
        """Name for display."""

    @property
    def kind(self) -> ScheduleKind | None:
        """The kind that made the schedule; None for a schedule of the user's own."""

    def timing(self, F: ArrayLike = 1, I: ArrayLike = 1, W: ArrayLike = 1, transfer: ArrayLike = 0) -> Timing:  # noqa: E741
        """Return when each cell starts and ends; see ``Schedule.timing``."""


@dataclass(frozen=True, eq=False)
class SchedulePicture:
    """A schedule with its times, or the reason why it has none.

    Args:
        name: of the schedule.
        timing: what is drawn; None where there is ``error``.
        kind: the kind that made it, with its closed forms; None for a schedule of the user's own.
        times: as given to ``Schedule.timing``.
        cap: memory of a device, in microbatches of activations; None for no limit.
        error: why there is no timing; empty if there is one.
        marks: rows of ``boxes`` that are marked, by the kind of mark: ``"order"``, ``"late"``.
    """

    name: str
    timing: Timing | None = None
    kind: ScheduleKind | None = None
    times: Mapping[str, ArrayLike] = field(default_factory=dict)
    cap: float | None = None
    error: str = ""
    marks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, schedule: HasTiming, cap: float | None = None, **times: ArrayLike) -> Self:
        """Return the picture of a schedule evaluated with these times.

        Args:
            schedule: to evaluate.
            cap: memory of a device, in microbatches of activations; None for no limit.
            times: as for ``Schedule.timing``.

        Raises:
            ScheduleError: the schedule cannot be carried out.
            UsageError: times of a wrong shape, or a cap that is no number.
        """
        require_cap(cap)
        return cls(schedule.name, schedule.timing(**times), schedule.kind, times, cap)

    @property
    def devices(self) -> int:
        """Number of devices, which is the number of rows; 0 if there is an error."""
        return len(self.timing.tasks.first) - 1 if self.timing else 0

    @property
    def makespan(self) -> float:
        """When the last cell ends; 0 if there is an error."""
        return self.timing.makespan if self.timing else 0.0

    @property
    def bubble(self) -> float:
        """Idle time of all devices over all their time; 0 if there is an error."""
        return self.timing.bubble if self.timing else 0.0

    @property
    def peaks(self) -> np.ndarray:
        """Peak memory of each device, in microbatches of activations of a whole device."""
        return self.timing.peaks if self.timing else np.zeros(0)

    @property
    def over(self) -> np.ndarray:
        """Devices whose peak exceeds the cap."""
        # The tolerance absorbs rounding: peaks are sums of fractions 1 / (chunks × slices).
        return np.flatnonzero(self.peaks > self.cap + 1e-9) if self.cap is not None else np.zeros(0, int)

    @property
    def heading(self) -> str:
        """Name and size."""
        return f"{self.name}, {self.timing.size}" if self.timing else self.name

    @cached_property
    def words(self) -> str:
        """Makespan, bubble and peak, each with its closed form; or the error."""
        if self.timing is None:
            return self.error
        kind, size, device = self.kind, self.timing.size, int(np.argmax(self.peaks))
        bubble = _bubble_form(kind.bubble if kind else None, size, _scalar(self.times))
        peak = _peak_form(kind.peak if kind else None, size, device)
        return " · ".join([
            f"makespan {self.makespan:g}",
            f"bubble {self.timing.bubble:.1%} ({bubble})",
            f"peak {activations(self.peaks[device])} ({peak})",
            *self._cap_words,
        ])  # fmt: skip

    @property
    def _cap_words(self) -> list[str]:
        """Whether the peaks stay within the cap, as a list of one sentence; empty without a cap."""
        if self.cap is None:
            return []
        over = self.over
        if not len(over):
            return [f"within the cap of {self.cap:g}"]
        where = f"device {over[0]}" if len(over) == 1 else f"{len(over)} of {self.devices} devices"
        return [f"exceeds the cap of {self.cap:g} on {where}"]

    @cached_property
    def boxes(self) -> dict[str, np.ndarray]:
        """A row for each action; see ``boxes.boxes_of``."""
        return boxes_of(self.timing) if self.timing else {}

    def memory(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory that a device holds over time; see ``Timing.memory``."""
        return self._memories[device] if self.timing else (np.zeros(0), np.zeros(0))

    @cached_property
    def _memories(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self.timing.memory(device) for device in range(self.devices)] if self.timing else []

    @property
    def directions(self) -> tuple[str, ...]:
        """Letters of the pipelines; one empty text if there is only one pipeline."""
        return self.timing.tasks.directions if self.timing else ()

    @property
    def shades(self) -> str:
        """What lightness tells apart, in words; empty if nothing."""
        if self.timing is None:
            return ""
        counts = zip(("direction", "chunk", "token slice"), varieties(self.timing.tasks), strict=True)
        return " and ".join(name for name, count in counts if count > 1)

    def say(self, cell: int) -> str:
        """Return what happens in a cell, when, and what let it start, as a sentence."""
        if self.timing is None:
            return ""
        timing = self.timing
        span = f"{timing.start[cell]:g} to {timing.end[cell]:g}"
        where = f"device {timing.tasks.owner[cell]}"
        return f"{self.name}, {where}: {timing.tasks.cells[cell]} from {span}: {timing.why(cell)}"


def require_cap(cap: float | None) -> None:
    """Require that the memory of a device is a number of microbatches of activations, or None.

    Raises:
        UsageError: it is not.
    """
    if cap is not None and not (is_number(cap) and cap >= 0):
        raise UsageError(f"cap={cap!r} is no number of microbatches of activations, such as 4 or 2.5; None for any.")


def _scalar(times: Mapping[str, ArrayLike]) -> Times | None:
    """Return times in the form that closed forms take.

    Returns:
        None if times differ between stages, or if transfers take time: closed forms know neither.
    """
    if any(np.ndim(time) for time in times.values()) or times.get("transfer", 0):
        return None
    return Times(**{name: float(time) for name, time in times.items() if name != "transfer"})  # type: ignore[arg-type]


def _bubble_form(form: ClosedForm | None, size: ScheduleSize, times: Times | None) -> str:
    """Return the value of a closed form of the bubble in words, as a share of all time.

    Args:
        form: the closed form, if there is one.
        size: of the schedule.
        times: None where closed forms do not apply.
    """
    if form is None or times is None:
        return "no closed form for these times" if form else "no closed form"
    # A closed form is the idle time of each device; what is shown is its share of all time, as of the picture.
    idle, work = form.at(size, times), size.microbatches * (times.F + times.B)
    return _beside(form, None if idle is None else f"{idle / (idle + work) if idle + work else 0:.1%}")


def _peak_form(form: ClosedForm | None, size: ScheduleSize, device: int) -> str:
    """Return the value of a closed form of the peak on one device in words."""
    held = form.at(size, device) if form else None
    return _beside(form, None if held is None else three_digits(held))


def _beside(form: ClosedForm | None, says: str | None) -> str:
    """Return a closed form with its value, or with the sizes for which it would hold."""
    if form is None:
        return "no closed form"
    return f"closed form {form.text}: {says}" if says else f"no closed form but for {form.says or 'other sizes'}"
