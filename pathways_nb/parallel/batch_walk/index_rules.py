"""What reading and writing by index makes of marks.

Three ways of reading are understood: a table that no row changes, at indices that belong to rows (an embedding); rows
that keep their places, at fixed indices along other dimensions; and each row at its own index, as in
``logits[arange(B), labels]``. Anything else may read another row, and numbers decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pathways_nb.parallel.batch_walk.equation_pair import EquationPair, grown
from pathways_nb.parallel.batch_walk.marks import Kind, Mark, unscaled
from pathways_nb.parallel.batch_walk.shape_rules import moved


def _gather(op: EquationPair) -> Mark:
    operand, indices = op.marks
    dims = op.params["dimension_numbers"]
    # The result has the dimensions of the windows (offset) and of the indices, without their last (batch).
    offset = [int(dim) for dim in dims.offset_dims]
    rank = len(op.outs[0][0])
    batch = [dim for dim in range(rank) if dim not in offset]  # of the indices without their last, in order
    gone = {int(dim) for dim in (*dims.collapsed_slice_dims, *dims.operand_batching_dims)}
    windows = [dim for dim in range(len(op.ins[0][0])) if dim not in gone]
    kept = dict(zip(windows, offset, strict=True))
    # Dimensions of the operand of which a window has all; of the others an index chooses some.
    whole = {
        dim
        for dim, at in kept.items()
        if all(shape[dim] == out[at] for shape, out in zip(op.ins[0], op.outs[0], strict=True))
    }
    if operand.kind == Kind.SUM or indices.kind == Kind.SUM:
        linear = indices.kind == Kind.FIXED  # to read some elements of a sum is linear, to read at a sum is not
        if linear and indices.counts:
            return op.unknown()
        return operand if linear else op.mixed(f"an index from a sum over {op.axis.name}")
    if operand.kind == Kind.FIXED:
        return _table(op, operand, indices, batch)
    # In a loop over rows: elements of this row, at indices of the same row.
    if operand.is_single and not indices.counts and (indices.kind == Kind.FIXED or indices.is_single):
        return replace(operand.plain(), trained=op.trained)
    if operand.context is not None or operand.at is None:
        return op.unknown()
    if operand.at in whole and indices.kind == Kind.FIXED:
        return moved(op, operand.plain(), {dim: at for dim, at in kept.items() if dim in whole})
    own = _own_rows(op, operand, indices)
    return (
        op.unknown()
        if own is None
        else replace(operand.plain(), at=batch[own], power=operand.power, trained=op.trained)
    )


def _table(op: EquationPair, table: Mark, indices: Mark, batch: list[int]) -> Mark:
    """Return the mark of entries of a table that does not depend on the batch."""
    if table.counts:  # a table by the number of the row, whose part begins anew
        return op.unknown()
    if indices.kind == Kind.ROWS:
        last = len(op.ins[1][0]) - 1  # the components of an index, of which the result has no dimension
        if last in (indices.at, indices.context) or indices.shared:
            return op.unknown()
        at = None if indices.at is None else batch[indices.at]
        context = None if indices.context is None else batch[indices.context]
        return replace(indices.plain(), at=at, context=context, power=table.power, trained=op.trained)
    counts = tuple(sorted((batch[dim], start) for dim, start in indices.counts if dim < len(batch)))
    return Mark(power=table.power, counts=counts, trained=op.trained, anew=op.anew)


def _own_rows(op: EquationPair, operand: Mark, indices: Mark) -> int | None:
    """Return the dimension of the indices along which each row reads from itself; ``None`` if it may read others."""
    dims = op.params["dimension_numbers"]
    batching = dict(zip(map(int, dims.operand_batching_dims), map(int, dims.start_indices_batching_dims), strict=True))
    if operand.at in batching:  # jax.vmap: the rows are a batch dimension of both
        at = batching[operand.at]
        if indices.counts:
            return None
        if indices.kind == Kind.ROWS and (indices.at, indices.inner) not in ((at, operand.inner), (None, 1)):
            return None
        return at
    indexed = list(map(int, dims.start_index_map))
    if operand.at is None or operand.at not in indexed or operand.inner != 1:
        return None
    component = indexed.index(operand.at)
    # logits[arange(B), labels]: the component of the index along the rows must count all of them from 0, in steps of 1.
    pieces = indices.pieces or (indices,)
    if len(pieces) <= component or (count := pieces[component].counter) is None:
        return None
    if len(count.steps) != 1 or count.steps[0][1] != 1 or count.start != (0, 0):
        return None
    at = count.steps[0][0]
    if any(piece.counts for number, piece in enumerate(pieces) if number != component):
        return None
    others = [piece for piece in pieces if piece.kind == Kind.ROWS]
    sizes = tuple(shape[at] for shape in op.ins[1])
    return (
        at if all(piece.at in (at, None) and piece.inner == 1 for piece in others) and sizes == op.axis.sizes else None
    )


def _scatter(op: EquationPair) -> Mark:
    # Which rows write to one place is in the indices' values, so of anything that depends on rows numbers decide.
    return op.unknown() if any(mark.kind > Kind.FIXED for mark in op.marks) else Mark(
        power=unscaled(op.marks), trained=op.trained,
        counts=tuple((dim, None) for dim in grown(op.outs[0])),
    )  # fmt: skip


INDEXING: dict[str, Callable[[EquationPair], Mark | list[Mark]]] = {
    "gather": _gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-min", "scatter-max"), _scatter
    ),
}
"""By primitive, what it makes of marks."""
