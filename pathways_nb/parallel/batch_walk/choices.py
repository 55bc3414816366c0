"""What chooses: predicates, indices, keys and static parameters, which may choose otherwise for more rows.

A result of which other elements are chosen where there are more rows has no power: nothing says how it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pathways_nb.cost.jaxpr.primitives import RANDOM
from pathways_nb.parallel.batch_walk.equation_pair import EquationPair
from pathways_nb.parallel.batch_walk.marks import Mark


def with_choices(op: EquationPair, made: Sequence[Mark]) -> list[Mark]:
    """Return the marks of an operation's results, without powers if it may choose otherwise for more rows."""
    # A choice by the number of rows, such as where(B > 4, a, b), jumps: what it gives grows with no power of it.
    # Alike for any number of rows; masks and counts say themselves how they grow.
    alike = all(mark.power == 0 or mark.is_zero or mark.mask is not None or mark.counter is not None
                for mark in _choosers(op))  # fmt: skip
    if alike and not _differs(op):
        return list(made)
    return [mark if mark.is_lost else replace(mark, power=None, number=None) for mark in made]


def _choosers(op: EquationPair) -> Sequence[Mark]:
    """Return the marks of the operands that choose."""
    if op.name == "select_n":
        return op.marks[:1]
    if op.name == "gather":  # the indices
        return op.marks[1:2]
    if op.name == "dynamic_slice":  # a start along rows or tokens is that of the part
        return [mark for dim, mark in enumerate(op.marks[1:]) if op.outs[0][0][dim] == op.outs[0][1][dim]]
    if op.name == "dynamic_update_slice":
        return [mark for dim, mark in enumerate(op.marks[2:]) if op.ins[1][0][dim] == op.ins[1][1][dim]]
    return op.marks if op.name in RANDOM else ()


def _differs(op: EquationPair) -> bool:
    """Return whether static parameters choose otherwise."""
    # What Python computed from a shape is a constant in each trace: x ** B, or x[: B // 2].
    one, two = op.params, op.two.params
    if op.name == "integer_pow":
        return bool(one["y"] != two["y"])
    if op.name == "slice":
        pairs = zip(one["start_indices"], two["start_indices"], *op.outs[0], strict=True)
        return any(a != b and size == other for a, b, size, other in pairs)
    return False
