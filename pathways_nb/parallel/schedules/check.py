"""The one checker of all schedules: every dependency in order, one action at a time, no deadlock; peaks and bubble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pathways_nb.errors import ScheduleError
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, Size, Times

if TYPE_CHECKING:
    from pathways_nb.parallel.schedules.schedule import Schedule


@dataclass(frozen=True)
class Proof:
    """What has been shown of a schedule, with F = I = W = 1 and nothing else taking time.

    Args:
        name, size: of the schedule. actions, dependencies: how many.
        makespan: when the last action ends. bubble: idle time of all devices over all their time.
        peaks: of each device, in microbatches of activations of a whole device, freed after W.
        bubble_form, peak_form: what theory says, in words, where a closed form holds for this size; else empty.
    """

    name: str
    size: Size
    actions: int
    dependencies: int
    makespan: float
    bubble: float
    peaks: tuple[float, ...]
    bubble_form: str = ""
    peak_form: str = ""

    def __repr__(self) -> str:
        peak, device = max(self.peaks), int(np.argmax(self.peaks))
        return (
            f"{self.name}, {self.size.words}: sound.\n"
            f"{self.actions} actions and {self.dependencies} dependencies, all in order; "
            f"one action at a time on each device; no deadlock.\n"
            f"With F = I = W = 1 it takes {self.makespan:g}; bubble {self.bubble:.1%}{self.bubble_form};\n"
            f"peak {peak:g} microbatches of activations, on device {device}{self.peak_form}."
        )


def prove(schedule: Schedule) -> Proof:
    """Check a schedule.

    Raises:
        ScheduleError: the first dependency that it breaks, or a deadlock.
    """
    _ordered(schedule)
    timing, size, kind = schedule.timing(), schedule.size, schedule.kind
    device = int(np.argmax(timing.peaks))
    bubble = _agrees(kind.bubble if kind else None, timing.makespan - 3 * size.microbatches, size, Times())
    peak = _agrees(kind.peak if kind else None, float(timing.peaks[device]), size, device)
    counts = len(schedule.tasks.cells), len(schedule.dependencies.source)
    return Proof(
        schedule.name, size, *counts, timing.makespan, timing.bubble, tuple(timing.peaks.tolist()), bubble, peak
    )


def _agrees(form: ClosedForm | None, found: float, size: Size, at: Times | int) -> str:
    """What a closed form says beside what was found; nothing where it does not hold."""
    if not form or not form.where(size, Times()):
        return ""
    expected = form.value(size, at)
    if np.isclose(found, expected):
        return f" (as {form.text} says)"
    return f" (unlike {form.text}, which says {expected:g}, not {found:g})"


def _ordered(schedule: Schedule) -> None:
    """On each device nothing stands before what it needs; between devices, a circle shows when times are found."""
    edges, owner, cells = schedule.dependencies, schedule.tasks.owner, schedule.tasks.cells
    wrong = np.flatnonzero((owner[edges.source] == owner[edges.target]) & (edges.source >= edges.target))
    if len(wrong):
        edge = wrong[np.argmin(edges.target[wrong])]
        source, target = int(edges.source[edge]), int(edges.target[edge])
        first = int(schedule.tasks.first[owner[target]])
        raise ScheduleError(
            f"Device {owner[target]}: {cells[target]} (action {target - first + 1}) needs {cells[source]}, which comes "
            f"only as action {source - first + 1}. Put {cells[source]} before {cells[target]}."
        )
