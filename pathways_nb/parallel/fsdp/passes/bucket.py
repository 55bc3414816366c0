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
    graph = _gathered(graph, forward, again=False)
    graph = _gathered(graph, second, again=True)
    graph = _reduced(graph, second, "reduce_scatter")
    return _reduced(graph, second, "all_reduce")


def _gathered(graph: StepGraph, buckets: Buckets, again: bool) -> StepGraph:
    """Return the step with the gathers of each bucket merged, at the position of the first."""
    placed: dict[Runnable, list[Runnable]] = {}
    gone: set[Runnable] = set()
    for members in _members(graph, buckets, lambda op: op.is_gather and op.again == again):
        before = [op for member in members for op in feeders(graph, member)]  # conversions come before the pack
        begin, end = bucket_gather(graph, members)
        placed[members[0]] = [*before, *begin, *end]
        gone.update(before, members)
    return _replaced(graph, placed, gone)


def _reduced(graph: StepGraph, buckets: Buckets, name: str) -> StepGraph:
    """Return the step with the reductions of each bucket merged, at the position of the last.

    With hybrid sharding, the second reductions of what is merged are merged with it, and no others.
    """
    placed: dict[Runnable, list[Runnable]] = {}
    gone: set[Runnable] = set()
    merged = bucket_scatter if name == "reduce_scatter" else bucket_all_reduce
    for members in _members(graph, buckets, lambda op: op.name == name and not _is_second(graph, op)):
        then = _followers(graph, members)
        placed[members[-1]] = merged(graph, members, then)
        gone.update(members, then)
    return _replaced(graph, placed, gone)


def _is_second(graph: StepGraph, op: Collective) -> bool:
    """Return whether a collective reads what another one made: the second step of hybrid sharding."""
    return isinstance(graph.makers.get(op.inputs[0]), Collective)


def _followers(graph: StepGraph, members: Sequence[Collective]) -> list[Collective]:
    """Return the collectives that alone read what the members make, if each has one: hybrid sharding's second step."""
    readers = [graph.readers.get(op.outputs[0], []) for op in members]
    found = [one[0] for one in readers if len(one) == 1 and isinstance(one[0], Collective)]
    return found if len(found) == len(members) else []


def _members(graph: StepGraph, buckets: Buckets, chosen: Callable[[Collective], bool]) -> list[list[Collective]]:
    """Return the chosen collectives of each bucket that has several, in order."""
    of: dict[int, list[Collective]] = {}
    for op in graph.collectives:
        if chosen(op) and len(op.carries) == 1:
            of.setdefault(op.carries[0], []).append(op)
    found = []
    for params in buckets:
        for turn in range(max((len(of.get(param, ())) for param in params), default=0)):
            ops = [of[param][turn] for param in params if len(of.get(param, ())) > turn]
            if len(ops) > 1:
                _check_dtypes(graph, ops)
                found.append(sorted(ops, key=graph.positions.__getitem__))
    return found


def _replaced(graph: StepGraph, placed: dict[Runnable, list[Runnable]], gone: set[Runnable]) -> StepGraph:
    if not placed:
        return graph
    ops = [each for op in graph.ops for each in (*placed.get(op, ()), *(() if op in gone else (op,)))]
    return in_order(graph, ops)


def _check_dtypes(graph: StepGraph, members: Sequence[Collective]) -> None:
    dtypes = {str(graph.flat.avals[op.inputs[0]].dtype): op for op in members}
    if len(dtypes) > 1:
        (one, a), (two, b) = list(dtypes.items())[:2]
        (first, *_), (second, *_) = graph.names(a.carries), graph.names(b.carries)
        raise PlanError(
            f"a bucket holds {first} ({one}) and {second} ({two}): one collective carries one dtype. "
            f"Put them into different buckets, or give pw.fsdp a param_dtype and a reduce_dtype."
        )
