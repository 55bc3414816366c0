"""What can be said of code without a compiler: that it plainly needs nothing from other devices, or no memory.

Each device makes its part of every value from its own.
Only what is certain is said, operation by operation: elementwise on operands that are split alike, or whole; arrays
that are reshaped, reduced or looked up along dimensions that nothing splits; products whose inner dimension nothing
splits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pathways_nb.cost.jaxpr.flat import flatten
from pathways_nb.cost.jaxpr.operations import Op, Value
from pathways_nb.util.primitives import FOLDS, RESHAPES, op_class_of


def needs_no_exchange(jaxpr: Any, axis_sizes: Mapping[str, int], in_specs: Sequence[Any] | None = None) -> bool:
    """Whether each device can make its part of all results from its own part of the arguments.

    ``False`` says nothing: a compiler may still find a way without. Arguments as for ``work_of``.
    """
    flat = flatten(jaxpr, axis_sizes, in_specs)
    return all(_is_local(op, flat.sizes) for op in flat.ops)


def is_one_fusion(jaxpr: Any, axis_sizes: Mapping[str, int], in_specs: Sequence[Any] | None = None) -> bool:
    """Whether all of it is made element by element, so that nothing but inputs and outputs takes memory."""
    return all(
        not op.bodies and op_class_of(op.name) == "elementwise" for op in flatten(jaxpr, axis_sizes, in_specs).ops
    )


def _is_local(op: Op, sizes: Mapping[str, int]) -> bool:
    if op.bodies:
        return False
    if op.name in RESHAPES | FOLDS:
        return all(_axes(op.inputs[0]) in ([], _axes(made)) and _divides(made, sizes) for made in op.outputs)
    if op.name == "dot_general":
        return _is_local_product(op)
    if op.name == "gather":
        table, indices = op.inputs
        return not _axes(table) and _axes(indices) == _axes(op.outputs[0])
    return op_class_of(op.name) == "elementwise" and all(_is_alike(value, op.outputs[0]) for value in op.inputs)


def _is_alike(value: Value, made: Value) -> bool:
    """Whether an operand is whole, or split as the result is."""
    return not _axes(value) or (len(value.shape) == len(made.shape) and value.split == made.split)


def _is_local_product(op: Op) -> bool:
    ((inner_l, inner_r), (batch_l, batch_r)) = op.params["dimension_numbers"]
    left, right = op.inputs
    if any(left.split[i] for i in inner_l) or any(right.split[i] for i in inner_r):
        return False
    batch = [left.split[i] for i in batch_l]
    twice = sum(map(len, batch))
    return batch == [right.split[i] for i in batch_r] and (
        len(_axes(op.outputs[0])) == len(_axes(left)) + len(_axes(right)) - twice
    )


def _axes(value: Value) -> list[str]:
    """All that split any of its dimensions, by name."""
    return sorted(axis for axes in value.split for axis in axes)


def _divides(value: Value, sizes: Mapping[str, int]) -> bool:
    """Whether all devices hold parts of one size."""
    ways = [math.prod(sizes[axis] for axis in axes) for axes in value.split]
    return all(size % by == 0 for size, by in zip(value.shape, ways, strict=True))
