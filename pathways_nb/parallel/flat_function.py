"""A traced function as a flat list of operations that can be cut into parts, and the parts as functions again.

Values are numbers, the same in every part that is cut from one list, so a number says what a part reads and makes. It
is the flat form of ``jaxpr.flat``; what is added here is that each operation can be run by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex

from pathways_nb.jaxpr.flat import FlatJaxpr, Operation, Walk, alive, called
from pathways_nb.program.one_equation import one_equation


@dataclass(frozen=True, eq=False)
class Runnable(Operation[int]):
    """An operation that can be run: ``run`` takes its inputs as arrays and returns its outputs."""

    run: Callable[..., Sequence[Any]] = field(kw_only=True)
    operands: tuple[int, ...] = ()
    """All operands of its equation, literals included."""
    results: tuple[int, ...] = ()
    """All results of its equation, dropped ones included."""


@dataclass(frozen=True, eq=False)
class FlatFunction(FlatJaxpr[Runnable, int]):
    """A function as a list of operations; a value is its position in ``avals``."""

    avals: list[Any]
    constants: dict[int, Any]
    """Values known at tracing time."""

    @classmethod
    def of(cls, closed: jex.ClosedJaxpr) -> FlatFunction:
        """Return a traced function as a list of operations; calls stay single operations."""
        walk = RunnableWalk([], {})
        inputs = tuple(walk.new(var.aval) for var in closed.jaxpr.invars)
        outputs = tuple(walk.run(closed, inputs))
        return cls(tuple(walk.ops), inputs, outputs, walk.avals, walk.constants)

    def walk(self) -> RunnableWalk:
        """Return a walk that adds operations on new values of this list."""
        return RunnableWalk(self.avals, self.constants)

    def bytes(self, value: int) -> int:
        """Return the size of a value in bytes."""
        aval = self.avals[value]
        return int(aval.size) * int(aval.dtype.itemsize)

    def inlined(self, ops: Sequence[Runnable]) -> Iterator[Runnable]:
        """Yield operations with those that are calls replaced by what they call, at any depth."""
        for op in ops:
            inner = called(op.eqn) if op.eqn is not None else None
            if inner is None:
                yield op
                continue
            walk = self.walk()
            made = walk.run(inner, op.operands)
            yield from self.inlined(walk.ops)
            # The caller knows results by the numbers of the call.
            for inside, outside in zip(made, op.results, strict=True):
                yield Runnable("alias", (inside,), (outside,), run=lambda array: [array])

    def function(
        self, ops: Sequence[Runnable], inputs: Sequence[int], outputs: Sequence[int]
    ) -> Callable[..., list[Any]]:
        """Return operations as a function from arrays for ``inputs`` to a list of arrays for ``outputs``."""
        # JAX would drop what nothing needs only after it has traced it, each time that the function is traced.
        used = alive(ops, outputs)

        def run(*arrays: Any) -> list[Any]:
            values: dict[int, Any] = {**self.constants, **dict(zip(inputs, arrays, strict=True))}
            for op in used:
                values.update(zip(op.outputs, op.run(*(values[value] for value in op.inputs)), strict=True))
            return [values[value] for value in outputs]

        return run


@dataclass
class RunnableWalk(Walk[int]):
    """The walk that numbers values and makes each equation an operation."""

    avals: list[Any]
    constants: dict[int, Any]
    ops: list[Runnable] = field(default_factory=list)

    def new(self, aval: Any) -> int:
        """Add a value and return its number."""
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, aval: Any, value: Any) -> int:  # noqa: D102
        number = self.new(aval)
        self.constants[number] = value
        return number

    def equation(self, eqn: Any, inputs: list[int]) -> Sequence[int]:  # noqa: D102
        outputs = [self.new(var.aval) for var in eqn.outvars]
        # Without literals and dropped results: a part that is cut off must say exactly what it reads and makes.
        alone = one_equation(eqn)
        self.ops.append(
            Runnable(
                eqn.primitive.name,
                tuple(inputs[position] for position in alone.inputs),
                tuple(outputs[position] for position in alone.outputs),
                eqn,
                run=jex.jaxpr_as_fun(alone.jaxpr),
                operands=tuple(inputs),
                results=tuple(outputs),
            )
        )
        return outputs


def makers(ops: Sequence[Runnable]) -> dict[int, Runnable]:
    """Return the operation that makes each value."""
    return {value: op for op in ops for value in op.outputs}


def reads(ops: Sequence[Runnable]) -> list[int]:
    """Return the values that operations read and do not make, each once, in the order of reading."""
    made = makers(ops)
    return list(dict.fromkeys(value for op in ops for value in op.inputs if value not in made))
