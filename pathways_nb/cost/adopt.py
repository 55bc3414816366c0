"""Arrays that depend on nothing split are split as those who need them are: a mask, zeros to add gradients to.

A partitioner carries shardings backwards, too. Where it matters most is what broadcasts to the size of the
activations: counted as whole, it would cost a thousand devices a thousand times too much. What is returned stays whole,
as XLA leaves it where nobody declares a layout (seen on 8 devices).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from pathways_nb.cost.flat import VIEWS, Flat, Op, Value
from pathways_nb.cost.primitives import kind_of
from pathways_nb.cost.splits import Split


def adopt(flat: Flat) -> Flat:
    """The same list with such arrays split, and the work on them divided, where all who need them agree how."""
    wanted: dict[Value, Split | None] = dict.fromkeys(flat.outputs)
    made: dict[Value, Value] = {}
    for op in reversed(flat.ops):
        if _is_free(op) and (split := wanted.get(out := op.outputs[0])) is not None:
            made[out] = replace(out, split=split, bytes=_bytes(flat, out, split))
        for value, split in _wants(op, made):
            agreed = split is not None and wanted.get(value, split) == split
            wanted[value] = split if agreed else None
    if not made:
        return flat
    ops = tuple(_changed(flat, op, made) for op in flat.ops)
    return Flat(ops, flat.inputs, tuple(made.get(value, value) for value in flat.outputs), flat.sizes)


def _is_free(op: Op) -> bool:
    """Whether its output depends on nothing that is split, and could be made in parts."""
    if op.name.startswith("scatter"):  # rows of a whole array are changed, each by the device that has them
        return not any(op.inputs[0].split)
    return _is_plain(op) and op.ways == 1


def _is_plain(op: Op) -> bool:
    """Whether it makes one array element by element."""
    one = len(op.outputs) == 1 and not op.bodies and not op.effects
    return one and op.name not in VIEWS and kind_of(op) == "elementwise"


def _wants(op: Op, made: dict[Value, Value]) -> Iterator[tuple[Value, Split | None]]:
    """How an operation would have each of its whole inputs split; ``None``: not at all."""
    for value in op.inputs:
        if any(value.split) or value.size == 1:
            continue
        changed = op.name.startswith("scatter") and value is op.inputs[0]
        out = made.get(op.outputs[0], op.outputs[0]) if changed or _is_plain(op) else None
        if out is None:
            yield value, None
        elif op.name == "broadcast_in_dim":
            to = op.params["broadcast_dimensions"]
            yield (
                value,
                tuple(out.split[at] if out.shape[at] == n else () for at, n in zip(to, value.shape, strict=True)),
            )
        else:
            yield value, out.split if value.shape == out.shape else None


def _changed(flat: Flat, op: Op, made: dict[Value, Value]) -> Op:
    if not any(value in made for value in (*op.inputs, *op.outputs)):
        return op
    inputs, outputs = (tuple(made.get(value, value) for value in values) for values in (op.inputs, op.outputs))
    axes = {axis for value in (*inputs, *outputs) for entry in value.split for axis in entry}
    return replace(op, inputs=inputs, outputs=outputs, ways=math.prod(flat.sizes.get(axis, 1) for axis in axes))


def _bytes(flat: Flat, value: Value, split: Split) -> int:
    ways = [math.prod(flat.sizes.get(axis, 1) for axis in axes) for axes in split]
    return value.itemsize * math.prod(-(-n // k) for n, k in zip(value.shape, ways, strict=True))
