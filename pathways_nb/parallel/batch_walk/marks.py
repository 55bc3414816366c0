"""What the walk knows of a value: how it depends on the rows of a batch, or on the tokens of sequences.

The function is traced at two sizes, that of a part and that of the whole, and both jaxprs are walked together. A
dimension *grows* if its size differs between them. The power p of a value says that it is multiplied by rᵖ when there
are r times as many rows with the same content: a sum over rows has power 0, divided by B it has −1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal, NamedTuple


class Kind(IntEnum):
    """How a value depends on rows, from the least to the most entangled."""

    FIXED = 0
    """Independent of the batch; it may vary along dimensions that grow, such as ``arange(B)``: see ``Mark.counts``."""
    ROWS = 1
    """What belongs to a row depends on that row alone."""
    SUM = 2
    """A sum over rows with constant weights, plus something constant."""
    UNKNOWN = 3
    """The walk cannot say; numbers decide."""
    MIXED = 4
    """A non-linear function of a sum over rows, or of several rows."""


class Reason(NamedTuple):
    """Why a value is unknown or mixed.

    Args:
        what: what the operation does, such as ``"'div' of two sums over rows"``.
        line: the user's line; empty if it is not known.
        repeats: whether every part draws the same random numbers, which has a way out of its own.
    """

    what: str
    line: str = ""
    repeats: bool = False

    def __str__(self) -> str:
        return f"{self.what} ({self.line})" if self.line else self.what


Masked = Literal["", "low", "zero", "maybe"]
"""What stands where the mask of attention scores is false; see ``Mark.masked``."""


class Counter(NamedTuple):
    """A value that counts along dimensions that grow: Σ coefficient · index + start.

    Args:
        steps: dimension and coefficient.
        start: of both traces.
    """

    steps: tuple[tuple[int, int], ...]
    start: tuple[int, int]


class Mask(NamedTuple):
    """A mask of which tokens may read which.

    Args:
        form: ``"past"`` if true only where the token that is read is not later, or, of numbers, if 0 elsewhere;
            ``"future"`` if false only there, ``"bias"`` if zero only there and very negative elsewhere.
        token: dimension of the tokens that read.
        context: dimension of the tokens that are read.
    """

    form: Literal["past", "future", "bias"]
    token: int
    context: int


@dataclass(frozen=True)
class Mark:
    """What is known of one value.

    Args:
        kind: how it depends on rows.
        power: see the module; ``None`` if it grows in another way.
        at: the dimension of the rows; ``None`` if it has none, or if the value belongs to one row.
        inner: elements of that dimension that belong to each row, if rows were merged with what follows them.
        context: the dimension of the tokens up to now, of what ``Context.append`` returned.
        masked: of attention scores, what stands where the mask is false: very negative numbers, or zeros; ``"maybe"``
            if something was selected by position, and it is not known how.
        shared: of kind ROWS, whether a sum over rows was added to every row.
        trained: whether it depends on parameters.
        counts: the dimensions that grow along which a fixed value varies, each with the start of the count in both
            traces; ``None`` for a start that is not known.
        counter: the value itself, if it is a count.
        mask: the value itself, if it is a mask.
        number: the value itself in both traces, if it is a constant that is everywhere the same.
        pieces: of integers that were joined along the last dimension, the mark of each.
        anew: whether it is made of a random key that every part of the batch has for itself.
        loop: of a value that belongs to one row, how deep the loop is that goes over the rows.
        reason: of kinds UNKNOWN and MIXED.
    """

    kind: Kind = Kind.FIXED
    power: int | None = 0
    at: int | None = None
    inner: int = 1
    context: int | None = None
    masked: Masked = ""
    shared: bool = False
    trained: bool = False
    counts: tuple[tuple[int, tuple[int, int] | None], ...] = ()
    counter: Counter | None = None
    mask: Mask | None = None
    number: tuple[float, float] | None = None
    pieces: tuple[Mark, ...] = ()
    anew: bool = False
    loop: int = 0
    reason: Reason | None = None

    @property
    def is_zero(self) -> bool:
        """Whether it is the constant 0, which has every power."""
        return self.number == (0, 0)

    @property
    def is_low(self) -> bool:
        """Whether it is a constant that masks a score: −∞, or so negative that its exponential is 0."""
        return self.number is not None and max(self.number) <= -1e4

    @property
    def is_lost(self) -> bool:
        """Whether it is unknown or mixed."""
        return self.kind >= Kind.UNKNOWN

    @property
    def is_mean(self) -> bool:
        """Whether it is a mean over rows, or independent of them."""
        fixed = self.kind == Kind.FIXED and not self.counts
        return (fixed or self.kind == Kind.SUM) and level(self) == 0

    @property
    def is_single(self) -> bool:
        """Whether it belongs to one row, and no dimension is that of the rows."""
        return self.kind == Kind.ROWS and self.at is None and self.context is None

    def plain(self) -> Mark:
        """Return the mark of a value of which only its dependence on rows is known."""
        return replace(self, masked="", counter=None, mask=None, number=None, pieces=())


FIXED = Mark()


def constant(number: tuple[float, float], ratio: float) -> Mark:
    """Return the mark of a number that is ``number[0]`` in one trace and ``number[1]`` in the other."""
    return Mark(power=power_of(number, ratio), number=number)


def power_of(number: tuple[float, float], ratio: float) -> int | None:
    """Return p if the second number is rᵖ times the first, and ``None`` if there is no such p."""
    one, two = number
    if one == two or one != one:  # NaN is the same for any number of rows
        return 0
    for power in (-1, 1, -2, 2, -3, 3):
        if abs(two - one * ratio**power) <= 1e-5 * abs(two):  # a constant may have been rounded to float32
            return power
    return None


def common(marks: Sequence[Mark]) -> int | None:
    """Return the power of a sum; a sum over rows counts as one more, because a constant is its own mean."""
    powers = {level(mark) for mark in marks if not mark.is_zero}  # 0 has every power
    return powers.pop() if len(powers) == 1 else 0 if not powers else None


def level(mark: Mark) -> int | None:
    """Return the power of what a mean over rows makes of a value."""
    return None if mark.power is None else mark.power + (mark.kind == Kind.SUM)


def unscaled(marks: Sequence[Mark]) -> int | None:
    """Return the power of what has no rule of its own: 0 if no operand grows with the number of rows."""
    # A very negative score is that of a mask: a number in place of −∞, whatever the number of rows.
    return 0 if all(mark.power == 0 or mark.is_zero or mark.is_low for mark in marks) else None


def of_product(name: str, marks: Sequence[Mark]) -> int | None:
    """Return the power of a product or a quotient."""
    known = [mark.power for mark in marks if mark.power is not None]
    if len(known) < len(marks):
        return None
    return known[0] - known[1] if name == "div" else sum(known)
