"""The one checker of all schedules: every dependency in order, one action at a time, no deadlock; peaks and bubble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from pathways_nb.errors import ScheduleError
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, Size, Times
from pathways_nb.parallel.schedules.registry import ScheduleKind
from pathways_nb.parallel.schedules.tasks import Dependencies, Tasks
from pathways_nb.parallel.schedules.timing import Timing, activations
from pathways_nb.util.words import counted


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

    @classmethod
    def of(cls, name: str, kind: ScheduleKind | None, timing: Timing, dependencies: int) -> Self:
        """Compare a schedule that could be timed with its closed forms.

        Args:
            name: of the schedule. kind: what made it, whose closed forms hold. timing: with F = I = W = 1.
            dependencies: how many it keeps.
        """
        size, device = timing.size, int(np.argmax(timing.peaks))
        bubble = _agrees(kind.bubble if kind else None, timing.makespan - 3 * size.microbatches, size, Times())
        peak = _agrees(kind.peak if kind else None, float(timing.peaks[device]), size, device)
        counts, peaks = (len(timing.tasks.cells), dependencies), tuple(timing.peaks.tolist())
        return cls(name, size, *counts, timing.makespan, timing.bubble, peaks, bubble, peak)

    def __repr__(self) -> str:
        needs = counted(self.dependencies, "dependency")
        peak, device = max(self.peaks), int(np.argmax(self.peaks))
        return (
            f"{self.name}, {self.size}: sound.\n{counted(self.actions, 'action')} and {needs}, all in order; "
            f"one action at a time on each device; no deadlock.\n"
            f"With F = I = W = 1 it takes {self.makespan:g}; bubble {self.bubble:.1%}{self.bubble_form};\n"
            f"peak {activations(peak)}, on device {device}{self.peak_form}."
        )


def _agrees(form: ClosedForm | None, found: float, size: Size, at: Times | int) -> str:
    """What a closed form says beside what was found; nothing where it does not hold."""
    expected = form.at(size, at) if form else None
    if form is None or expected is None:
        return ""
    if np.isclose(found, expected):
        return f" (as {form.text} says)"
    return f" (unlike {form.text}, which says {expected:g}, not {found:g})"


def require_order(tasks: Tasks, edges: Dependencies) -> None:
    """Require that on each device nothing stands before what it needs.

    Between devices, a circle shows when times are found.

    Raises:
        ScheduleError: the first dependency that is broken.
    """
    owner, cells = tasks.owner, tasks.cells
    wrong = np.flatnonzero((owner[edges.source] == owner[edges.target]) & (edges.source >= edges.target))
    if len(wrong):
        edge = wrong[np.argmin(edges.target[wrong])]
        source, target = int(edges.source[edge]), int(edges.target[edge])
        first = int(tasks.first[owner[target]])
        if source == target:
            said = f"Device {owner[target]}: of {cells[target]} (action {target - first + 1}) one pass needs the other"
            raise ScheduleError(f"{said}, so they cannot overlap. Write them as two actions.")
        raise ScheduleError(
            f"Device {owner[target]}: {cells[target]} (action {target - first + 1}) needs {cells[source]}, which comes "
            f"only as action {source - first + 1}. Put {cells[source]} before {cells[target]}."
        )
