"""The operations of a step as tasks on the streams of one device: computation on one, collectives on one or two others.

A collective is issued when the operations in front of it have been done, and begins when its stream is free. An
operation that reads its result waits for it: a stall. When all of this happens, ``timing`` solves for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.operation_costs import TICK, OperationCosts, UpdateCosts
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, kind_of
from pathways_nb.timing.timed import Timed
from pathways_nb.timing.waits import DATA, LANE, MESSAGE, Waits

Stream = Literal["compute", "gather", "reduce"]


class StreamSpan(NamedTuple):
    """When an operation, or several in a row, ran.

    Args:
        name: ``StepGraph.label`` of the collective; ``"forward"``, ``"backward"``, ``"pack"`` and ``"unpack"`` for
            copies into and out of buckets, ``PARTIAL_SUMS``, ``UPDATE`` or ``NEW_PARAMETERS``.
        stream: on which it ran.
        start: in ticks.
        end: in ticks.
        params: positions of the parameters that a collective carries.
        again: whether it gathers parameters for the backward pass.
        bytes: of the whole array that a collective exchanges.
        kind: of a collective, such as ``"all-gather"``.
    """

    name: str
    stream: Stream
    start: int
    end: int
    params: tuple[int, ...] = ()
    again: bool = False
    bytes: int = 0
    kind: str = ""


class StreamStall(NamedTuple):
    """Computation that waits.

    Args:
        start: in ticks.
        end: in ticks.
        cause: the span of the collective that it waits for.
    """

    start: int
    end: int
    cause: StreamSpan

    @property
    def seconds(self) -> float:
        """How long it waits."""
        return (self.end - self.start) * TICK


COPIES = ("pack", "unpack")
"""Names of the copies into and out of buckets."""
UPDATE, NEW_PARAMETERS = "update", "gather new parameters"
"""Names of the optimizer's update, and of the gathers behind it where parameters stay whole."""
PARTIAL_SUMS = "partial sums"
"""Name of what the compiler exchanges over axes that split parameters only: computation can go on after it."""


class StreamTask(NamedTuple):
    """An operation on a stream.

    Args:
        name: as of its ``StreamSpan``.
        stream: on which it runs; ``"gather"`` for all collectives if there is one stream for them.
        ticks: how long it takes.
        after: the task up to which computation has come when it is issued; -1 for none.
        reads: the collectives whose results it waits for, in this order; earlier ones have been waited for.
        held: whether computation waits for it before anything else, as for the collectives of a loop.
        kind: what it does, which is the stream that it has in the picture.
        span_fields: of a collective, the fields of its ``StreamSpan`` behind the times.
    """

    name: str
    stream: Stream
    ticks: int
    after: int
    reads: tuple[int, ...] = ()
    held: bool = False
    kind: Stream = "compute"
    span_fields: tuple[tuple[int, ...], bool, int, str] = (), False, 0, ""


class TimedStreams(NamedTuple):
    """The streams of a step in time, in ticks.

    Args:
        spans: of all streams.
        stalls: of computation.
        times: of each operation of the step, when it begins and ends; a collective begins when it is issued.
        updates: when the optimizer's update begins; without one, the end.
        end: of the step.
    """

    spans: list[StreamSpan]
    stalls: list[StreamStall]
    times: list[tuple[int, int]]
    updates: int
    end: int


class StreamTasks:
    """The tasks of one step, in the order of its operations.

    Args:
        streams: 3 for gathers and reductions on streams of their own, 2 for both on one.
    """

    def __init__(self, streams: int):
        self.streams = streams
        self.tasks: list[StreamTask] = []
        self._of_ops: list[tuple[int, int]] = []
        """Of each operation, its first task and its last one."""
        self._front = -1
        """The task up to which computation has come."""
        self._under_way: dict[int, int] = {}
        """By value, the collective that makes it, until an operation has waited for it."""

    @classmethod
    def of(cls, graph: StepGraph, costs: OperationCosts, streams: int) -> StreamTasks:
        """Return the tasks of a step, after its passes."""
        found = cls(streams)
        for op in graph.ops:
            first = len(found.tasks)
            if isinstance(op, CollectiveOp):
                found._add_collective(graph, costs, op)
            else:
                found._add_computation(graph, costs, op)
            found._of_ops.append((first, len(found.tasks) - 1))
        if costs.update is not None:
            found._add_update(costs.of_update)
        return found

    def _add_computation(self, graph: StepGraph, costs: OperationCosts, op: Runnable) -> None:
        # Popped: once computation has waited for a collective, later readers of the same value wait for nothing.
        reads = [self._under_way.pop(value) for value in op.inputs if value in self._under_way]
        name = op.name if op.name in COPIES else "backward" if op in graph.backward else "forward"
        joined = costs.joined.get(op.outputs[0], 0) if op.outputs else 0
        self._compute(name, costs.ticks(graph, op) - joined, tuple(reads))
        if joined:
            self._compute(PARTIAL_SUMS, joined)
        if isinstance(op, ShardedScan):
            self._add_loop_exchanges(graph, costs, op)

    def _add_update(self, update: UpdateCosts) -> None:
        """Add the optimizer's update, which waits for all gradients, and the gathers of new parameters behind it."""
        self._compute(UPDATE, update.ticks, tuple(sorted(set(self._under_way.values()))))
        self._under_way.clear()
        if update.gathered:
            ticks, lane = update.gather_ticks, self._lane("gather")
            span_fields = update.gathered, False, update.gather_bytes, kind_of("all_gather")
            self.tasks.append(StreamTask(NEW_PARAMETERS, lane, ticks, self._front, (), True, "gather", span_fields))
            self._front = len(self.tasks) - 1

    def _compute(self, name: str, ticks: int, reads: tuple[int, ...] = ()) -> None:
        self.tasks.append(StreamTask(name, "compute", ticks, self._front, reads))
        self._front = len(self.tasks) - 1

    def _add_collective(self, graph: StepGraph, costs: OperationCosts, op: CollectiveOp) -> None:
        kind: Stream = "gather" if op.is_gather else "reduce"
        # Not popped: a collective waits on its own stream, and computation has not waited yet.
        reads = tuple(self._under_way[value] for value in op.inputs if value in self._under_way)
        span_fields = op.carries, op.again, costs.bytes_of(graph, op), op.kind
        ticks = costs.ticks(graph, op)
        self.tasks.append(
            StreamTask(graph.label(op), self._lane(kind), ticks, self._front, reads, False, kind, span_fields)
        )
        self._under_way.update(dict.fromkeys(op.outputs, len(self.tasks) - 1))

    def _add_loop_exchanges(self, graph: StepGraph, costs: OperationCosts, scan: ShardedScan) -> None:
        """Add the collectives of a loop: each iteration gathers what it reads, so nothing hides them."""
        for one in scan.exchanges:
            ticks = costs.exchange(one.name, one.bytes, scan.axis) * scan.length
            kind: Stream = "gather" if one.name == "all_gather" else "reduce"
            again = kind == "gather" and scan in graph.backward
            verb = ("regather" if again else "gather") if kind == "gather" else "reduce"
            label = f"{verb} {graph.parameters[one.param].name}"
            span_fields = (one.param,), again, one.bytes * scan.length, kind_of(one.name)
            self.tasks.append(StreamTask(label, self._lane(kind), ticks, self._front, (), True, kind, span_fields))
            self._front = len(self.tasks) - 1  # computation goes on when the loop ends

    def _lane(self, kind: Stream) -> Stream:
        return kind if self.streams == 3 else "gather"

    def timed(self) -> TimedStreams:
        """Return when everything happens."""
        timed = Timed.solved(self._waits(), np.array([task.ticks for task in self.tasks], float))
        # (tasks,) ticks; the 0 behind the ends is what ``after=-1`` and an empty step find.
        start, end = timed.start.astype(int).tolist(), [*timed.end.astype(int).tolist(), 0]
        spans = [
            StreamSpan(task.name, task.kind, start[at], end[at], *task.span_fields)
            for at, task in enumerate(self.tasks)
        ]
        stalls = list[StreamStall]()
        for span, task in zip(spans, self.tasks, strict=True):
            if task.held or task.stream == "compute":
                causes = [span] if task.held else [spans[at] for at in task.reads]
                stalls += _stalls(end[task.after], causes)
        # What nothing reads, such as the last reductions, is waited for at the end of the step.
        left = {spans[at] for at in self._under_way.values()}
        stalls += _stalls(end[self._front], sorted(left, key=lambda span: span.end))
        firsts = [(self.tasks[first], first, last) for first, last in self._of_ops]
        times = [(start[at] if task.stream == "compute" else end[task.after], end[last]) for task, at, last in firsts]
        last = max(end)
        updates = next((start[at] for at, task in enumerate(self.tasks) if task.name == UPDATE), last)
        return TimedStreams(list(_drawn(spans)), stalls, times, updates, last)

    def _waits(self) -> Waits:
        """Return what each task waits for: the one before it on its stream, its issue, and what it reads."""
        before = {"gather": -1, "reduce": -1}
        edges = list[tuple[int, int, int]]()  # source task, target task, why
        for at, task in enumerate(self.tasks):
            if task.stream != "compute":
                edges.append((before[task.stream], at, LANE))
                before[task.stream] = at
            edges.append((task.after, at, LANE if task.stream == "compute" else MESSAGE))
            edges += ((source, at, DATA) for source in task.reads)
        source, target, why = np.array([edge for edge in edges if edge[0] >= 0], int).reshape(-1, 3).T
        return Waits.of(source, target, why)


def _stalls(now: int, causes: Sequence[StreamSpan]) -> Iterator[StreamStall]:
    """Yield the waits of computation that has come to ``now``, for one collective after another."""
    for span in causes:
        if span.end > now:
            yield StreamStall(now, span.end, span)
            now = span.end


def _drawn(spans: Sequence[StreamSpan]) -> Iterator[StreamSpan]:
    """Yield what is drawn: operations of one name in a row as one span, and the collectives of parameters."""
    last: StreamSpan | None = None
    for span in spans:
        if span.stream != "compute" and not span.params:  # the reduction of the loss, a few bytes
            continue
        if span.stream == "compute" and span.start == span.end:
            continue
        if last is not None and span.stream == "compute" and (last.name, last.end) == (span.name, span.start):
            last = last._replace(end=span.end)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last
