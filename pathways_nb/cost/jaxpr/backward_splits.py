"""Backward propagation: arrays made from constants take the layout of the operations that read them.

A mask, or the zeros to which gradients are added, depends on no partitioned array, so forward propagation
(``splits.py``) leaves it replicated. XLA's partitioner propagates shardings backward, too. This matters most in a
backward pass: the zeros into which the gradient of one column is scattered are as large as the logits, and would count
on every device as large as the logits of all devices.

An array takes a layout only if all operations that read it agree on one. An array that is returned without a declared
layout stays replicated, as XLA leaves it (seen on 8 devices).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pathways_nb.cost.jaxpr.operations import ShardedJaxpr, ShardedOperation, ShardedValue
from pathways_nb.cost.jaxpr.primitives import ARRANGES, LOOPS, SCATTERS, VIEWS, op_class_of
from pathways_nb.cost.jaxpr.splits import Split, bytes_on_device, inverted, propagate, unsplit

_CAN_BE_MADE_IN_PARTS = frozenset({"elementwise", "reduction", "random", "matmul", "conv"})
"""Classes of operations of which each device can make its own part, given its parts of the operands."""


def propagate_from_readers(flat: ShardedJaxpr, outputs: Sequence[Split | None]) -> ShardedJaxpr:
    """Return the list with free arrays partitioned as all their readers agree, and the work on them divided.

    Args:
        flat: the list after forward propagation.
        outputs: the declared layout of each output; ``None`` for an output without one, which stays replicated.

    Returns:
        A new list with new arrays, or ``flat`` itself if no array takes a layout.
    """
    made, _ = _adopted_layouts(flat, outputs)
    return _with_layouts(flat, made, {}) if made else flat


def _adopted_layouts(
    flat: ShardedJaxpr, outputs: Sequence[Split | None]
) -> tuple[dict[ShardedValue, Split], dict[ShardedValue, Split | None]]:
    """Return the layouts that free arrays take, and the layout on which the readers of each array agree.

    The list is read backward, because the layout of an array follows from the layouts of its readers' outputs.
    """
    # An output without a declared layout is ``None`` here: its reader is unknown and may want it whole.
    wanted: dict[ShardedValue, Split | None] = dict(zip(flat.outputs, outputs, strict=True))
    made: dict[ShardedValue, Split] = {}
    for op in reversed(flat.ops):
        out = op.outputs[0] if op.outputs else None
        if out is not None and _is_free(op):
            adopted = wanted.get(out)
            # All readers come later in the list, so what they agree on is final here.
            if adopted is not None and any(adopted):
                made[out] = adopted
        for value, split in _needed_layouts(op, made):
            # The first reader's demand stands alone; each further one can only narrow it.
            wanted[value] = _common_layout(wanted[value], split) if value in wanted else split
    return made, wanted


def _common_layout(one: Split | None, other: Split | None) -> Split | None:
    """Return the layout on which two readers agree; ``None`` if they do not.

    They agree if both allow partitioning, no dimension is partitioned in two ways and no axis on two dimensions.
    """
    if one is None or other is None:
        return None
    if any(a and b and a != b for a, b in zip(one, other, strict=True)):
        return None
    # One may partition rows and the other columns: both together suit both, if no axis is used twice.
    both = tuple(a or b for a, b in zip(one, other, strict=True))
    axes = [axis for entry in both for axis in entry]
    return both if len(axes) == len(set(axes)) else None


def _is_free(op: ShardedOperation) -> bool:
    """Return whether an operation's output depends on no partitioned array and can be made in parts."""
    # What has several outputs, runs other code or has effects is left as it is: too little is known of it.
    if len(op.outputs) != 1 or op.bodies or op.has_effects or any(op.outputs[0].split):
        return False
    if op.name in SCATTERS:  # even of partitioned updates: each device changes the rows it holds
        return True
    # Any axis in its operands would have decided its layout in forward propagation already.
    return op.ways == 1 and (op_class_of(op.name) in _CAN_BE_MADE_IN_PARTS or op.name in ARRANGES)


def _needed_layouts(
    op: ShardedOperation, made: Mapping[ShardedValue, Split]
) -> Iterator[tuple[ShardedValue, Split | None]]:
    """Yield each replicated input of an operation with the layout that the operation needs it in.

    ``None`` is a demand that it stays replicated. An input that is not yielded may have any layout.
    """
    splits = [made.get(value, value.split) for value in op.outputs]
    # Of the body of a loop; for a ``while`` that is the second, behind the condition.
    within = _adopted_layouts(op.bodies[-1], [None] * len(op.bodies[-1].outputs))[1] if op.bodies else {}
    for at, value in enumerate(op.inputs):
        # Partitioned inputs have their layout, and a single element cannot be divided.
        if any(value.split) or value.size == 1:
            continue
        if op.bodies:
            yield value, _needed_by_loop(op, at, value, within)
        # An effect only, such as a callback, which gets the whole array.
        elif not op.outputs:
            yield value, None
        elif (split := inverted(op.name, op.params, at, _operands(op), op.outputs[0].shape, splits[0])) is not None:
            yield value, split
        elif op_class_of(op.name) != "reduction":  # a reduction reads its operand in any layout
            yield value, None


def _needed_by_loop(
    op: ShardedOperation, at: int, value: ShardedValue, within: Mapping[ShardedValue, Split | None]
) -> Split | None:
    """Return the layout in which a loop needs one of its inputs; ``None`` if it needs it replicated.

    Args:
        op: the operation with bodies; for a ``cond`` or ``shard_map`` nothing is known.
        at: the position of the input.
        value: the input.
        within: the layouts on which the operations of the loop's body agree.
    """
    # A ``while`` has the constants of its condition first, which its body does not read; a ``scan`` has none.
    at -= op.params.get("cond_nconsts", 0)
    if op.name not in LOOPS or at < 0:
        return None
    # The body reads the array itself, or one slice of it, which has one dimension fewer.
    inner = op.bodies[-1].inputs[at]
    if inner is value:
        return within.get(inner)
    # ``loop_body`` has already given carried arrays the layout in which an iteration leaves them.
    split = unsplit(len(value.shape) - len(inner.shape)) + inner.split
    return split if any(split) else None


def _operands(op: ShardedOperation) -> list[tuple[tuple[int, ...], Split]]:
    return [(value.shape, value.split) for value in op.inputs]


def _with_layouts(
    flat: ShardedJaxpr, made: Mapping[ShardedValue, Split], new: dict[ShardedValue, ShardedValue]
) -> ShardedJaxpr:
    """Return the list with these layouts and those that follow from them by forward propagation.

    Args:
        flat: the list.
        made: the layout of each array that takes one.
        new: the replacement of each array from outside the list; replacements of the list's own arrays are added.
    """
    inputs = tuple(new.get(value, value) for value in flat.inputs)
    ops = tuple(_with_new_arrays(flat, op, made, new) for op in flat.ops)
    return ShardedJaxpr(ops, inputs, tuple(new.get(value, value) for value in flat.outputs), flat.sizes)


def _with_new_arrays(
    flat: ShardedJaxpr, op: ShardedOperation, made: Mapping[ShardedValue, Split], new: dict[ShardedValue, ShardedValue]
) -> ShardedOperation:
    """Return an operation with its arrays replaced, itself if nothing about it changes; add its outputs to ``new``."""
    # The same object: arrays and operations are keys, and most of a list does not change.
    if not any(value in new for value in op.inputs) and not any(value in made for value in op.outputs):
        return op
    inputs = tuple(new.get(value, value) for value in op.inputs)
    if op.bodies:
        # A body refers to arrays of the outer list by identity, so it needs their replacements; what it makes is its
        # own.
        known = {value: new[value] for value in op.inputs if value in new}
        return replace(op, inputs=inputs, bodies=tuple(_with_layouts(body, {}, dict(known)) for body in op.bodies))
    changed = replace(op, inputs=inputs)
    for number, value in enumerate(op.outputs):
        split = made.get(value) or value.split
        if value not in made and not op.has_effects:
            # What reads a replaced array may follow it: forward once more, from the new operands.
            found = propagate(op.name, op.params, _operands(changed), value.shape)
            # Propagating again may only add axes: a layout that was found or declared before is never lost.
            split = found if all(b in (a, ()) for a, b in zip(found, split, strict=True)) else split
        new[value] = _with_layout(flat, changed, value, split, number)
    outputs = tuple(new[value] for value in op.outputs)
    axes = {axis for value in (*inputs, *outputs) for entry in value.split for axis in entry}
    return replace(changed, outputs=outputs, ways=math.prod(flat.sizes.get(axis, 1) for axis in axes))


def _with_layout(
    flat: ShardedJaxpr, op: ShardedOperation, value: ShardedValue, split: Split, number: int
) -> ShardedValue:
    """Return an output of an operation in another layout, still a view if operand and output have equal bytes."""
    bytes = bytes_on_device(value, split, flat.sizes)
    # Other bytes on a device mean another layout, and that takes memory of its own.
    view = op.name in VIEWS and number < len(op.inputs) and op.inputs[number].bytes == bytes
    return replace(value, split=split, bytes=bytes, source=op.inputs[number] if view else None)
