"""The step on one device in simulated time: operations one after another, collectives on streams of their own.

A collective is issued when the operations in front of it have been done, and begins when its stream is free. An
operation that reads its result waits for it: a stall. Every device does the same, so one device stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from pathways_nb.errors import size
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.costs import TICK, StepCosts
from pathways_nb.parallel.fsdp.memory import MemoryCurve
from pathways_nb.parallel.fsdp.planned_run import planned_run
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.spans import UNKNOWN, Span, Stall, StepAbout, Stream
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph, kind_of
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
    state = _Streams(graph, costs, streams)
    for op in graph.ops:
        state.take(op)
    state.finish()
    return StepTimeline(
        graph,
        tuple(state.spans),
        tuple(state.stalls),
        state.computed,
        state.copied,
        state.now,
        MemoryCurve.of(graph, state.times, costs, state_bytes),
        streams,
        about,
    )


class _Streams:
    """The streams of one device while the list is walked."""

    def __init__(self, graph: StepGraph, costs: StepCosts, streams: int):
        self.graph, self.costs, self.streams = graph, costs, streams
        self.now = self.computed = self.copied = 0
        self.free: dict[str, int] = {"gather": 0, "reduce": 0}
        self.arriving: dict[int, Span] = {}
        """By value, the collective that makes it, until an operation has waited for it."""
        self.spans: list[Span] = []
        self.stalls: list[Stall] = []
        self.times: list[tuple[int, int]] = []
        """Of each operation, when it begins and ends."""

    def take(self, op: Runnable) -> None:
        """Carry out the next operation of the list."""
        ticks = self.costs.ticks(self.graph, op)
        if isinstance(op, Collective):
            self._issue(op, ticks)
            return
        for value in op.inputs:
            if (span := self.arriving.pop(value, None)) is not None:
                self._wait(span)
        start = self.now
        self.now += ticks
        self.computed += ticks
        self.copied += ticks if op.name in ("pack", "unpack") else 0
        self.times.append((start, self.now))
        self._compute(op, start)
        if isinstance(op, ShardedScan):
            self._exchange_in(op)

    def _compute(self, op: Runnable, start: int) -> None:
        """Note an operation; those of one name in a row are one span."""
        if self.now == start:
            return
        name = op.name if op.name in ("pack", "unpack") else "backward" if op in self.graph.backward else "forward"
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.name, last.end) == (name, start):
            self.spans[-1] = last._replace(end=self.now)
        else:
            self.spans.append(Span(name, "compute", start, self.now))

    def _issue(self, op: Collective, ticks: int) -> None:
        stream: Stream = "gather" if op.is_gather else "reduce"
        lane = stream if self.streams == 3 else "gather"
        made = max((self.arriving[value].end for value in op.inputs if value in self.arriving), default=0)
        start = max(self.now, self.free[lane], made)
        self.free[lane] = start + ticks
        label, size = self.graph.label(op), self.costs.bytes_of(self.graph, op)
        span = Span(label, stream, start, start + ticks, op.carries, op.again, size, op.kind)
        self.times.append((self.now, span.end))
        self.arriving.update(dict.fromkeys(op.outputs, span))
        if op.carries:
            self.spans.append(span)

    def _exchange_in(self, scan: ShardedScan) -> None:
        """Wait for the collectives of a loop: each iteration gathers what it reads, so nothing hides them."""
        for one in scan.exchanges:
            ticks = self.costs.exchange(one.name, one.bytes, scan.axis) * scan.length
            stream: Stream = "gather" if one.name == "all_gather" else "reduce"
            start = max(self.now, self.free[stream if self.streams == 3 else "gather"])
            again = stream == "gather" and scan in self.graph.backward
            verb = ("regather" if again else "gather") if stream == "gather" else "reduce"
            label = f"{verb} {self.graph.parameters[one.param].name}"
            what = (one.param,), again, one.bytes * scan.length, kind_of(one.name)
            span = Span(label, stream, start, start + ticks, *what)
            self.free[stream if self.streams == 3 else "gather"] = span.end
            self.spans.append(span)
            self._wait(span)
        self.times[-1] = self.times[-1][0], self.now

    def _wait(self, span: Span) -> None:
        if span.end > self.now:
            self.stalls.append(Stall(self.now, span.end, span))
            self.now = span.end

    def finish(self) -> None:
        """Wait for what is still under way."""
        for span in sorted(set(self.arriving.values()), key=lambda span: span.end):
            self._wait(span)


def described(timeline: StepTimeline) -> Iterator[str]:
    """Yield a line for each of the longest stalls."""
    for stall in timeline.longest_stalls():
        yield f"{stall.seconds * 1e3:8.2f} ms for {stall.cause.name}"
