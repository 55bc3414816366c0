"""Two properties of code that can be proved without a compiler: no exchange between devices, and no temporary memory.

They let the simulator skip compiling a node, which takes about a second. A wrong proof would hide collectives that
XLA's partitioner inserts, so everything doubtful counts as not proved; the tests compare random chains with XLA.

Each device must make its part of every value from its own parts. That is certain for elementwise operations on operands
that are replicated or partitioned alike, for reshapes, reductions and gathers along dimensions that no axis partitions,
and for matrix products whose contracted dimension no axis partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pathways_nb.cost.jaxpr.operations import ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.primitives import FOLDS, RESHAPES, op_class_of
from pathways_nb.cost.jaxpr.sharded_flat import flatten


def needs_no_exchange(jaxpr: Any, axis_sizes: Mapping[str, int], in_specs: Sequence[Any] | None = None) -> bool:
    """Return whether each device certainly makes its part of all results from its own part of the arguments.

    ``False`` proves nothing: the compiler may still find a way without an exchange.

    Args:
        jaxpr: closed or open, as ``jax.make_jaxpr`` returns it.
        axis_sizes: number of devices along each mesh axis.
        in_specs: for each input its ``PartitionSpec``, or ``None`` for a replicated array.
    """
    flat = flatten(jaxpr, axis_sizes, in_specs)
    return all(_is_local(op, flat.sizes) for op in flat.ops)


def is_one_fusion(jaxpr: Any, axis_sizes: Mapping[str, int], in_specs: Sequence[Any] | None = None) -> bool:
    """Return whether all operations are elementwise, so that only inputs and outputs take memory.

    Args:
        jaxpr: closed or open, as ``jax.make_jaxpr`` returns it.
        axis_sizes: number of devices along each mesh axis.
        in_specs: for each input its ``PartitionSpec``, or ``None`` for a replicated array.
    """
    return all(
        not op.bodies and op_class_of(op.name) == "elementwise" for op in flatten(jaxpr, axis_sizes, in_specs).ops
    )


def _is_local(op: ShardedOperation, sizes: Mapping[str, int]) -> bool:
    """Return whether one operation certainly needs no exchange between devices."""
    if op.bodies:
        return False
    if op.name in RESHAPES | FOLDS:
        # A lost axis must be gathered or summed over; parts of unequal size may have to move.
        return all(_axes(op.inputs[0]) in ([], _axes(made)) and _divides(made, sizes) for made in op.outputs)
    # Contracted dimensions decide, not only the layouts of both sides.
    if op.name == "dot_general":
        return _is_local_product(op)
    if op.name == "gather":
        # Each device looks its own indices up in a table that it has as a whole.
        table, indices = op.inputs
        return not _axes(table) and _axes(indices) == _axes(op.outputs[0])
    return op_class_of(op.name) == "elementwise" and all(_is_alike(value, op.outputs[0]) for value in op.inputs)


def _is_alike(value: ShardedValue, made: ShardedValue) -> bool:
    """Return whether an operand is replicated, or partitioned as the result is."""
    return not _axes(value) or (len(value.shape) == len(made.shape) and value.split == made.split)


def _is_local_product(op: ShardedOperation) -> bool:
    """Return whether a matrix product sums over dimensions that no axis partitions, and uses every axis once.

    If one axis partitions rows and columns, the output can keep it on one of them only, and a factor must be gathered.
    """
    ((inner_l, inner_r), (batch_l, batch_r)) = op.params["dimension_numbers"]
    left, right = op.inputs
    # A partitioned contracted dimension leaves partial sums on each device, which have to be added up.
    if any(left.split[i] for i in inner_l) or any(right.split[i] for i in inner_r):
        return False
    batch = [left.split[i] for i in batch_l]
    # An axis of a batch dimension is in both factors, and once in the output.
    twice = sum(map(len, batch))
    return batch == [right.split[i] for i in batch_r] and (
        len(_axes(op.outputs[0])) == len(_axes(left)) + len(_axes(right)) - twice
    )


def _axes(value: ShardedValue) -> list[str]:
    """Return the names of the axes that partition any dimension, sorted, for comparisons whatever the dimension."""
    return sorted(axis for axes in value.split for axis in axes)


def _divides(value: ShardedValue, sizes: Mapping[str, int]) -> bool:
    """Return whether all devices hold parts of equal size."""
    ways = [math.prod(sizes[axis] for axis in axes) for axes in value.split]
    return all(size % by == 0 for size, by in zip(value.shape, ways, strict=True))
