"""Arrays that depend on nothing split are split as those who need them are: a mask, zeros to add gradients to.

A partitioner carries shardings backwards, too. Where it matters most is what a backward pass makes of constants: zeros
of the size of the logits, into which the gradient of one column is scattered, are as large as the logits of all
devices. What is returned stays whole, as XLA leaves it where nobody declares a layout (seen on 8 devices).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pathways_nb.cost.jaxpr.operations import Flat, Op, Value
from pathways_nb.cost.jaxpr.splits import Split, bytes_on_device, inverted, propagate, unsplit
from pathways_nb.util.primitives import ARRANGES, LOOPS, SCATTERS, VIEWS, op_class_of

_CAN_BE_MADE_IN_PARTS = frozenset({"elementwise", "reduction", "random", "matmul", "conv"})


def propagate_from_readers(flat: Flat, outputs: Sequence[Split | None]) -> Flat:
    """The same list with such arrays split, and the work on them divided, where all who need them agree how.

    Args:
        flat: the list. outputs: how each of its outputs leaves it; ``None``: as it comes, so that it stays whole.
    """
    made, _ = _wanted(flat, outputs)
    return _carried_forward(flat, made, {}) if made else flat


def _wanted(flat: Flat, outputs: Sequence[Split | None]) -> tuple[dict[Value, Split], dict[Value, Split | None]]:
    """The layouts of the arrays that adopt one, from the last reader back to the first; and what all readers want."""
    wanted: dict[Value, Split | None] = dict(zip(flat.outputs, outputs, strict=True))
    made: dict[Value, Split] = {}
    for op in reversed(flat.ops):
        out = op.outputs[0] if op.outputs else None
        if out is not None and _is_free(op):
            adopted = wanted.get(out)
            if adopted is not None and any(adopted):
                made[out] = adopted
        for value, split in _wants(op, made):
            wanted[value] = _agreed(wanted[value], split) if value in wanted else split
    return made, wanted


def _agreed(one: Split | None, other: Split | None) -> Split | None:
    """What two readers agree on: where only one of them splits a dimension, it is split so."""
    if one is None or other is None:
        return None
    if any(a and b and a != b for a, b in zip(one, other, strict=True)):
        return None
    both = tuple(a or b for a, b in zip(one, other, strict=True))
    axes = [axis for entry in both for axis in entry]
    return both if len(axes) == len(set(axes)) else None


def _is_free(op: Op) -> bool:
    """Whether its output depends on nothing that is split, and could be made in parts."""
    if len(op.outputs) != 1 or op.bodies or op.has_effects or any(op.outputs[0].split):
        return False
    if op.name in SCATTERS:  # rows of a whole array are changed, each by the device that has them
        return True
    return op.ways == 1 and (op_class_of(op.name) in _CAN_BE_MADE_IN_PARTS or op.name in ARRANGES)


def _wants(op: Op, made: Mapping[Value, Split]) -> Iterator[tuple[Value, Split | None]]:
    """How an operation would have each of its whole inputs split; ``None``: not at all."""
    splits = [made.get(value, value.split) for value in op.outputs]
    within = _wanted(op.bodies[-1], [None] * len(op.bodies[-1].outputs))[1] if op.bodies else {}
    for at, value in enumerate(op.inputs):
        if any(value.split) or value.size == 1:
            continue
        if op.bodies:
            yield value, _as_handed(op, at, value, within)
        elif not op.outputs:
            yield value, None
        elif (split := inverted(op.name, op.params, at, _operands(op), op.outputs[0].shape, splits[0])) is not None:
            yield value, split
        elif op_class_of(op.name) != "reduction":  # which takes whatever comes
            yield value, None


def _as_handed(op: Op, at: int, value: Value, within: Mapping[Value, Split | None]) -> Split | None:
    """As the body of a loop holds it, scanned arrays by one dimension less; or as all within it want it."""
    at -= op.params.get("cond_nconsts", 0)
    if op.name not in LOOPS or at < 0:
        return None
    inner = op.bodies[-1].inputs[at]
    if inner is value:
        return within.get(inner)
    split = unsplit(len(value.shape) - len(inner.shape)) + inner.split
    return split if any(split) else None


def _operands(op: Op) -> list[tuple[tuple[int, ...], Split]]:
    return [(value.shape, value.split) for value in op.inputs]


def _carried_forward(flat: Flat, made: Mapping[Value, Split], new: dict[Value, Value]) -> Flat:
    """The list with these layouts, and with those that follow from them; ``new`` are arrays from outside."""
    inputs = tuple(new.get(value, value) for value in flat.inputs)
    ops = tuple(_changed(flat, op, made, new) for op in flat.ops)
    return Flat(ops, inputs, tuple(new.get(value, value) for value in flat.outputs), flat.sizes)


def _changed(flat: Flat, op: Op, made: Mapping[Value, Split], new: dict[Value, Value]) -> Op:
    if not any(value in new for value in op.inputs) and not any(value in made for value in op.outputs):
        return op
    inputs = tuple(new.get(value, value) for value in op.inputs)
    if op.bodies:
        known = {value: new[value] for value in op.inputs if value in new}
        return replace(op, inputs=inputs, bodies=tuple(_carried_forward(body, {}, dict(known)) for body in op.bodies))
    changed = replace(op, inputs=inputs)
    for number, value in enumerate(op.outputs):
        split = made.get(value) or value.split
        if value not in made and not op.has_effects:
            found = propagate(op.name, op.params, _operands(changed), value.shape)
            split = found if all(b in (a, ()) for a, b in zip(found, split, strict=True)) else split
        new[value] = _laid(flat, changed, value, split, number)
    outputs = tuple(new[value] for value in op.outputs)
    axes = {axis for value in (*inputs, *outputs) for entry in value.split for axis in entry}
    return replace(changed, outputs=outputs, ways=math.prod(flat.sizes.get(axis, 1) for axis in axes))


def _laid(flat: Flat, op: Op, value: Value, split: Split, number: int) -> Value:
    bytes = bytes_on_device(value, split, flat.sizes)
    view = op.name in VIEWS and number < len(op.inputs) and op.inputs[number].bytes == bytes
    return replace(value, split=split, bytes=bytes, source=op.inputs[number] if view else None)
