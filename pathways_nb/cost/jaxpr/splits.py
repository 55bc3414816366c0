"""The mesh axes that partition each dimension of an array, propagated through an operation, forward or backward.

A small version of the propagation in XLA's partitioner (GSPMD, section 3.5), for nodes that are not compiled and for
layouts that are needed before anything is compiled. One rule per primitive computes the layout of an output from those
of the operands; ``inverted`` goes the other way for ``backward_splits.py``. An axis that partitions a contracted or
reduced dimension partitions nothing of the result: the partitioner would add the parts up. Where no rule applies, an
array counts as replicated, which over-counts work but never under-counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pathways_nb.cost.jaxpr.primitives import CONSTRAINTS, SCATTERS, WINDOWS, is_reduction

Split = tuple[tuple[str, ...], ...]
"""For each dimension the mesh axes that partition it, the outermost first."""
Operand = tuple[tuple[int, ...], Split]
"""The global shape of an operand and its layout."""


def unsplit(rank: int) -> Split:
    """Return the layout of a replicated array of this rank."""
    return ((),) * rank


def read_spec(spec: Any, rank: int) -> Split:
    """Return the layout that a ``PartitionSpec``, or a tuple like one, declares; ``None`` means replicated."""
    entries = [() if e is None else (e,) if isinstance(e, str) else e for e in tuple(spec or ())]
    named = [tuple(entry) if isinstance(entry, tuple) else () for entry in entries]  # UNCONSTRAINED names no axis
    return (*named, *unsplit(rank - len(named)))


def bytes_on_device(array: Any, layout: Any, sizes: Mapping[str, int] | None = None) -> int:
    """Return the bytes that one device holds of an array.

    Where the axes do not divide a dimension, parts are rounded up; the last device may hold less.

    Args:
        array: anything with a shape and a ``dtype``, or the dtype's name and an ``itemsize``; a token takes no memory.
        layout: a sharding, a ``PartitionSpec`` or a ``Split``; ``None`` for replicated.
        sizes: number of devices along each mesh axis, where ``layout`` is not a sharding.
    """
    shape = tuple(getattr(array, "shape", ()))
    if 0 in shape:
        return 0
    dtype = getattr(array, "dtype", None)
    itemsize = int(array.itemsize if isinstance(dtype, str) else getattr(dtype, "itemsize", 0))
    # A sharding of JAX, whatever its kind.
    if hasattr(layout, "shard_shape"):
        return itemsize * math.prod(layout.shard_shape(shape))
    ways = [math.prod((sizes or {}).get(axis, 1) for axis in axes) for axes in read_spec(layout, len(shape))]
    return itemsize * math.prod(-(-n // k) for n, k in zip(shape, ways, strict=True))


def propagate(name: str, params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of an output.

    Args:
        name: the primitive.
        params: the parameters of its equation.
        operands: the shape and layout of each operand.
        shape: the global shape of the output.
    """
    if name in CONSTRAINTS:
        return read_spec(getattr(params.get("sharding", params.get("dst_sharding")), "spec", None), len(shape))
    # ``reduce_…``, ``argmax`` and ``argmin`` share one rule: they drop the dimensions in ``axes``.
    rule = _RULES.get(name, _reduced if name.startswith(("reduce_", "arg")) else _same_shape)
    return _distinct(rule(params, operands, shape))


def _distinct(split: Sequence[tuple[str, ...]]) -> Split:
    """Return the layout with each axis on one dimension only, the first, because no mesh axis can partition two."""
    seen: set[str] = set()
    found = []
    for axes in split:
        # Such as the product of two factors whose rows and columns one axis partitions: one of them is gathered.
        found.append(tuple(axis for axis in axes if axis not in seen))
        seen.update(axes)
    return tuple(found)


def _same_shape(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of an elementwise result: on each dimension the axes of the first operand that has some."""
    alike = [split for given, split in operands if given == shape]
    # All operands are scalars, or none has the output's shape: look at sizes of the first one.
    if not alike:
        return _same_sizes(params, operands, shape)
    return tuple(next((entry for entry in entries if entry), ()) for entries in zip(*alike, strict=True))


def _same_sizes(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a slice or update: dimensions of the same size as in the first operand keep their axes.

    A dimension of another size is taken as replicated, because its parts would have to move between devices.
    """
    if not operands or len(operands[0][0]) != len(shape):
        return unsplit(len(shape))
    given, split = operands[0]
    return tuple(axes if a == b else () for a, b, axes in zip(given, shape, split, strict=True))


def _reduced(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a reduction: that of the dimensions that are left."""
    split = operands[0][1]
    return tuple(axes for dimension, axes in enumerate(split) if dimension not in params.get("axes", ()))


def _dot(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a matrix product: batch dimensions, rows of the left and columns of the right factor."""
    ((contracted_l, contracted_r), (batch_l, batch_r)) = params["dimension_numbers"]
    left, right = operands[0][1], operands[1][1]
    # Output dimensions of ``dot_general``: batch, rows of the left factor, columns of the right one, in this order.
    batch = [left[i] or right[j] for i, j in zip(batch_l, batch_r, strict=True)]
    rows = [axes for i, axes in enumerate(left) if i not in (*contracted_l, *batch_l)]
    columns = [axes for i, axes in enumerate(right) if i not in (*contracted_r, *batch_r)]
    return (*batch, *rows, *columns)


def _convolved(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a convolution: images by batch, features by output channel.

    Spatial dimensions count as replicated; a partitioned one would need an exchange of halos.
    """
    # Specs list dimensions: ``out_spec`` and ``lhs_spec`` batch, feature, spatial; ``rhs_spec`` out feature, in
    # feature, spatial.
    numbers, found = params["dimension_numbers"], list(unsplit(len(shape)))
    found[numbers.out_spec[0]] = operands[0][1][numbers.lhs_spec[0]]
    found[numbers.out_spec[1]] = operands[1][1][numbers.rhs_spec[0]]
    return tuple(found)


def _broadcast(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a broadcast: the operand's axes on its dimensions, none on new or stretched ones."""
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
    """Return the layout of a reshape.

    Dimensions are matched in runs of equal product. The axes of the outermost dimension of a run go to the outermost
    dimension that the run becomes, since only these hold contiguous parts; axes of inner dimensions are lost.
    """
    given, split = operands[0]
    found = list(unsplit(len(shape)))
    for old, new in _groups(given, shape):
        if old and new:
            # Dimensions of size 1 hold no parts: (1, 8) with 8 split becomes (8,) split the same.
            found[new[0]] = next((split[i] for i in old if given[i] > 1), ())
    return tuple(found)


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the shortest runs of old and new dimensions that have equal products, as positions."""
    i = j = 0
    while i < len(old) and j < len(new):
        left, right = [i], [j]
        while (a := math.prod(old[k] for k in left)) != (b := math.prod(new[k] for k in right)):
            # The side with the smaller product takes one more dimension until both are equal.
            run, limit = (left, old) if a < b else (right, new)
            if run[-1] + 1 >= len(limit):
                return
            run.append(run[-1] + 1)
        yield left, right
        i, j = left[-1] + 1, right[-1] + 1


def _gathered(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a gather: batch dimensions as the indices, dimensions within a row as those of the table.

    A dimension of the table that is only read in part loses its axes.
    """
    (table, of_table), (_, of_indices) = operands[0], operands[1]
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    dropped = (*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ()))
    # Of the output, ``offset_dims`` are the dimensions of a row in their order, all others are those of the indices.
    offsets = iter([of_table[i] if sizes[i] == n else () for i, n in enumerate(table) if i not in dropped])
    batch = iter(of_indices[:-1])
    return tuple(next(offsets if i in numbers.offset_dims else batch, ()) for i in range(len(shape)))


def _as_first_operand(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of the first operand."""
    return operands[0][1]


def _scattered(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a scatter: that of the array it changes, else, on whole rows, that of the updates."""
    split, numbers = operands[0][1], params["dimension_numbers"]
    # The array that is changed keeps its layout, since each device changes the rows that it holds.
    if any(split) or len(operands) < 3:
        return split
    gone = (*numbers.inserted_window_dims, *getattr(numbers, "operand_batching_dims", ()))
    kept = [dimension for dimension in range(len(shape)) if dimension not in gone]
    found, (written, of_written) = list(unsplit(len(shape))), operands[2]
    for to, at in zip(kept, numbers.update_window_dims, strict=False):
        found[to] = of_written[at] if written[at] == shape[to] else ()
    return tuple(found)


def _concatenated(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of a concatenation: along its dimension none, elsewhere of the first operand that has one."""
    entries = zip(*(split for _, split in operands), strict=True)
    found = [next((entry for entry in along if entry), ()) for along in entries]
    # Parts of the operands do not lie where parts of the result would.
    found[params["dimension"]] = ()
    return tuple(found)


def _of_no_operand(params: Mapping[str, Any], operands: Sequence[Operand], shape: tuple[int, ...]) -> Split:
    """Return the layout of what depends on no operand."""
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
    "dynamic_update_slice": _as_first_operand,
    "dynamic_slice": _same_sizes,
    "slice": _same_sizes,
    "concatenate": _concatenated,
    "pad": _same_sizes,
    "iota": _of_no_operand,
}
"""Rules by primitive; ``propagate`` treats any other as a reduction, by its prefix, or as elementwise."""


def inverted(
    name: str, params: Mapping[str, Any], at: int, operands: Sequence[Operand], shape: tuple[int, ...], split: Split
) -> Split | None:
    """Return the layout that an operand needs for its operation to make an output of a given layout.

    Args:
        name: the primitive.
        params: the parameters of its equation.
        at: the position of the operand among ``operands``.
        operands: the shape and current layout of each operand.
        shape: the global shape of the output.
        split: the layout of the output.

    Returns:
        A layout without axes where the output's layout does not constrain the operand; ``None`` where no rule is known.
    """
    # The shape of the operand; its layout is what is asked for.
    given = operands[at][0]
    if name == "broadcast_in_dim":
        to = params["broadcast_dimensions"]
        return tuple(split[i] if shape[i] == n else () for i, n in zip(to, given, strict=True))
    if name == "transpose":
        return tuple(split[params["permutation"].index(i)] for i in range(len(given)))
    if name in ("reshape", "squeeze"):
        # The inverse of a reshape is a reshape: the same rule with the two shapes exchanged.
        return tuple(_reshaped(params, [(shape, split)], given))
    if name == "dot_general":
        return _layout_of_factor(params, at, operands, split)
    if is_reduction(name):
        # The output has the operand's dimensions but the reduced ones; along these any layout would do.
        left = iter(split)
        return tuple(() if i in params.get("axes", ()) else next(left, ()) for i in range(len(given)))
    if name in WINDOWS | SCATTERS:
        # Only the array that is read or changed; updates and indices may have other shapes.
        return tuple(_same_sizes(params, [(shape, split)], given)) if at == 0 else None
    if name == "concatenate" or (name not in _RULES and given == shape):
        return tuple(_same_sizes(params, [(shape, split)], given))
    return None


def _layout_of_factor(params: Mapping[str, Any], at: int, operands: Sequence[Operand], split: Split) -> Split:
    """Return the layout that a factor of a matrix product needs.

    Its batch dimensions, rows or columns are partitioned as those of the output, and the contracted dimensions as in
    the other factor, so that each device multiplies the parts it holds.
    """
    contracted, batch = params["dimension_numbers"]
    other = operands[1 - at][1]
    # The dimensions that are neither contracted nor batch: rows of the left factor, columns of the right one.
    rest = [i for i in range(len(operands[at][0])) if i not in (*contracted[at], *batch[at])]
    begin = len(batch[0]) if at == 0 else len(split) - len(rest)
    found = list(unsplit(len(operands[at][0])))
    for i, j in (
        *zip(batch[at], range(len(batch[0])), strict=True),
        *zip(rest, range(begin, len(split)), strict=False),
    ):
        found[i] = split[j]
    # As in the other factor: then each device has both parts of the sum, and only the result is reduced.
    for i, j in zip(contracted[at], contracted[1 - at], strict=True):
        found[i] = other[j]
    return _distinct(found)
