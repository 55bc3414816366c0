"""Which mesh axes split which dimension of an array, carried through an operation, forward or backward.

A lean version of what XLA's partitioner does (GSPMD, section 3.5). An axis that splits a contracted or reduced
dimension is gone afterwards. What it loses track of counts as whole, which over-counts work, never under.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pathways_nb.util.primitives import CONSTRAINTS, SCATTERS, WINDOWS, is_reduction

Split = tuple[tuple[str, ...], ...]
"""For each dimension the axes that split it."""
Operand = tuple[tuple[int, ...], Split]


def unsplit(rank: int) -> Split:
    """The split of a whole array."""
    return ((),) * rank


def read_spec(spec: Any, rank: int) -> Split:
    """A ``PartitionSpec``, or a tuple like one; ``None`` is whole."""
    entries = [() if e is None else (e,) if isinstance(e, str) else e for e in tuple(spec or ())]
    named = [tuple(entry) if isinstance(entry, tuple) else () for entry in entries]  # UNCONSTRAINED names no axis
    return (*named, *unsplit(rank - len(named)))


def bytes_on_device(array: Any, layout: Any, sizes: Mapping[str, int] | None = None) -> int:
    """Return the bytes that one device holds of an array; the last one may hold less.

    Args:
        array: anything with a shape and a ``dtype``, or its name and an ``itemsize``; a token takes no memory.
        layout: a sharding, a ``PartitionSpec`` or a ``Split``; ``None`` is whole.
        sizes: of the mesh's axes, where ``layout`` is not a sharding.
    """
    shape = tuple(getattr(array, "shape", ()))
    if 0 in shape:
        return 0
    dtype = getattr(array, "dtype", None)
    itemsize = int(array.itemsize if isinstance(dtype, str) else getattr(dtype, "itemsize", 0))
    if hasattr(layout, "shard_shape"):
        return itemsize * math.prod(layout.shard_shape(shape))
    ways = [math.prod((sizes or {}).get(axis, 1) for axis in axes) for axes in read_spec(layout, len(shape))]
    return itemsize * math.prod(-(-n // k) for n, k in zip(shape, ways, strict=True))


def propagate(name: str, params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """The split of an output of this shape, from those of the operands."""
    if name in CONSTRAINTS:
        return read_spec(getattr(params.get("sharding", params.get("dst_sharding")), "spec", None), len(shape))
    rule = _RULES.get(name, _reduced if name.startswith(("reduce_", "arg")) else _same_shape)
    return _distinct(rule(params, operands, shape))


def _distinct(split: Sequence[tuple[str, ...]]) -> Split:
    """An axis splits one dimension only: the first."""
    seen: set[str] = set()
    found = []
    for axes in split:
        found.append(tuple(axis for axis in axes if axis not in seen))
        seen.update(axes)
    return tuple(found)


def _same_shape(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Elementwise: dimension by dimension, what the first operand with a split there says."""
    alike = [split for given, split in operands if given == shape]
    if not alike:
        return _same_sizes(params, operands, shape)
    return tuple(next((entry for entry in entries if entry), ()) for entries in zip(*alike, strict=True))


def _same_sizes(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Slices and updates: dimensions of the first operand that are kept whole keep their axes."""
    if not operands or len(operands[0][0]) != len(shape):
        return unsplit(len(shape))
    given, split = operands[0]
    return tuple(axes if a == b else () for a, b, axes in zip(given, shape, split, strict=True))


def _reduced(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    split = operands[0][1]
    return tuple(axes for dimension, axes in enumerate(split) if dimension not in params.get("axes", ()))


def _dot(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    ((contracted_l, contracted_r), (batch_l, batch_r)) = params["dimension_numbers"]
    left, right = operands[0][1], operands[1][1]
    batch = [left[i] or right[j] for i, j in zip(batch_l, batch_r, strict=True)]
    rows = [axes for i, axes in enumerate(left) if i not in (*contracted_l, *batch_l)]
    columns = [axes for i, axes in enumerate(right) if i not in (*contracted_r, *batch_r)]
    return (*batch, *rows, *columns)


def _convolved(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    numbers, found = params["dimension_numbers"], list(unsplit(len(shape)))
    found[numbers.out_spec[0]] = operands[0][1][numbers.lhs_spec[0]]
    found[numbers.out_spec[1]] = operands[1][1][numbers.rhs_spec[0]]
    return tuple(found)


def _broadcast(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    found = list(unsplit(len(shape)))
    given, split = operands[0]
    for size, axes, to in zip(given, split, params["broadcast_dimensions"], strict=True):
        found[to] = axes if shape[to] == size else ()
    return tuple(found)


def _transposed(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    return tuple(operands[0][1][dimension] for dimension in params["permutation"])


def _squeezed(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    return tuple(axes for i, axes in enumerate(operands[0][1]) if i not in params["dimensions"])


def _reshaped(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Axes of the outermost of the dimensions that are merged go to the outermost of those they become."""
    given, split = operands[0]
    found = list(unsplit(len(shape)))
    for old, new in _groups(given, shape):
        if old and new:
            found[new[0]] = next((split[i] for i in old if given[i] > 1), ())
    return tuple(found)


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of dimensions of equal product."""
    i = j = 0
    while i < len(old) and j < len(new):
        left, right = [i], [j]
        while (a := math.prod(old[k] for k in left)) != (b := math.prod(new[k] for k in right)):
            run, limit = (left, old) if a < b else (right, new)
            if run[-1] + 1 >= len(limit):
                return
            run.append(run[-1] + 1)
        yield left, right
        i, j = left[-1] + 1, right[-1] + 1


def _gathered(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Rows looked up: as the indices are split, and the rows as the table's columns."""
    (table, of_table), (_, of_indices) = operands[0], operands[1]
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    dropped = (*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ()))
    offsets = iter([of_table[i] if sizes[i] == n else () for i, n in enumerate(table) if i not in dropped])
    batch = iter(of_indices[:-1])
    return tuple(next(offsets if i in numbers.offset_dims else batch, ()) for i in range(len(shape)))


def _first(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    return operands[0][1]


def _scattered(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """As what is changed is split; else whole rows as the rows that are written."""
    split, numbers = operands[0][1], params["dimension_numbers"]
    if any(split) or len(operands) < 3:
        return split
    gone = (*numbers.inserted_window_dims, *getattr(numbers, "operand_batching_dims", ()))
    kept = [dimension for dimension in range(len(shape)) if dimension not in gone]
    found, (written, of_written) = list(unsplit(len(shape))), operands[2]
    for to, at in zip(kept, numbers.update_window_dims, strict=False):
        found[to] = of_written[at] if written[at] == shape[to] else ()
    return tuple(found)


def _joined(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Side by side: but for that dimension, what the first operand with a split there says."""
    entries = zip(*(split for _, split in operands), strict=True)
    found = [next((entry for entry in along if entry), ()) for along in entries]
    found[params["dimension"]] = ()
    return tuple(found)


def _none(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    return unsplit(len(shape))


_RULES: dict[str, Callable[[Mapping[str, Any], Sequence[Operand], tuple[int, ...]], Sequence[tuple[str, ...]]]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolved,
    "broadcast_in_dim": _broadcast,
    "transpose": _transposed,
    "squeeze": _squeezed,
    "reshape": _reshaped,
    "gather": _gathered,
    **dict.fromkeys(SCATTERS, _scattered),
    "dynamic_update_slice": _first,
    "dynamic_slice": _same_sizes,
    "slice": _same_sizes,
    "concatenate": _joined,
    "pad": _same_sizes,
    "iota": _none,
}


def inverted(
    name: str, params: Mapping[str, Any], at: int, operands: Sequence[Operand], shape: tuple[int, ...], split: Split
) -> Split | None:
    """How an operand must be split for its operation to make the output, of this shape, split so.

    Args:
        name, params: the operation. at: which of its ``operands``. shape, split: of the output.

    Returns:
        A split without axes where the output's says nothing of the operand; ``None`` where no rule is known.
    """
    given = operands[at][0]
    if name == "broadcast_in_dim":
        to = params["broadcast_dimensions"]
        return tuple(split[i] if shape[i] == n else () for i, n in zip(to, given, strict=True))
    if name == "transpose":
        return tuple(split[params["permutation"].index(i)] for i in range(len(given)))
    if name in ("reshape", "squeeze"):
        return tuple(_reshaped(params, [(shape, split)], given))
    if name == "dot_general":
        return _factor(params, at, operands, split)
    if is_reduction(name):
        left = iter(split)
        return tuple(() if i in params.get("axes", ()) else next(left, ()) for i in range(len(given)))
    if name in WINDOWS | SCATTERS:
        return tuple(_same_sizes(params, [(shape, split)], given)) if at == 0 else None
    if name == "concatenate" or (name not in _RULES and given == shape):
        return tuple(_same_sizes(params, [(shape, split)], given))
    return None


def _factor(params: Mapping[str, Any], at: int, operands: Sequence[Operand], split: Split) -> Split:
    """Of a product of matrices: rows or columns as the output's, what is summed over as in the other factor."""
    contracted, batch = params["dimension_numbers"]
    other = operands[1 - at][1]
    rest = [i for i in range(len(operands[at][0])) if i not in (*contracted[at], *batch[at])]
    begin = len(batch[0]) if at == 0 else len(split) - len(rest)
    found = list(unsplit(len(operands[at][0])))
    for i, j in (
        *zip(batch[at], range(len(batch[0])), strict=True),
        *zip(rest, range(begin, len(split)), strict=False),
    ):
        found[i] = split[j]
    for i, j in zip(contracted[at], contracted[1 - at], strict=True):
        found[i] = other[j]
    return _distinct(found)
