"""Peak memory of a jaxpr on one device, from the last use of every array.

This is the estimate for simulated nodes that are not compiled. It follows the order in which the jaxpr is written, and
relies on ``traffic.py`` for the arrays that are in memory at all: without fusion, every intermediate of an elementwise
chain would count. A compiler's own order, its copies and its scratch memory are not known here; where XLA compiles the
node, its memory analysis is used instead, or corrects this estimate (``runtime/sim``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.primitives import NOT_IN_PLACE
from pathways_nb.cost.jaxpr.sharded_flat import flatten
from pathways_nb.cost.jaxpr.traffic import traffic_of


def peak_bytes(
    jaxpr: Any,
    axis_sizes: Mapping[str, int] | None = None,
    in_specs: Sequence[Any] | None = None,
    donated: Collection[int] = (),
    out_specs: Sequence[Any] | None = None,
) -> int:
    """Return the peak memory of a jaxpr on each device, in bytes, run in the order in which it is written.

    Inputs count from beginning to end, because the caller holds them; donated inputs count until their last use. An
    array inside a fusion takes no memory, and a fusion may write over an input that is not read later.

    Args:
        jaxpr: closed or open, as ``jax.make_jaxpr`` returns it.
        axis_sizes: number of devices along each mesh axis.
        in_specs: for each input its ``PartitionSpec``, or ``None`` for a replicated array.
        donated: positions of the inputs whose memory may be reused.
        out_specs: for each output its ``PartitionSpec``, or ``None`` if its layout is not declared.
    """
    flat = flatten(jaxpr, axis_sizes or {}, in_specs, out_specs)
    # Donated inputs may be written over after their last use.
    held = [value for i, value in enumerate(flat.inputs) if i not in donated]
    return sum({value: value.bytes for value in flat.inputs}.values()) + _peak_beyond_inputs(flat, held)


def _peak_beyond_inputs(flat: ShardedJaxpr, held: Sequence[ShardedValue]) -> int:
    """Return the most bytes that a list needs at once beyond its inputs.

    Args:
        flat: the list; all its inputs are in memory when it begins.
        held: the inputs that stay in memory to the end.
    """
    stored = traffic_of(flat).stored
    last = _last_uses(flat, stored)
    # Outputs live to the end, and so does the array that an output is a view of.
    kept = set(held) | {value.root for value in flat.outputs}
    ends: dict[int, list[ShardedValue]] = {}
    for value, index in last.items():
        ends.setdefault(index, []).append(value)
    # ``now`` counts bytes beyond the inputs; it goes below 0 where a donated input has ended.
    alive, peak, now = set(flat.inputs), 0, 0
    for index, op in enumerate(flat.ops):
        # Without views, whose array is alive already.
        made = {value.root for value in op.outputs if value.root in stored} - alive
        over = {value for value in ends.get(index, ()) if value in alive and value not in kept}
        # What ends with this operation may be written over by it, unless it reads an element after writing others.
        in_place = 0 if op.name in NOT_IN_PLACE else sum(value.bytes for value in over)
        fresh = sum(value.bytes for value in made)
        peak = max(peak, now + max(fresh - in_place, 0) + _temporary(op))
        alive |= made
        now += fresh - sum(value.bytes for value in over)
        alive -= over
    return peak


def _last_uses(flat: ShardedJaxpr, stored: Collection[ShardedValue]) -> dict[ShardedValue, int]:
    """Return the position of the last operation that needs each array.

    What a fusion reads is needed until the fusion writes, so an array lives as long as all arrays inside of fusions
    that are computed from it. Going backward, these are known when their operands are reached.
    """
    last: dict[ShardedValue, int] = {}
    for index in reversed(range(len(flat.ops))):
        op = flat.ops[index]
        inside = [last[value.root] for value in op.outputs if value.root not in stored and value.root in last]
        for value in op.inputs:
            # ``inside``: the last uses of fused outputs, which are computed only then, from this operand.
            last[value.root] = max([last.get(value.root, index), index, *inside])
    return last


def _temporary(op: ShardedOperation) -> int:
    """Return the bytes that an operation's bodies need beyond its own inputs and outputs; of several bodies, the most.

    The inputs of a body are those of the operation, except that a ``scan`` reads slices, which are allocations of their
    own. The outputs of a body are not temporary: they are counted as outputs of the operation.
    """
    if not op.bodies:
        return 0
    outer = {value.root for value in op.inputs}
    needs = []
    for body in op.bodies:
        slices = sum(value.bytes for value in body.inputs if value.root not in outer)
        # What a body returns becomes the operation's outputs, which the list outside counts.
        carried = sum(value.bytes for value in {value.root for value in body.outputs} - set(body.inputs))
        needs.append(slices * (op.name == "scan") + max(_peak_beyond_inputs(body, list(body.inputs)) - carried, 0))
    return max(needs)
