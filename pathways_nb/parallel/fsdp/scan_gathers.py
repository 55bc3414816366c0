"""A stacked parameter is gathered layer by layer in the body of the loop that reads it, not whole in front of it.

``jax.lax.scan`` over layers reads parameters that are stacked along their first dimension. After differentiation there
are two scans: that of the forward pass reads the stack, that of the backward pass reads it again and stacks the
gradients. This pass splits such a stack along another dimension, so that every iteration gathers its layer, in the
backward pass again, and leaves each device its shard of the layer's gradient. No device ever holds the whole stack.

What an iteration of the forward pass only views or converts and hands to the backward pass is made there again. With
``zero2``, which keeps what it gathers, gathers stay in front and only gradients are reduced in the loop. Collectives in
loops are not in the step's list: a plan's buckets and its ``keep`` do not concern them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pathways_nb.jaxpr.flat import scan_sizes
from pathways_nb.parallel.flat_function import FlatFunction, Runnable, makers
from pathways_nb.parallel.fsdp.sharded_scan import Slice, View, sharded_scan
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, is_view, operation


@dataclass
class _Edits:
    """What changes: operands and results of scans and of barriers, by operation and position."""

    slices: dict[tuple[Runnable, int], Slice] = field(default_factory=dict)
    held: dict[tuple[Runnable, int], tuple[int, int]] = field(default_factory=dict)
    """Of barriers, what they read and make."""
    stacks: dict[tuple[Runnable, int], tuple[int, int]] = field(default_factory=dict)
    """Of results of scans, the parameter whose gradient it is and the value of its shards."""
    sums: dict[Runnable, Runnable] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    """Results of scans that nothing reads any more."""
    gone: set[Runnable] = field(default_factory=set)

    def add(self, other: _Edits) -> None:
        """Add other changes."""
        for own, more in zip(vars(self).values(), vars(other).values(), strict=True):
            own.update(more)


def gather_in_scans(graph: StepGraph, gathers: bool) -> StepGraph:
    """Return a step that gathers stacked parameters, and reduces their gradients, in the bodies of its scans.

    A parameter of which anything else reads the whole stack is gathered in front, as before.

    Args:
        graph: the step as it was traced.
        gathers: whether parameters are gathered in loops; gradients are in any case.
    """
    edits, dtypes = _Edits(), dict[int, Any]()
    for op in graph.collectives:
        param = op.carries[0]
        one = graph.parameters[param]
        # Split along its layers, each device would have whole layers, and no iteration could gather one from all.
        if not one.stacked or not one.dim or any(one.others[:1]):
            continue
        if op.is_gather and gathers:
            dtypes[param] = graph.flat.avals[op.outputs[0]].dtype
            # The loop reads the shards as they are stored, in front of any conversion: each iteration converts its own.
            maker = graph.makers.get(op.inputs[0])
            stored = op.inputs[0] if maker is None else maker.inputs[0]
            found = _read(graph, op.outputs[0], Slice(param, stored, lambda layer: layer))
            edits.add(found or _Edits())
        elif op.name == "reduce_scatter":
            edits.add(_scattered(graph, op) or _Edits())
    return graph.with_ops(_edited(graph, edits, dtypes))


# ---- what changes


def _read(graph: StepGraph, value: int, as_slice: Slice) -> _Edits | None:
    """Return how all that read a stack read its shards; ``None`` if something else than scans' slices reads it."""
    edits = _Edits()
    if value in graph.flat.outputs:
        return None
    for reader in graph.readers.get(value, ()):
        if reader.name == "barrier":  # of jax.checkpoint, around the loop's recomputation
            found = _read_behind(graph, reader, value, as_slice)
        elif reader.name == "scan" and type(reader) is Runnable:
            found = _read_in(graph, reader, value, as_slice)
        else:
            found = None
        if found is None:
            return None
        edits.add(found)
    return edits


def _read_behind(graph: StepGraph, barrier: Runnable, value: int, as_slice: Slice) -> _Edits | None:
    at = barrier.inputs.index(value)
    held = graph.new(graph.flat.avals[as_slice.shards])
    edits = _read(graph, barrier.outputs[at], as_slice._replace(shards=held))
    if edits is not None:
        edits.held[barrier, at] = as_slice.shards, held
    return edits


def _read_in(graph: StepGraph, scan: Runnable, value: int, as_slice: Slice) -> _Edits | None:
    edits, start = _Edits(), sum(scan_sizes(scan.eqn))
    for at in (at for at, operand in enumerate(scan.operands) if operand == value):
        if at < start:  # a constant or a carried value: every iteration sees all layers
            return None
        edits.slices[scan, at] = as_slice
        # The forward loop stacks what the backward loop reads. Where that is only a view of the layer, the backward
        # loop makes it from the shards again; else the stack of whole layers would stay in memory.
        for result, view in _passed_on(scan, at):
            stack = scan.results[result]
            both = partial(lambda layer, first, then: then(first(layer)), first=as_slice.view, then=view)
            found = _read(graph, stack, as_slice._replace(view=both))
            if found is not None:
                edits.add(found)
                edits.dropped.add(stack)
    return edits


def _passed_on(scan: Runnable, operand: int) -> Iterator[tuple[int, View]]:
    """Yield the stacked results of a scan that are only views or conversions of an operand's slice, with the view."""
    body = FlatFunction.of(scan.params["jaxpr"])
    made, start = makers(tuple(body.inlined(body.ops))), body.inputs[operand]
    for result in range(scan_sizes(scan.eqn)[1], len(scan.results)):
        chain, value = list[Runnable](), body.outputs[result]
        while value != start and (op := made.get(value)) is not None and is_view(body, op):
            chain.append(op)
            value = op.inputs[0]
        if value == start:
            yield result, _chained(chain[::-1])


def _chained(ops: list[Runnable]) -> View:
    def view(layer: Any) -> Any:
        for op in ops:
            (layer,) = op.run(layer)
        return layer

    return view


def _scattered(graph: StepGraph, scatter: CollectiveOp) -> _Edits | None:
    """Return how scans make the shards of a gradient; ``None`` if anything else than sums of their stacks makes it."""
    value = scatter.inputs[0]
    maker = graph.makers.get(value)
    if maker is not None and maker.name == "convert":  # of reduce_dtype: the loop converts what it reduces
        value = maker.inputs[0]
    edits = _gradient_of(graph, value, scatter.carries[0], scatter.outputs[0])
    if edits is not None:
        edits.gone.add(scatter)
    return edits


def _gradient_of(graph: StepGraph, value: int, param: int, shards: int) -> _Edits | None:
    """Return how the shards of a gradient are made in place of the whole one; ``None`` if they cannot be."""
    maker = graph.makers.get(value)
    if maker is None or len(graph.readers[value]) != 1 or value in graph.flat.outputs:
        return None  # something else reads the whole gradient
    edits = _Edits()
    if maker.name == "scan" and type(maker) is Runnable:
        at = maker.results.index(value)
        if at < scan_sizes(maker.eqn)[1]:
            return None
        edits.stacks[maker, at] = param, shards
        return edits
    if maker.name not in ("add", "add_any") or len(maker.inputs) != 2:
        return None
    # A sum of gradients, of several loops or microbatches, is the sum of their shards.
    terms = [graph.new(graph.flat.avals[shards]) for _ in maker.inputs]
    for term, whole in zip(terms, maker.inputs, strict=True):
        found = _gradient_of(graph, whole, param, term)
        if found is None:
            return None
        edits.add(found)
    edits.sums[maker] = operation("add", terms, (shards,), lambda one, two: [one + two])
    return edits


# ---- the operations that change


def _edited(graph: StepGraph, edits: _Edits, dtypes: dict[int, Any]) -> Iterator[Runnable]:
    scans = {op for op, _ in (*edits.slices, *edits.stacks)}
    barriers = {op for op, _ in edits.held}
    for op in graph.ops:
        if op in scans:
            slices = {at: one for (scan, at), one in edits.slices.items() if scan is op}
            stacks = {at: pair for (scan, at), pair in edits.stacks.items() if scan is op}
            results = [at for at, value in enumerate(op.results) if value not in edits.dropped]
            yield sharded_scan(graph, op, slices, stacks, results, dtypes)
        elif op in barriers:
            pairs = [edits.held.get((op, at), pair)
                     for at, pair in enumerate(zip(op.inputs, op.outputs, strict=True))]  # fmt: skip
            yield replace(op, inputs=tuple(pair[0] for pair in pairs), outputs=tuple(pair[1] for pair in pairs))
        elif op not in edits.gone:
            yield edits.sums.get(op, op)
