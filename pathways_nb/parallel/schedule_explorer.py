"""``pw.explore_schedules``: two pipeline schedules side by side, with sizes, times and memory that can be changed.

Schedules are kept per size, timings per choice of times, so that returning to an earlier choice is immediate.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import traitlets as t

from pathways_nb.errors import UsageError
from pathways_nb.parallel.schedules.closed_forms import Times
from pathways_nb.parallel.schedules.export import HEADER, table
from pathways_nb.parallel.schedules.picture import SchedulePicture
from pathways_nb.parallel.schedules.registry import ScheduleKind, kind_of, schedules, watch
from pathways_nb.parallel.schedules.run_over_schedule import RunOverSchedule
from pathways_nb.parallel.schedules.schedule import Schedule, schedule
from pathways_nb.parallel.schedules.timing import Timing
from pathways_nb.results.explorer_base import Explorer, ExplorerButton, check_choices, result_or_error
from pathways_nb.trace.record import Events
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.words import a_type_of

if TYPE_CHECKING:
    from pathways_widgets.drawing.scene import Scene
    from pathways_widgets.schedules.schedule_display import ScheduleFigure

_KEPT = 8
"""Number of schedules and of timings that are kept, so that returning to an earlier choice is immediate."""
SIZES = ("devices", "microbatches", "chunks", "token_slices")
TIMES = (*Times._fields, "transfer")


class _Side(NamedTuple):
    """One of the two schedules: its picture, and the schedule that is drawn; None for one that is refused."""

    picture: SchedulePicture
    schedule: Schedule | None = None

    @property
    def valid_schedule(self) -> Schedule:
        """The schedule.

        Raises:
            UsageError: it is refused, and why.
        """
        if self.schedule is None:
            raise UsageError(self.picture.error)
        return self.schedule


class ScheduleExplorer(Explorer[tuple[_Side, _Side]]):
    """Two schedules of one size, with the same times, on one axis; every choice can be set from Python, too.

    A schedule that refuses a size shows its error in place of its picture; the other one stays. ``chunks`` and
    ``token_slices`` go to the schedules that have them; None is the schedule's own number. ``cap=None`` is any memory.
    """

    first_name = t.Unicode("gpipe", help="Name of the schedule above, any that is registered").tag(
        group="schedules", label="above", options="names", width=15
    )
    second_name = t.Unicode("1f1b", help="Name of the one below").tag(
        group="schedules", label="below", options="names", width=15
    )
    devices = t.Int(4, help="Number of devices").tag(group="sizes")
    microbatches = t.Int(8, help="Number of microbatches").tag(group="sizes", width=12.5)
    chunks = t.Int(None, allow_none=True, help="Stages on each device, of the schedules that have chunks").tag(
        group="sizes", width=10, empty="its own"
    )
    token_slices = t.Int(None, allow_none=True, help="Parts of each sequence, of the schedules that have them").tag(
        group="sizes", label="token slices", width=12.5, empty="its own"
    )
    F = t.Float(1.0, help="Time of the forward pass of a microbatch through a whole device").tag(group="times")
    I = t.Float(1.0, help="Time of its gradient by the input").tag(group="times")  # noqa: E741 - what the field calls it
    W = t.Float(1.0, help="Time of its gradient by the weights").tag(group="times")
    transfer = t.Float(0.0, help="Time of sending a microbatch's activations to another device").tag(
        group="times", width=9
    )
    cap = t.Float(
        None, allow_none=True, help="Microbatches of activations that a device has room for; empty for any number"
    ).tag(group="times", label="memory cap", width=11, empty="none")
    step = t.Int(0, help="How many cells have begun, in the order of time; 0 shows all").tag(steps="steps")
    names = t.List(t.Unicode(), help="Of all schedules that can be chosen.")
    laid = t.Instance(
        RunOverSchedule, allow_none=True, help="The run that is drawn below, in place of a schedule."
    ).tag(recompute=True)
    notes: ClassVar[Mapping[str, str]] = {"times": "times in one unit of your choice, which is that of the axis, too"}
    buttons = ExplorerButton("CSV", "to_csv", "schedules.csv"), ExplorerButton("SVG", "savefig", "schedules.svg")

    def __init__(self, **choices: Any):
        super().__init__(names=schedules(), **choices)
        watch(self)

    def registered(self) -> None:
        """Update the names after a schedule was registered, perhaps one that is shown."""
        self.names = schedules()
        super().registered()  # last: it draws, and menus then offer the new name

    def overlay(self, run: Any, call: int | None = None) -> None:
        """Draw a run below the schedule above, until another schedule is chosen there; see ``pw.compare``.

        ``F``, ``I``, ``W`` and ``transfer`` become the run's medians, each as a mean over stages. Changed afterwards,
        they show what the same order would take with other times; the run stays.

        Args:
            run: of a pipeline that has the schedule above, recorded or loaded.
            call: which call of the pipeline, from 0; None for the last.

        Raises:
            UsageError: no run, or it has no such call.
        """
        if not isinstance(getattr(run, "events", None), Events):
            raise UsageError(f"overlay takes a run, of pw.record, program.run or pw.load; this is {a_type_of(run)}.")
        laid = RunOverSchedule.of(run.events, self.first, call, run.name)
        for name, value in laid.times.items():
            self.set_trait(name, value * laid.unit[1])
        self.laid = laid

    @t.observe("second_name")
    def _chosen_below(self, change: Any) -> None:
        self.laid = None

    @property
    def pictures(self) -> tuple[SchedulePicture, SchedulePicture]:
        """Both pictures, each timed or with its error."""
        above, below = self._result
        return above.picture, below.picture

    @property
    def schedules(self) -> tuple[Schedule | None, Schedule | None]:
        """Both schedules, to check or to run; None for one that is refused."""
        above, below = self._result
        return above.schedule, below.schedule

    @property
    def timings(self) -> tuple[Timing | None, Timing | None]:
        """The timings of both schedules; None for one that is refused."""
        above, below = self.pictures
        return above.timing, below.timing

    @property
    def first(self) -> Schedule:
        """The schedule above.

        Raises:
            UsageError: it is refused, and why.
        """
        return self._result[0].valid_schedule

    @property
    def second(self) -> Schedule:
        """The schedule below.

        Raises:
            UsageError: it is refused, and why.
        """
        return self._result[1].valid_schedule

    @property
    def steps(self) -> int:
        """Number of steps: one for each cell of both schedules."""
        return len(_order(*self.timings)[0])

    @property
    def pointed(self) -> tuple[int, int] | None:
        """Index of the picture and of the cell that the current step starts; None at step 0."""
        which, cell = _order(*self.timings)
        at = min(self.step, len(which)) - 1
        return (int(which[at]), int(cell[at])) if at >= 0 else None

    @property
    def why(self) -> str:
        """What begins at this step, and what let it start."""
        if self.pointed is None:
            return ""
        which, cell = self.pointed
        return f"Step {min(self.step, self.steps)} of {self.steps}. {self.pictures[which].say(cell)}"

    def to_csv(self, path: str | Path) -> None:
        """Write the tables of both schedules to one file; see ``Schedule.to_csv``."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("schedule", *HEADER))
            for picture in self.pictures:
                if picture.timing:
                    writer.writerows((picture.name, *row) for row in islice(table(picture.timing), 1, None))

    @t.validate("first_name", "second_name")
    def _known(self, proposal: Any) -> str:
        """Return the proposed name, if a schedule is registered under it."""
        return kind_of(proposal["value"]).name

    def _compute(self) -> tuple[_Side, _Side]:
        above, laid = self._side(self.first_name), self.laid
        return above, _Side(_picture(laid, self.cap), laid.schedule) if laid else self._side(self.second_name)

    def _side(self, name: str) -> _Side:
        """Return one side for the present choices; a schedule that fails becomes a picture of its error."""
        kind = kind_of(name)
        # Only the sizes that the schedule has: the others must not make it anew.
        sizes = tuple((size, getattr(self, size)) for size in SIZES if size in (*SIZES[:2], *kind.defaults))
        times = tuple((each, getattr(self, each)) for each in TIMES)
        return result_or_error(
            lambda: _side_of(kind, sizes, times, self.cap),
            lambda error: _Side(SchedulePicture(name, cap=self.cap, error=error)),
            f"schedule {name!r}",
        )

    @property
    def drawn(self) -> tuple[Any, ...]:
        """The arguments of the figure's ``draw``: both pictures, and the cell of the current step."""
        return self.pictures, self.pointed

    @property
    def summary(self) -> str:
        """What let the cell of this step start; at step 0, what steps are."""
        return self.why or f"{self.steps} steps, in the order of time: each says what let its cell start"

    @property
    def refusal(self) -> str:
        """Why a schedule is refused, or both."""
        return " ".join(dict.fromkeys(one.error for one in self.pictures if one.error))

    def make_figure(self) -> ScheduleFigure:
        """Return the live figure of both schedules."""
        from pathways_widgets.schedules.schedule_display import ScheduleFigure

        return ScheduleFigure(self.pictures)

    def scene(self, width: float = 900.0) -> Scene:
        """Return both schedules as shapes, for a page of so many pixels."""
        from pathways_widgets.schedules.schedule_still import scene_of_schedules

        return scene_of_schedules(self.pictures, width)

    def __repr__(self) -> str:
        return "\n".join(f"{one.heading}: {one.words}" for one in self.pictures)


def explore_schedules(first: str = "gpipe", second: str = "1f1b", **choices: Any) -> ScheduleExplorer:
    """Return an explorer of two pipeline schedules: controls as the last expression of a cell, attributes from Python.

    Args:
        first: name of the schedule above, registered by you or built in.
        second: name of the schedule below.
        choices: ``devices``, ``microbatches``, ``chunks``, ``token_slices``, ``F``, ``I``, ``W``, ``transfer``,
            ``cap``; see ``ScheduleExplorer``.

    Raises:
        UsageError: no such schedule or choice.
    """
    known = ScheduleExplorer.all_choices()[2:]
    check_choices("explore_schedules", choices, known, f". All: {', '.join(known)}.")
    kinds = kind_of(first).name, kind_of(second).name
    return ScheduleExplorer(first_name=kinds[0], second_name=kinds[1], **choices)


# Kept by kind and not by name: a schedule that is registered again under its name is another kind, and made again.
@lru_cache(_KEPT)
def _schedule_of(kind: ScheduleKind, sizes: tuple[tuple[str, int], ...]) -> Schedule:
    """Return a schedule of this size, with its dependencies computed."""
    with uncollected():
        made = schedule(kind.name, **dict(sizes))
        made.dependencies  # noqa: B018 - which are kept
    return made


@lru_cache(_KEPT)
def _side_of(
    kind: ScheduleKind, sizes: tuple[tuple[str, int], ...], times: tuple[tuple[str, float], ...], cap: float | None
) -> _Side:
    """Return a schedule with its picture for these times and this cap."""
    made = _schedule_of(kind, sizes)
    return _Side(SchedulePicture.of(made, cap, **dict(times)), made)


@lru_cache(_KEPT)
def _picture(laid: RunOverSchedule, cap: float | None) -> SchedulePicture:
    """Return the picture of a run, or of the error that there is no such cap."""
    try:
        return laid.pictures(cap)[1]
    except UsageError as refused:
        return SchedulePicture(laid.name, cap=cap, error=str(refused))


@lru_cache(_KEPT)
def _order(above: Timing | None, below: Timing | None) -> tuple[np.ndarray, np.ndarray]:
    """Return all cells in the order in which they start: which of the two pictures, and which cell of it."""
    # (cells of both,): a stable sort, so that of cells that start together the one above comes first.
    starts = [timing.start if timing else np.zeros(0) for timing in (above, below)]
    which = np.repeat([0, 1], [len(start) for start in starts])
    order = np.argsort(np.concatenate(starts), kind="stable")
    return which[order], np.concatenate([np.arange(len(start)) for start in starts])[order]
