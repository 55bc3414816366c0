"""What one operation is and how many floating-point operations it takes, by the shapes of its arrays."""

from __future__ import annotations

import math
from typing import Literal

from pathways_nb.cost.jaxpr.operations import VIEWS, Op

OpClass = Literal[
    "matmul", "conv", "elementwise", "transcendental", "reduction", "movement", "sort", "random", "collective", "other"
]

COLLECTIVES = {
    **dict.fromkeys(("psum", "psum2", "psum_invariant", "pmax", "pmin", "unreduced_psum", "unreduced_pmax",
                     "unreduced_pmin"), "all-reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all-gather"),
    **dict.fromkeys(("reduce_scatter", "psum_scatter", "unreduced_reduce_scatter"), "reduce-scatter"),
    **dict.fromkeys(("all_to_all", "ragged_all_to_all"), "all-to-all"),
    **dict.fromkeys(("ppermute", "psend"), "permute"),
    **dict.fromkeys(("pbroadcast", "pbroadcast_dynamic"), "broadcast"),
}  # fmt: skip
"""JAX's names, of 0.10 to 0.12, and what they are."""

_OF_KIND: dict[OpClass, frozenset[str]] = {
    "reduction": frozenset("argmax argmin cumsum cumprod cummax cummin cumlogsumexp select_and_scatter_add".split()),
    "movement": frozenset(
        "gather scatter scatter-add scatter_add scatter-mul scatter_mul scatter-min scatter_min scatter-max "
        "scatter_max transpose copy dynamic_slice dynamic_update_slice slice concatenate pad rev lay_out".split()
    ),
    "sort": frozenset("sort top_k approx_top_k".split()),
    "random": frozenset(
        "random_bits random_seed random_wrap random_unwrap random_fold_in random_split random_gamma threefry2x32 "
        "rng_bit_generator rng_uniform".split()
    ),
    "other": frozenset(
        "fft cholesky lu qr geqrf householder_product eig eigh svd schur triangular_solve tridiagonal_solve "
        "tridiagonal custom_linear_solve linear_solve pallas_call tpu_custom_call ffi_call run_state pure_callback "
        "io_callback debug_callback debug_print precv ragged_dot_general ragged_dot".split()
    ),
    "matmul": frozenset({"dot_general"}),
    "conv": frozenset({"conv_general_dilated"}),
    "collective": frozenset(COLLECTIVES),
}
_KINDS = {name: kind for kind, names in _OF_KIND.items() for name in names}
TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log1p tanh sin cos tan pow sqrt rsqrt cbrt logistic erf erfc erf_inv lgamma digamma atan2 "
    "asin acos atan sinh cosh asinh acosh atanh".split()
)
"""Elementwise operations that take many times as long as an addition, and are stored rather than computed twice."""
_NO_ARITHMETIC = VIEWS | {"broadcast_in_dim", "iota", "convert_element_type", "bitcast_convert_type", "axis_index"}


def op_class_of(op: Op) -> OpClass:
    """The class of an operation without bodies; what is transcendental is elementwise here."""
    if op.name in _KINDS:
        return _KINDS[op.name]
    return "reduction" if op.name.startswith("reduce_") and op.name != "reduce_precision" else "elementwise"


def flops_of(op: Op) -> float:
    """Floating-point operations on one device; one for each element that is computed, compared or drawn.

    A product of matrices takes 2·batch·m·n·k, a convolution two for every pair of an input and a kernel element that
    meet, so none for padding; a sort n·log2(n). Operations of class ``other`` count none.
    """
    kind = op_class_of(op)
    made = sum(value.size for value in op.outputs)
    if kind == "matmul":
        return _matmul(op) / op.ways
    if kind == "conv":
        return _conv(op) / op.ways
    if kind == "reduction":
        return op.inputs[0].size / op.ways
    if kind == "sort":
        length = op.inputs[0].shape[op.params.get("dimension", -1)] if op.inputs[0].shape else 1
        return op.inputs[0].size * max(1, math.ceil(math.log2(max(length, 1)))) / op.ways
    if kind == "random" or (kind == "elementwise" and op.name not in _NO_ARITHMETIC):
        return made / op.ways
    return 0.0


def _matmul(op: Op) -> int:
    ((contracted, _), _), left = op.params["dimension_numbers"], op.inputs[0].shape
    return 2 * op.outputs[0].size * math.prod(left[i] for i in contracted)


def _conv(op: Op) -> int:
    """Counted like XLA does: a kernel element that falls on padding or between dilated inputs costs nothing."""
    numbers, (image, kernel), out = op.params["dimension_numbers"], op.inputs, op.outputs[0].shape
    meetings = 1
    for i, (to, at, by) in enumerate(
        zip(numbers.out_spec[2:], numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True)
    ):
        meetings *= _meetings(out[to], image.shape[at], kernel.shape[by], op, i)
    batch, features = (out[dimension] for dimension in numbers.out_spec[:2])
    return 2 * batch * features * kernel.shape[numbers.rhs_spec[1]] * meetings


def _meetings(out: int, size: int, kernel: int, op: Op, i: int) -> int:
    """Pairs of an output and a kernel position, along one dimension, that meet an input."""
    stride, (before, _) = op.params["window_strides"][i], op.params["padding"][i]
    spread, holes = op.params["lhs_dilation"][i], op.params["rhs_dilation"][i]
    found = 0
    for k in range(kernel):
        for o in range(out):
            at = o * stride + k * holes - before
            found += 0 <= at <= (size - 1) * spread and at % spread == 0
    return found
