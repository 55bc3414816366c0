"""What elementwise operations make of marks.

What is linear in the rows stays a mean or a sum of them. What is not (a square, an exponential) is fine for the value
of each row by itself, and mixes rows if a sum over them is in it: that of the parts is another than that of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pathways_nb.parallel.batch_walk.equation_pair import EquationPair
from pathways_nb.parallel.batch_walk.fixed_values import LINEAR, counts_of_all, is_elementwise, of_fixed, strongest
from pathways_nb.parallel.batch_walk.marks import Kind, Mark, Masked, common, of_product, unscaled

_EXPONENTIALS = {"exp", "exp2", "logistic"}


def elementwise(op: EquationPair) -> list[Mark]:
    """Return the marks of the results of an operation that treats every element by itself.

    Other operations, of which nothing is known, are fine where nothing depends on rows.
    """
    if all(mark.kind == Kind.FIXED for mark in op.marks):
        return op.all(of_fixed(op))
    return op.all(combined(op, op.name, op.marks) if is_elementwise(op) else op.unknown())


def combined(op: EquationPair, name: str, marks: Sequence[Mark]) -> Mark:
    """Return the mark of an elementwise operation on arrays of one shape, some of which depend on rows."""
    if (worst := max(marks, key=lambda mark: mark.kind)).is_lost:
        return replace(worst, trained=op.trained)
    # Attention masks first: they know more of a selection than that it picks from two arrays.
    if name == "select_n" and (found := _masking(op, marks)) is not None:
        return found
    if name in ("add", "sub", "add_any"):
        return _added(op, marks)
    # 1 / Σ is not linear in the rows: for a count of the batch there is pw.mean.
    if name == "mul" or (name == "div" and marks[1].kind != Kind.SUM):
        return _scaled(op, name, marks)
    if name in LINEAR:
        return _converted(op, marks[0]) if len(marks) == 1 else op.unknown()
    if name == "select_n" and marks[0].kind == Kind.FIXED:
        # A fixed choice is linear: the sum of what is chosen of each array, with zeros elsewhere.
        return _added(op, marks[1:], select=True)
    return _non_linear(op, name, marks)


def either(op: EquationPair, one: Mark, two: Mark) -> Mark:
    """Return the mark of a value that is one of two, such as what a loop carries."""
    if one == two:
        return one
    if (worst := max(one, two, key=lambda mark: mark.kind)).is_lost:
        return worst
    if one.kind == two.kind == Kind.FIXED:
        power = common([one, two])
        trained, anew = one.trained or two.trained, one.anew or two.anew
        return Mark(power=power, trained=trained, counts=counts_of_all([one, two]), anew=anew)
    # As for a selection: nothing is known of the value but how it depends on rows.
    return replace(_added(op, [one.plain(), two.plain()], select=True), trained=one.trained or two.trained)


def aligned(op: EquationPair, marks: Sequence[Mark]) -> Mark | None:
    """Return the mark of kind ROWS of several operands with one shape; ``None`` if there is none.

    Fixed values that count along the rows must count from the first row of the whole batch, which only tokens can.
    """
    rows = [mark for mark in marks if mark.kind == Kind.ROWS]
    if not rows:
        return None
    # Values of rows meet element by element only if their rows lie along one dimension, with as many elements each.
    # Along two dimensions every row would meet every other, as in x[:, None] - x[None, :].
    places = {(mark.at, mark.inner) for mark in rows if mark.at is not None}
    contexts = {mark.context for mark in rows if mark.context is not None}
    # In a loop over rows a value belongs to the row of this turn; that of another loop, or all of them, is another.
    loops = {mark.loop for mark in rows if mark.is_single}
    if len(loops) > 1 or (loops and (places or contexts)):
        return op.mixed(f"{op.name!r} of every {op.axis.one} with every other")
    if len(places) > 1 or len(contexts) > 1:
        return op.mixed(f"{op.name!r} of values of different {op.axis.name}")
    at, inner = next(iter(places), (None, 1))
    context = next(iter(contexts), None)
    for mark in marks:
        for dim, start in mark.counts if mark.kind == Kind.FIXED else ():
            if mark.mask is not None or dim not in (at, context):
                continue
            # A part of the batch counts its rows from 0 again; a token slice can count on from its offset.
            if start is None or op.axis.name == "rows" or (at, context) == (None, None):
                return op.unknown(f"{op.name!r} with the number of each {op.axis.one}")
            if start != (op.axis.offsets if dim == at else (0, 0)):
                return op.mixed("positions are counted from the first token of the slice; use context.positions")
    shared, loop = any(mark.shared for mark in rows), next(iter(loops), 0)
    return Mark(Kind.ROWS, 0, at, inner, context, shared=shared, trained=op.trained, loop=loop)


def _added(op: EquationPair, marks: Sequence[Mark], select: bool = False) -> Mark:
    power, trained = common(marks), op.trained
    if (rows := aligned(op, op.marks if select and op.name == "select_n" else marks)) is not None:
        if rows.is_lost:
            return rows
        # A sum that was added to every row does no harm to a mean; a non-linear function of such a row does.
        shared = rows.shared or any(mark.kind == Kind.SUM for mark in marks)
        return replace(rows, power=power, shared=shared, masked="" if select else _still_masked(op, marks))
    if any(mark.kind == Kind.SUM for mark in marks):
        if any(mark.counts for mark in (op.marks if op.name == "select_n" else marks)):
            return op.unknown()
        # ``common`` counts a sum over rows as one power more, so that constants fit in; the mark has it without.
        return Mark(Kind.SUM, None if power is None else power - 1, trained=trained)
    return Mark(power=power, trained=trained, counts=counts_of_all(marks))


def _still_masked(op: EquationPair, marks: Sequence[Mark]) -> Masked:
    """Return how scores are masked after something was added: very negative ones stay so, and a bias makes them so."""
    scores = next((mark for mark in marks if mark.context is not None), None)
    if scores is None or (op.name == "sub" and (scores is not marks[0] or marks[1].mask is not None)):
        return ""  # what is subtracted is positive where it was negative
    bias = any(mark.mask is not None and mark.mask.form == "bias" for mark in marks)
    return "low" if bias else scores.masked if scores.masked in ("low", "maybe") else ""


def _scaled(op: EquationPair, name: str, marks: Sequence[Mark]) -> Mark:
    power = of_product(name, marks)
    sums = [mark for mark in marks if mark.kind == Kind.SUM]
    if (rows := aligned(op, marks)) is not None:
        if rows.is_lost:
            return rows
        # A product of two things that depend on the batch is quadratic in it; by a fixed factor it stays linear.
        if sums or (rows.shared and sum(mark.kind == Kind.ROWS for mark in marks) > 1):
            return _of_statistics(op)
        return replace(rows, power=power, masked=_masked_product(name, marks, rows))
    if len(sums) > 1:
        return op.mixed(f"the product of two sums over {op.axis.name}")
    if any(mark.counts for mark in marks):
        return op.unknown()
    return Mark(Kind.SUM, power, trained=op.trained)


def _masked_product(name: str, marks: Sequence[Mark], rows: Mark) -> Masked:
    """Return how scores are masked after they were multiplied: zeros stay, very negative ones by a positive number."""
    first, second = marks
    masks = [mark.mask for mark in (marks if name == "mul" else marks[:1])]
    if any(mask == ("past", rows.at, rows.context) for mask in masks):  # a mask of numbers
        return "zero"
    if first.masked == "zero" or (second.masked == "zero" and name == "mul"):
        return "zero"
    low = [(one, other) for one, other in ((first, second), (second, first)) if one.masked == "low"]
    factor = low[0][1].number if len(low) == 1 else None
    # Such as 1 / √d: −1e4 times 0.01 is −100, and its exponential is nothing compared with those of others.
    if factor is not None and min(factor) > 0 and (min(factor) >= 0.01 if name == "mul" else max(factor) <= 100):
        return "low"
    return "maybe" if "maybe" in (first.masked, second.masked) else ""


def _of_statistics(op: EquationPair) -> Mark:
    return op.mixed(f"{op.name!r} of the value of each {op.axis.one} and a sum over all {op.axis.name}")


def _converted(op: EquationPair, mark: Mark) -> Mark:
    # Rounding to whole numbers is not linear; from one type of whole numbers to another nothing is rounded.
    whole = op.name == "convert_element_type" and op.dtype.kind in "biu"
    if whole and op.one.invars[0].aval.dtype.kind not in "biu":
        return _non_linear(op, op.name, [mark])
    if mark.kind == Kind.SUM and op.dtype.kind == "b":
        return _non_linear(op, op.name, [mark])
    # The negative of a very negative score is very large, and masks nothing.
    masked: Masked = "" if op.name == "neg" and mark.masked == "low" else mark.masked
    return replace(mark, masked=masked, counter=None, mask=None, number=None, pieces=())


def _non_linear(op: EquationPair, name: str, marks: Sequence[Mark]) -> Mark:
    if any(mark.kind == Kind.SUM for mark in marks):
        if any(mark.kind == Kind.ROWS for mark in marks):
            return _of_statistics(op)
        return op.mixed(f"division by a sum over {op.axis.name}" if name == "div" else
                        f"{name!r} of a sum over {op.axis.name}")  # fmt: skip
    rows = aligned(op, marks)
    assert rows is not None, "something depends on rows"
    if rows.is_lost:
        return rows
    if rows.shared:  # such as the normalization of a batch
        return _of_statistics(op)
    # The exponential of a very negative score is 0: the softmax of masked scores.
    masked: Masked = "maybe" if any(mark.masked == "maybe" for mark in marks) else ""
    if (name in _EXPONENTIALS and marks[0].masked == "low") or (name == "integer_pow" and marks[0].masked == "zero"):
        masked = "zero"
    mask = strongest(op, marks) if name in ("and", "or") else None
    return replace(rows, power=unscaled(marks), masked=masked, mask=mask)


def _masking(op: EquationPair, marks: Sequence[Mark]) -> Mark | None:
    """Return the mark of attention scores that a mask selects; ``None`` if there are none, or no mask."""
    which, *cases = marks
    if len(cases) != 2:
        return None
    if which.mask is None:
        # Scores that are selected by position in a way that is not understood: whether later tokens are out is open.
        chosen = [case for case in cases if case.at is not None and case.context is not None]
        rows = aligned(op, marks) if chosen and which.counts else None
        return None if rows is None else rows if rows.is_lost else replace(rows, power=0, masked="maybe")
    # select_n picks its second case where the predicate is true.
    scores, other = (cases[1], cases[0]) if which.mask.form == "past" else (cases[0], cases[1])
    if scores.context is None or other.kind != Kind.FIXED:
        return None
    if (which.mask.token, which.mask.context) != (scores.at, scores.context) and scores.at is not None:
        return None
    # What has only the tokens up to now, such as keys, gets the tokens that read them from the mask.
    at = which.mask.token if scores.at is None else scores.at
    return replace(scores.plain(), at=at, masked="low" if other.is_low else "zero" if other.is_zero else "")
