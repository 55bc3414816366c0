"""One equation of both traces, with the sizes that tell which dimensions grow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from pathways_nb.parallel.batch_walk.marks import Kind, Mark, Reason
from pathways_nb.plan import source_lines

Shape = tuple[int, ...]


class WalkedAxis(NamedTuple):
    """What is walked along.

    Args:
        name: ``"rows"`` of a batch, or ``"tokens"`` of sequences.
        sizes: number of them in both traces.
        offsets: position of the first token in both traces.
    """

    name: Literal["rows", "tokens"]
    sizes: tuple[int, int]
    offsets: tuple[int, int] = (0, 0)

    @property
    def ratio(self) -> float:
        """How many times as many there are in the second trace, r."""
        return self.sizes[1] / self.sizes[0]

    @property
    def one(self) -> str:
        """The word for one of them."""
        return self.name[:-1]


@dataclass(frozen=True, eq=False)
class EquationPair:
    """An equation of both traces.

    Args:
        axis: what is walked along.
        one: the equation at the smaller size.
        two: the same equation at the larger size.
        marks: of its operands.
    """

    axis: WalkedAxis
    one: Any
    two: Any
    marks: Sequence[Mark]

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return str(self.one.primitive.name)

    @property
    def params(self) -> Any:
        """Its parameters at the smaller size."""
        return self.one.params

    @cached_property
    def ins(self) -> list[tuple[Shape, Shape]]:
        """Shapes of the operands in both traces."""
        return [_shapes(a, b) for a, b in zip(self.one.invars, self.two.invars, strict=True)]

    @cached_property
    def outs(self) -> list[tuple[Shape, Shape]]:
        """Shapes of the results in both traces."""
        return [_shapes(a, b) for a, b in zip(self.one.outvars, self.two.outvars, strict=True)]

    @property
    def worst(self) -> Mark:
        """The first mark of the worst kind, with the others' dependence on parameters."""
        return replace(max(self.marks, key=lambda mark: mark.kind), trained=self.trained)

    @property
    def trained(self) -> bool:
        """Whether an operand depends on parameters."""
        return any(mark.trained for mark in self.marks)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the first result."""
        return self.one.outvars[0].aval.dtype

    @property
    def anew(self) -> bool:
        """Whether an operand is made of a random key that every part has for itself."""
        return any(mark.anew for mark in self.marks)

    def mixed(self, what: str) -> Mark:
        """Return the mark of a result that mixes rows, for this reason."""
        return Mark(Kind.MIXED, trained=self.trained, reason=Reason(what, self._line))

    def repeated(self) -> Mark:
        """Return the mark of random numbers that every part of the batch draws alike."""
        found = self.mixed(f"{self.name!r}")
        assert found.reason is not None
        return replace(found, reason=found.reason._replace(repeats=True))

    def unknown(self, what: str = "") -> Mark:
        """Return the mark of a result of which nothing is known."""
        what = what or f"{self.name!r} over the {self.axis.name}"
        return Mark(Kind.UNKNOWN, trained=self.trained, reason=Reason(what, self._line))

    @property
    def _line(self) -> str:
        """The user's line; empty if the trace does not have it."""
        trace = self.one.source_info.traceback
        return source_lines.innermost(trace.frames if trace else ())

    def located(self, mark: Mark) -> Mark:
        """Return the mark of a result of a call; what JAX's own functions do has the line of the call."""
        if mark.reason is None or mark.reason.line:
            return mark
        return replace(mark, reason=mark.reason._replace(line=self._line))

    def all(self, mark: Mark) -> list[Mark]:
        """Return the mark for every result."""
        return [mark] * len(self.outs)


def grown(shapes: tuple[Shape, Shape]) -> list[int]:
    """Return the dimensions that grow with the batch."""
    return [dim for dim, (one, two) in enumerate(zip(*shapes, strict=True)) if one != two]


def times_grown(op: EquationPair, shapes: tuple[Shape, Shape], dims: Iterable[int]) -> int | None:
    """Return how many of some dimensions grow; ``None`` if one grows in another ratio than the rows, such as B − 1."""
    pairs = [(shapes[0][dim], shapes[1][dim]) for dim in dims if shapes[0][dim] != shapes[1][dim]]
    # a / size₀ = b / size₁, without a division that would round.
    sizes = op.axis.sizes
    return len(pairs) if all(a * sizes[1] == b * sizes[0] for a, b in pairs) else None


def _shapes(one: Any, two: Any) -> tuple[Shape, Shape]:
    return tuple(getattr(one.aval, "shape", ())), tuple(getattr(two.aval, "shape", ()))
