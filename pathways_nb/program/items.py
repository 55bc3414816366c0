"""A traced program as a flat list of items: computations, and the ordinary operations between them.

JAX leaves computations inside ``remat``, ``jit`` and ``custom_vjp`` equations where a user's transformation put them.
They are lifted out here, so that each is a node of its own; loops cannot be, and are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex

from pathways_nb.errors import UsageError
from pathways_nb.jaxpr.flat import FlatJaxpr, Operation, Walk, alive, called
from pathways_nb.plan import source_lines
from pathways_nb.program import specs
from pathways_nb.program.computation import Named, named
from pathways_nb.program.edge import without_edges
from pathways_nb.program.signature import Aval
from pathways_nb.util.primitives import CALLS, CARRIERS, COLLECTIVES

_MOST_NAMED = 4
"""Different parts of a fused node that its name tells."""


@dataclass(frozen=True, eq=False)
class Const:
    """An operand whose value is known when the program is traced."""

    value: Any


Operand = int | Const


@dataclass(frozen=True, eq=False)
class Item(Operation[Operand]):
    """One equation: what it computes, from which values, and where, if it is a computation."""

    outputs: tuple[int, ...]
    title: str = field(kw_only=True)
    """What pictures call it."""
    jaxpr: jex.ClosedJaxpr = field(kw_only=True)
    """It alone, as something that can be run; of a computation, what it runs."""
    place: int | None = None
    in_specs: tuple[specs.Spec, ...] = ()
    out_specs: tuple[specs.Spec, ...] = ()
    donated: tuple[bool, ...] = ()
    line: str = ""
    seconds: float | None = None
    """How long it is declared to last (``pw.work``)."""

    @property
    def is_collective(self) -> bool:
        """Whether devices only exchange values in it: collectives, and what changes no number or only its scale."""
        primitives = {eqn.primitive.name for eqn in equations(self.jaxpr) if not _ends_mean(eqn)}
        return not primitives.isdisjoint(COLLECTIVES) and primitives <= COLLECTIVES.keys() | CARRIERS

    def values(self) -> Iterator[int]:
        """Its operands that are values."""
        return (operand for operand in self.inputs if not isinstance(operand, Const))


@dataclass
class Group:
    """Items of one place that run as one node: a computation, ordinary operations, or several groups fused."""

    place: int
    items: list[Item] = field(default_factory=list)
    fused: tuple[str, ...] = ()
    """The names of the groups that were fused into it."""

    @property
    def is_computation(self) -> bool:
        """Whether a computation is among its items."""
        return any(item.place is not None for item in self.items)

    @property
    def name(self) -> str:
        """What pictures call its node."""
        if self.fused:
            times = Counter(self.fused)
            parts = [name if count == 1 else f"{name} ×{count}" for name, count in times.items()]
            return " + ".join(parts if len(parts) <= _MOST_NAMED else [*parts[: _MOST_NAMED - 1], "…"])
        names = list(dict.fromkeys(item.title for item in self.items))
        if self.is_computation or len(names) <= 2:
            return ", ".join(names)
        return f"{names[0]} +{len(self.items) - 1} ops"


@dataclass(frozen=True, eq=False)
class FlatProgram(FlatJaxpr[Item, Operand]):
    """A whole program: its items in order; values are numbers."""

    inputs: tuple[int, ...]
    avals: list[Aval]
    """By value."""

    @classmethod
    def of(cls, closed: jex.ClosedJaxpr) -> FlatProgram:
        """Flatten a traced program and drop what nobody uses."""
        walk = _Walk()
        inputs = tuple(walk.new(var.aval) for var in closed.jaxpr.invars)
        outputs = tuple(walk.run(closed, inputs))
        return cls(alive(walk.items, outputs), inputs, outputs, walk.avals)

    def new(self, aval: Any) -> int:
        """A new value of this shape and dtype."""
        return _new(self.avals, aval)


def _new(avals: list[Aval], aval: Any) -> int:
    avals.append(Aval(tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False))))
    return len(avals) - 1


@dataclass
class _Walk(Walk[Operand]):
    avals: list[Aval] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    backward: bool = False
    """Whether a transposition made what it is in."""

    def new(self, aval: Any) -> int:
        return _new(self.avals, aval)

    def constant(self, aval: Any, value: Any) -> Const:
        return Const(value)

    def equation(self, eqn: Any, inputs: list[Operand]) -> Sequence[Operand]:
        outside, self.backward = self.backward, self.backward or "transpose" in str(eqn.source_info.name_stack)
        carried = _named(eqn)
        if carried is not None:
            outputs = self._computation(eqn, carried, tuple(inputs))
        elif _is_nest(eqn):
            outputs = self.run(called(eqn), inputs)
        else:
            outputs = self._operation(eqn, inputs)
        self.backward = outside
        return outputs

    def _operation(self, eqn: Any, inputs: list[Operand]) -> list[Operand]:
        outputs = [self.new(var.aval) for var in eqn.outvars]
        operands = {atom: x for atom, x in zip(eqn.invars, inputs, strict=True) if not isinstance(atom, jex.Literal)}
        kept = {var: out for var, out in zip(eqn.outvars, outputs, strict=True) if not _dropped(var)}
        invars, outvars = list(operands), list(kept)
        body = jex.Jaxpr([], invars, outvars, [eqn], eqn.effects, debug_info=_debug_info(invars, outvars))
        name = eqn.primitive.name
        self.items.append(
            Item(
                name,
                tuple(operands.values()),
                tuple(kept.values()),
                eqn,
                title=str(eqn.params.get("name", name)),
                jaxpr=jex.ClosedJaxpr(body, ()),
                line=_line(eqn),
            )
        )
        return list(outputs)

    def _computation(self, eqn: Any, carried: Named, inputs: tuple[Operand, ...]) -> list[Operand]:
        again = "rematted" in str(eqn.source_info.name_stack)
        suffix = " (again)" if again else " (bwd)" if self.backward else ""
        body, kept, found_at = without_edges(called(eqn))
        outputs = tuple(self.new(var.aval) for var in body.jaxpr.outvars)
        self.items.append(
            Item(
                eqn.primitive.name,
                inputs,
                outputs,
                eqn,
                title=carried.name + suffix,
                jaxpr=body,
                place=carried.place,
                in_specs=tuple(map(specs.partition_spec_of, eqn.params["in_shardings"])),
                out_specs=tuple(specs.partition_spec_of(eqn.params["out_shardings"][at]) for at in kept),
                donated=tuple(eqn.params["donated_invars"]),
                line=_line(eqn),
                seconds=carried.seconds,
            )
        )
        return [(*inputs, *outputs)[at] for at in found_at]


def _is_nest(eqn: Any) -> bool:
    """Whether an equation is a call that disappears: it holds computations, or was to be inlined.

    Raises:
        UsageError: it holds computations and is no call.
    """
    inside = next(_computations_in(eqn.params), None)
    if inside is not None and eqn.primitive.name not in CALLS:
        raise UsageError(
            f"{inside} is called inside jax.lax.{eqn.primitive.name} at {_line(eqn)}: a computation is a node of "
            f"its own and cannot be inside another operation. {_way_out(eqn.primitive.name, inside)}"
        )
    return inside is not None or _is_inlined(eqn)


def constant(value: Any, output: int) -> Item:
    """An item that yields a constant, for results that do not depend on anything."""
    made = jax.make_jaxpr(lambda: jax.numpy.asarray(value))()
    return Item("constant", (), (output,), title="constant", jaxpr=made)


def closed_over(jaxpr: jex.ClosedJaxpr | jex.Jaxpr) -> Iterator[Any]:
    """Every constant that a traced program holds, at any depth."""
    if isinstance(jaxpr, jex.ClosedJaxpr):
        yield from jaxpr.consts
        jaxpr = jaxpr.jaxpr
    for eqn in jaxpr.eqns:
        for inner in _jaxprs(eqn.params):
            yield from closed_over(inner)


def equations(jaxpr: jex.ClosedJaxpr | jex.Jaxpr) -> Iterator[Any]:
    """Every equation of a traced program, at any depth; the body of a loop counts once."""
    for eqn in (jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr).eqns:
        yield eqn
        for inner in _jaxprs(eqn.params):
            yield from equations(inner)


def _ends_mean(eqn: Any) -> bool:
    return eqn.primitive.name == "div" and isinstance(eqn.invars[1], jex.Literal)


def _named(eqn: Any) -> Named | None:
    return named(str(eqn.params.get("name", "")))


def _is_inlined(eqn: Any) -> bool:
    """Whether a call was declared ``jax.jit(inline=True)``, which JAX 0.12 still carries out later than tracing."""
    return getattr(eqn.params.get("inline"), "name", "") == "JAX_LATE"


def _dropped(var: Any) -> bool:
    return isinstance(var, jex.DropVar)


def _way_out(primitive: str, inside: str) -> str:
    if primitive == "cond":
        return f"Put the jax.lax.cond inside {inside}, or branch in a cell on y.result()."
    return f"Unroll it with a Python for, or put the loop inside {inside}."


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, (jex.Jaxpr, jex.ClosedJaxpr)):
                yield part


def _computations_in(params: dict[str, Any]) -> Iterator[str]:
    for jaxpr in _jaxprs(params):
        for eqn in (jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr).eqns:
            carried = _named(eqn)
            if carried is not None:
                yield carried.name
            else:
                yield from _computations_in(eqn.params)


def _debug_info(invars: list[Any], outvars: list[Any]) -> jex.DebugInfo:
    """JAX wants to be able to name what a jaxpr takes and gives."""
    return jex.DebugInfo("pathways", "operation", tuple("" for _ in invars), tuple("" for _ in outvars))


def _line(eqn: Any) -> str:
    traceback = getattr(eqn.source_info, "traceback", None)
    return source_lines.innermost(traceback.frames) if traceback is not None else ""
