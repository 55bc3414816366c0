"""Runs: everything recorded while a cell, a ``with pw.record()`` block or one program ran.

A run holds the event record and the graphs of its programs; every number is computed from these when asked for, so a
loaded run and a recorded one answer the same questions. Views are imported only when something is shown. A run may hold
results on devices, so it is not pickled: ``save`` and ``load`` write and read it as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, get_args

from pathways_nb.controller import log_text
from pathways_nb.controller.log import Log
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError
from pathways_nb.results import chrome_trace, perfetto_trace, saved_run
from pathways_nb.results.controller_history import ControllerHistory
from pathways_nb.results.executed_program import ExecutedProgram, ExecutedPrograms
from pathways_nb.results.named_runs import expression_of
from pathways_nb.results.run_causes import RunCauses
from pathways_nb.runtime.recorded.recorded_tasks import unread_words
from pathways_nb.runtime.sim.simulated_ops import exposed_inside, simulated_ops
from pathways_nb.trace import formats
from pathways_nb.trace.causality.headlines import rerun_headline, run_headline
from pathways_nb.trace.causality.without_dispatch import AT_ONCE, overhead
from pathways_nb.trace.exact_stamps import Stamps
from pathways_nb.trace.exchange_hiding import Exchange, exchange
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.memory_history import Division, MemoryHistory, memory_of
from pathways_nb.trace.op_graph import OpGraph
from pathways_nb.trace.overhead import Overhead
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.summary import Summary, summarise
from pathways_nb.util.words import counted

if TYPE_CHECKING:
    from pathways_nb.runtime.entries import Entry
    from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
    from pathways_nb.runtime.run_state import RunState


@dataclass(eq=False)
class Run(ControllerHistory, RunCauses):
    """A recorded execution of a cell, a block or one program.

    Args:
        name: the user's name for it.
        islands: number of devices of each island.
        record: the events, while they are being recorded.
        outputs: what the program returned, for a run of ``program.run``.
    """

    name: str
    islands: tuple[int, ...]
    record: Record = field(default_factory=Record, repr=False)
    outputs: Any = None
    note: str = ""
    """A line of progress while the run is in progress; replaces the summary."""
    on_display: bool = False  # whether a live figure shows ``note``; otherwise progress is printed
    finished: bool = False
    view: Any = field(default=None, repr=False)
    """Its figure on the screen; ``view.selection`` is what the user has selected in it."""
    last_time: Events | None = field(default=None, repr=False)
    """What the same cell did when it was run last, if its picture shows what has changed since."""
    link_model: CostModel | None = field(default=None, repr=False)
    """The calibrated model of its real devices, beside which transfers are shown; None without one."""
    stamps: Stamps | None = None
    """Result of ``pw.profile``: how many launches have exact stamps, and the errors of the estimated ones."""
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    """Options of the controller and the cell's source; of a saved run the host as well."""
    adopted: Sequence[Any] = field(default=(), repr=False)
    """The user's jitted functions that were called, as steps; of ``pw.record(adopt=…)``."""
    op_graph: OpGraph = field(default_factory=OpGraph, repr=False)
    """The operations of an adopted step by module, and what reads what; empty for other runs. It is not saved."""
    _programs: ExecutedPrograms = field(default_factory=ExecutedPrograms, repr=False)
    states: list[RunState] = field(default_factory=list, repr=False)
    kept_log: Log | bytes = field(default=b"", repr=False)
    """The controller's log of the run, of a loaded one as text; empty without one."""
    launched: dict[int, CompiledPlan] | None = field(default=None, repr=False)
    """While a profile is taken: the plan of each call, by its serial. ``run.ops`` gets its names from it."""
    opened: dict[int, CompiledPlan] = field(default_factory=dict, repr=False)
    """On simulated chips, by serial of a run: its plan, if the chip's compiler has compiled nodes of it."""
    _ops: tuple[int, Ops] | None = field(default=None, repr=False)
    """The ops, and the number of events at which they were all; -1 for those of a profile."""

    @property
    def ops(self) -> Ops:
        """The single ops inside launches, from ``pw.profile``, or as a simulated chip's own compiler schedules them.

        Empty without both. See ``run.ops.of``.
        """
        if self._ops is None and not self.opened:
            return Ops()
        if self._ops is None or -1 < self._ops[0] != len(self.events):
            events = self.events
            self._ops = len(events), simulated_ops(events, self.opened)
        return self._ops[1]

    @ops.setter
    def ops(self, ops: Ops) -> None:
        self._ops = -1, ops

    def add(self, state: RunState) -> None:
        """Record that a program of this run was submitted."""
        self._programs.add(state)
        if self.launched is not None:
            self.launched[state.serial] = state.compiled_plan
        if state.compiled_plan.is_opened:
            self.opened[state.serial] = state.compiled_plan
        # States of finished calls are dropped now and then: a loop of a million calls would keep a million of them.
        if len(self.states) >= 256:
            self.states = self.unfinished()
        self.states.append(state)

    def count_as_placed(self, count: int, size: int) -> None:
        """Count abstract arguments that simulated calls assumed to be on their devices already.

        Args:
            count: number of arguments.
            size: their bytes in all.
        """
        if count:
            before, total = self.about.get("taken_as_placed", (0, 0))
            self.about["taken_as_placed"] = [before + count, total + size]

    def need(self, entry: Entry, line: str) -> None:
        """Record that Python waits for a value at ``line``, before anything later is dispatched.

        Args:
            entry: the stored value; ignored if no program of this run made it.
            line: the line of Python.
        """
        # Not a value from ``put``, or of a program that was called before the recording began.
        if entry.run is not None and entry.run.record is self.record:
            self._programs.need(entry.run, entry, line)

    def absorb(self, inner: Run) -> None:
        """Add everything that a run recorded within this one contains."""
        self.record.absorb(inner.record)
        self.count_as_placed(*inner.about.get("taken_as_placed", (0, 0)))
        self.opened |= inner.opened
        self._programs.absorb(inner._programs)

    @property
    def is_over(self) -> bool:
        """Whether every program of this run has finished."""
        return all(state.finished for state in reversed(self.states))  # the last call usually ends last

    def unfinished(self) -> list[RunState]:
        """Return the programs of this run that are still in progress."""
        return [state for state in self.states if not state.finished]

    @property
    def island_names(self) -> tuple[str, ...]:
        """Always empty: islands of one run are shown by their numbers. A comparison has names."""
        return ()

    @property
    def hbm(self) -> tuple[int, ...]:
        """Bytes of memory of each device, for each island; 0 where unknown."""
        # Absent where there are no devices, as of a graph of which nothing ran.
        return tuple(self.about.get("hbm") or [0] * len(self.islands))

    def set_programs(self, programs: Sequence[ExecutedProgram]) -> None:
        """Set the programs of a run that was loaded or has only a graph."""
        self._programs.by_plan = {program.graph: program for program in programs}

    @property
    def programs(self) -> list[ExecutedProgram]:
        """The programs that ran, in the order of their first call."""
        return list(self._programs.by_plan.values())

    @property
    def events(self) -> Events:
        """All events as columns; times in seconds since the run began."""
        return self.record.events()

    def summary(self) -> Summary:
        """Return makespan, utilisation, dispatch time, peak memory and other totals."""
        count, total = self.about.get("taken_as_placed", (0, 0))
        found = summarise(self.events, self.islands, self.hbm)
        # A picture shows the summary ten times a second while a run goes on.
        if self.finished and len(self.events) <= AT_ONCE:
            found = replace(found, overhead=self.overhead())
        # Events do not say what was assumed to be placed already; the run has counted it.
        return replace(found, taken=count, taken_bytes=total)

    def headline(self) -> str:
        """Return what matters in the run in one sentence, or ``note`` while there is one; empty while nothing ran.

        Of a cell that was run again, a second line says what has changed since its last run.
        """
        if self.note or "opened" in self.about:  # of one opened launch the summary says what counts
            return self.note
        if self.finished and not len(self.events):
            return "Nothing went through the controller here"
        said = run_headline(self.events, self.islands, self.finished)
        if not self.finished or self.last_time is None:
            return said
        return "\n".join(filter(None, (said, rerun_headline(self.last_time, self.events))))

    def summary_line(self) -> str:
        """Return the summary in one line of plain text, or ``note`` while there is one."""
        if said := self.note or self.about.get("opened", {}).get("summary"):
            return str(said)
        parts = self.about.get("options", {}).get("chip"), self.summary(), exposed_inside(self.opened)
        rest = self.about.get("shares"), self.stamps, unread_words(self.about.get("unread", {}))
        return " · ".join(map(str, filter(None, (*parts, *rest))))

    def memory(self, by: Division = "client") -> list[MemoryHistory]:
        """Return what the devices held over time, as steps; devices with the same history are one.

        Each has ``times``, ``names`` and ``levels``, the bytes on each device by time and name, and ``peak``.

        Args:
            by: ``"client"``, or ``"category"``: what the memory was held for, such as ``"parameters"`` (declared by
                ``pw.put`` and ``pw.program``), ``"values"``, ``"results"``, ``"intermediates"`` or ``"temporaries"``.

        Raises:
            UsageError: ``by`` is neither.
        """
        if by not in get_args(Division):
            raise UsageError(f"memory(by={by!r}): choose from {', '.join(map(repr, get_args(Division)))}.")
        return memory_of(self.events, by)

    def overhead(self) -> Overhead:
        """Return what the controller cost: dispatch for a node, a call, and the makespan without dispatch, in seconds.

        ``hidden_from`` is the length of a node from which on devices always have work, as far as the record tells: the
        question of Pathways, Figure 6, asked of this run.
        """
        return overhead(self.events)

    def exchange(self) -> Exchange:
        """Return how long transfers between islands took, and how much of that lies under computation."""
        return exchange(self.events)

    @property
    def _usual_views(self) -> tuple[str, ...]:
        """The views that are shown if none is named; a trace of another tool has no graph."""
        from pathways_widgets.figures.panel import DEFAULT_SHOW

        return ("timeline",) if "trace" in self.about else DEFAULT_SHOW

    def show(self, *views: str, at: str = "") -> None:
        """Display the run in the current cell.

        Args:
            *views: any of ``"graph"``, ``"timeline"``, ``"critical"`` (the timeline with its critical path), ``"ops"``
                (the timeline with the ops inside launches, of ``pw.profile``), ``"modules"`` (of an adopted step the
                graph of its operations, folded by module) and ``"memory"``, or several as ``"timeline,memory"``; graph
                and timeline if none is named, of a trace without a graph the timeline.
            at: where the figure opens: zoom, selection and what is hidden, as "copy this view" below a figure gives
                them. A view with a ``step`` opens the player of ``steps()``.

        Raises:
            ValueError: there is no such view; the nearest one is named. Or ``at`` is none.
        """
        from pathways_widgets.figures.live_display import LiveDisplay
        from pathways_widgets.figures.viewpoint import split_view

        opens_at, of_player = split_view(at)
        if of_player:
            self.steps().show(of_player, opens_at)
            return
        display = LiveDisplay(self, views or self._usual_views, opens_at, partial(expression_of, self))
        display.start()
        self.view = display.figure
        display.stop()

    def to_csv(self, path: str | Path) -> None:
        """Write ``events`` as a table of comma-separated values."""
        formats.to_csv(self.events, path)

    def to_pandas(self) -> Any:
        """Return ``events`` as a ``pandas.DataFrame``.

        Raises:
            UsageError: pandas is not installed.
        """
        return formats.to_pandas(self.events)

    def to_chrome(self, path: str | Path) -> None:
        """Write a Chrome trace for https://ui.perfetto.dev; compressed if ``path`` ends in ``.gz``."""
        chrome_trace.to_chrome(self.events, self.islands, path)

    def to_perfetto(self, path: str | Path) -> None:
        """Write the same in Perfetto's own format; it needs ``pip install 'pathways_nb[perfetto]'``."""
        perfetto_trace.to_perfetto(self.events, self.islands, path)

    def savefig(
        self, path: str | Path, width: str | float = 900, show: Sequence[str] = ("graph", "timeline"), at: str = ""
    ) -> None:
        """Write a picture with legends and summary, without a browser: SVG or PNG, by the ending of ``path``.

        Args:
            path: path of the file.
            width: pixels, or a length such as ``"3.3in"``.
            show: the views in it, as for ``show``.
            at: what is seen of the run, as for ``show``: all but the visible part of a graph, which is drawn whole.

        Raises:
            ValueError: the ending, the length, a view or ``at`` is unknown.
        """
        from pathways_widgets.figures.run_still import write

        write(self, path, width, show, at)

    def to_html(self, path: str | Path, *views: str, at: str = "") -> None:
        """Write the figure of the run to one HTML file, which needs neither a kernel nor a network.

        Zoom, hover, legends and links between views work in it; no more detail is drawn after a zoom.

        Args:
            path: path of the file, which ends in ``.html``.
            *views: as for ``show``.
            at: where it opens, as for ``show``, but for the step of a player. ``page.html#…`` opens it at another view.

        Raises:
            ValueError: the ending, a view or ``at`` is unknown.
        """
        from pathways_widgets.figures.page import write_run

        write_run(self, path, views or self._usual_views, at)

    def save(self, path: str | Path) -> None:
        """Write everything to one file, which ``pw.load`` reads on any machine.

        Raises:
            UsageError: the run is larger than what ``pw.load`` reads.
        """
        ops = self.ops
        about = {**self.about, "began": self.began, **({"ops": ops.note} if ops.note else {})}
        log = self.kept_log if isinstance(self.kept_log, bytes) else log_text.as_bytes(self.kept_log)
        parts = self.name, self.islands, self.events, self.programs, self.stamps, about, ops, log
        saved_run.write(saved_run.SavedRun(*parts), path)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError(
            f"run {self.name!r} cannot be copied or pickled: it may be under way, and holds results on devices. Write "
            f"it with run.save(path) and read that with pw.load(path)."
        )

    def __repr__(self) -> str:
        runs = sum(program.runs for program in self.programs)
        return f"<run {self.name}: {counted(runs, 'program')}, {self.summary_line()}>"
