"""What operations make of values that do not depend on the batch: numbers, counts and masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pathways_nb.cost.jaxpr.primitives import VIEWS, op_class_of
from pathways_nb.parallel.batch_walk.equation_pair import EquationPair, grown
from pathways_nb.parallel.batch_walk.marks import Counter, Kind, Mark, Mask, common, constant, of_product, unscaled

LINEAR = VIEWS | set("neg convert_element_type copy copy_p reduce_precision real imag conj stop_gradient".split())
"""Operations of one array that respect sums and constant factors."""
_FOLDED: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "neg": lambda a: -a,
    "div": lambda a, b: a / b if b else math.nan, "max": max, "min": min, "convert_element_type": lambda a: a,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan, "rsqrt": lambda a: a**-0.5 if a > 0 else math.nan,
    "integer_pow": lambda a: math.nan, "stop_gradient": lambda a: a, "copy": lambda a: a,
}  # fmt: skip
"""What operations make of numbers that are known."""
_COMPARISONS = {"ge": (1, 0), "gt": (1, -1), "le": (-1, 0), "lt": (-1, -1)}
"""With which sign, and with which addition, a comparison of integers says that something is at least 0."""


def is_elementwise(op: EquationPair) -> bool:
    """Return whether an operation treats every element by itself; operands may be scalars or have dimensions of 1."""
    return op_class_of(op.name) == "elementwise" and all(
        not shape or (len(shape) == len(out) and all(a in (1, b) for a, b in zip(shape, out, strict=True)))
        for made in op.outs for given in op.ins for shape, out in zip(given, made, strict=True)
    )  # fmt: skip


def counts_of_all(marks: Sequence[Mark]) -> tuple[tuple[int, tuple[int, int] | None], ...]:
    """Return the dimensions along which one of several values varies; a start on which they disagree is unknown."""
    found: dict[int, tuple[int, int] | None] = {}
    for mark in marks:
        for dim, start in mark.counts:
            found[dim] = start if found.get(dim, start) == start else None
    return tuple(sorted(found.items()))


def of_fixed(op: EquationPair) -> Mark:
    """Return the mark of the results of an operation whose operands do not depend on the batch."""
    marks = op.marks
    numbers = [mark.number for mark in marks]
    if marks and op.name in _FOLDED and all(number is not None for number in numbers) and len(op.outs) == 1:
        one, two = (_folded(op, [number[side] for number in numbers if number is not None]) for side in (0, 1))
        return replace(constant((one, two), op.axis.ratio), trained=op.trained)
    if op.name == "iota":
        return _iota(op)
    # jnp writes x[i] with where(i < 0, i + n, i) as the index; where i cannot be negative, that is i.
    if op.name == "select_n" and marks[0].number == (0, 0):
        return marks[1]
    masks = _mask_of(op)
    if isinstance(masks, Mark):
        return masks
    counts = counts_of_all(marks)
    if not is_elementwise(op):  # elements may be anywhere now, so it may vary along all that grows
        counts = tuple((dim, None) for dim in grown(op.outs[0]))
    if op.name in ("add", "sub", "select_n", "max", "min", "concatenate"):
        power = common(marks[1:] if op.name == "select_n" else marks)
    elif op.name in ("mul", "div"):
        power = of_product(op.name, marks)
    elif op.name in LINEAR and len(marks) == 1:
        power = marks[0].power
    else:
        power = unscaled(marks)
    counter = _counter(op)
    if counter is not None:  # a count of steps of 1 says where it begins; of others only that they vary is known
        power, alone = 0, len(counter.steps) == 1 and counter.steps[0][1] == 1
        if alone:
            counts = tuple((dim, _first(op, counter.start)) for dim, _ in counter.steps)
        elif any(mark.counter is None for mark in marks):  # a number was added to a difference of counts
            counts = tuple((dim, None) for dim, _ in counter.steps)
    return Mark(power=power, trained=op.trained, counts=counts, counter=counter, mask=masks, anew=op.anew)


def _first(op: EquationPair, start: tuple[int, int]) -> tuple[int, int]:
    """Return from where a count begins, without a constant that was added to it in both traces, as in positions + 1."""
    for known in (op.axis.offsets, (0, 0)):
        if start[0] - known[0] == start[1] - known[1]:
            return known
    return start


def _folded(op: EquationPair, numbers: Sequence[float]) -> float:
    if op.name == "integer_pow":
        return numbers[0] ** op.params["y"] if numbers[0] else math.nan
    return float(_FOLDED[op.name](*numbers))


def _iota(op: EquationPair) -> Mark:
    dim = op.params["dimension"]
    if dim not in grown(op.outs[0]):  # as many in a part as in the whole: a constant like any other
        return Mark()
    return Mark(counts=((dim, (0, 0)),), counter=Counter(((dim, 1),), (0, 0)))


def _counter(op: EquationPair) -> Counter | None:
    """Return the count that an operation makes of counts and integers, such as the positions of a slice."""
    found = [mark.counter or _as_counter(mark) for mark in op.marks]
    if None in found or not any(mark.counter for mark in op.marks):
        return None
    if op.name in ("convert_element_type", "copy", *VIEWS):
        return found[0]
    if op.name not in ("add", "sub") or len(found) != 2:
        return None
    sign = 1 if op.name == "add" else -1  # counts are linear: coefficients and starts add up
    one, two = found
    assert one is not None
    assert two is not None
    steps: dict[int, int] = dict(one.steps)
    for dim, step in two.steps:
        steps[dim] = steps.get(dim, 0) + sign * step
    start = one.start[0] + sign * two.start[0], one.start[1] + sign * two.start[1]
    return Counter(tuple(sorted((dim, step) for dim, step in steps.items() if step)), start)


def _as_counter(mark: Mark) -> Counter | None:
    if mark.number is None or any(not float(one).is_integer() for one in mark.number):
        return None
    return Counter((), (int(mark.number[0]), int(mark.number[1])))


def _mask_of(op: EquationPair) -> Mask | Mark | None:
    """Return the mask that an operation makes: of a comparison of counts, or of other masks.

    A comparison whose answer is the same everywhere is a constant.
    """
    if op.name in _COMPARISONS and len(op.marks) == 2:
        return _compared(op)
    masks = [mark.mask for mark in op.marks]
    found = [mask for mask in masks if mask is not None]
    if not found:
        return None
    if op.name == "not":
        return found[0]._replace(form="future" if found[0].form == "past" else "past")
    if op.name in ("and", "or", "mul") or (op.name == "div" and masks[1] is None):
        return strongest(op, op.marks)
    if op.name == "select_n" and masks[0] is not None:
        # The position among the operands of what stands where reading is allowed, and of what stands elsewhere.
        allowed, other = (2, 1) if masks[0].form == "past" else (1, 2)
        if op.marks[allowed].is_zero and op.marks[other].is_low:
            return masks[0]._replace(form="bias")
        if op.marks[other].is_zero:  # weights by position
            return _from_first(op, masks[0]._replace(form="past"), op.marks[allowed : allowed + 1])
    return found[0] if op.name in (*VIEWS, "convert_element_type", "copy") else None


def strongest(op: EquationPair, marks: Sequence[Mark]) -> Mask | None:
    """Return the mask that masks and conditions make together: one that keeps later tokens out suffices.

    What else varies with the tokens must count from the first of the whole sequence, or slices differ.
    """
    kept = "future" if op.name == "or" else "past"
    found = next((mark.mask for mark in marks if mark.mask is not None and mark.mask.form == kept), None)
    return None if found is None else _from_first(op, found, marks)


def _from_first(op: EquationPair, mask: Mask, marks: Sequence[Mark]) -> Mask | None:
    """Return a mask if what varies with the tokens counts from the first of the whole sequence, else ``None``."""
    wanted = {mask.token: op.axis.offsets, mask.context: (0, 0)}
    counts = [one for mark in marks if mark.kind == Kind.FIXED for one in mark.counts]
    return mask if all(start == wanted.get(dim, start) for dim, start in counts) else None


def _compared(op: EquationPair) -> Mask | Mark | None:
    one, two = (mark.counter or _as_counter(mark) for mark in op.marks)
    if one is None or two is None:
        return None
    # Both sides on one: Σ coefficient · index + start ≥ 0.
    sign, more = _COMPARISONS[op.name]
    steps: dict[int, int] = {}
    for counter, by in ((one, sign), (two, -sign)):
        for dim, step in counter.steps:
            steps[dim] = steps.get(dim, 0) + by * step
    starts = [sign * (a - b) + more for a, b in zip(one.start, two.start, strict=True)]
    # ``index < 0`` of an index that counts up from 0 or more is false everywhere: see ``select_n`` above.
    if (
        sign == -1
        and not two.steps
        and two.start == (0, 0)
        and min(one.start) >= 0
        and all(s > 0 for _, s in one.steps)
    ):
        return constant((0, 0), op.axis.ratio) if op.name == "lt" else None
    readers, read = ([dim for dim, step in steps.items() if step == by] for by in (1, -1))
    if op.axis.name != "tokens" or len(readers) != 1 or len(read) != 1 or len(steps) != 2:
        return None
    # Of "past": reader's index + start − index that is read ≥ 0, where the reader's position is index + offset. How far
    # back it reads must not depend on the slice.
    for form, sides, at in (("past", starts, (readers[0], read[0])),
                            ("future", [-start - 1 for start in starts], (read[0], readers[0]))):  # fmt: skip
        before, same = (side - offset for side, offset in zip(sides, op.axis.offsets, strict=True))
        if before == same <= 0:
            return Mask("past" if form == "past" else "future", *at)
    return None
