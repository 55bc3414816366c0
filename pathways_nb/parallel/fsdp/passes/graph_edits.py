"""Carries out the edits of a pass on the list of operations that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from pathways_nb.errors import PlanError
from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.collectives import bucket_all_reduce, bucket_gather, bucket_scatter
from pathways_nb.parallel.fsdp.passes.edits import Edit, Gather, Kind, Reduction, StepCollectives
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, feeders, is_view, renamed


def collectives_of(graph: StepGraph) -> StepCollectives:
    """Return the collectives of a step as a pass sees them; their positions are those in its list of operations."""
    gathers, reductions = list[Gather](), list[Reduction]()
    for op in graph.collectives:
        at, dtype = (float(_begins(graph, op)),), str(graph.flat.avals[op.inputs[0]].dtype)
        if op.is_gather:
            read = (float(graph.first_reader(op.outputs)),)
            gathers.append(Gather(op.carries, at, read, op.again, dtype, (op,)))
        elif not isinstance(graph.makers.get(op.inputs[0]), CollectiveOp):  # the second of two belongs to the first
            readers = graph.readers.get(op.outputs[0], [])
            second = readers[0] if len(readers) == 1 else None  # hybrid sharding: it alone reads what the first makes
            chain = (op, second) if isinstance(second, CollectiveOp) else (op,)
            sent = [graph.makers.get(value) for value in (_pack(graph, op) or [op])[0].inputs]
            made = (float(max((graph.positions[one] for one in sent if one is not None), default=-1)),)
            kinds = tuple((one.name, one.axis) for one in chain)
            reductions.append(Reduction(op.carries, at, made, kinds, dtype, chain))
    names = tuple(one.name for one in graph.parameters)
    return StepCollectives(tuple(gathers), tuple(reductions), names, (float(len(graph.ops)),))


def _begins(graph: StepGraph, op: CollectiveOp) -> int:
    """Return the position of the first of the operations in a row that prepare a collective, or of itself."""
    preparing = set(feeders(graph, op) if op.is_gather else _pack(graph, op))
    at = graph.positions[op]
    while at and graph.ops[at - 1] in preparing:
        at -= 1
    return at


def edited(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step after the edits of one pass, which are all of one kind."""
    return _ACTIONS[edits[0].kind](graph, edits) if edits else graph


def _moved(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step with collectives, and what prepares them, in front of other operations.

    What completes a reduction goes with it, unless it stands behind the new position.
    """
    # 0 is in front of the operation of a position, 1 is that operation itself.
    places: dict[Runnable, tuple[float, int]] = {op: (position, 1) for op, position in graph.positions.items()}
    for edit in edits:
        (one,), (position, *_) = edit.what, edit.before
        first = one.source[0]
        moving = [*feeders(graph, first), first] if isinstance(one, Gather) else _completed(graph, first, position)
        places.update(dict.fromkeys(moving, (position, 0)))
    return graph.reordered(sorted(graph.ops, key=places.__getitem__))  # stable: what moves together keeps its order


def _pack(graph: StepGraph, op: CollectiveOp) -> list[Runnable]:
    """Return the copy into the bucket of a reduction, if it has one.

    A conversion in front of it is no part of it: computation makes the gradient in that type, wherever it is sent.
    """
    maker = graph.makers.get(op.inputs[0])
    return [maker] if maker is not None and maker.name == "pack" else []


def _completed(graph: StepGraph, op: CollectiveOp, position: float) -> list[Runnable]:
    """Return a reduction, its copy into a bucket, and what completes it in front of a position."""
    found, pending = _pack(graph, op), list[Runnable]([op])
    while pending:
        one = pending.pop()
        found.append(one)
        readers = (reader for value in one.outputs for reader in graph.readers.get(value, ()))
        # The second reduction of hybrid sharding belongs to the first, wherever it stands.
        pending += [each for each in readers if isinstance(each, CollectiveOp) or graph.positions[each] < position]
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
            # Conversions of all members come before the pack, which reads them all.
            before = [op for member in members for op in feeders(graph, member)]
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
    # A bucket of reductions is issued where the last member was, behind what reads the results of the first ones.
    return _in_order(graph, [one for op in graph.ops for one in (*placed.get(op, ()), *(() if op in gone else (op,)))])


def _finished(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step in which what only completes these gradients stands behind everything else.

    It stands there in the order of the reductions, so that none waits for a later one.
    """
    # What a collective depends on stays, such as the pack of shards for a second reduction: moved behind everything
    # else, it would stand behind the collective that reads it.
    needed, sent = set[int](), set[Runnable]()
    for op in reversed(graph.ops):
        if isinstance(op, CollectiveOp) or not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            sent.add(op)
    ranks = {value: rank for rank, edit in enumerate(edits) for op in edit.what[0].source for value in op.outputs}
    last = list[tuple[int, Runnable]]()
    for op in graph.ops:
        if not isinstance(op, CollectiveOp) and op not in sent and not ranks.keys().isdisjoint(op.inputs):
            rank = max(ranks.get(value, 0) for value in op.inputs)
            ranks.update(dict.fromkeys(op.outputs, rank))
            last.append((rank, op))
    late = {op for _, op in last}
    ordered = (op for _, op in sorted(last, key=itemgetter(0)))  # stable: each still stands behind what it reads
    return graph.reordered([*(op for op in graph.ops if op not in late), *ordered])


def _paced(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    paced = {op: replace(op, paced=True) for edit in edits for op in edit.what[0].source}
    return graph.reordered(paced.get(op, op) for op in graph.ops)


def _regathered(graph: StepGraph, edits: Sequence[Edit]) -> StepGraph:
    """Return a step that gathers again where the backward pass first reads each of these gathers (ZeRO-3).

    It is an edit of the joint list of both passes, because a policy of ``jax.checkpoint`` sees one operation at a time
    and would save the first view of a gathered array in its place.
    """
    # In the order of use: those with one reader stand in front of it in the order in which they were traced.
    ordered = sorted((edit.what[0] for edit in edits), key=lambda one: (one.read, one.params))  # type: ignore[union-attr]
    before: dict[Runnable, list[Runnable]] = {}
    names: dict[int, int] = {}  # by value of the forward pass, the one that the backward pass reads instead
    for op in (one.source[0] for one in ordered):
        views = _views(graph, op)
        values = {value for one in (op, *views) for value in one.outputs}
        readers = (reader for value in values for reader in graph.readers.get(value, ()) if reader in graph.backward)
        at = min(readers, key=graph.positions.__getitem__, default=None)
        if at is not None:
            before.setdefault(at, []).extend(_clones(graph, op, views, names))
    return graph.with_ops(
        each for op in graph.ops for each in (*before.get(op, ()), renamed(op, names) if op in graph.backward else op)
    )


def _views(graph: StepGraph, gather: CollectiveOp) -> list[Runnable]:
    """Return the operations of the forward pass that only view or convert a gathered parameter, in order.

    They are repeated, too: the backward pass often reads a transposed weight, and what is not repeated would be
    saved from the forward pass, which costs as much memory as the gathered parameter itself.
    """
    found, pending = list[Runnable](), list(gather.outputs)
    while pending:
        for op in graph.readers.get(pending.pop(), ()):
            if is_view(graph.flat, op) and op not in graph.backward:
                found.append(op)
                pending += op.outputs
    return sorted(found, key=graph.positions.__getitem__)


def _clones(graph: StepGraph, gather: CollectiveOp, views: list[Runnable], names: dict[int, int]) -> list[Runnable]:
    """Return a second gather with its conversion and its views; ``names`` gets the values that they make."""
    found, inner = list[Runnable](), dict[int, int]()
    maker = graph.makers.get(gather.inputs[0])
    for op in (*([maker] if maker is not None else []), gather, *views):
        for value in op.outputs:
            inner[value] = graph.new(graph.flat.avals[value])
        clone = replace(renamed(op, inner), outputs=tuple(inner[value] for value in op.outputs))
        # Paced at once: without a barrier the compiler merges the second gather of the same shard with the first.
        found.append(replace(clone, again=True, paced=True) if isinstance(clone, CollectiveOp) else clone)
    # The conversion of the shard alone is read as before: a shard is small, so it may live until the backward pass.
    names.update({value: new for value, new in inner.items() if maker is None or value not in maker.outputs})
    return found


_ACTIONS: Mapping[Kind, Callable[[StepGraph, Sequence[Edit]], StepGraph]] = {
    "move": _moved, "merge": _merged, "copy": _regathered, "finish": _finished, "pace": _paced,
}  # fmt: skip


def _in_order(graph: StepGraph, ops: Sequence[Runnable]) -> StepGraph:
    """Return a step with these operations, each delayed until what it reads is made.

    Raises:
        PlanError: operations wait for each other.
    """
    made = {*graph.flat.inputs, *graph.flat.constants}
    waiting: dict[int, list[Runnable]] = {}  # by missing value
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
    # Every missing value is made by an operation that waits itself, so following them must come to one twice.
    passed = [next(iter(missing))]
    while (maker := makers[missing[passed[-1]]]) not in passed:
        passed.append(maker)
    circle = passed[passed.index(maker) :]
    params = {param for op in circle if isinstance(op, CollectiveOp) for param in op.carries}
    names = ", ".join(graph.names(sorted(params))) or "operations"
    return f"collectives of {names} wait for each other: one needs what another makes. Put them into different buckets."
