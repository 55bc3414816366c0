"""The one table of JAX's primitives, by name: what each primitive does.

Every reader of a jaxpr uses this table, so that a primitive that the cost model prices as a collective is also drawn as
one. The calls that are inlined come from ``jaxpr.flat``, the collectives from ``cost.collectives.kinds``. A set holds
primitives that one rule treats alike, so a primitive may be in several sets. The names are those of JAX 0.10 to 0.12;
``tests/jax/programs/test_primitives.py`` compares them with the installed version, because JAX adds and renames
primitives between releases. A primitive that is not in the table counts as elementwise. Primitives are strings here, so
that reading a jaxpr does not need JAX.
"""

from __future__ import annotations

from typing import Literal

from pathways_nb.cost.collectives.kinds import BY_PRIMITIVE, KINDS
from pathways_nb.jaxpr.flat import CALLS

OpClass = Literal[
    "matmul", "conv", "elementwise", "transcendental", "reduction", "movement", "sort", "random", "collective", "other"
]

LAY_OUT = "lay_out"
"""Not a primitive: the name of the operation that the cost model adds where a call declares another layout."""

LOOPS = frozenset({"scan", "while"})
"""Primitives that run a jaxpr repeatedly and carry values from one iteration to the next."""
CONTROL = LOOPS | {"cond", "shard_map"}
"""Primitives that run a jaxpr repeatedly, run one of several jaxprs, or run a jaxpr on the shards of their operands."""

COLLECTIVES = frozenset(BY_PRIMITIVE)
"""Primitives that exchange data between devices; each belongs to a row of ``cost.collectives.kinds``."""

CONSTRAINTS = frozenset({"sharding_constraint", "reshard"})
"""Primitives that declare how their operand is partitioned."""
ON_DEVICES = frozenset({"sharding_constraint", "jit"})
"""Primitives whose shardings name devices; the shardings of all other primitives only describe types."""
VIEWS = CONSTRAINTS | {
    "reshape", "squeeze", "pvary", "preduced", "vary_unreduced_cast", "vary_unreduced_cast_p", "reduced_vary_cast",
    "reduced_vary_cast_p", "optimization_barrier", "device_put", "layout_constraint",
    *(kind.done for kind in KINDS if kind.done),
}  # fmt: skip
"""Primitives that give their inputs another shape or type in the same memory, so that they cost no traffic."""
NO_ARITHMETIC = VIEWS | {"broadcast_in_dim", "iota", "convert_element_type", "bitcast_convert_type", "axis_index"}
"""Elementwise primitives that perform no arithmetic; they count no floating-point operations."""
CARRIERS = {*CALLS, "shard_map", "precv", "convert_element_type", "broadcast_in_dim", "transpose", "copy"} | VIEWS
"""Primitives that may accompany collectives in a node that is drawn as a collective."""

TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log1p tanh sin cos tan pow sqrt rsqrt cbrt logistic erf erfc erf_inv lgamma digamma atan2 "
    "asin acos atan sinh cosh asinh acosh atanh".split()
)
"""Elementwise primitives that take many times as long as an addition; results are stored, not computed twice."""

SLICES = frozenset({"gather", "dynamic_slice", "slice"})
"""Primitives that read only part of their first operand."""
WINDOWS = frozenset({"dynamic_update_slice", "dynamic_slice", "slice", "pad"})
"""Primitives that extract, change or widen a window of their first operand."""
SCATTERS = frozenset({"scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"})
"""Primitives that combine updates with an array, at indices that are themselves data."""
UPDATES = {"dynamic_update_slice": 1, **dict.fromkeys(SCATTERS, 2)}
"""Primitives that change part of their first operand, with the position of the operand that holds the update."""
ACCUMULATES = frozenset({"scatter-add", "scatter-sub", "scatter-mul"})
"""Updates that are counted as reading the elements they change."""
ARRANGES = frozenset({"transpose", "pad", "slice", "concatenate", "rev", "copy"})
"""Primitives that compose an array of elements of other arrays, at positions that are known before it runs."""
RESHAPES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose", "split"})
"""Primitives that rearrange the elements of one array, dimension by dimension."""
FOLDS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"})
"""Reductions of one array over whole dimensions; the order of the elements does not matter."""
NOT_IN_PLACE = frozenset({"dot_general", "conv_general_dilated", "gather", "sort", "transpose", "concatenate"})
"""Primitives that cannot write their output over an input."""

RANDOM = frozenset(
    "random_bits random_seed random_wrap random_unwrap random_fold_in random_split random_gamma random_clone "
    "threefry2x32 rng_bit_generator rng_uniform".split()
)
"""Primitives that draw random numbers or make their keys."""

_OF_KIND: dict[OpClass, frozenset[str]] = {
    "elementwise": VIEWS | {"reduce_precision"},
    "reduction": FOLDS
    | frozenset("argmax argmin cumsum cumprod cummax cummin cumlogsumexp select_and_scatter_add".split()),
    "movement": SLICES | ARRANGES | UPDATES.keys() | {LAY_OUT},
    "sort": frozenset("sort top_k approx_top_k".split()),
    "random": RANDOM,
    "other": frozenset(
        "fft cholesky lu qr geqrf householder_product eig eigh svd schur triangular_solve tridiagonal_solve "
        "tridiagonal custom_linear_solve pallas_call tpu_custom_call ffi_call run_state pure_callback "
        "io_callback debug_callback debug_print precv ragged_dot_general".split()
    ),
    "matmul": frozenset({"dot_general"}),
    "conv": frozenset({"conv_general_dilated"}),
    "collective": COLLECTIVES,
}
_KINDS = {name: kind for kind, names in _OF_KIND.items() for name in names}
"""The class of each listed primitive; one that is not listed is elementwise, or a reduction by its prefix."""

NAMES = frozenset({*CALLS, *CONTROL, *CARRIERS, *NO_ARITHMETIC, *TRANSCENDENTAL, *RESHAPES, *_KINDS}) - {LAY_OUT}
"""Every primitive in the table."""


def op_class_of(name: str) -> OpClass:
    """Return the class of a primitive that runs no other jaxpr.

    Transcendental primitives are ``"elementwise"``, because they are fused and partitioned like the others;
    ``cost.jaxpr.node_work`` separates them by ``TRANSCENDENTAL``.
    """
    return "reduction" if is_reduction(name) else _KINDS.get(name, "elementwise")


def is_reduction(name: str) -> bool:
    """Return whether a primitive is a reduction ``reduce_…``, whatever it reduces by.

    The prefix alone is not enough: ``reduce_precision`` is elementwise, and ``reduce_scatter`` is a collective.
    """
    return name.startswith("reduce_") and _KINDS.get(name, "reduction") == "reduction"
