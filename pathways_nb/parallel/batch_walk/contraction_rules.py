"""What operations that add up, compare or contract elements make of marks.

Adding up over the rows gives a sum over rows, the end of every mean. Comparing over them (a maximum, an order) mixes
them. Over the tokens up to now, attention may add up only what a mask has made 0 for later tokens: a slice that comes
before them has none of them, and the whole sequence has all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pathways_nb.parallel.batch_walk.arithmetic import aligned
from pathways_nb.parallel.batch_walk.equation_pair import EquationPair, grown, times_grown
from pathways_nb.parallel.batch_walk.marks import Kind, Mark, Masked, of_product, unscaled
from pathways_nb.parallel.batch_walk.shape_rules import moved, tangled

Rule = Callable[[EquationPair], Mark | list[Mark]]


def _left(op: EquationPair, gone: tuple[int, ...]) -> dict[int, int]:
    """Return where the dimensions go that a reduction leaves."""
    kept = [dim for dim in range(len(op.ins[0][0])) if dim not in gone]
    return {dim: at for at, dim in enumerate(kept)}


def _sum(op: EquationPair) -> Mark:
    mark, gone = op.marks[0], tuple(int(dim) for dim in op.params["axes"])
    if mark.kind == Kind.ROWS:
        return _sum_of_rows(op, mark, gone)
    # Of a fixed array, such as jnp.ones(B), each dimension that grows makes the sum r times as large.
    times = times_grown(op, op.ins[0], gone)
    if mark.mask is not None and mark.mask.form == "past" and gone == (mark.mask.context,) and mark.power == 0:
        # Over the earlier tokens of each: it depends on the token's position alone.
        at = _left(op, gone)[mark.mask.token]
        return Mark(trained=mark.trained, counts=((at, op.axis.offsets),))
    # Elements that vary along a dimension that grows, such as arange(B), add up to no power of the number of rows.
    if times != 0 and (any(dim in gone for dim, _ in mark.counts) or mark.power is None or times is None):
        return replace(op.unknown() if mark.kind == Kind.SUM else Mark(trained=mark.trained), power=None)
    return replace(moved(op, mark.plain(), _left(op, gone)), power=_plus(mark.power, times))


def _plus(power: int | None, times: int | None) -> int | None:
    """Return the power of a sum over so many dimensions that grow, and are not those of the rows."""
    return None if power is None or times is None else power + times


def _sum_of_rows(op: EquationPair, mark: Mark, gone: tuple[int, ...]) -> Mark:
    context = mark.context
    if mark.context in gone and mark.context is not None:
        if mark.masked != "zero":
            return unmasked(op, mark)
        mark = replace(mark, context=None, masked="")
    if mark.at is None or mark.at not in gone:  # within each row
        left = moved(op, replace(mark, masked=mark.masked if mark.context is not None else ""), _left(op, gone))
        times = times_grown(op, op.ins[0], [dim for dim in gone if dim != context])
        return left if left.is_lost else replace(left, power=_plus(left.power, times))
    # Over the rows and another dimension that grows, as in x[:, None] * table[:B]: no sum over rows alone.
    if mark.context is not None or len([dim for dim in grown(op.ins[0]) if dim in gone]) > 1:
        return op.unknown()
    return Mark(Kind.SUM, mark.power, trained=mark.trained)


def unmasked(op: EquationPair, scores: Mark) -> Mark:
    """Return the mark of what adds up later tokens of a slice."""
    if scores.masked == "maybe":
        return op.unknown("a mask of attention by position")
    return op.mixed(
        "every token reads all tokens that context.append returned, later ones of its slice, too; mask them with "
        "context.mask"
    )


def _extreme(op: EquationPair) -> Mark | list[Mark]:
    """Return the mark of a reduction that is no sum, such as a maximum."""
    mark = op.marks[0]
    gone = tuple(int(dim) for dim in op.params["axes"])
    if mark.kind == Kind.SUM:
        return op.mixed(f"{op.name!r} of a sum over {op.axis.name}")
    if mark.kind == Kind.ROWS:
        if mark.at in gone and mark.at is not None:
            return op.mixed(f"{op.name!r} over the {op.axis.name}")
        if mark.context in gone and mark.context is not None:
            # The maximum of a softmax: later tokens, made very negative, are never the largest.
            if mark.masked != "low" or op.name not in ("reduce_max", "argmax"):
                return op.unknown() if mark.masked else unmasked(op, mark)
            mark = replace(mark, context=None)
        if mark.shared:
            return op.mixed(f"{op.name!r} of the value of each {op.axis.one} and a sum over all {op.axis.name}")
    left = moved(op, mark.plain(), _left(op, gone))
    # The maximum of values of power p has power p. Other choices (argmax, and, or) are alike only where p is 0, and a
    # product takes more factors where there are more rows.
    multiplied = op.name == "reduce_prod" and times_grown(op, op.ins[0], gone) != 0
    keeps = op.name in ("reduce_max", "reduce_min") or (left.power == 0 and not multiplied)
    return op.all(left if keeps else replace(left, power=None))


def _running(op: EquationPair) -> list[Mark]:
    """Return the marks of operations along one dimension, such as a running sum or sorting."""
    axis = op.params.get("axis", op.params.get("dimension", len(op.ins[0][0]) - 1))
    axis = int(axis) % len(op.ins[0][0])
    marks = op.marks
    # Along a dimension that grows, each result has its own count: no start of it is known.
    if all(mark.kind == Kind.FIXED for mark in marks):
        counts = tuple((dim, None) for dim in grown(op.outs[0]))
        return op.all(Mark(power=unscaled(marks), counts=counts, trained=op.trained))
    if any(mark.kind == Kind.SUM for mark in marks):
        if op.name == "cumsum":  # the only linear one
            return op.all(op.unknown() if axis in grown(op.ins[0]) else marks[0])
        return op.all(op.mixed(f"{op.name!r} of a sum over {op.axis.name}"))
    rows = aligned(op, marks)
    assert rows is not None, "something depends on rows"
    if rows.is_lost:
        return op.all(rows)
    if axis in (rows.at, rows.context):
        whole = op.dtype.kind in "biu"  # counting tokens may be how experts get rows
        return op.all(op.unknown(f"{op.name!r} along the {op.axis.name}") if whole else tangled(op))
    if rows.shared and op.name != "cumsum":
        return op.all(op.mixed(f"{op.name!r} of the value of each {op.axis.one} and a sum over all {op.axis.name}"))
    powers = {mark.power for mark in op.marks if not mark.is_zero}  # of several operands, as a sort may have
    return op.all(replace(rows, power=powers.pop() if len(powers) == 1 else None))


def _dot(op: EquationPair) -> Mark:
    (lc, rc), _ = op.params["dimension_numbers"]
    one, two = op.marks
    contracted = dict(zip(map(int, lc), map(int, rc), strict=True))
    left, right = _dot_dims(op)
    power = of_product(op.name, op.marks)
    if one.kind != Kind.ROWS and two.kind != Kind.ROWS:
        return _dot_without_rows(op, power, contracted)
    # Contracting a dimension that grows and is not that of rows or tokens adds up as many more fixed terms.
    own = [a for a, b in contracted.items() if a not in (one.at, one.context) and b not in (two.at, two.context)]
    power = _plus(power, times_grown(op, op.ins[0], own))
    if Kind.SUM in (one.kind, two.kind) or ((one.shared or two.shared) and one.kind == two.kind):
        return op.mixed(f"{op.name!r} of the value of each {op.axis.one} and a sum over all {op.axis.name}")
    # In a loop over rows: the row of this turn with that of another loop, or with all rows.
    singles = {mark.loop for mark in (one, two) if mark.is_single}
    if len(singles) > 1 or (singles and any(mark.kind == Kind.ROWS and not mark.is_single for mark in (one, two))):
        return op.mixed(f"{op.name!r} of every {op.axis.one} with every other")
    if (found := _weighted(op, contracted, power)) is not None:
        return found
    # Attention's probabilities times its values adds up over the tokens up to now: one side must be 0 for later ones.
    if one.context in contracted and one.context is not None and contracted[one.context] == two.context:
        if "zero" not in (one.masked, two.masked):
            return unmasked(op, one if one.masked else two)
        one, two = replace(one, context=None, masked=""), replace(two, context=None, masked="")
    # Or against a fixed array, such as a sum of probabilities written as a product with ones.
    elif (one.context in contracted and one.context is not None) or (
        two.context in contracted.values() and two.context is not None
    ):
        scores = one if one.context in contracted else two
        if scores.masked != "zero":
            return unmasked(op, scores)
        one, two = (replace(mark, context=None, masked="") if mark is scores else mark for mark in (one, two))
    both = [(mark, dims) for mark, dims in ((one, left), (two, right)) if mark.at is not None]
    if any(mark.at not in dims for mark, dims in both):  # the rows are contracted, as in a gradient of weights
        return _dot_over_rows(op, one, two, contracted, power)
    # As a batch dimension both sides' rows become one dimension; free on both sides they become two.
    places = {(dims[mark.at], mark.inner) for mark, dims in both if mark.at is not None}
    if len(places) > 1:
        return op.mixed(f"{op.name!r} of every {op.axis.one} with every other")
    if any(dim in contracted or dim in contracted.values() for mark in (one, two) for dim, _ in mark.counts):
        return op.unknown()
    at, inner = next(iter(places), (None, 1))
    contexts = [dims[mark.context] for mark, dims in ((one, left), (two, right)) if mark.context is not None]
    if len(set(contexts)) > 1:
        return op.mixed("earlier tokens are compared with each other")
    masked: Masked = "zero" if contexts and "zero" in (one.masked, two.masked) else ""
    return Mark(Kind.ROWS, power, at, inner, contexts[0] if contexts else None, masked, one.shared or two.shared,
                op.trained, loop=max(one.loop, two.loop))  # fmt: skip


def _weighted(op: EquationPair, contracted: dict[int, int], power: int | None) -> Mark | None:
    """Return the mark of tokens up to now that are added up with weights by position, 0 of later ones.

    It is ``None`` of other products.
    """
    first = op.marks[0].kind == Kind.FIXED
    weights, tokens = op.marks if first else reversed(op.marks)
    mask, dims = weights.mask, _dot_dims(op)[0 if first else 1]
    # Contracted dimensions are pairs of the left and the right side; here the weights' come first.
    pairs = contracted.items() if first else ((b, a) for a, b in contracted.items())
    if mask is None or mask.form != "past" or tokens.at is not None or mask.token not in dims:
        return None
    if (mask.context, tokens.context) not in pairs:
        return None
    return Mark(Kind.ROWS, power, dims[mask.token], shared=tokens.shared, trained=op.trained)


def _dot_dims(op: EquationPair) -> tuple[dict[int, int], dict[int, int]]:
    """Return where the dimensions of both operands go that are not contracted."""
    (lc, rc), (lb, rb) = op.params["dimension_numbers"]
    # Of dot_general's result: the batch dimensions, the free ones of the left side, then those of the right.
    left = {int(dim): at for at, dim in enumerate(lb)}
    right = {int(dim): at for at, dim in enumerate(rb)}
    free = len(left)
    for dims, gone, shape in ((left, lc, op.ins[0][0]), (right, rc, op.ins[1][0])):
        for dim in range(len(shape)):
            if dim not in dims and dim not in tuple(map(int, gone)):
                dims[dim] = free
                free += 1
    return left, right


def _dot_over_rows(op: EquationPair, one: Mark, two: Mark, contracted: dict[int, int], power: int | None) -> Mark:
    """Return the mark of a product that adds up over rows: a sum, if both sides' rows meet or one side is fixed."""
    if one.context is not None or two.context is not None:
        return op.unknown()
    if one.kind == two.kind == Kind.ROWS:
        meets = (one.at, two.at) in contracted.items() and one.inner == two.inner
        return Mark(Kind.SUM, power, trained=op.trained) if meets else op.mixed(
            f"{op.name!r} of every {op.axis.one} with every other"
        )  # fmt: skip
    fixed = one if one.kind == Kind.FIXED else two
    pairs = contracted.items() if one.kind == Kind.ROWS else ((b, a) for a, b in contracted.items())
    at = (one if one.kind == Kind.ROWS else two).at
    # A weight by the number of the row: a part would start again with the first weight.
    if any(own == at and other in dict(fixed.counts) for own, other in pairs):
        return tangled(op, f"{op.name!r} with a weight for each {op.axis.one}")
    return Mark(Kind.SUM, power, trained=op.trained)


def _dot_without_rows(op: EquationPair, power: int | None, contracted: dict[int, int]) -> Mark:
    one, two = op.marks
    if one.kind == two.kind == Kind.SUM:
        return op.mixed(f"the product of two sums over {op.axis.name}")
    times = times_grown(op, op.ins[0], contracted)
    varies = bool(one.counts or two.counts)
    if varies and Kind.SUM in (one.kind, two.kind):
        return op.unknown()
    counts = tuple((dim, None) for dim in grown(op.outs[0])) if varies else ()
    total = None if varies and times else _plus(power, times)
    return Mark(max(one.kind, two.kind), total, trained=op.trained, counts=counts)


def _convolution(op: EquationPair) -> Mark:
    dims = op.params["dimension_numbers"]
    one, two = op.marks
    # Rows are images: each convolved by itself only if they are the batch dimension, and groups do not divide it.
    if one.kind == Kind.ROWS and two.kind == Kind.FIXED and one.context is None and not two.counts:
        if one.at == dims.lhs_spec[0] and op.params["batch_group_count"] == 1:
            power = of_product(op.name, op.marks)
            return replace(one.plain(), at=int(dims.out_spec[0]), power=power, trained=op.trained)
        return tangled(op, f"a convolution along the {op.axis.name}")
    return op.unknown()


def _of_matrices(op: EquationPair) -> list[Mark]:
    """Return the marks of operations on the last two dimensions, such as a decomposition of matrices."""
    if all(mark.kind == Kind.FIXED for mark in op.marks):
        return op.all(Mark(power=unscaled(op.marks), trained=op.trained))
    rows = aligned(op, op.marks)
    if rows is None or rows.is_lost or rows.shared or rows.at is None or rows.context is not None:
        return op.all(op.unknown() if rows is None or not rows.is_lost else rows)
    # The last two dimensions (of an FFT as many as it has lengths) are read together.
    if rows.at >= len(op.ins[0][0]) - len(op.params.get("fft_lengths", (0, 0))):
        return op.all(op.unknown())
    return op.all(replace(rows, power=unscaled(op.marks)))


CONTRACTIONS: dict[str, Rule] = {
    "reduce_sum": _sum, "dot_general": _dot, "conv_general_dilated": _convolution,
    **dict.fromkeys("reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin".split(), _extreme),
    **dict.fromkeys("cumsum cumprod cummax cummin cumlogsumexp sort top_k approx_top_k".split(), _running),
    **dict.fromkeys("cholesky lu qr eigh svd triangular_solve fft householder_product geqrf".split(), _of_matrices),
}  # fmt: skip
"""By primitive, what it makes of marks."""
