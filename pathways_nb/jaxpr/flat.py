"""A flat list of operations, and the one walk over a jaxpr that makes it.

Both are generic in the type that represents a value, which each subclass of ``Walk`` chooses: the cost model carries
arrays with their layouts, a program numbers its values. An operation keeps the equation it was read from, so that its
parameters, effects and source line need no copy and it can be put back into a jaxpr. The walk itself adds no operation
to any list, its subclasses do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, TypeVar

CALLS = {
    **dict.fromkeys(("jit", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "eval_jaxpr", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}
"""Primitives that run another jaxpr once, on their own operands, with the parameter that holds that jaxpr."""

V = TypeVar("V")
"""The type that represents a value."""
AnyOp = TypeVar("AnyOp", bound="Operation[Any]")


@dataclass(frozen=True, eq=False, slots=True)
class Operation(Generic[V]):
    """One operation. Two operations are never equal, so that each call of the same function counts.

    Args:
        name: the name of its primitive.
        inputs: the values it reads.
        outputs: the values it makes.
        eqn: the equation it was read from, with its parameters, effects and source line; ``None`` if it was not read
            from an equation.
    """

    name: str
    inputs: tuple[V, ...]
    outputs: tuple[V, ...]
    eqn: Any = None

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of its equation; empty without an equation."""
        return self.eqn.params if self.eqn is not None else {}

    @property
    def has_effects(self) -> bool:
        """Whether it must run exactly once, even if no operation reads its outputs."""
        return self.eqn is not None and bool(self.eqn.effects)


@dataclass(frozen=True, eq=False, slots=True)
class FlatJaxpr(Generic[AnyOp, V]):
    """Operations in an order that respects their dependencies, with the inputs and outputs of the whole list."""

    ops: tuple[AnyOp, ...]
    inputs: tuple[V, ...]
    outputs: tuple[V, ...]


class Walk(Generic[V]):
    """A walk over the equations of a jaxpr, in order.

    Subclasses define what represents a constant, and what represents the outputs of an equation.
    """

    _scope = None
    """JAX's name stack of the calls that ``inline`` is in."""

    def constant(self, aval: Any, value: Any) -> V:
        """Return what represents a constant of a jaxpr.

        Args:
            aval: its shape and dtype.
            value: the constant; ``None`` if the jaxpr is open, because an open jaxpr holds no values.
        """
        raise NotImplementedError

    def literal(self, atom: Any) -> V:
        """Return what represents a literal, a scalar written into an equation."""
        return self.constant(atom.aval, atom.val)

    def equation(self, eqn: Any, inputs: list[V]) -> Sequence[V]:
        """Return what represents the outputs of an equation.

        For a call, an implementation may ``run`` the jaxpr that the call holds and return what that returns, which
        inlines the call.
        """
        raise NotImplementedError

    def inline(self, eqn: Any, inputs: Sequence[V]) -> list[V]:
        """Walk what a call runs in the place of the call, and return what represents its outputs."""
        outside, self._scope = self._scope, self.whole(eqn).source_info.name_stack
        made = self.run(called(eqn), inputs)
        self._scope = outside
        return made

    def whole(self, eqn: Any) -> Any:
        """Return an equation with the name stacks of the calls that are inlined around it before its own.

        JAX does not repeat them inside of a call, so that what is taken out of it would no longer say whether it is,
        for instance, part of a backward pass.
        """
        if self._scope is None:
            return eqn
        source = eqn.source_info
        return eqn.replace(source_info=source.replace(name_stack=self._scope + source.name_stack))

    def run(self, jaxpr: Any, inputs: Sequence[V]) -> list[V]:
        """Walk a jaxpr.

        Args:
            jaxpr: closed or open.
            inputs: what represents each of its inputs.

        Returns:
            What represents each of its outputs.
        """
        # A ``ClosedJaxpr`` has both; an open ``Jaxpr``, as in ``shard_map`` or ``remat``, is its own inner one.
        inner, consts = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
        env: dict[Any, V] = dict(zip(inner.invars, inputs, strict=True))
        # An open jaxpr has constvars but no constants, so the shorter list is filled with None.
        for var, const in zip_longest(inner.constvars, consts):
            env[var] = self.constant(var.aval, const)

        def read(atom: Any) -> V:
            # Only a Literal has ``val``; ``isinstance`` would need JAX.
            return self.literal(atom) if hasattr(atom, "val") else env[atom]

        for eqn in inner.eqns:
            # Outputs that nobody reads are ``DropVar``s, each its own key, so they need no special case.
            env.update(zip(eqn.outvars, self.equation(eqn, [read(atom) for atom in eqn.invars]), strict=True))
        return [read(atom) for atom in inner.outvars]


def called(eqn: Any) -> Any:
    """Return the jaxpr that an equation calls; ``None`` if the equation is not a call."""
    return eqn.params.get(CALLS.get(eqn.primitive.name))


def scan_sizes(eqn: Any) -> tuple[int, int]:
    """Return the numbers of constants and of carried values of a scan.

    They are counted by shapes, since JAX 0.12 no longer has the parameters ``num_consts`` and ``num_carry``.
    """
    # Operands are constants, carried values, scanned arrays; results are carried values, then stacked arrays.
    inside, length = eqn.params["jaxpr"].jaxpr, eqn.params["length"]
    stacked_in = sum(_stacks(a, b, length) for a, b in zip(eqn.invars, inside.invars, strict=True))
    stacked_out = sum(_stacks(a, b, length) for a, b in zip(eqn.outvars, inside.outvars, strict=True))
    carried = len(inside.outvars) - stacked_out
    return len(inside.invars) - stacked_in - carried, carried


def _stacks(outer: Any, inner: Any, length: int) -> bool:
    """Return whether a scan slices an operand, or stacks a result: outside it has one dimension more."""
    # What has no shape, such as a collective that was started and not ended, is never sliced or stacked.
    shape = getattr(outer.aval, "shape", None)
    return shape is not None and bool(shape == (length, *inner.aval.shape))


def alive(ops: Sequence[AnyOp], outputs: Iterable[Any]) -> tuple[AnyOp, ...]:
    """Return the operations that have effects, or on which ``outputs`` depend, in their order."""
    # Backwards, because an operation is needed only if a later one that is kept reads it.
    needed, kept = set(outputs), []
    for op in reversed(ops):
        if op.has_effects or not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    return tuple(reversed(kept))
