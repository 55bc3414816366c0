"""The floating-point operations of one operation, from the shapes of its arrays.

The counts follow those of XLA: the tests hold them within 5 % of its cost analysis. Bytes are counted in
``traffic.py``, because they depend on which operations are fused; FLOPs do not.
"""

from __future__ import annotations

import math

from pathways_nb.cost.jaxpr.operations import ShardedOperation
from pathways_nb.cost.jaxpr.primitives import NO_ARITHMETIC, op_class_of


def flops_of(op: ShardedOperation) -> float:
    """Return the floating-point operations on one device.

    Each element that is computed, compared or drawn at random counts one operation. A matrix product counts
    2·batch·m·n·k, a convolution two for every pair of an input element and a kernel element that are multiplied, so
    none for padding, and a sort of n elements in rows of m counts n·log2(m). Operations of class ``other`` count none;
    ``node_work`` adds a note for them.
    """
    kind = op_class_of(op.name)
    made = sum(value.size for value in op.outputs)
    # Divided by ``ways``, as shapes are global outside ``shard_map``; inside ``ways`` is 1 and shapes are those of a
    # shard.
    if kind == "matmul":
        ((contracted, _), _), left = op.params["dimension_numbers"], op.inputs[0].shape
        return 2 * made * math.prod(left[i] for i in contracted) / op.ways
    if kind == "conv":
        return _conv(op) / op.ways
    if kind == "reduction":
        return op.inputs[0].size / op.ways
    if kind == "sort":
        # Without the parameter, as for ``top_k``, the last dimension.
        length = op.inputs[0].shape[op.params.get("dimension", -1)] if op.inputs[0].shape else 1
        return op.inputs[0].size * max(1, math.ceil(math.log2(max(length, 1)))) / op.ways
    if kind == "random" or (kind == "elementwise" and op.name not in NO_ARITHMETIC):
        return made / op.ways
    return 0.0


def _conv(op: ShardedOperation) -> int:
    """Return the operations of a convolution on all devices together.

    As in XLA's count, a kernel element that falls on padding or between dilated inputs costs nothing.
    """
    numbers, (image, kernel), out = op.params["dimension_numbers"], op.inputs, op.outputs[0].shape
    meetings = 1
    for i, (to, at, by) in enumerate(
        zip(numbers.out_spec[2:], numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True)
    ):
        # Dimensions are independent: pairs of positions multiply.
        meetings *= _meetings(out[to], image.shape[at], kernel.shape[by], op, i)
    batch, features = (out[dimension] for dimension in numbers.out_spec[:2])
    return 2 * batch * features * kernel.shape[numbers.rhs_spec[1]] * meetings


def _meetings(out: int, size: int, kernel: int, op: ShardedOperation, i: int) -> int:
    """Return the number of pairs of an output and a kernel position along one dimension that fall on an input."""
    stride, (before, _) = op.params["window_strides"][i], op.params["padding"][i]
    spread, holes = op.params["lhs_dilation"][i], op.params["rhs_dilation"][i]
    found = 0
    for k in range(kernel):
        for o in range(out):
            at = o * stride + k * holes - before
            # Dilating the input by ``spread`` puts zeros between its elements, dilating the kernel by ``holes`` skips
            # some.
            found += 0 <= at <= (size - 1) * spread and at % spread == 0
    return found
