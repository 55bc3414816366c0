"""The one table of JAX's primitives, by name: what each of them does, for whoever reads a jaxpr.

The names are those of JAX 0.10 to 0.12; ``tests/engine/test_primitives.py`` compares them with the JAX that is there. A
primitive that is not in the table counts as elementwise.
"""

from __future__ import annotations

from typing import Literal

OpClass = Literal[
    "matmul", "conv", "elementwise", "transcendental", "reduction", "movement", "sort", "random", "collective", "other"
]
CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute", "broadcast"]

LAY_OUT = "lay_out"
"""No primitive: the name of the operation that lays an array out as a call around it declares."""

CALLS = {
    **dict.fromkeys(("jit", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}
"""What runs another jaxpr once, with its own operands: each with the parameter that holds the jaxpr."""
LOOPS = frozenset({"scan", "while"})
CONTROL = LOOPS | {"cond", "shard_map"}
"""What runs other jaxprs several times, one of several, or on the shards of its operands."""

_EXCHANGES: dict[CollectiveKind, str] = {
    "all-reduce": "psum psum_invariant pmax pmin unreduced_psum unreduced_pmax unreduced_pmin "
    "psum_start psum_invariant_start unreduced_psum_start",
    "all-gather": "all_gather all_gather_invariant all_gather_reduced all_gather_start all_gather_reduced_start",
    "reduce-scatter": "reduce_scatter unreduced_reduce_scatter reduce_scatter_start unreduced_reduce_scatter_start",
    "all-to-all": "all_to_all ragged_all_to_all all_to_all_start",
    "permute": "ppermute psend ppermute_start",
    "broadcast": "pbroadcast pbroadcast_dynamic pbroadcast_start",
}
COLLECTIVES = {name: kind for kind, names in _EXCHANGES.items() for name in names.split()}
"""Exchanges between devices. What ``psend`` sends, ``precv`` receives, and ``…_done`` ends what ``…_start`` begins;
each exchange counts once."""

CONSTRAINTS = frozenset({"sharding_constraint", "reshard"})
"""What says how its operand is to be split."""
ON_DEVICES = frozenset({"sharding_constraint", "jit"})
"""What has shardings that name devices; those of others only describe types."""
VIEWS = CONSTRAINTS | {
    "reshape", "squeeze", "pvary", "preduced", "vary_unreduced_cast", "vary_unreduced_cast_p", "reduced_vary_cast",
    "reduced_vary_cast_p", "optimization_barrier", "device_put", "layout_constraint", "psum_done", "all_gather_done",
    "reduce_scatter_done", "all_to_all_done", "ppermute_done", "pbroadcast_done",
}  # fmt: skip
"""What gives its inputs another shape or type, in the same memory."""
NO_ARITHMETIC = VIEWS | {"broadcast_in_dim", "iota", "convert_element_type", "bitcast_convert_type", "axis_index"}
"""Elementwise operations that compute no number."""
CARRIERS = {*CALLS, "shard_map", "precv", "convert_element_type", "broadcast_in_dim", "transpose", "copy"} | VIEWS
"""What may stand beside collectives where devices only exchange values."""

TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log1p tanh sin cos tan pow sqrt rsqrt cbrt logistic erf erfc erf_inv lgamma digamma atan2 "
    "asin acos atan sinh cosh asinh acosh atanh".split()
)
"""Elementwise operations that take many times as long as an addition, and are stored rather than computed twice."""

SLICES = frozenset({"gather", "dynamic_slice", "slice"})
"""What reads a part of its first operand."""
WINDOWS = frozenset({"dynamic_update_slice", "dynamic_slice", "slice", "pad"})
"""What takes, changes or widens a window of its first operand."""
SCATTERS = frozenset({"scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"})
UPDATES = {"dynamic_update_slice": 1, **dict.fromkeys(SCATTERS, 2)}
"""What changes a part of its first operand, and which operand holds what is written there."""
ACCUMULATES = frozenset({"scatter-add", "scatter-sub", "scatter-mul"})
"""Updates that read what they change."""
ARRANGES = frozenset({"transpose", "pad", "slice", "concatenate", "rev", "copy"})
"""What makes an array of the elements of others, at positions known beforehand."""
RESHAPES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose", "split"})
"""What gives the elements of one array other positions, dimension by dimension."""
FOLDS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})
"""Reductions of one array over whole dimensions, in any order."""
NOT_IN_PLACE = frozenset({"dot_general", "conv_general_dilated", "gather", "sort", "transpose", "concatenate"})
"""What cannot write its output over an input."""

_OF_KIND: dict[OpClass, frozenset[str]] = {
    "elementwise": VIEWS | {"reduce_precision"},
    "reduction": FOLDS
    | frozenset("argmax argmin cumsum cumprod cummax cummin cumlogsumexp select_and_scatter_add".split()),
    "movement": SLICES | ARRANGES | UPDATES.keys() | {LAY_OUT},
    "sort": frozenset("sort top_k approx_top_k".split()),
    "random": frozenset(
        "random_bits random_seed random_wrap random_unwrap random_fold_in random_split random_gamma threefry2x32 "
        "rng_bit_generator rng_uniform".split()
    ),
    "other": frozenset(
        "fft cholesky lu qr geqrf householder_product eig eigh svd schur triangular_solve tridiagonal_solve "
        "tridiagonal custom_linear_solve pallas_call tpu_custom_call ffi_call run_state pure_callback "
        "io_callback debug_callback debug_print precv ragged_dot_general".split()
    ),
    "matmul": frozenset({"dot_general"}),
    "conv": frozenset({"conv_general_dilated"}),
    "collective": frozenset(COLLECTIVES),
}
_KINDS = {name: kind for kind, names in _OF_KIND.items() for name in names}

NAMES = frozenset({*CALLS, *CONTROL, *CARRIERS, *NO_ARITHMETIC, *TRANSCENDENTAL, *RESHAPES, *_KINDS}) - {LAY_OUT}
"""Every primitive in the table."""


def op_class_of(name: str) -> OpClass:
    """The class of a primitive that runs no other jaxpr; what is transcendental is elementwise here."""
    return "reduction" if is_reduction(name) else _KINDS.get(name, "elementwise")


def is_reduction(name: str) -> bool:
    """Whether a primitive is of the family ``reduce_…``, whatever it reduces by."""
    return name.startswith("reduce_") and _KINDS.get(name, "reduction") == "reduction"
