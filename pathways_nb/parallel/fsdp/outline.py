"""The outline of a step: when each parameter is used and each gradient is made, in ticks of computation.

It evaluates thousands of plans a second, because it adds up whole stretches of computation where ``timeline`` walks
through single operations. Both find the same step time to the last tick (tested), except for collectives inside loops,
which are the same in every plan and are left out here. ``outline_of`` reads it from a traced step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.operation_costs import OperationCosts
from pathways_nb.parallel.fsdp.passes import regather, sink
from pathways_nb.parallel.fsdp.passes.edits import Gather, Position, Reduction, StepCollectives
from pathways_nb.parallel.fsdp.passes.graph_edits import collectives_of
from pathways_nb.parallel.fsdp.passes.pass_registry import ConfiguredPass
from pathways_nb.parallel.fsdp.passes.sketch import INF, GatherCost, ReductionCost, Sketch, position_of
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, feeders

_MOST_SKETCHES = 16
"""The most sketches that are stored for plans that begin with the same passes."""


class ParameterGather(NamedTuple):
    """The gather of one parameter.

    Args:
        param: position of the parameter.
        at: position of the gather.
        read: position of the first operation that reads what it makes.
        dtype: of what it carries.
        costs: what it costs.
    """

    param: int
    at: int
    read: int
    dtype: str
    costs: GatherCost

    def for_passes(self, at: Position, again: bool) -> Gather:
        """Return it as passes see it, issued at a position."""
        return Gather((self.param,), at, position_of(self.read), again, self.dtype, self.costs)


class GradientReduction(NamedTuple):
    """The reduction of one gradient.

    Args:
        param: position of the parameter.
        at: position of the reduction.
        made: position of the operation that makes what it sends.
        kinds: for each of its collectives one after another, name and axis.
        dtype: of what it carries.
        costs: what it costs.
    """

    param: int
    at: int
    made: int
    kinds: tuple[tuple[str, str], ...]
    dtype: str
    costs: ReductionCost

    def for_passes(self) -> Reduction:
        """Return it as passes see it."""
        return Reduction(
            (self.param,), position_of(self.at), position_of(self.made), self.kinds, self.dtype, self.costs
        )


@dataclass(frozen=True, eq=False)
class Outline:
    """What the time of a step depends on, apart from its plan.

    Args:
        costs: of the operations.
        parameter_names: of the model.
        passed: by position in the list of operations, the ticks of computation in front of it.
        forward: the gathers of the forward pass, in order.
        regathers: the repeated gathers, in order; none where parameters stay gathered.
        possible_regathers: all gathers that can be repeated, in order.
        reductions: in order.
        loss: position and ticks of each reduction of the loss.
        completed: of each operation that completes the loss, its position, which of those reductions it reads, ticks.
        axis: over which parameters are gathered, or gradients reduced where none are.
    """

    costs: OperationCosts
    parameter_names: tuple[str, ...]
    passed: tuple[int, ...]  # (operations + 1,) ticks
    forward: tuple[ParameterGather, ...]
    regathers: tuple[ParameterGather, ...]
    possible_regathers: tuple[ParameterGather, ...]
    reductions: tuple[GradientReduction, ...]
    loss: tuple[tuple[int, int], ...]
    completed: tuple[tuple[int, int, int], ...]
    axis: str

    @property
    def compute(self) -> int:
        """Ticks of all operations that every plan has."""
        # Conversions belong to collectives, whose places a plan chooses, so ``passed`` does not have their ticks.
        converted = sum(one.costs.convert_ticks for one in (*self.forward, *self.regathers))
        converted += sum(one.costs.finish_ticks for one in self.reductions)
        return self.passed[-1] + converted + sum(ticks for _, _, ticks in self.completed)

    @cached_property
    def trained(self) -> frozenset[int]:
        """The parameters that have gradients."""
        return frozenset(one.param for one in self.reductions)

    def together(self, sizes: Mapping[tuple[str, str], int]) -> int:
        """Return the ticks of reductions in one bucket for each kind: by name and axis, the bytes that it exchanges."""
        return sum(self.costs.exchange(name, size, axis) for (name, axis), size in sizes.items())

    def ticks(self, passes: Sequence[ConfiguredPass], streams: Literal[2, 3] = 2) -> int:
        """Return the ticks of the step after passes.

        Args:
            passes: with their settings, in order; see ``plan_passes.configured_passes``.
            streams: 3 for gathers and reductions on streams of their own, 2 for both on one.

        Raises:
            PlanError: a pass makes edits that cannot be carried out.
        """
        return _end_of_step(self, self._sketch(tuple(one for one in passes if one[0].is_timed)), streams)

    def _sketch(self, passes: tuple[ConfiguredPass, ...]) -> Sketch:
        """Return the collectives after passes."""
        if not passes:
            return self._traced
        if (found := self._sketches.get(passes)) is None:
            before, (one, settings) = self._sketch(passes[:-1]), passes[-1]
            found = before.edited(one.edits_of(before.collectives, **dict(settings)))
            # A search changes one setting at a time, so the plans that it tries in a row share the passes in front of
            # that one. What is lost here is soon made again.
            if len(self._sketches) >= _MOST_SKETCHES:
                self._sketches.clear()
            self._sketches[passes] = found
        return found

    @cached_property
    def _sketches(self) -> dict[tuple[ConfiguredPass, ...], Sketch]:
        return {}

    @cached_property
    def _traced(self) -> Sketch:
        """The collectives before any pass, with all gathers in front."""
        known = {one.param for one in self.forward}
        late = [one for one in self.regathers if one.param not in known]  # the backward pass alone reads them
        ordered = sorted((*self.forward, *late), key=lambda one: one.read)
        # (0, −∞) is in front of operation 0, whose position is (0, ∞).
        gathers = [one.for_passes((0.0, -INF, number, INF), False) for number, one in enumerate(ordered)]
        regathers = {one.param: one.for_passes(position_of(one.at), True) for one in self.possible_regathers}
        reductions = tuple(one.for_passes() for one in self.reductions)
        step = StepCollectives(tuple(gathers), reductions, self.parameter_names, position_of(len(self.passed) - 1))
        return Sketch(step, regathers, frozenset(one.param for one in late))


_Event = tuple[Position, bool, tuple[str, int], int, int]
"""What happens at a position: whether a collective is waited for (or issued), which, ticks of computation and of it."""


def _end_of_step(outline: Outline, sketch: Sketch, streams: int) -> int:
    """Return when a step ends."""
    gathers, reductions = sketch.collectives.gathers, sketch.collectives.reductions
    events = list(_gather_events(outline, gathers))
    events += [_reduce_event(outline, number, one) for number, one in enumerate(reductions)]
    events += [(position_of(at), False, ("loss", number), 0, ticks) for number, (at, ticks) in enumerate(outline.loss)]
    events += [(position_of(at), True, ("loss", number), ticks, 0) for at, number, ticks in outline.completed]
    # At one position what is issued (False) sorts before what is waited for (True).
    events.sort()
    finishing = list[tuple[int, int]]()  # by number of a reduction, ticks of what completes its gradients
    for number, one in enumerate(reductions):
        cost: ReductionCost = one.source
        if len(one.params) > 1:  # a bucket is unpacked
            finishing.append((number, cost.finish_ticks + outline.costs.copy(cost.shard_bytes)))
        elif cost.finish_ops:
            finishing.append((number, cost.finish_ticks))
    return _walked(outline, events, finishing, streams)


def _gather_events(outline: Outline, gathers: Sequence[Gather]) -> Iterator[_Event]:
    """Yield when each gather is issued, and when computation waits for it and unpacks it."""
    costs, axis = outline.costs, outline.axis
    for number, one in enumerate(gathers):
        convert, shard, whole = one.source
        # Only a bucket is packed in front of its collective and unpacked behind it.
        several = len(one.params) > 1
        exchange = costs.exchange("all_gather", whole, axis)
        yield one.at, False, ("gather", number), convert + (costs.copy(shard) if several else 0), exchange
        yield one.read, True, ("gather", number), costs.copy(whole) if several else 0, 0


def _reduce_event(outline: Outline, number: int, one: Reduction) -> _Event:
    whole, padded, shard, _, _ = one.source
    ticks = outline.costs.copy(whole) if len(one.params) > 1 else 0
    # Hybrid sharding reduces twice: the whole gradient within a replica, then only the shards between replicas.
    exchange = sum(
        outline.costs.exchange(name, shard if turn else padded, axis) for turn, (name, axis) in enumerate(one.kinds)
    )
    return one.at, False, ("reduce", number), ticks, exchange


def _walked(outline: Outline, events: Sequence[_Event], finishing: Sequence[tuple[int, int]], streams: int) -> int:
    """Return when the step ends; ``finishing`` has reductions by number, with the ticks of what completes them."""
    passed, now, before = outline.passed, 0, 0
    free = {"gather": 0, "reduce": 0}  # by stream, when its last collective ends
    arrives: dict[tuple[str, int], int] = {}
    for at, waits, which, ticks, exchange in events:
        # The stretch of computation up to this event, whose operations no plan moves.
        here = passed[int(at[0])]
        now += here - before
        before = here
        if waits:
            now = max(now, arrives[which]) + ticks
            continue
        now += ticks
        lane = "gather" if which[0] == "gather" or streams == 2 else "reduce"
        arrives[which] = free[lane] = max(free[lane], now) + exchange
    now += passed[-1] - before
    # ``finish`` puts what completes gradients behind everything else, in the order of the reductions.
    for number, ticks in finishing:
        now = max(now, arrives["reduce", number]) + ticks
    return max([now, *arrives.values()])


# ---- read from a traced step


def outline_of(traced: StepGraph, costs: OperationCosts, gathers_again: bool) -> Outline:
    """Return the outline of a step as it was traced.

    Args:
        traced: the step before any pass.
        costs: of its operations.
        gathers_again: whether parameters may be gathered again for the backward pass.
    """
    # Sunk and repeated, every gather stands in front of its reader, so its position says where it can be repeated.
    graph = regather(sink(traced))
    seen = collectives_of(graph)
    feeding = {op: feeders(graph, op) for gather in seen.gathers for op in gather.source}
    finishing = {one.source[0]: _finishing(graph, one.source[0]) for one in seen.reductions}
    sums = [op for op in graph.ops if isinstance(op, CollectiveOp) and not op.carries]  # of the loss
    sum_of = {value: number for number, op in enumerate(sums) for value in op.outputs}
    tail = [op for op in graph.ops if not isinstance(op, CollectiveOp) and not sum_of.keys().isdisjoint(op.inputs)]
    # What stands by a collective moves with it, so it counts there and not in the stretches between.
    apart = {op for ops in (*feeding.values(), *finishing.values(), tail) for op in ops}
    ticks = [0 if isinstance(op, CollectiveOp) or op in apart else costs.ticks(graph, op) for op in graph.ops]

    def total(ops: Sequence[Runnable]) -> int:
        return sum(costs.ticks(graph, op) for op in ops)

    def gather_of(one: Gather) -> ParameterGather:
        (op,), (param,) = one.source, one.params
        # With padding, which is exchanged, too.
        found = GatherCost(total(feeding[op]), costs.bytes(graph, op.inputs[0]), costs.bytes_of(graph, op))
        return ParameterGather(param, graph.positions[op], int(one.read[0]), one.dtype, found)

    def reduction_of(one: Reduction) -> GradientReduction:
        op, (param,) = one.source[0], one.params
        sent, shard = costs.bytes(graph, op.inputs[0]), costs.bytes(graph, op.outputs[0])
        # An all-reduce sends the gradient as it is; only to scatter it, it is padded to equal shards.
        padded = costs.bytes_of(graph, op)
        found = ReductionCost(sent, padded, shard, total(finishing[op]), len(finishing[op]))
        return GradientReduction(param, graph.positions[op], int(one.made[0]), one.kinds, one.dtype, found)

    loss = tuple((graph.positions[op], costs.ticks(graph, op)) for op in sums)
    completed = tuple(
        (graph.positions[op], max(sum_of[value] for value in op.inputs if value in sum_of), costs.ticks(graph, op))
        for op in tail
    )
    forward, again = (
        tuple(gather_of(one) for one in seen.gathers if one.again == repeated) for repeated in (False, True)
    )
    if not gathers_again:  # what the backward pass alone reads is gathered once, too
        late = [one for one in again if one.param not in {one.param for one in forward}]
        forward = tuple(sorted((*forward, *late), key=lambda one: (one.read, one.at)))
    return Outline(
        costs, seen.parameter_names, tuple(itertools.accumulate(ticks, initial=0)),
        forward, again if gathers_again else (), again, tuple(map(reduction_of, seen.reductions)),
        loss, completed, next((op.axis for op in sorted(graph.collectives, key=lambda op: not op.is_gather)), ""),
    )  # fmt: skip


def _finishing(graph: StepGraph, reduction: CollectiveOp) -> list[Runnable]:
    """Return what completes a gradient after its first reduction, without collectives."""
    pending, found = list(reduction.outputs), list[Runnable]()
    while pending:
        for reader in graph.readers.get(pending.pop(), ()):
            pending += reader.outputs
            if not isinstance(reader, CollectiveOp):
                found.append(reader)
    return found
