"""Carries out the edits of a pass on the list of operations that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.collectives import bucket_all_reduce, bucket_gather, bucket_scatter
from pathways_nb.parallel.fsdp.passes.copying import copied
from pathways_nb.parallel.fsdp.passes.edits import Edit, Gather, Kind, Reduction, StepCollectives
from pathways_nb.parallel.fsdp.passes.ordering import feeders, in_order
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph


def collectives_of(graph: StepGraph) -> StepCollectives:
    """Return the collectives of a step as a pass sees them; their positions are those in its list of operations."""
    gathers, reductions = list[Gather](), list[Reduction]()
    for op in graph.collectives:
        at, dtype = (float(_begins(graph, op)),), str(graph.flat.avals[op.inputs[0]].dtype)
        if op.is_gather:
            read = (float(graph.first_reader(op.outputs)),)
            gathers.append(Gather(op.carries, at, read, op.again, dtype, (op,)))
        elif not isinstance(graph.makers.get(op.inputs[0]), Collective):  # the second of two belongs to the first
            chain = _chain(graph, op)
            sent = [graph.makers.get(value) for value in (_packed(graph, op) or [op])[0].inputs]
            made = (float(max((graph.positions[one] for one in sent if one is not None), default=-1)),)
            kinds = tuple((one.name, one.axis) for one in chain)
            reductions.append(Reduction(op.carries, at, made, kinds, dtype, chain))
    names = tuple(one.name for one in graph.parameters)
    return StepCollectives(tuple(gathers), tuple(reductions), names, (float(len(graph.ops)),))


def _begins(graph: StepGraph, op: Collective) -> int:
    """Return the position of the first of the operations in a row that prepare a collective, or of itself."""
    preparing = set(_with_gather(graph, op) if op.is_gather else _packed(graph, op))
    at = graph.positions[op]
    while at and graph.ops[at - 1] in preparing:
        at -= 1
    return at


def _chain(graph: StepGraph, op: Collective) -> tuple[Collective, ...]:
    """Return a reduction and, under hybrid sharding, the one that alone reads what it makes."""
    readers = graph.readers.get(op.outputs[0], [])
    second = readers[0] if len(readers) == 1 else None
    return (op, second) if isinstance(second, Collective) else (op,)


def edited(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step after the edits of one pass, which are all of one kind."""
    return _ACTIONS[edits[0].kind](graph, edits) if edits else graph


def _moved(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step with collectives, and what prepares them, in front of other operations.

    What completes a reduction goes with it, unless it stands behind the new position.
    """
    places: dict[Runnable, tuple[float, int]] = {op: (position, 1) for op, position in graph.positions.items()}
    for edit in edits:
        (one,), (position, *_) = edit.what, edit.before
        first = one.source[0]
        for op in _with_gather(graph, first) if isinstance(one, Gather) else _with_reduction(graph, first, position):
            places[op] = position, 0
    return graph.reordered(sorted(graph.ops, key=places.__getitem__))  # stable: what moves together keeps its order


def _with_gather(graph: StepGraph, op: Collective) -> list[Runnable]:
    """Return a gather and the operations that only prepare what it sends."""
    return [*feeders(graph, op), op]


def _packed(graph: StepGraph, op: Collective) -> list[Runnable]:
    """Return the copy into the bucket of a reduction, if it has one.

    A conversion in front of it is no part of it: computation makes the gradient in that type, wherever it is sent.
    """
    maker = graph.makers.get(op.inputs[0])
    return [maker] if maker is not None and maker.name == "pack" else []


def _with_reduction(graph: StepGraph, op: Collective, position: float) -> list[Runnable]:
    """Return a reduction, its copy into a bucket, and what completes it in front of a position."""
    found, pending = _packed(graph, op), list[Runnable]([op])
    while pending:
        one = pending.pop()
        found.append(one)
        readers = (reader for value in one.outputs for reader in graph.readers.get(value, ()))
        pending += [each for each in readers if isinstance(each, Collective) or graph.positions[each] < position]
    return found


def _merged(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step with one collective in place of several: gathers where the first was, reductions where the last."""
    placed: dict[Runnable, list[Runnable]] = {}
    gone: set[Runnable] = set()
    for edit in edits:
        members = sorted((one.source[0] for one in edit.what), key=graph.positions.__getitem__)
        if len(members) < 2:
            continue
        if isinstance(edit.what[0], Gather):
            before = [op for member in members for op in feeders(graph, member)]  # conversions come before the pack
            begin, end = bucket_gather(graph, members)
            placed[members[0]] = [*before, *begin, *end]
            gone.update(before, members)
        else:
            by = {one.source[0]: one.source[1:] for one in edit.what}
            then = [second for member in members for second in by[member]]
            scattered = members[0].name == "reduce_scatter"
            placed[members[-1]] = (bucket_scatter if scattered else bucket_all_reduce)(graph, members, then)
            gone.update(members, then)
    if not placed:
        return graph
    return in_order(graph, [one for op in graph.ops for one in (*placed.get(op, ()), *(() if op in gone else (op,)))])


def _copied(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    # In the order of use: those with one reader stand in front of it in the order in which they were traced.
    ordered = sorted((edit.what[0] for edit in edits), key=lambda one: (one.read, one.params))  # type: ignore[union-attr]
    return copied(graph, [one.source[0] for one in ordered])


def _finished(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step in which what only completes these gradients stands behind everything else.

    It stands there in the order of the reductions, so that none waits for a later one.
    """
    sent = _sent(graph)
    ranks = {value: rank for rank, edit in enumerate(edits) for op in edit.what[0].source for value in op.outputs}
    last = list[tuple[int, Runnable]]()
    for op in graph.ops:
        if not isinstance(op, Collective) and op not in sent and not ranks.keys().isdisjoint(op.inputs):
            rank = max(ranks.get(value, 0) for value in op.inputs)
            ranks.update(dict.fromkeys(op.outputs, rank))
            last.append((rank, op))
    late = {op for _, op in last}
    ordered = (op for _, op in sorted(last, key=itemgetter(0)))  # stable: each still stands behind what it reads
    return graph.reordered([*(op for op in graph.ops if op not in late), *ordered])


def _sent(graph: StepGraph) -> set[Runnable]:
    """Return the operations on which a collective depends, such as the pack of shards for a second reduction."""
    needed, found = set[int](), set[Runnable]()
    for op in reversed(graph.ops):
        if isinstance(op, Collective) or not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            found.add(op)
    return found


def _bound(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    bound = {op: replace(op, bound=True) for edit in edits for op in edit.what[0].source}
    return graph.reordered(bound.get(op, op) for op in graph.ops)


_ACTIONS: Mapping[Kind, Callable[[StepGraph, Sequence[Edit]], StepGraph]] = {
    "move": _moved, "merge": _merged, "copy": _copied, "finish": _finished, "bind": _bound,
}  # fmt: skip
