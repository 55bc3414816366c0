"""The constraints of a step, ``jax.lax.with_sharding_constraint``: where they stand, and the step without one of them.

A constraint that JAX derived from one, for its gradient, has the same line and goes with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.extend.core as jex
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.adopt.retarget import with_jaxprs
from pathways_nb.adopt.taken_step import TakenStep
from pathways_nb.adopt.traced_call import check_division
from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.plan.source_texts import parts_of
from pathways_nb.program.items import equations, inner_jaxprs
from pathways_nb.program.specs import show, unknown_axes
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import first_ones

_CONSTRAINT = "sharding_constraint"
_MOST_LISTED = 8
"""Constraints that an error lists."""


@dataclass(frozen=True)
class Constraint:
    """The constraints of one line with one spec.

    Args:
        lines: of the user's: where it stands, then the callers of that, such as ``("model.py:12", "model.py:40")``.
        spec: as it is written.
        shape: of the value; of several values that of the first.
        dtype: of it.
        count: values that it holds for, those in a loop's body once.
    """

    lines: tuple[str, ...]
    spec: PartitionSpec
    shape: tuple[int, ...]
    dtype: str
    count: int = 1

    @property
    def line(self) -> str:
        """Where it stands; empty where JAX names no line of the user's."""
        return self.lines[0] if self.lines else ""

    @property
    def where(self) -> str:
        """Where it stands, and what calls that: ``"model.py:12, called at model.py:40"``."""
        return ", called at ".join(self.lines[:2]) or "an unknown line"

    @property
    def said(self) -> str:
        """It in words: ``"model.py:12, called at model.py:40 (P('data', None))"``."""
        return f"{self.where} ({show(self.spec)})"


@dataclass(frozen=True, repr=False)
class Constraints(Printed):
    """The constraints of a step.

    Args:
        name: of the step.
        rows: one for each line, those that call it, and each spec, in the order of the program.
    """

    name: str
    rows: tuple[Constraint, ...]

    def _table(self) -> Table:
        # Of a helper that many lines call, each of them can be tried by itself.
        cells = [
            (row.line or "–", row.lines[1] if len(row.lines) > 1 else "", show(row.spec),
             f"{row.dtype}[{','.join(map(str, row.shape))}]", str(row.count))
            for row in self.rows
        ]  # fmt: skip
        return Table(f"constraints of {self.name}", ("line", "called at", "spec", "value", "values"), cells)

    def on(self, line: str) -> tuple[Constraint, ...]:
        """Return those that stand on a line, or, if none does, that are called from it.

        Raises:
            UsageError: there are none; with those that there are, the nearest first.
        """
        found = [row for row in self.rows if row.line == line] or [row for row in self.rows if line in row.lines]
        if found:
            return tuple(found)
        if not self.rows:
            raise UsageError(
                f"try_line({line!r}): {self.name} has no constraint (jax.lax.with_sharding_constraint) on any line. "
                f"Write one there, and adopt the step again."
            )
        near = list(dict.fromkeys(row.said for row in sorted(self.rows, key=lambda row: _distance(row, line))))
        raise UsageError(
            f"try_line({line!r}): no constraint stands on this line, nor is called from it, so there is nothing to "
            f"leave out. What can be tried, the nearest first: {first_ones(near, _MOST_LISTED)}. "
            f"step.constraints() lists all."
        )


def _distance(one: Constraint, line: str) -> tuple[bool, int]:
    """Return how far a constraint, or the call of it, is from a line; those of its file are nearer than others."""
    file, wanted = parts_of(line)
    places = (parts_of(place) for place in one.lines[:2])
    return min(((name != file, abs(at - wanted)) for name, at in places), default=(True, 0))


def constraints_of(taken: TakenStep) -> Constraints:
    """Return the constraints of a step that was taken over."""
    found: dict[tuple[tuple[str, ...], PartitionSpec], Constraint] = {}
    for eqn in equations(taken.jaxpr):
        if _is_constraint(eqn):
            one, aval = _spec_of(eqn), eqn.invars[0].aval
            key = source_lines.equation_lines(eqn), one
            known = found.get(key) or Constraint(*key, tuple(aval.shape), aval.dtype.name, 0)
            found[key] = replace(known, count=known.count + 1)
    return Constraints(taken.name, tuple(found.values()))


def _is_constraint(eqn: Any) -> bool:
    return eqn.primitive.name == _CONSTRAINT and isinstance(eqn.params["sharding"], NamedSharding)


def _spec_of(eqn: Any) -> PartitionSpec:
    """Return the spec of a constraint as the user wrote it."""
    spec, free = eqn.params["sharding"].spec, eqn.params["unconstrained_dims"]
    return PartitionSpec(*(PartitionSpec.UNCONSTRAINED if at in free else one for at, one in enumerate(spec)))


def changed(taken: TakenStep, rows: Sequence[Constraint], spec: PartitionSpec | None) -> TakenStep:
    """Return a step without some of its constraints, or with another spec for them.

    Args:
        taken: the step.
        rows: the constraints.
        spec: that they get; None leaves them out.

    Raises:
        ShardingError: the spec does not fit a value: it has more dimensions, names an axis that the mesh lacks, or
            devices do not divide a dimension.
    """
    chosen = {(row.lines, row.spec) for row in rows}
    if spec is not None:
        if unknown := unknown_axes(spec, taken.mesh.axis_names):
            raise ShardingError(
                f"try_line(spec={show(spec)}): the mesh has no axis {unknown[0]!r}; it has "
                f"{', '.join(taken.mesh.axis_names)}."
            )
        for row in rows:
            if len(spec) > len(row.shape):
                raise ShardingError(
                    f"try_line(spec={show(spec)}): the value at {row.said} has {len(row.shape)} dimensions, the spec "
                    f"{len(spec)}."
                )
            check_division(f"the value at {row.line}", row.shape, spec, taken.mesh)
    change = _Change(chosen, spec, taken)
    return replace(taken, jaxpr=with_jaxprs(taken.jaxpr, lambda one: _jaxpr(one, change)))


@dataclass(frozen=True)
class _Change:
    """What happens to constraints.

    Args:
        chosen: lines and spec of each.
        spec: their new one; None leaves them out.
        taken: the step.
    """

    chosen: set[tuple[tuple[str, ...], PartitionSpec]]
    spec: PartitionSpec | None
    taken: TakenStep

    def is_for(self, eqn: Any) -> bool:
        return _is_constraint(eqn) and (source_lines.equation_lines(eqn), _spec_of(eqn)) in self.chosen

    def params(self, eqn: Any) -> dict[str, Any]:
        """Return the parameters of a constraint with the new spec."""
        assert self.spec is not None
        free = frozenset(at for at, one in enumerate(self.spec) if one is PartitionSpec.UNCONSTRAINED)
        return {**eqn.params, "sharding": NamedSharding(self.taken.mesh, self.spec), "unconstrained_dims": free}


def _jaxpr(found: jex.Jaxpr, change: _Change) -> jex.Jaxpr:
    instead: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else instead.get(atom, atom)

    def inside(value: Any) -> Any:
        return with_jaxprs(value, lambda one: _jaxpr(one, change))

    def eqns() -> Iterator[Any]:
        for eqn in found.eqns:
            operands = [read(one) for one in eqn.invars]
            if not change.is_for(eqn):
                params = {name: inside(one) for name, one in eqn.params.items()}
                yield eqn.replace(invars=operands, params=params)
            elif change.spec is None:
                instead[eqn.outvars[0]] = operands[0]
            else:
                yield eqn.replace(invars=operands, params=change.params(eqn))

    kept = list(eqns())
    return found.replace(eqns=kept, outvars=[read(one) for one in found.outvars])


def beside(taken: TakenStep, lines: Collection[str]) -> tuple[Constraint, ...]:
    """Return the constraints that stand on lines, or next to them: of what a line reads, or of what it makes.

    Args:
        taken: the step.
        lines: of the user's.
    """
    chosen: dict[tuple[tuple[str, ...], PartitionSpec], None] = {}
    for jaxpr in _levels(taken.jaxpr):
        makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}

        def constraint_of(atom: Any, makers: Mapping[Any, Any] = makers) -> Any:
            """Return the constraint that a value comes from, behind operations of one value; None for none."""
            while not isinstance(atom, jex.Literal) and (eqn := makers.get(atom)) is not None:
                if _is_constraint(eqn):
                    return eqn
                if len(eqn.invars) != 1 or [*inner_jaxprs(eqn.params)]:
                    return None
                (atom,) = eqn.invars
            return None

        for eqn in jaxpr.eqns:
            line = source_lines.equation_line(eqn)
            if _is_constraint(eqn):
                maker = None if isinstance(eqn.invars[0], jex.Literal) else makers.get(eqn.invars[0])
                found = [eqn] if line in lines or (maker and source_lines.equation_line(maker) in lines) else []
            else:
                found = [constraint_of(one) for one in eqn.invars] if line in lines else []
            chosen |= {(source_lines.equation_lines(one), _spec_of(one)): None for one in found if one is not None}
    return tuple(row for row in constraints_of(taken).rows if (row.lines, row.spec) in chosen)


def _levels(closed: jex.ClosedJaxpr) -> Iterator[jex.Jaxpr]:
    """Yield a jaxpr and every one inside it, at any depth."""
    yield closed.jaxpr
    for eqn in equations(closed):
        for one in inner_jaxprs(eqn.params):
            yield one.jaxpr if isinstance(one, jex.ClosedJaxpr) else one
