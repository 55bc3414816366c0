"""A traced program as a flat list of items: computations, and the ordinary operations between them.

JAX leaves computations inside ``remat``, ``jit`` and ``custom_vjp`` equations where a user's transformation put them.
They are lifted out here, so that each is a node of its own; loops cannot be, and are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex

from pathways_nb.errors import UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program import specs
from pathways_nb.program.computation import Named, named
from pathways_nb.program.edge import without_edges
from pathways_nb.program.signature import Aval

_MOST_NAMED = 4
"""Different parts of a fused node that its name tells."""
_TRANSPARENT = frozenset(
    {"jit", "pjit", "remat2", "checkpoint", "remat", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
)

_COLLECTIVES = frozenset(
    {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", "reduce_scatter",
     "psum_scatter", "all_to_all", "ppermute", "pbroadcast", "ragged_all_to_all"}
)  # fmt: skip
_CARRIERS = frozenset(
    {"jit", "pjit", "closed_call", "shard_map", "pvary", "pcast", "reshard", "sharding_constraint",
     "convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "transpose", "copy", "copy_p"}
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Const:
    """An operand whose value is known when the program is traced."""

    value: Any


Operand = int | Const


@dataclass(frozen=True, eq=False)
class Item:
    """One equation: what it computes, from which values, and where, if it is a computation."""

    name: str
    jaxpr: jex.ClosedJaxpr
    inputs: tuple[Operand, ...]
    outputs: tuple[int, ...]
    place: int | None = None
    in_specs: tuple[specs.Spec, ...] = ()
    out_specs: tuple[specs.Spec, ...] = ()
    donated: tuple[bool, ...] = ()
    line: str = ""
    seconds: float | None = None
    """How long it is declared to last (``pw.work``)."""

    @property
    def has_effects(self) -> bool:
        """Whether it must run even if nobody uses its outputs, and must not run twice."""
        return bool(self.jaxpr.effects)

    @property
    def is_collective(self) -> bool:
        """Whether devices only exchange values in it: collectives, and what changes no number or only its scale."""
        primitives = {eqn.primitive.name for eqn in equations(self.jaxpr) if not _ends_mean(eqn)}
        return not primitives.isdisjoint(_COLLECTIVES) and primitives <= _COLLECTIVES | _CARRIERS

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
        names = list(dict.fromkeys(item.name for item in self.items))
        if self.is_computation or len(names) <= 2:
            return ", ".join(names)
        return f"{names[0]} +{len(self.items) - 1} ops"


@dataclass
class FlatProgram:
    """A whole program: ``avals`` by value id, items in order, operands of the result."""

    avals: list[Aval] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    arguments: tuple[int, ...] = ()
    results: tuple[Operand, ...] = ()

    @classmethod
    def of(cls, closed: jex.ClosedJaxpr) -> FlatProgram:
        """Flatten a traced program and drop what nobody uses."""
        flat = cls()
        flat.arguments = tuple(flat.new(var.aval) for var in closed.jaxpr.invars)
        operands = flat.walk(closed.jaxpr, closed.consts, flat.arguments, backward=False)
        flat.results = tuple(operands)
        flat._drop_unused()
        return flat

    def new(self, aval: Any) -> int:
        """A new value of this shape and dtype."""
        self.avals.append(Aval(tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False))))
        return len(self.avals) - 1

    def walk(self, jaxpr: Any, consts: Any, arguments: Any, backward: bool) -> list[Operand]:
        """Append the items of ``jaxpr`` and return the operands of its outputs."""
        env: dict[Any, Operand] = dict(zip(jaxpr.constvars, map(Const, consts), strict=True))
        env |= dict(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Operand:
            return Const(atom.val) if isinstance(atom, jex.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            transposed = backward or "transpose" in str(eqn.source_info.name_stack)
            if self._is_nest(eqn):
                inner, inner_consts = _body(eqn)
                outputs = self.walk(inner, inner_consts, [read(atom) for atom in eqn.invars], transposed)
            else:
                outputs = list(self._append(eqn, read, transposed))
            env.update((var, out) for var, out in zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _is_nest(self, eqn: Any) -> bool:
        if _named(eqn) is not None:
            return False
        inside = next(_computations_in(eqn.params), None)
        if inside is not None and eqn.primitive.name not in _TRANSPARENT:
            raise UsageError(
                f"{inside} is called inside jax.lax.{eqn.primitive.name} at {_line(eqn)}: a computation is a node of "
                f"its own and cannot be inside another operation. {_way_out(eqn.primitive.name, inside)}"
            )
        return inside is not None or _is_inlined(eqn)

    def _append(self, eqn: Any, read: Any, backward: bool) -> Iterator[Operand]:
        carried = _named(eqn)
        if carried is not None:
            yield from self._append_computation(eqn, carried, tuple(map(read, eqn.invars)), backward)
        else:
            outputs = [self.new(var.aval) for var in eqn.outvars]
            invars = list(dict.fromkeys(atom for atom in eqn.invars if not isinstance(atom, jex.Literal)))
            kept = [(var, out) for var, out in zip(eqn.outvars, outputs, strict=True) if not _dropped(var)]
            outvars = [var for var, _ in kept]
            body = jex.Jaxpr([], invars, outvars, [eqn], eqn.effects, debug_info=_debug_info(invars, outvars))
            name = str(eqn.params.get("name", eqn.primitive.name))
            ids = tuple(out for _, out in kept)
            self.items.append(Item(name, jex.ClosedJaxpr(body, ()), tuple(map(read, invars)), ids, line=_line(eqn)))
            yield from outputs

    def _append_computation(
        self, eqn: Any, carried: Named, inputs: tuple[Operand, ...], backward: bool
    ) -> Iterator[Operand]:
        again = "rematted" in str(eqn.source_info.name_stack)
        suffix = " (again)" if again else " (bwd)" if backward else ""
        body, kept, found_at = without_edges(eqn.params["jaxpr"])
        outputs = tuple(self.new(var.aval) for var in body.jaxpr.outvars)
        self.items.append(
            Item(
                carried.name + suffix,
                body,
                inputs,
                outputs,
                carried.place,
                tuple(map(specs.partition_spec_of, eqn.params["in_shardings"])),
                tuple(specs.partition_spec_of(eqn.params["out_shardings"][at]) for at in kept),
                tuple(eqn.params["donated_invars"]),
                _line(eqn),
                carried.seconds,
            )
        )
        yield from ((*inputs, *outputs)[at] for at in found_at)

    def _drop_unused(self) -> None:
        live = {operand for operand in self.results if not isinstance(operand, Const)}
        kept = []
        for item in reversed(self.items):
            if item.has_effects or not live.isdisjoint(item.outputs):
                kept.append(item)
                live.update(item.values())
        self.items = kept[::-1]


def constant(value: Any, output: int) -> Item:
    """An item that yields a constant, for results that do not depend on anything."""
    return Item("constant", jax.make_jaxpr(lambda: jax.numpy.asarray(value))(), (), (output,))


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


def _body(eqn: Any) -> tuple[Any, Any]:
    jaxpr = eqn.params["call_jaxpr" if "call_jaxpr" in eqn.params else "jaxpr"]
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, jex.ClosedJaxpr) else (jaxpr, ())


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
