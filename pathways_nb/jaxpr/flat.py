"""A flat list of operations, and the one walk over a jaxpr that makes it.

What stands for a value is the caller's choice: the cost model carries arrays with their layouts, a program numbers its
values. An operation keeps the equation it was read from, so that it can be put back into a jaxpr.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from pathways_nb.util.primitives import CALLS

V = TypeVar("V")
"""What stands for a value."""
AnyOp = TypeVar("AnyOp", bound="Operation[Any]")


@dataclass(frozen=True, eq=False, slots=True)
class Operation(Generic[V]):
    """One operation.

    Args:
        name: of its primitive.
        inputs, outputs: the values it takes and makes.
        eqn: the equation it was read from, with its parameters, effects and place in the source; ``None`` if there is
            none.
    """

    name: str
    inputs: tuple[V, ...]
    outputs: tuple[V, ...]
    eqn: Any = None

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of its equation."""
        return self.eqn.params if self.eqn is not None else {}

    @property
    def has_effects(self) -> bool:
        """Whether it must run even if nobody uses its outputs, and must not run twice."""
        return self.eqn is not None and bool(self.eqn.effects)


@dataclass(frozen=True, eq=False, slots=True)
class FlatJaxpr(Generic[AnyOp, V]):
    """Operations in order, the values they begin with and those they lead to."""

    ops: tuple[AnyOp, ...]
    inputs: tuple[V, ...]
    outputs: tuple[V, ...]


class Walk(Generic[V]):
    """Go through a jaxpr in order. Subclasses say what stands for a constant, and what an equation makes."""

    def constant(self, aval: Any, value: Any) -> V:
        """What stands for a constant of a jaxpr; its ``value`` is ``None`` if the jaxpr is open."""
        raise NotImplementedError

    def literal(self, atom: Any) -> V:
        """What stands for a number written into an equation."""
        return self.constant(atom.aval, atom.val)

    def equation(self, eqn: Any, inputs: list[V]) -> Sequence[V]:
        """What stands for the outputs of an equation; it may ``run`` the jaxpr that a call holds."""
        raise NotImplementedError

    def run(self, jaxpr: Any, inputs: Sequence[V]) -> list[V]:
        """Go through a jaxpr, closed or open.

        Returns:
            What stands for its outputs.
        """
        inner, consts = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
        env: dict[Any, V] = dict(zip(inner.invars, inputs, strict=True))
        for var, const in zip_longest(inner.constvars, consts):
            env[var] = self.constant(var.aval, const)

        def read(atom: Any) -> V:
            return self.literal(atom) if hasattr(atom, "val") else env[atom]

        for eqn in inner.eqns:
            env.update(zip(eqn.outvars, self.equation(eqn, [read(atom) for atom in eqn.invars]), strict=True))
        return [read(atom) for atom in inner.outvars]


def called(eqn: Any) -> Any:
    """The jaxpr that an equation calls; ``None`` if it is no call."""
    return eqn.params.get(CALLS.get(eqn.primitive.name))


def alive(ops: Sequence[AnyOp], outputs: Iterable[Any]) -> tuple[AnyOp, ...]:
    """Those operations that have effects, or lead to ``outputs``."""
    needed, kept = set(outputs), []
    for op in reversed(ops):
        if op.has_effects or not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    return tuple(reversed(kept))
