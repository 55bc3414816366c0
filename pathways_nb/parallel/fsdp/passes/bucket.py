"""``bucket``: several collectives become one, which pays the latency of one (SimpleFSDP, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pathways_nb.errors import PlanError
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.collectives import bucket_all_reduce, bucket_gather, bucket_scatter
from pathways_nb.parallel.fsdp.passes.moving import feeders, in_order
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph

Buckets = Sequence[Sequence[int]]
"""Positions of parameters, by bucket."""


def bucket(graph: StepGraph, forward: Buckets, backward: Buckets | None = None) -> StepGraph:
    """Return a step in which the parameters of a bucket are gathered, and their gradients reduced, by one collective.

    A bucket is gathered where the first of its parameters was, and reduced where the last of its gradients is made.

    Args:
        graph: the step.
        forward: the buckets of the forward pass.
        backward: the buckets of the backward pass: of repeated gathers and of gradients; by default the same.

    Raises:
        PlanError: parameters of a bucket differ in dtype, or wait for each other.
    """
    second = forward if backward is None else backward
    graph = _merged(graph, forward, lambda op: op.is_gather and not op.again, first=True)
    graph = _merged(graph, second, lambda op: op.is_gather and op.again, first=True)
    for axis in dict.fromkeys(op.axis for op in graph.collectives if not op.is_gather):
        for name in ("reduce_scatter", "all_reduce"):
            graph = _merged(graph, second, _reduces(name, axis), first=False)
    return graph


def _reduces(name: str, axis: str) -> Callable[[Collective], bool]:
    return lambda op: op.name == name and op.axis == axis


def _merged(graph: StepGraph, buckets: Buckets, chosen: Callable[[Collective], bool], first: bool) -> StepGraph:
    """Return the step with the chosen collectives of each bucket merged, at the position of the first or the last."""
    of = {op.carries[0]: op for op in graph.collectives if chosen(op) and len(op.carries) == 1}
    placed: dict[Runnable, list[Runnable]] = {}
    gone: set[Runnable] = set()
    for params in buckets:
        members = sorted((of[param] for param in params if param in of), key=graph.positions.__getitem__)
        if len(members) < 2:
            continue
        _check_dtypes(graph, members)
        gone.update(members)
        placed[members[0 if first else -1]] = _replacement(graph, members, first)
        if first:  # conversions of later members come before the pack
            before = [op for member in members for op in feeders(graph, member)]
            gone.update(before)
            placed[members[0]] = before + placed[members[0]]
    ops = [each for op in graph.ops for each in (*placed.get(op, ()), *(() if op in gone else (op,)))]
    return in_order(graph, ops)


def _replacement(graph: StepGraph, members: Sequence[Collective], first: bool) -> list[Runnable]:
    if first:
        begin, end = bucket_gather(graph, members)
        return begin + end
    return (bucket_scatter if members[0].name == "reduce_scatter" else bucket_all_reduce)(graph, members)


def _check_dtypes(graph: StepGraph, members: Sequence[Collective]) -> None:
    dtypes = {str(graph.flat.avals[op.inputs[0]].dtype): op for op in members}
    if len(dtypes) > 1:
        (one, a), (two, b) = list(dtypes.items())[:2]
        (first, *_), (second, *_) = graph.names(a.carries), graph.names(b.carries)
        raise PlanError(
            f"a bucket holds {first} ({one}) and {second} ({two}): one collective carries one dtype. "
            f"Put them into different buckets, or give pw.fsdp a param_dtype and a reduce_dtype."
        )
