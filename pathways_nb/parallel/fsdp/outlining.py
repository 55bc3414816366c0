"""Reads the outline of a traced step: where each parameter is used and each gradient is made."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.costs import StepCosts
from pathways_nb.parallel.fsdp.outline import Outline, Reduction, Use
from pathways_nb.parallel.fsdp.passes import regather, sink
from pathways_nb.parallel.fsdp.passes.moving import feeders
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph


def outline_of(traced: StepGraph, costs: StepCosts, gathers_again: bool) -> Outline:
    """Return the outline of a step as it was traced.

    Args:
        traced: the step before any pass.
        costs: of its operations.
        gathers_again: whether parameters may be gathered again for the backward pass.
    """
    graph = sink(traced)
    return _outlined(regather(graph) if gathers_again else graph, costs)


def _outlined(graph: StepGraph, costs: StepCosts) -> Outline:
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
        whole = math.prod(made.padded) * item
        return Use(op.carries[0], graph.positions[op], graph.first_reader(op.outputs), total(first[op]), sent, whole)

    gathers = [op for op in graph.collectives if op.is_gather]
    loss = tuple(
        (graph.positions[op], costs.ticks(graph, op))
        for op in graph.ops if isinstance(op, Collective) and not op.carries
    )  # fmt: skip
    return Outline(
        costs, tuple(itertools.accumulate(ticks, initial=0)),
        tuple(use(op) for op in gathers if not op.again), tuple(use(op) for op in gathers if op.again),
        tuple(_reduction(graph, op, total(after[op])) for op in reductions if op in after),
        loss, next((op.axis for op in (*gathers, *reductions)), ""), total(tail),
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


def _reduction(graph: StepGraph, op: Collective, after: int) -> Reduction:
    kinds, last = [(op.name, op.axis)], op
    while readers := [one for one in graph.readers.get(last.outputs[0], ()) if isinstance(one, Collective)]:
        last = readers[0]
        kinds.append((last.name, last.axis))
    one = graph.parameters[op.carries[0]]
    item = graph.flat.avals[op.inputs[0]].dtype.itemsize
    scattered = op.name == "reduce_scatter"
    whole = graph.flat.bytes(op.inputs[0])
    padded = math.prod(one.padded) * item if scattered else whole
    return Reduction(
        op.carries[0], graph.positions[op], tuple(kinds), whole, padded, graph.flat.bytes(op.outputs[0]), after
    )
