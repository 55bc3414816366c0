"""A step on one device in simulated time: what ran when on its streams, what it waited for, and its memory.

``stream_tasks`` says what waits for what. Every device does the same, so one device stands for all. As a run, a planned
step has the pictures, files and comparisons of recorded runs, and can be compared with a measured one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pathways_nb.cost.launch.launch_timing import LANES, LaunchSeconds
from pathways_nb.cost.launch.memory_levels import MemoryLevels
from pathways_nb.cost.launch.opened_launch import LaunchMemory, OpenedLaunch
from pathways_nb.errors import size
from pathways_nb.parallel.fsdp.memory import MemoryCurve
from pathways_nb.parallel.fsdp.operation_costs import TICK, OperationCosts
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.stream_tasks import COPIES, PARTIAL_SUMS, UPDATE, StreamSpan, StreamStall, StreamTasks
from pathways_nb.results.launch_runs import run_of
from pathways_nb.results.run import Run
from pathways_nb.trace.launch_ops import Op, OpKind, Ops, Phase
from pathways_nb.trace.metrics import duration
from pathways_nb.util.displaying import ShowsItself


@dataclass(frozen=True)
class StepAbout:
    """What was planned.

    Args:
        step: the name of the loss, and the mode.
        plan: the name of the plan.
        chip: the name of the chip.
        devices: number of devices.
        bound: seconds of exposed communication that no plan can avoid, if known.
    """

    step: str = "step"
    plan: str = "planned"
    chip: str = ""
    devices: int = 0
    bound: float | None = None


UNKNOWN = StepAbout()

_VIEWS = ("ops", "categories")


@dataclass(frozen=True, eq=False)
class StepTimeline(ShowsItself):
    """The step of one device in simulated time.

    Args:
        graph: the step.
        spans: of all streams, in the order in which they begin on each.
        stalls: of the compute stream, the wait for the last reductions included.
        compute: ticks of all operations that are no collectives, with the sums over other axes for which they wait.
        copied: ticks of the copies into and out of buckets, which are part of ``compute``.
        end: ticks of the step, with the optimizer's update if it has one.
        memory: bytes on the device over time.
        streams: 3 if gathers and reductions have streams of their own, 2 for both on one.
        about: what was planned.
        update: ticks of the optimizer's update at the end, with what it exchanges.
    """

    graph: StepGraph
    spans: tuple[StreamSpan, ...]
    stalls: tuple[StreamStall, ...]
    compute: int
    copied: int
    end: int
    memory: MemoryCurve
    streams: Literal[2, 3] = 2
    about: StepAbout = UNKNOWN
    update: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the step, with the optimizer's update if it has one."""
        return self.end * TICK

    @property
    def exposed(self) -> float:
        """Seconds by which the step is longer than its computation alone: waits, and copies into and out of buckets."""
        return (self.end - self.compute + self.copied) * TICK

    @property
    def waited(self) -> float:
        """Seconds in which the device computes nothing because it waits for an exchange."""
        return (self.end - self.compute) * TICK

    @cached_property
    def exchanged(self) -> float:
        """Seconds of all collectives of parameters and gradients."""
        return sum(span.end - span.start for span in self.spans if span.stream != "compute") * TICK

    @cached_property
    def partial_sums(self) -> float:
        """Seconds of the sums over axes that split parameters only, part of ``compute``."""
        return sum(span.end - span.start for span in self.spans if span.name == PARTIAL_SUMS) * TICK

    @property
    def summary(self) -> str:
        """Step time, exposed communication with its bound, and peak memory, in one line."""
        about, least = self.about, self.about.bound
        where = f"{about.devices} × {about.chip} · " if about.chip else ""
        bound = "" if least is None else f" (bound {duration(least)})"
        update = f" with {duration(self.update * TICK)} for the optimizer" if self.update else " without an optimizer"
        update += f", {duration(self.partial_sums)} of sums over other axes" if self.partial_sums else ""
        held = ", ".join(f"{name} {size(amount)}" for name, amount in self.memory.at_peak().items() if amount)
        return (
            f"{where}planned {duration(self.seconds)}{update}, {duration(self.exposed)} exposed{bound} · "
            f"peak {size(self.memory.peak)}: {held}"
        )

    @cached_property
    def opened(self) -> OpenedLaunch:
        """The step as a launch from inside, as a compiled one is opened: operations, seconds and memory of a device."""
        return _opened(self)

    @cached_property
    def run(self) -> Run:
        """The step as a run of one device, which stands for all: to be drawn, saved, and compared with another."""
        return planned_run(self)

    def show(self, *views: str) -> None:
        """Draw the streams of one device and its memory by category in the current cell.

        Args:
            *views: as for ``Run.show``; ``"ops"`` and ``"categories"`` by default.
        """
        self.run.show(*(views or _VIEWS))

    def savefig(self, path: str | Path, width: str | float = 900, show: Sequence[str] = _VIEWS) -> None:
        """Write the picture that ``show`` draws; see ``Run.savefig``."""
        self.run.savefig(path, width, show)

    def __repr__(self) -> str:
        stalls = (f"{stall.seconds * 1e3:8.2f} ms for {stall.cause.name}" for stall in self.longest_stalls())
        return "\n".join([f"<{self.about.step}, {self.about.plan}: {self.summary}>", *stalls])

    def longest_stalls(self, count: int = 10) -> list[StreamStall]:
        """Return the longest waits, the longest first."""
        return sorted(self.stalls, key=lambda stall: stall.start - stall.end)[:count]


def timeline(
    graph: StepGraph,
    costs: OperationCosts,
    streams: Literal[2, 3] = 2,
    state_bytes: int = 0,
    about: StepAbout = UNKNOWN,
) -> StepTimeline:
    """Return a step in simulated time.

    Args:
        graph: the step, after its passes.
        costs: of its operations.
        streams: 3 for gathers and reductions on streams of their own, 2 for both on one.
        state_bytes: of the optimizer's state on the device.
        about: what is planned.
    """
    tasks = StreamTasks.of(graph, costs, streams)
    timed = tasks.timed()
    alone = [task for task in tasks.tasks if task.stream == "compute"]
    return StepTimeline(
        graph,
        tuple(timed.spans),
        tuple(timed.stalls),
        sum(task.ticks for task in alone),
        sum(task.ticks for task in alone if task.name in COPIES),
        timed.end,
        MemoryCurve.of(graph, timed, costs, state_bytes),
        streams,
        about,
        timed.end - timed.updates,
    )


# ---- as a run


def planned_run(step: StepTimeline) -> Run:
    """Return a planned step as a run of one device, which stands for all of them."""
    run = run_of(step.opened, step.about.plan, step.about.step, "planned")
    run.note, run.about = step.summary, {"options": {"kind": "sim", "chip": step.about.chip}}
    return run


def _opened(step: StepTimeline) -> OpenedLaunch:
    """Return a planned step as a launch from inside."""
    ops = [_op(span.name, span.name, _kind(span, step.streams), span.start, span.end, span) for span in step.spans]
    ops += [_op(f"wait for {one.cause.name}", one.cause.name, "wait", one.start, one.end) for one in step.stalls]
    compute, exchanged = step.compute * TICK, step.exchanged
    busy = {**dict.fromkeys(LANES, 0.0), "compute": compute, "network": exchanged}
    seconds = LaunchSeconds(compute + exchanged, step.seconds, max(compute, exchanged), busy)
    peak, graph = step.memory.at_peak(), step.graph
    kept = peak["parameters"] + peak["optimizer"]
    levels = MemoryLevels(step.memory.times * TICK, step.seconds, {str(k): v for k, v in step.memory.bytes.items()})
    memory = LaunchMemory(step.memory.peak, kept, 0, step.memory.peak - kept, levels=levels)
    streams = f"{step.streams} streams of one device"
    basis = f"planned on the {streams} ({step.about.plan}, {len(graph.collectives)} collectives); roofline"
    return OpenedLaunch(Ops.from_rows(ops), seconds, memory, basis)


_PHASES: dict[str, Phase] = {"forward": "forward", "backward": "backward", UPDATE: "optimizer"}


def _op(name: str, source: str, kind: OpKind, start: int, end: int, span: StreamSpan | None = None) -> Op:
    """Return an operation of one device, in seconds since the step began."""
    work = f"{span.kind} of {size(span.bytes)}" if span is not None and span.kind else ""
    return Op(name, source, kind, "", "", 0, 0, 0, 0, start * TICK, end * TICK, "", _PHASES.get(name, ""), work)


def _kind(span: StreamSpan, streams: int) -> OpKind:
    """Return the kind of an operation; on a stream of its own, a collective is known by what it does."""
    if span.stream == "compute":
        return "copy" if span.name in COPIES else "compute"
    return span.stream if streams == 3 else "collective"
