"""Whether whole-array code plainly needs nothing from other devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pathways_nb.cost.flat import Op, flatten
from pathways_nb.cost.primitives import kind_of


def needs_no_exchange(jaxpr: Any, axis_sizes: Mapping[str, int], in_specs: Sequence[Any] | None = None) -> bool:
    """Whether every operation is done element by element on operands that are split alike, or whole.

    ``False`` says nothing: a compiler may still find a way without. Arguments as for ``work_of``.
    """
    return all(_is_local(op) for op in flatten(jaxpr, axis_sizes, in_specs).ops)


def _is_local(op: Op) -> bool:
    if op.bodies or kind_of(op) != "elementwise":
        return False
    splits = {value.split for value in op.inputs if any(value.split) and value.shape == op.outputs[0].shape}
    others = [value for value in op.inputs if any(value.split) and value.shape != op.outputs[0].shape]
    return not others and all(split == value.split for split in splits for value in op.outputs)
