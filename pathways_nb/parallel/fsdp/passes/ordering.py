"""The order of operations within a step: what prepares a collective, and every operation behind what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pathways_nb.errors import PlanError
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph


def feeders(graph: StepGraph, collective: Collective) -> list[Runnable]:
    """Return the operations that only prepare what a collective sends, such as a conversion or a pack, in order."""
    mine: set[Runnable] = {collective}
    pending: list[Runnable] = [collective]
    while pending:
        for value in pending.pop().inputs:
            maker = graph.makers.get(value)
            if maker is not None and maker not in mine and _read_by(graph, maker) <= mine:
                mine.add(maker)
                pending.append(maker)
    return sorted(mine - {collective}, key=graph.positions.__getitem__)


def _read_by(graph: StepGraph, op: Runnable) -> set[Runnable]:
    return {reader for value in op.outputs for reader in graph.readers.get(value, ())}


def in_order(graph: StepGraph, ops: Sequence[Runnable]) -> StepGraph:
    """Return a step with these operations, each delayed until what it reads is made.

    Raises:
        PlanError: operations wait for each other.
    """
    made = {*graph.flat.inputs, *graph.flat.constants}
    waiting: dict[int, list[Runnable]] = {}
    ordered: list[Runnable] = []
    for op in ops:
        if not waiting and made.issuperset(op.inputs):  # the usual case, in a shorter way
            ordered.append(op)
            made.update(op.outputs)
            continue
        ready = [op]
        while ready:
            one = ready.pop(0)
            missing = next((value for value in one.inputs if value not in made), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(one)
                continue
            ordered.append(one)
            made.update(one.outputs)
            ready += [each for value in one.outputs for each in waiting.pop(value, ())]
    if waiting:
        raise PlanError(_circle(graph, waiting))
    return graph.with_ops(ordered)


def _circle(graph: StepGraph, waiting: Mapping[int, Sequence[Runnable]]) -> str:
    """Return the error of operations that wait for each other.

    Args:
        graph: the step.
        waiting: by missing value, the operations that wait for it.
    """
    missing = {op: value for value, ops in waiting.items() for op in ops}
    makers = {value: op for op in missing for value in op.outputs}
    passed = [next(iter(missing))]
    while (maker := makers[missing[passed[-1]]]) not in passed:
        passed.append(maker)
    circle = passed[passed.index(maker) :]
    params = {param for op in circle if isinstance(op, Collective) for param in op.carries}
    names = ", ".join(graph.names(sorted(params))) or "operations"
    return f"collectives of {names} wait for each other: one needs what another makes. Put them into different buckets."
