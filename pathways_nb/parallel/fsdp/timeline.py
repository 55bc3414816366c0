"""A step on one device in simulated time: what ran when on its streams, what it waited for, and its memory.

``stream_tasks`` says what waits for what. Every device does the same, so one device stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pathways_nb.errors import size
from pathways_nb.parallel.fsdp.costs import TICK, StepCosts
from pathways_nb.parallel.fsdp.memory import MemoryCurve
from pathways_nb.parallel.fsdp.planned_run import planned_run
from pathways_nb.parallel.fsdp.spans import UNKNOWN, Span, Stall, StepAbout
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.stream_tasks import COPIES, StreamTasks
from pathways_nb.results.run import Run
from pathways_nb.trace.metrics import duration

_VIEWS = ("ops", "categories")


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """The step of one device in simulated time.

    Args:
        graph: the step.
        spans: of all streams, in the order in which they begin on each.
        stalls: of the compute stream, the wait for the last reductions included.
        compute: ticks of all operations that are no collectives.
        copied: ticks of the copies into and out of buckets, which are part of ``compute``.
        end: ticks of the step, without the optimizer.
        memory: bytes on the device over time.
        streams: 3 if gathers and reductions have streams of their own, 2 for both on one.
        about: what was planned.
    """

    graph: StepGraph
    spans: tuple[Span, ...]
    stalls: tuple[Stall, ...]
    compute: int
    copied: int
    end: int
    memory: MemoryCurve
    streams: Literal[2, 3] = 2
    about: StepAbout = UNKNOWN

    @property
    def seconds(self) -> float:
        """Seconds of the step, without the optimizer."""
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

    @property
    def summary(self) -> str:
        """Step time, exposed communication beside its bound, and peak memory, in one line."""
        about, least = self.about, self.about.bound
        where = f"{about.devices} × {about.chip} · " if about.chip else ""
        bound = "" if least is None else f" (bound {duration(least)})"
        held = ", ".join(f"{name} {size(amount)}" for name, amount in self.memory.at_peak().items() if amount)
        return (
            f"{where}planned {duration(self.seconds)} without the optimizer, {duration(self.exposed)} exposed{bound} · "
            f"peak {size(self.memory.peak)}: {held}"
        )

    @cached_property
    def run(self) -> Run:
        """The step as a run of one device, which stands for all: to be drawn, saved, and compared with another."""
        return planned_run(self.about, self.spans, self.stalls, self.memory, self.end, self.streams, self.summary)

    def show(self, *views: str) -> None:
        """Draw the streams of one device and its memory by category in the current cell.

        Args:
            *views: as for ``Run.show``; ``"ops"`` and ``"categories"`` by default.
        """
        self.run.show(*(views or _VIEWS))

    def _ipython_display_(self) -> None:
        self.show()

    def savefig(self, path: str | Path, width: str | float = 900, show: Sequence[str] = _VIEWS) -> None:
        """Write the picture that ``show`` draws; see ``Run.savefig``."""
        self.run.savefig(path, width, show)

    def __repr__(self) -> str:
        return "\n".join([f"<{self.about.step}, {self.about.plan}: {self.summary}>", *described(self)])

    def longest_stalls(self, count: int = 10) -> list[Stall]:
        """Return the longest waits, the longest first."""
        return sorted(self.stalls, key=lambda stall: stall.start - stall.end)[:count]


def timeline(
    graph: StepGraph, costs: StepCosts, streams: Literal[2, 3] = 2, state_bytes: int = 0, about: StepAbout = UNKNOWN
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
    spans, stalls, times = tasks.timed()
    alone = [task for task in tasks.tasks if task.stream == "compute"]
    return StepTimeline(
        graph,
        tuple(spans),
        tuple(stalls),
        sum(task.ticks for task in alone),
        sum(task.ticks for task in alone if task.name in COPIES),
        max((stop for _, stop in times), default=0),
        MemoryCurve.of(graph, times, costs, state_bytes),
        streams,
        about,
    )


def described(timeline: StepTimeline) -> Iterator[str]:
    """Yield a line for each of the longest stalls."""
    for stall in timeline.longest_stalls():
        yield f"{stall.seconds * 1e3:8.2f} ms for {stall.cause.name}"
