"""What operations that move elements make of marks: reshapes, slices, joins; and random numbers, which appear anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pathways_nb.cost.jaxpr.primitives import RANDOM
from pathways_nb.parallel.batch_walk.arithmetic import aligned, combined
from pathways_nb.parallel.batch_walk.equation_pair import EquationPair, Shape, grown
from pathways_nb.parallel.batch_walk.fixed_values import counts_of_all
from pathways_nb.parallel.batch_walk.marks import Counter, Kind, Mark, Mask, common

Rule = Callable[[EquationPair], Mark | list[Mark]]


def moved(op: EquationPair, mark: Mark, dims: dict[int, int], inner: int | None = None) -> Mark:
    """Return the mark of an array whose dimensions are now elsewhere.

    Args:
        op: the operation.
        mark: of the operand.
        dims: where each dimension of the operand went; those that lost their meaning are not in it.
        inner: elements of each row along the dimension of the rows, if that changed.
    """
    if mark.is_lost or mark.kind == Kind.SUM:
        return replace(mark, pieces=())
    lost = [dim for dim in (mark.at, mark.context) if dim is not None and dim not in dims]
    if lost:
        return op.unknown()
    counts = tuple(sorted((dims[dim], start) for dim, start in mark.counts if dim in dims))
    power = mark.power
    if len(counts) < len(mark.counts):  # what is left may depend on how many there were, as in arange(B)[-1]
        counts, power = tuple((dim, None) for dim in grown(op.outs[0])), None
    counter = mark.counter
    if counter is not None:
        known = all(dim in dims for dim, _ in counter.steps)
        counter = (
            Counter(tuple(sorted((dims[dim], step) for dim, step in counter.steps)), counter.start) if known else None
        )
    mask = mark.mask
    if mask is not None:
        both = mask.token in dims and mask.context in dims
        mask = Mask(mask.form, dims[mask.token], dims[mask.context]) if both else None
    return replace(
        mark, power=power, at=None if mark.at is None else dims[mark.at], inner=mark.inner if inner is None else inner,
        context=None if mark.context is None else dims[mark.context], counts=counts, counter=counter, mask=mask,
        pieces=(),
    )  # fmt: skip


# Each rule below says where the dimensions of the operand went, and ``moved`` what that does to the mark.


def _broadcast(op: EquationPair) -> Mark:
    dims = dict(enumerate(map(int, op.params["broadcast_dimensions"])))
    mark = op.marks[0]
    # A dimension of size 1 that is spread out carries nothing any more.
    spread = [d for d, out in dims.items() if op.ins[0][0][d] != op.outs[0][0][out]]
    if mark.kind == Kind.ROWS and (mark.at in spread or mark.context in spread):
        return op.unknown()
    return replace(moved(op, mark, dims), number=mark.number)


def _reshape(op: EquationPair) -> Mark:
    # A reshape has no table of dimensions. An index of an old dimension counts elements with some stride, and belongs
    # to the new dimension in which this stride lies: in (B, T, D) to (B · T, D), rows of T elements each to the first.
    mark, (one, two), (new, new_two) = op.marks[0], op.ins[0], op.outs[0]
    if mark.number is not None or mark.kind == Kind.SUM or (mark.kind == Kind.FIXED and not mark.counts):
        return replace(mark, pieces=())
    dims: dict[int, int] = {}
    inner = mark.inner
    for dim in range(len(one)):
        repeat = mark.inner if dim == mark.at else 1
        target = _where(one, new, dim, repeat)
        # Where shapes coincide at one size, as in B = T, the other size tells the dimensions apart.
        if target is None or (dim == mark.at and target != _where(two, new_two, dim, repeat)):
            continue
        if dim == mark.at and mark.kind == Kind.ROWS:
            sizes = zip(op.outs[0], op.axis.sizes, strict=True)
            if any(shape[target[0]] % (size * target[1]) for shape, size in sizes):  # rows in pieces, or not all
                continue
            inner = target[1]
        elif target[1] != 1 or one[dim] != new[target[0]]:
            continue
        dims[dim] = target[0]
    return moved(op, mark, dims, inner)


def _where(shape: Shape, new: Shape, dim: int, inner: int) -> tuple[int, int] | None:
    """Return the dimension of a new shape in which an index of an old one counts, and by how many elements."""
    if shape[dim] == 1:
        return None
    stride = inner * math.prod(shape[dim + 1 :])
    for target in range(len(new)):
        after = math.prod(new[target + 1 :])
        if new[target] > 1 and stride % after == 0 and stride < after * new[target]:
            return target, stride // after
    return None


def _squeeze(op: EquationPair) -> Mark:
    gone = {dim % len(op.ins[0][0]) for dim in op.params["dimensions"]}
    left = [dim for dim in range(len(op.ins[0][0])) if dim not in gone]
    return replace(moved(op, op.marks[0], {dim: at for at, dim in enumerate(left)}), number=op.marks[0].number)


def _transpose(op: EquationPair) -> Mark:
    return moved(op, op.marks[0], {int(dim): at for at, dim in enumerate(op.params["permutation"])})


def _same_places(op: EquationPair, mark: Mark, whole: Callable[[int], bool]) -> Mark:
    """Return the mark of an array of which only some elements are left, all along the dimensions that are ``whole``."""
    if mark.kind == Kind.ROWS and not all(whole(dim) for dim in (mark.at, mark.context) if dim is not None):
        return tangled(op)
    dims = {dim: dim for dim in range(len(op.ins[0][0])) if whole(dim) or dim not in grown(op.ins[0])}
    return replace(moved(op, mark, dims), number=mark.number)


def tangled(op: EquationPair, what: str = "") -> Mark:
    """Return the mark of rows that were moved among each other; of tokens, that is wrong in every slice."""
    # A mean does not depend on the order of rows, so numbers may decide. Tokens that would change places with those of
    # a slice are in other slices.
    what = what or f"{op.name!r} along the {op.axis.name}"
    return op.mixed(what) if op.axis.name == "tokens" else op.unknown(what)


def _slice(op: EquationPair) -> Mark:
    return _cut(op, list(zip(op.params["start_indices"], op.two.params["start_indices"], strict=True)))


def _cut(op: EquationPair, starts: Sequence[tuple[int, int] | None]) -> Mark:
    """Return the mark of a range of an array that begins at ``starts``, along each dimension in both traces."""
    mark, ins, outs = op.marks[0], op.ins[0], op.outs[0]
    found = _same_places(op, mark, lambda dim: all(a[dim] == b[dim] for a, b in zip(ins, outs, strict=True)))
    new = [dim for dim in grown(outs) if dim not in grown(ins)]
    if found.is_lost or mark.number is not None or not (new or mark.counter):
        return found
    if mark.kind != Kind.FIXED:  # as many elements of each row as there are rows
        return op.unknown()
    if mark.counter:  # its count begins later
        return replace(found, counter=None, counts=tuple((dim, None) for dim, _ in found.counts))
    # As many entries of a table as there are rows: each belongs to a row by its number.
    return replace(found, counts=tuple(sorted({**dict(found.counts), **{dim: starts[dim] for dim in new}}.items())))


def _index(op: EquationPair, starts: Sequence[Mark]) -> Mark | None:
    if all(mark.kind == Kind.FIXED for mark in starts):
        return None
    if any(mark.kind == Kind.SUM for mark in starts):
        return op.mixed(f"an index of {op.name!r} from a sum over {op.axis.name}")
    return op.unknown()


def _sliced_dynamically(op: EquationPair) -> Mark:
    bad = _index(op, op.marks[1:])
    # A start that is known in both traces makes it a slice.
    known = [mark.number for mark in op.marks[1:]]
    return _cut(op, [None if one is None else (int(one[0]), int(one[1])) for one in known]) if bad is None else bad


def _updated(op: EquationPair) -> Mark:
    operand, update, *starts = op.marks
    if (bad := _index(op, starts)) is not None:
        return bad
    ins = op.ins
    for mark in (operand, update):
        own = [dim for dim in (mark.at, mark.context) if dim is not None]
        if any(ins[0][side][dim] != ins[1][side][dim] for dim in own for side in (0, 1)):
            return tangled(op)  # some rows are written, others are not
    if Kind.ROWS not in (operand.kind, update.kind) and any(
        ins[0][0][dim] != ins[1][0][dim] for dim in grown(ins[0])
    ):  # fmt: skip
        return op.unknown()
    # Linear in both: elements of the one where it was written, of the other elsewhere.
    return combined(op, "add", [operand.plain(), update.plain()])


def _pad(op: EquationPair) -> Mark:
    mark, value = op.marks
    config = op.params["padding_config"]
    found = _same_places(op, mark, lambda dim: not any(config[dim]))
    if mark.kind == Kind.FIXED == value.kind:
        if mark.number is not None and mark.number == value.number:
            return replace(found, number=mark.number)
        at = {dim: None for dim in grown(op.outs[0]) if any(config[dim])}
        return replace(found, number=None, counts=tuple(sorted({**dict(found.counts), **at}.items())))
    if found.is_lost or value.is_zero:  # zeros fit any power and any sum
        return replace(found, number=None)
    return combined(op, "add", [found, value])


def _concatenate(op: EquationPair) -> Mark:
    dim, marks = op.params["dimension"], op.marks
    # Along a last dimension of single elements: how JAX joins the indices of a gather.
    last = dim == len(op.outs[0][0]) - 1 and all(shape[0][dim] == 1 for shape in op.ins)
    if any(mark.kind == Kind.ROWS and dim in (mark.at, mark.context) for mark in marks):
        return _stacked_rows(op, dim)
    fixed = all(mark.kind == Kind.FIXED for mark in marks)
    if fixed and any(dim in grown(shape) for shape in op.ins):
        # Fixed arrays one behind the other, of which one grows: what stands where depends on the number of rows.
        return Mark(counts=((dim, None),), trained=op.trained, anew=op.anew)
    if fixed:
        found = Mark(power=common(marks), counts=counts_of_all(marks), trained=op.trained, anew=op.anew)
    elif last and (rows := aligned(op, [mark for mark in marks if mark.kind == Kind.ROWS])) is not None:
        found = rows  # as indices: the pieces say what each is
    else:
        found = combined(op, "add", [mark.plain() for mark in marks])
    return replace(found, pieces=tuple(marks)) if last else found


def _stacked_rows(op: EquationPair, dim: int) -> Mark:
    """Return the mark of whole batches, one behind the other along their rows, as for a contrastive loss."""
    first, sizes = op.marks[0], op.axis.sizes
    alike = all((mark.kind, mark.at, mark.inner, mark.power, mark.context, mark.shared)
                == (Kind.ROWS, dim, first.inner, first.power, None, first.shared) for mark in op.marks)  # fmt: skip
    whole = all(shape[side][dim] % (size * first.inner) == 0 for shape in op.ins for side, size in enumerate(sizes))
    return replace(first.plain(), trained=op.trained) if alike and whole and op.axis.name == "rows" else tangled(op)


def _split(op: EquationPair) -> list[Mark]:
    mark, axis = op.marks[0], op.params["axis"]
    if mark.kind == Kind.ROWS and axis in (mark.at, mark.context):
        return op.all(tangled(op))
    dims = {dim: dim for dim in range(len(op.ins[0][0])) if dim != axis or dim not in dict(mark.counts)}
    return op.all(replace(moved(op, mark, dims), number=mark.number))


def _reversed(op: EquationPair) -> Mark:
    return _same_places(op, op.marks[0], lambda dim: dim not in op.params["dimensions"])


def _random(op: EquationPair) -> Mark:
    """Return the mark of random numbers and keys: every row has its own, unless all parts draw from one key."""
    if any(mark.kind == Kind.SUM for mark in op.marks):
        return op.mixed(f"random numbers from a sum over {op.axis.name}")
    if (rows := aligned(op, [mark for mark in op.marks if mark.kind == Kind.ROWS])) is not None:
        return replace(rows, power=0)
    counted = {dim for mark in op.marks for dim, _ in mark.counts}
    given = {dim for shapes in op.ins for dim in grown(shapes)}
    new = [dim for dim in grown(op.outs[0]) if dim in counted or dim not in given]
    # Nothing that grows is drawn, as for dropout of weights: no number belongs to a row.
    if not new:
        return Mark(trained=op.trained, anew=op.anew)
    if not op.anew:  # the key is closed over, so every part draws the same numbers
        return op.repeated()
    dim, size = new[0], op.axis.sizes[0]
    if len(new) > 1 or op.outs[0][0][dim] % size:
        return op.unknown()
    return Mark(Kind.ROWS, at=dim, inner=op.outs[0][0][dim] // size, trained=op.trained)


def _appended(op: EquationPair) -> Mark:
    """Return the mark of the tokens up to now, or of rows that keep theirs."""
    mark = op.marks[0]
    # Along rows it only appends tokens, and every row keeps its own.
    if op.axis.name == "rows" or mark.kind != Kind.ROWS:
        return replace(mark.plain(), counts=()) if not mark.counts else op.unknown()
    if mark.at != 1 or mark.inner != 1:
        return op.unknown()
    # What was the tokens of this slice is now the tokens up to now: a reader of them must mask the later ones.
    return replace(mark.plain(), at=None, context=1)


def _keeps(op: EquationPair) -> list[Mark]:
    """Return the marks of an operation that passes its operands on."""
    return list(op.marks) if len(op.marks) == len(op.outs) else op.all(op.unknown())


MOVES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast, "reshape": _reshape, "squeeze": _squeeze, "transpose": _transpose,
    "slice": _slice, "dynamic_slice": _sliced_dynamically, "dynamic_update_slice": _updated, "pad": _pad,
    "concatenate": _concatenate, "split": _split, "rev": _reversed, "optimization_barrier": _keeps,
    "context_append": _appended,
    **dict.fromkeys(RANDOM, _random),
}  # fmt: skip
"""By primitive, what it makes of marks. ``context_append`` is that of ``Context.append``."""
