"""Reads the outline of a traced step: where each parameter is used and each gradient is made."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.costs import StepCosts
from pathways_nb.parallel.fsdp.outline import Made, Outline, Use
from pathways_nb.parallel.fsdp.passes import regather, sink
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
    first: dict[Runnable, list[Runnable]] = {op: feeders(graph, op) for op in graph.collectives if op.is_gather}
    moving = {op for ops in first.values() for op in ops}
    reductions = [op for op in graph.collectives if not op.is_gather]
    after = _finishing(graph, reductions)
    tail = [op for op in graph.ops if _completes_loss(graph, op)]
    apart = {*moving, *(op for ops in after.values() for op in ops), *tail}
    ticks = [0 if isinstance(op, Collective) or op in apart else costs.ticks(graph, op) for op in graph.ops]

    def total(ops: Sequence[Runnable]) -> int:
        return sum(costs.ticks(graph, op) for op in ops)

    def use(op: Collective) -> Use:
        sent, made = graph.flat.bytes(op.inputs[0]), graph.parameters[op.carries[0]]
        item = graph.flat.avals[op.outputs[0]].dtype.itemsize
        found = Gathered(total(first[op]), sent, math.prod(made.padded) * item)
        read = graph.first_reader(op.outputs)
        return Use(op.carries[0], graph.positions[op], read, _dtype(graph, op), found)

    gathers = [op for op in graph.collectives if op.is_gather]
    sums = [op for op in graph.ops if isinstance(op, Collective) and not op.carries]
    loss = tuple((graph.positions[op], costs.ticks(graph, op)) for op in sums)
    of = {value: number for number, op in enumerate(sums) for value in op.outputs}
    completed = tuple(
        (graph.positions[op], max(of[value] for value in op.inputs if value in of), costs.ticks(graph, op))
        for op in tail
    )
    names = tuple(one.name for one in graph.parameters)
    forward, again = (tuple(use(op) for op in gathers if op.again == repeated) for repeated in (False, True))
    if not gathers_again:  # what the backward pass alone reads is gathered once, too
        late = [one for one in again if one.param not in {one.param for one in forward}]
        forward = tuple(sorted((*forward, *late), key=lambda one: (one.read, one.at)))
    return Outline(
        costs, names, tuple(itertools.accumulate(ticks, initial=0)),
        forward, again if gathers_again else (), again,
        tuple(_reduction(graph, op, total(after[op]), len(after[op])) for op in reductions if op in after),
        loss, completed, next((op.axis for op in (*gathers, *reductions)), ""),
    )  # fmt: skip


def _finishing(graph: StepGraph, reductions: Sequence[Collective]) -> dict[Collective, list[Runnable]]:
    """Return what completes each gradient after its first reduction, without collectives; second ones have no entry."""
    found: dict[Collective, list[Runnable]] = {}
    second = {reader for op in reductions for value in op.outputs for reader in graph.readers.get(value, ())
              if isinstance(reader, Collective)}  # fmt: skip
    for op in reductions:
        if op not in second:
            pending, found[op] = list(op.outputs), []
            while pending:
                for reader in graph.readers.get(pending.pop(), ()):
                    pending += reader.outputs
                    if not isinstance(reader, Collective):
                        found[op].append(reader)
    return found


def _completes_loss(graph: StepGraph, op: Runnable) -> bool:
    makers = [graph.makers.get(value) for value in op.inputs]
    return any(isinstance(maker, Collective) and not maker.carries for maker in makers) and not isinstance(
        op, Collective
    )


def _dtype(graph: StepGraph, op: Collective) -> str:
    return str(graph.flat.avals[op.inputs[0]].dtype)


def _reduction(graph: StepGraph, op: Collective, after: int, operations: int) -> Made:
    kinds, last = [(op.name, op.axis)], op
    while readers := [one for one in graph.readers.get(last.outputs[0], ()) if isinstance(one, Collective)]:
        last = readers[0]
        kinds.append((last.name, last.axis))
    one = graph.parameters[op.carries[0]]
    item = graph.flat.avals[op.inputs[0]].dtype.itemsize
    whole, shard = graph.flat.bytes(op.inputs[0]), graph.flat.bytes(op.outputs[0])
    padded = math.prod(one.padded) * item if op.name == "reduce_scatter" else whole
    maker = graph.makers.get(op.inputs[0])
    made = graph.positions[maker] if maker is not None else -1
    costs = Reduced(whole, padded, shard, after, operations)
    return Made(op.carries[0], graph.positions[op], made, tuple(kinds), _dtype(graph, op), costs)
