"""Gathers parameters again for the backward pass, so that they are freed between (ZeRO-3).

It is an edit of the joint list of both passes, because a policy of ``jax.checkpoint`` sees one operation at a time and
would save the first view of a gathered array in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pathways_nb.cost.jaxpr.primitives import VIEWS
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph, renamed

VIEWS_AND_CONVERSIONS = VIEWS | {
    "convert_element_type",
    "reduce_precision",
    "convert",
    "copy",
    "name",
    "transpose",
    "broadcast_in_dim",
}
"""Operations on one array that are repeated with its gather rather than kept for the backward pass."""


def copied(graph: StepGraph, gathers: Sequence[Collective]) -> StepGraph:
    """Return a step that gathers again where the backward pass first reads each of these gathers."""
    before: dict[Runnable, list[Runnable]] = {}
    names: dict[int, int] = {}
    for op in gathers:
        views = _views(graph, op)
        at = _first_in_backward(graph, [v for one in (op, *views) for v in one.outputs])
        if at is not None:
            before.setdefault(at, []).extend(_clones(graph, op, views, names))
    ops = (each for op in graph.ops for each in (*before.get(op, ()), _rewired(graph, op, names)))
    return graph.with_ops(ops)


def _rewired(graph: StepGraph, op: Runnable, names: dict[int, int]) -> Runnable:
    return renamed(op, names) if op in graph.backward else op


def _views(graph: StepGraph, gather: Collective) -> list[Runnable]:
    """Return the operations of the forward pass that only view or convert a gathered parameter, in order."""
    found, pending = list[Runnable](), list(gather.outputs)
    while pending:
        for op in graph.readers.get(pending.pop(), ()):
            if len(op.inputs) == 1 and _is_view(graph, op) and op not in graph.backward:
                found.append(op)
                pending += op.outputs
    return sorted(found, key=graph.positions.__getitem__)


def _is_view(graph: StepGraph, op: Runnable) -> bool:
    """Return whether an operation only views or converts one array: it makes no more elements than it reads."""
    sizes = [graph.flat.avals[value].size for value in (*op.inputs, *op.outputs)]
    return op.name in VIEWS_AND_CONVERSIONS and sizes[-1] <= sizes[0]


def _first_in_backward(graph: StepGraph, values: list[int]) -> Runnable | None:
    """Return the first operation of the backward pass that reads one of some values of the forward pass."""
    readers = (op for value in values for op in graph.readers.get(value, ()) if op in graph.backward)
    return min(readers, key=graph.positions.__getitem__, default=None)


def _clones(graph: StepGraph, gather: Collective, views: list[Runnable], names: dict[int, int]) -> list[Runnable]:
    """Return a second gather with its conversion and its views; ``names`` gets the values that they make."""
    found, inner = list[Runnable](), dict[int, int]()
    maker = graph.makers.get(gather.inputs[0])
    for op in (*([maker] if maker is not None else []), gather, *views):
        for value in op.outputs:
            inner[value] = graph.new(graph.flat.avals[value])
        clone = replace(renamed(op, inner), outputs=tuple(inner[value] for value in op.outputs))
        found.append(replace(clone, again=True, bound=True) if isinstance(clone, Collective) else clone)
    names.update({value: new for value, new in inner.items() if maker is None or value not in maker.outputs})
    return found
