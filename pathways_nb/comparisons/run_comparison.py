"""``pw.compare``: two runs, two schedules, or a run and its schedule, on one axis, with a table of differences.

A comparison is drawn by the views that draw one run: it has a run's properties, with the islands of both and names
for them. Events are matched in ``trace.matching``; schedules are compared in ``parallel.schedules.comparison``, and a
run is compared with its schedule in ``run_schedule_comparison``. Each name says whether its run is real or simulated,
so that a prediction cannot be mistaken for a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.comparisons.run_schedule_comparison import RunScheduleComparison
from pathways_nb.comparisons.step_comparison import (
    LineDifferences,
    changes_of,
    lines_of,
    median_launch,
    timeline_beside,
)
from pathways_nb.cost.calibration.this_machine import THIS_MACHINE
from pathways_nb.errors import UsageError
from pathways_nb.parallel.schedules.comparison import ScheduleComparison
from pathways_nb.parallel.schedules.run_over_schedule import RunOverSchedule
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.results.run import Run
from pathways_nb.trace.causality.headlines import runs_headline
from pathways_nb.trace.launch_ops import LateOps, Ops, concatenated
from pathways_nb.trace.matching import Difference, beginning, compare_events, comparison_line
from pathways_nb.trace.op_graph import OpGraph
from pathways_nb.trace.op_matching import compare_ops
from pathways_nb.trace.record import Events
from pathways_nb.trace.summary import summarise
from pathways_nb.trace.two_records import as_one_record
from pathways_nb.util.displaying import ShowsItself
from pathways_nb.util.words import a_type_of, counted


@dataclass(frozen=True, eq=False)
class Comparison(ShowsItself):
    """Two runs on one time axis, ``b`` below ``a``, with their controllers; what one costs beyond the other is shaded.

    Args:
        a: the first run.
        b: the second run.
    """

    a: Run
    b: Run

    @property
    def name(self) -> str:
        """The title: the names of both runs."""
        return f"{self._names[0]} above, {self._names[1]} below"

    @property
    def islands(self) -> tuple[int, ...]:
        """Number of devices of each island, of ``a`` and then of ``b``."""
        return (*self.a.islands, *self.b.islands)

    @property
    def island_names(self) -> tuple[str, ...]:
        """The names of the lanes: of each island its run and its number."""
        both = zip(self._names, (self.a, self.b), strict=True)
        return tuple(f"{name} {index}" for name, run in both for index in range(len(run.islands)))

    @property
    def hbm(self) -> tuple[int, ...]:
        """Bytes of memory of each device, for each island of both runs; 0 where unknown."""
        return (*self.a.hbm, *self.b.hbm)

    @property
    def programs(self) -> Sequence[ExecutedProgram]:
        """The programs of both runs; a graph that is in both appears once."""
        # By graph: the same program called in both runs has one graph, drawn once.
        known = {program.graph for program in self.a.programs}
        return [*self.a.programs, *(program for program in self.b.programs if program.graph not in known)]

    @property
    def finished(self) -> bool:
        """Whether both runs have ended."""
        return self.a.finished and self.b.finished

    @property
    def events(self) -> Events:
        """The events of both runs from the first dispatch of each, in seconds since then."""
        return as_one_record(self.a.events, self.b.events, len(self.a.islands))

    link_model = None  # each run may have its own

    @property
    def last_time(self) -> None:
        """Always None: a comparison is of no cell that was run before."""

    @property
    def ops(self) -> Ops:
        """The ops inside the launches of both runs, in seconds since the first dispatch of each run."""
        # Islands of b are numbered after those of a, and both runs begin at their first dispatch.
        both = (self.a.ops, 0, beginning(self.a.events)), (self.b.ops, len(self.a.islands), beginning(self.b.events))
        note = "; ".join(dict.fromkeys(ops.note for ops, *_ in both if ops.note))
        make = lambda: concatenated(*(ops.moved(islands, -begin) for ops, islands, begin in both))  # noqa: E731
        return LateOps(sum(len(ops) for ops, *_ in both), make, note)

    @property
    def op_graph(self) -> OpGraph:
        """Always empty: two graphs are not drawn as one."""
        return OpGraph()

    @property
    def difference(self) -> Difference:
        """Events of both runs matched by program, node, occurrence, stage, microbatch and token slice."""
        return compare_events(self.a.events, self.b.events)

    @property
    def op_difference(self) -> Difference:
        """Ops inside the launches of both runs, matched by scope, line and order; see ``trace.op_matching``."""
        return compare_ops(self.a.ops, self.b.ops)

    @property
    def table(self) -> dict[str, np.ndarray]:
        """Columns of the matched events, in seconds; see ``Difference``."""
        return self.difference.table

    def headline(self) -> str:
        """Return which run is faster, and how much, in one sentence; neither, if something failed in one."""
        a, b = self.a.name, self.b.name
        records = self.a.events, self.b.events
        spans = [summarise(*one).makespan for one in zip(records, (self.a.islands, self.b.islands), strict=True)]
        same_ops = bool(len(self.a.ops) and len(self.b.ops)) and bool(len(self.op_difference))
        return runs_headline((a, b) if a != b else self._names, records, spans, same_ops)

    def summary_line(self) -> str:
        """Return both makespans, their devices, and the largest difference, in one line."""
        # The name ends with a parenthesis, into which the devices are put.
        names = [f"{name[:-1]}, {_devices(run)})" for name, run in zip(self._names, (self.a, self.b), strict=True)]
        ops = self.op_difference if len(self.a.ops) and len(self.b.ops) else None
        has_ops = ops is not None and len(ops) > 0
        line = comparison_line(names, self.a.events, self.b.events, (self.a.islands, self.b.islands), has_ops)
        if ops is None:
            return line
        matched = f"{counted(len(ops), 'op')} matched, {ops.only_a} and {ops.only_b} without partner"
        return " · ".join([line, matched, *self._worst(ops)])

    def _worst(self, ops: Difference) -> list[str]:
        """Return the lines that differ most, in words."""
        return ops.worst(3)

    def show(self, *views: str) -> None:
        """Display both runs on one axis in the current cell.

        Args:
            *views: any of ``"timeline"``, ``"ops"``, ``"memory"`` and ``"categories"``; the timeline if none is named.

        Raises:
            ValueError: two runs have no such view.
        """
        from pathways_widgets.figures.live_display import LiveDisplay
        from pathways_widgets.figures.panel import OF_TWO_RUNS, check_show

        # The display of a live run, which is filled once and ended.
        display = LiveDisplay(self, check_show(views or ("timeline",), OF_TWO_RUNS))
        display.start()
        display.stop()

    def to_csv(self, path: str | Path) -> None:
        """Write the table of differences."""
        self.difference.to_csv(path)

    def savefig(self, path: str | Path, width: str | float = 900, show: Sequence[str] = ("timeline",)) -> None:
        """Write both runs as one picture; see ``Run.savefig`` and, for the views in it, ``show``."""
        from pathways_widgets.figures.panel import OF_TWO_RUNS, check_show
        from pathways_widgets.figures.run_still import write

        write(self, path, width, check_show(show, OF_TWO_RUNS))

    @property
    def _names(self) -> tuple[str, str]:
        """Each run's name with ``real`` or ``simulated``, and with ``a`` or ``b`` where these would be equal."""
        a, b = (f"{run.name} ({_kind(run)})" for run in (self.a, self.b))
        # Also a run compared with itself has two names.
        return (a, b) if a != b else (f"{self.a.name} (a, {_kind(self.a)})", f"{self.b.name} (b, {_kind(self.b)})")

    def __repr__(self) -> str:
        return f"<comparison: {self.summary_line()}>"


@dataclass(frozen=True, eq=False, repr=False)
class StepComparison(Comparison):
    """Two adopted steps on one time axis.

    Args:
        a: timeline of the first.
        b: timeline of the second.
        first: the first step.
        second: the second step.
    """

    first: StepAnswers
    second: StepAnswers

    @property
    def changes(self) -> tuple[str, ...]:
        """What differs: chip, mesh, options of the compiler by name and value, versions."""
        return changes_of(self.first, self.second)

    def lines(self) -> LineDifferences:
        """Return what each operation of each line takes in both steps, those that became slower most first."""
        return lines_of(self.a, self.b)

    def show(self, *views: str) -> None:
        """Display both steps on one axis; their operations if no view is named, see ``Comparison.show``."""
        super().show(*(views or ("ops",)))

    def summary_line(self) -> str:
        """Return what differs, and what ``Comparison`` says of the timelines, in one line."""
        return " · ".join([*self.changes, super().summary_line()])

    def _worst(self, ops: Difference) -> list[str]:
        # With operations that only one step has: a gather that is gone is no matched op.
        return self.lines().worst(3)


def _kind(run: Run) -> str:
    """Return ``"simulated"`` or ``"real"``, by the options of a run or by its stamps."""
    # The options may be missing in a run that was loaded; its stamps then say it.
    simulated = run.about.get("options", {}).get("kind") == "sim" or run.events.is_("quality", "simulated").any()
    return "simulated" if simulated else "real"


def _devices(run: Run) -> str:
    """Return the name of the simulated chip, or the kind of the real devices; of a trace, also what recorded it."""
    options, trace = run.about.get("options", {}), run.about.get("trace")
    chip = options.get("chip") or options.get("kind") or "unknown"
    recorded = f", from {trace['tool']}" if trace else ""
    return "this machine as calibrated" if chip == THIS_MACHINE else f"{chip} devices{recorded}"


@overload
def compare(a: StepAnswers, b: StepAnswers) -> StepComparison: ...
@overload
def compare(a: Run | StepAnswers, b: Run | StepAnswers) -> Comparison: ...
@overload
def compare(a: Schedule, b: Schedule) -> ScheduleComparison: ...
@overload
def compare(a: Run, b: Schedule, *, call: int | None = None) -> RunScheduleComparison: ...
@overload
def compare(a: Schedule, b: Run, *, call: int | None = None) -> RunScheduleComparison: ...
def compare(a: Any, b: Any, *, call: int | None = None) -> Comparison | ScheduleComparison | RunScheduleComparison:
    """Return two runs, two pipeline schedules, or a run and the schedule of its pipeline, on one axis.

    An adopted step, or a saved one, is compared by its timeline, with another step or with a profile of it: operations
    are matched by scope, line and order. Of a profile of several calls, the one that took the median time is compared.
    Of two steps it says what differs (chip, mesh, options, versions), and which lines take longer.

    A run and a schedule, in either order: the schedule is drawn above, planned with the run's own medians of each
    operation and transfer. In both pictures the first action that came in another order is marked, and the first that
    began later than planned by more than a tenth of the median action.

    Args:
        a: a run, recorded or loaded; a step; or a schedule.
        b: a run, a step or a schedule.
        call: for a run and a schedule: which call of the pipeline, from 0 in the order of time, counted from the end
            if negative; None for the last. Only calls with all actions of the schedule count.

    Raises:
        ScheduleError: the schedule cannot be carried out.
        UsageError: one of them is neither, ``call`` is given for something else, or the run has no call of a pipeline
            with exactly the actions of the schedule.
    """
    steps = (a, b)
    if isinstance(a, StepAnswers) != isinstance(b, StepAnswers):
        step = a if isinstance(a, StepAnswers) else b
        a, b = (median_launch(one, step.name) if isinstance(one, Run) else one for one in (a, b))
    a, b = (timeline_beside(one, other) if isinstance(one, StepAnswers) else one for one, other in ((a, b), (b, a)))
    for name, one in (("first", a), ("second", b)):
        if not isinstance(one, Run | Schedule):
            what = f"{a_type_of(one)}, not a run (of pw.record, program.run or pw.load) and no pw.schedule"
            raise UsageError(f"compare: the {name} argument is {what}.")
    if isinstance(a, Run) != isinstance(b, Run):
        # Their types say which is which, so the order is free.
        run, plan = (a, b) if isinstance(a, Run) else (b, a)
        return RunScheduleComparison(RunOverSchedule.of(run.events, plan, call, run.name))
    if call is not None:
        two = "runs" if isinstance(a, Run) else "schedules"
        raise UsageError(f"compare: call={call!r} chooses a call of a run beside its schedule; these are two {two}.")
    if all(isinstance(one, StepAnswers) for one in steps):
        return StepComparison(a, b, *steps)
    return Comparison(a, b) if isinstance(a, Run) else ScheduleComparison(a, b)
