"""A traced program as a flat list of items: computations, and the ordinary operations between them.

A computation must be a node of its own, because a node runs at one place. JAX leaves computations inside ``remat``,
``jit`` and ``custom_vjp`` equations where a user's transformation put them, so calls that hold computations are inlined
here. Loops and branches cannot be inlined; a computation inside one is an error. All other calls stay single items. The
places of ordinary operations, and which items share a node, are chosen in ``build.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex

from pathways_nb.cost.jaxpr.primitives import CARRIERS, COLLECTIVES
from pathways_nb.errors import UsageError
from pathways_nb.jaxpr.flat import CALLS, FlatJaxpr, Operation, Walk, alive, called
from pathways_nb.plan.graph import ActionKey
from pathways_nb.plan.source_lines import equation_line
from pathways_nb.program import specs
from pathways_nb.program.action_marks import mark_of
from pathways_nb.program.computation import ComputationName, parse_name
from pathways_nb.program.declared_cost import DeclaredCost
from pathways_nb.program.edge import without_edges
from pathways_nb.program.exchange_sums import ExchangeSum, exchange_sum_of
from pathways_nb.program.host_work import HostWork, host_work
from pathways_nb.program.one_equation import one_equation
from pathways_nb.program.signature import Aval

_MOST_NAMED = 4
"""The most parts of different names that the name of a fused node lists."""


@dataclass(frozen=True, eq=False)
class Const:
    """An operand whose value is known when the program is traced."""

    value: Any


Operand = int | Const


@dataclass(frozen=True, eq=False)
class ProgramItem(Operation[Operand]):
    """One equation of a program, at a declared place if it is a computation; operands are values or constants.

    ``place`` is the serial of a virtual slice; ``line`` is the source line of the call.
    """

    outputs: tuple[int, ...]
    title: str = field(kw_only=True)
    """The name of the item in graphs and timelines."""
    jaxpr: jex.ClosedJaxpr = field(kw_only=True)
    """The equation alone as a jaxpr that can be run; of a computation, its body."""
    place: int | None = None
    in_specs: tuple[specs.Spec, ...] = ()
    out_specs: tuple[specs.Spec, ...] = ()
    donated: tuple[bool, ...] = ()
    line: str = ""
    cost: DeclaredCost = None
    """What it is declared to cost."""
    action: ActionKey | None = None
    """The action of a pipeline that it is; ``None`` of other items."""
    exchange_sum: ExchangeSum | None = None
    """The sum of an exchange that it is (``pw.all_reduce``); ``None`` of other items."""
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of XLA that its computation declares."""

    @property
    def host(self) -> HostWork | None:
        """The Python function that it runs on a host; ``None`` of what runs on devices."""
        return host_work(self.eqn) if self.eqn is not None else None

    @property
    def is_collective(self) -> bool:
        """Whether devices only exchange values: it holds collectives, and else only changes of shape, type or scale."""
        primitives = {eqn.primitive.name for eqn in equations(self.jaxpr) if not _ends_mean(eqn)}
        return not primitives.isdisjoint(COLLECTIVES) and primitives <= COLLECTIVES | CARRIERS

    def values(self) -> Iterator[int]:
        """Return the operands that are values, not constants."""
        return (operand for operand in self.inputs if not isinstance(operand, Const))


@dataclass
class Group:
    """Items at one place that run as one node: a computation, ordinary operations, or several groups fused."""

    place: int
    items: list[ProgramItem] = field(default_factory=list)
    fused: tuple[str, ...] = ()
    """The names of the groups that were fused into this one; empty if it was not fused."""

    @property
    def is_computation(self) -> bool:
        """Whether a computation is among its items."""
        return any(item.place is not None for item in self.items)

    @property
    def host(self) -> HostWork | None:
        """The Python function that it runs on a host; ``None`` of other groups."""
        return self.items[0].host

    @property
    def action(self) -> ActionKey | None:
        """The action of a pipeline that it is; ``None`` of other groups."""
        return self.items[0].action if len(self.items) == 1 else None

    @property
    def compiler_options(self) -> Mapping[str, Any]:
        """Options of XLA that its computations declare; those of a group are equal."""
        return next((item.compiler_options for item in self.items if item.compiler_options), {})

    @property
    def name(self) -> str:
        """The name of its node in graphs and timelines."""
        if self.fused:
            times = Counter(self.fused)
            parts = [name if count == 1 else f"{name} ×{count}" for name, count in times.items()]
            return " + ".join(parts if len(parts) <= _MOST_NAMED else [*parts[: _MOST_NAMED - 1], "…"])
        names = list(dict.fromkeys(item.title for item in self.items))
        if self.is_computation or len(names) <= 2:
            return ", ".join(names)
        return f"{names[0]} +{len(self.items) - 1} ops"


@dataclass(frozen=True, eq=False)
class FlatProgram(FlatJaxpr[ProgramItem, Operand]):
    """A whole program: its items in program order. A value is its position in ``avals``."""

    inputs: tuple[int, ...]
    avals: list[Aval]
    """The shape and dtype of each value."""

    @classmethod
    def of(cls, closed: jex.ClosedJaxpr) -> FlatProgram:
        """Return a traced program as a list of items without dead code."""
        walk = _ProgramWalk()
        inputs = tuple(walk.new(var.aval) for var in closed.jaxpr.invars)
        outputs = tuple(walk.run(closed, inputs))
        return cls(alive(walk.items, outputs), inputs, outputs, walk.avals)

    def new(self, aval: Any) -> int:
        """Add a value of this shape and dtype and return its number."""
        return _new(self.avals, aval)


def _new(avals: list[Aval], aval: Any) -> int:
    avals.append(Aval(tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False))))
    return len(avals) - 1


@dataclass
class _ProgramWalk(Walk[Operand]):
    """The walk over a traced program, which appends its items."""

    avals: list[Aval] = field(default_factory=list)
    items: list[ProgramItem] = field(default_factory=list)
    backward: bool = False
    """Whether the current equation, or a call around it, was made by the transposition of a backward pass."""

    def new(self, aval: Any) -> int:
        return _new(self.avals, aval)

    def constant(self, aval: Any, value: Any) -> Const:
        return Const(value)

    def equation(self, eqn: Any, inputs: list[Operand]) -> Sequence[Operand]:
        # The mark holds for all equations inside a call, whose own name stacks need not repeat it.
        outside, self.backward = self.backward, self.backward or "transpose" in str(eqn.source_info.name_stack)
        carried = _computation_name(eqn)
        if carried is not None:
            outputs = self._computation(eqn, carried, tuple(inputs))
        elif (work := host_work(eqn)) is not None:
            outputs = self._host(eqn, work, inputs)
        elif _is_nest(eqn):
            outputs = self.run(called(eqn), inputs)
        else:
            outputs = self._operation(eqn, inputs)
        self.backward = outside
        return outputs

    def _operation(self, eqn: Any, inputs: list[Operand]) -> list[Operand]:
        """Append an ordinary equation as an item with a jaxpr of that equation alone, and return its outputs."""
        outputs = [self.new(var.aval) for var in eqn.outvars]
        alone = one_equation(eqn)
        name = eqn.primitive.name
        self.items.append(
            ProgramItem(
                name,
                # A variable that is read twice is one input, and a literal is part of the jaxpr.
                tuple(inputs[position] for position in alone.inputs),
                tuple(outputs[position] for position in alone.outputs),
                eqn,
                title=str(eqn.params.get("name", name)),
                jaxpr=alone.jaxpr,
                line=equation_line(eqn),
            )
        )
        return list(outputs)

    def _computation(self, eqn: Any, carried: ComputationName, inputs: tuple[Operand, ...]) -> list[Operand]:
        """Append a call of a computation as an item and return its outputs, some of which may be its inputs."""
        # ``jax.checkpoint`` writes this into the name stack of what the backward pass computes again.
        again = "rematted" in str(eqn.source_info.name_stack)
        action = mark_of(str(eqn.source_info.name_stack))
        # A transposed sum keeps the mark in its name stack, but adds nothing: it hands its cotangent to each part.
        which = None if self.backward else exchange_sum_of(str(eqn.source_info.name_stack), len(inputs))
        suffix = "" if action else " (again)" if again else " (bwd)" if self.backward else ""
        # A residual that is an input or another output has no output of its own once the edges are removed.
        body, kept, found_at = without_edges(called(eqn))
        outputs = tuple(self.new(var.aval) for var in body.jaxpr.outvars)
        self.items.append(
            ProgramItem(
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
                line=equation_line(eqn),
                cost=carried.cost,
                action=action,
                exchange_sum=which,
                compiler_options=carried.compiler_options,
            )
        )
        return [(*inputs, *outputs)[at] for at in found_at]

    def _host(self, eqn: Any, work: HostWork, inputs: list[Operand]) -> list[Operand]:
        """Append host work as an item and return its outputs."""
        outputs = tuple(self.new(var.aval) for var in eqn.outvars)
        self.items.append(
            ProgramItem(
                eqn.primitive.name,
                tuple(inputs),
                outputs,
                eqn,
                title=work.name,
                jaxpr=one_equation(eqn).jaxpr,
                place=work.place,
                in_specs=(None,) * len(inputs),
                out_specs=work.specs,
                donated=(False,) * len(inputs),
                line=equation_line(eqn),
                cost=work.seconds if isinstance(work.seconds, float) else None,
            )
        )
        return list(outputs)


def _is_nest(eqn: Any) -> bool:
    """Return whether an equation is a call to inline: one that holds computations or is declared inline.

    Raises:
        UsageError: it holds computations but is not a call, such as a loop.
    """
    inside = next(_computations_in(eqn.params), None)
    if inside is not None and eqn.primitive.name not in CALLS:
        raise UsageError(
            f"{inside} is called inside jax.lax.{eqn.primitive.name} at {equation_line(eqn)}: a computation is a node "
            f"of its own and cannot be inside another operation. {_way_out(eqn.primitive.name, inside)}"
        )
    # JAX 0.12 inlines ``jax.jit(inline=True)`` only after tracing, where earlier versions did so at once.
    return inside is not None or getattr(eqn.params.get("inline"), "name", "") == "JAX_LATE"


def constant(value: Any, output: int) -> ProgramItem:
    """Return an item that makes a constant, for a result that depends on no argument."""
    # A jaxpr without inputs, so that the value is made on devices like any other.
    made = jax.make_jaxpr(lambda: jax.numpy.asarray(value))()
    return ProgramItem("constant", (), (output,), title="constant", jaxpr=made)


def closed_over(jaxpr: jex.ClosedJaxpr | jex.Jaxpr) -> Iterator[Any]:
    """Yield every closed-over constant of a traced program, at any depth."""
    if isinstance(jaxpr, jex.ClosedJaxpr):
        yield from jaxpr.consts
        jaxpr = jaxpr.jaxpr
    for eqn in jaxpr.eqns:
        for inner in inner_jaxprs(eqn.params):
            yield from closed_over(inner)


def equations(jaxpr: jex.ClosedJaxpr | jex.Jaxpr) -> Iterator[Any]:
    """Yield every equation of a traced program, at any depth; those in the body of a loop once."""
    for eqn in (jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr).eqns:
        yield eqn
        for inner in inner_jaxprs(eqn.params):
            yield from equations(inner)


def origins_in(jaxprs: Iterable[jex.ClosedJaxpr]) -> tuple[tuple[str, str], ...]:
    """Return the user's line and the scope of equations, in the order of their first use."""
    found: dict[Any, tuple[str, str]] = {}
    for jaxpr in jaxprs:
        for eqn in equations(jaxpr):
            said, scope = eqn.source_info.traceback, eqn.source_info.name_stack
            if (said, scope) not in found:
                found[said, scope] = equation_line(eqn), str(scope)
    return tuple(found.values())


def _ends_mean(eqn: Any) -> bool:
    """Return whether an equation is the division by a literal with which ``pmean`` ends."""
    return eqn.primitive.name == "div" and isinstance(eqn.invars[1], jex.Literal)


def _computation_name(eqn: Any) -> ComputationName | None:
    return parse_name(str(eqn.params.get("name", "")))


def _way_out(primitive: str, inside: str) -> str:
    """Return the advice with which the error on a computation inside a loop or branch ends."""
    if primitive == "cond":
        return f"Put the jax.lax.cond inside {inside}, or branch in a cell on y.result()."
    return f"Unroll it with a Python for, or put the loop inside {inside}."


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation."""
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, (jex.Jaxpr, jex.ClosedJaxpr)):
                yield part


def _computations_in(params: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the computations inside an equation's parameters, at any depth."""
    for jaxpr in inner_jaxprs(params):
        for eqn in (jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr).eqns:
            carried = _computation_name(eqn) or host_work(eqn)
            if carried is not None:
                # What is inside a computation is a part of it, and is not looked at.
                yield carried.name
            else:
                yield from _computations_in(eqn.params)
