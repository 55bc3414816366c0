"""The one checker of all schedules: dependencies in order, one action at a time, no deadlock; peaks and bubble.

Order within a device is checked from the arrays alone. A deadlock between devices appears as a circle when
``timing.fixed_order`` evaluates the times, so there is no second search for it. The report compares what was found with
the closed forms of the schedule's kind, where they hold, and says so when they differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from pathways_nb.errors import ScheduleError
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, ScheduleSize, Times
from pathways_nb.parallel.schedules.registry import ScheduleKind
from pathways_nb.parallel.schedules.tasks import Dependencies, Tasks
from pathways_nb.parallel.schedules.timing import Timing, activations
from pathways_nb.util.words import counted


@dataclass(frozen=True)
class Proof:
    """The result of a check, with F = I = W = 1 and no transfer time.

    Args:
        name: of the schedule.
        size: of the schedule.
        actions: number of cells.
        dependencies: number of dependencies.
        makespan: when the last action ends.
        bubble: idle time of all devices over all their time.
        peaks: of each device, in microbatches of activations of a whole device, freed after W.
        bubble_form: comparison with the closed form of the bubble; empty if none holds for this size.
        peak_form: the same of the peak.
    """

    name: str
    size: ScheduleSize
    actions: int
    dependencies: int
    makespan: float
    bubble: float
    peaks: tuple[float, ...]
    bubble_form: str = ""
    peak_form: str = ""

    @classmethod
    def of(cls, name: str, kind: ScheduleKind | None, timing: Timing, dependencies: int) -> Self:
        """Return the comparison of a timed schedule with its closed forms.

        Args:
            name: of the schedule.
            kind: the kind that made it, with its closed forms; None for a schedule of the user's own.
            timing: with F = I = W = 1.
            dependencies: number of dependencies that it keeps.
        """
        size, device = timing.size, int(np.argmax(timing.peaks))
        # Work per device is 3m: F = I = W = 1 for each of m microbatches.
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


def _agrees(form: ClosedForm | None, found: float, size: ScheduleSize, at: Times | int) -> str:
    """Return words that compare a closed form with a found value; empty where it does not hold.

    Args:
        form: the closed form, if there is one.
        found: the value found.
        size: of the schedule.
        at: the times of a bubble, or the device of a peak.
    """
    expected = form.at(size, at) if form else None
    if form is None or expected is None:
        return ""
    if np.isclose(found, expected):
        return f" (as {form.text} says)"
    return f" (unlike {form.text}, which says {expected:g}, not {found:g})"


def require_order(tasks: Tasks, edges: Dependencies) -> None:
    """Require that on each device every cell comes after the cells that it needs.

    Between devices, a circle is found when times are evaluated.

    Args:
        tasks: the schedule.
        edges: its dependencies.

    Raises:
        ScheduleError: the first dependency that is broken.
    """
    owner, cells = tasks.owner, tasks.cells
    # Cells are numbered along the rows, so on one device the smaller number runs first.
    wrong = np.flatnonzero((owner[edges.source] == owner[edges.target]) & (edges.source >= edges.target))
    if len(wrong):
        # The first in the order of the rows, where a reader looks first.
        edge = wrong[np.argmin(edges.target[wrong])]
        source, target = int(edges.source[edge]), int(edges.target[edge])
        first = int(tasks.first[owner[target]])
        # A dependency within one cell: both passes of an overlapped pair are of one microbatch and stage.
        if source == target:
            said = f"Device {owner[target]}: of {cells[target]} (action {target - first + 1}) one pass needs the other"
            raise ScheduleError(f"{said}, so they cannot overlap. Write them as two actions.")
        raise ScheduleError(
            f"Device {owner[target]}: {cells[target]} (action {target - first + 1}) needs {cells[source]}, which comes "
            f"only as action {source - first + 1}. Put {cells[source]} before {cells[target]}."
        )
