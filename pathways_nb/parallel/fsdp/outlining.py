"""Reads the outline of a traced step: where each parameter is used and each gradient is made."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.costs import StepCosts
from pathways_nb.parallel.fsdp.outline import Made, Outline, Use
from pathways_nb.parallel.fsdp.passes import regather, sink
from pathways_nb.parallel.fsdp.passes.edits import Gather, Reduction
from pathways_nb.parallel.fsdp.passes.graph_edits import collectives_of
from pathways_nb.parallel.fsdp.passes.ordering import feeders
from pathways_nb.parallel.fsdp.passes.sketch import Gathered, Reduced
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph


def outline_of(traced: StepGraph, costs: StepCosts, gathers_again: bool) -> Outline:
    """Return the outline of a step as it was traced.

    Args:
        traced: the step before any pass.
        costs: of its operations.
        gathers_again: whether parameters may be gathered again for the backward pass.
    """
    return _outlined(regather(sink(traced)), costs, gathers_again)


def _outlined(graph: StepGraph, costs: StepCosts, gathers_again: bool) -> Outline:
    seen = collectives_of(graph)
    feeding = {op: feeders(graph, op) for gather in seen.gathers for op in gather.source}
    after = {one.source[0]: _finishing(graph, one.source[0]) for one in seen.reductions}
    tail = [op for op in graph.ops if _completes_loss(graph, op)]
    apart = {op for ops in (*feeding.values(), *after.values(), tail) for op in ops}
    ticks = [0 if isinstance(op, Collective) or op in apart else costs.ticks(graph, op) for op in graph.ops]

    def total(ops: Sequence[Runnable]) -> int:
        return sum(costs.ticks(graph, op) for op in ops)

    def use(one: Gather) -> Use:
        (op,), (param,) = one.source, one.params
        item = graph.flat.avals[op.outputs[0]].dtype.itemsize
        whole = math.prod(graph.parameters[param].padded) * item
        found = Gathered(total(feeding[op]), graph.flat.bytes(op.inputs[0]), whole)
        return Use(param, graph.positions[op], int(one.read[0]), one.dtype, found)

    def made(one: Reduction) -> Made:
        op, (param,) = one.source[0], one.params
        sent, shard = graph.flat.bytes(op.inputs[0]), graph.flat.bytes(op.outputs[0])
        item = graph.flat.avals[op.inputs[0]].dtype.itemsize
        padded = math.prod(graph.parameters[param].padded) * item if op.name == "reduce_scatter" else sent
        found = Reduced(sent, padded, shard, total(after[op]), len(after[op]))
        return Made(param, graph.positions[op], int(one.made[0]), one.kinds, one.dtype, found)

    sums = [op for op in graph.ops if isinstance(op, Collective) and not op.carries]
    loss = tuple((graph.positions[op], costs.ticks(graph, op)) for op in sums)
    of = {value: number for number, op in enumerate(sums) for value in op.outputs}
    completed = tuple(
        (graph.positions[op], max(of[value] for value in op.inputs if value in of), costs.ticks(graph, op))
        for op in tail
    )
    forward, again = (tuple(use(one) for one in seen.gathers if one.again == repeated) for repeated in (False, True))
    if not gathers_again:  # what the backward pass alone reads is gathered once, too
        late = [one for one in again if one.param not in {one.param for one in forward}]
        forward = tuple(sorted((*forward, *late), key=lambda one: (one.read, one.at)))
    return Outline(
        costs, seen.parameter_names, tuple(itertools.accumulate(ticks, initial=0)),
        forward, again if gathers_again else (), again, tuple(map(made, seen.reductions)),
        loss, completed, next((op.axis for op in sorted(graph.collectives, key=lambda op: not op.is_gather)), ""),
    )  # fmt: skip


def _finishing(graph: StepGraph, reduction: Collective) -> list[Runnable]:
    """Return what completes a gradient after its first reduction, without collectives."""
    pending, found = list(reduction.outputs), list[Runnable]()
    while pending:
        for reader in graph.readers.get(pending.pop(), ()):
            pending += reader.outputs
            if not isinstance(reader, Collective):
                found.append(reader)
    return found


def _completes_loss(graph: StepGraph, op: Runnable) -> bool:
    makers = [graph.makers.get(value) for value in op.inputs]
    return any(isinstance(maker, Collective) and not maker.carries for maker in makers) and not isinstance(
        op, Collective
    )
