"""The constraints of a step that was taken over: which there are, and the step without one or with another spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import pathways_nb as pw
from pathways_nb.adopt.constraints import beside, changed, constraints_of
from pathways_nb.adopt.taken_step import TakenStep, take
from pathways_nb.program.items import equations

P = PartitionSpec
MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
FILE = "test_constraints.py"


def put(value: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(value, NamedSharding(MESH, P(*spec)))


def loss(w: Any, x: Any) -> Any:
    def block(x: Any, w: Any) -> tuple[Any, None]:
        up = put(x @ w, "data", "model")
        return jnp.tanh(up), None

    made, _ = jax.lax.scan(jax.checkpoint(block), x, w)
    made = jax.lax.with_sharding_constraint(made, NamedSharding(MESH, P("data")))
    return put(jnp.sin(made), None, ("data", "model")).sum()


def at(function: Callable[..., Any], number: int) -> str:
    """The line of a function, counted from its first."""
    return f"{FILE}:{function.__code__.co_firstlineno + number}"


HELPER, SCANNED, OWN, LAST = at(put, 1), at(loss, 2), at(loss, 6), at(loss, 7)


def taken() -> TakenStep:
    w = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32, sharding=NamedSharding(MESH, P()))
    x = jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=NamedSharding(MESH, P("data")))
    return take(jax.jit(jax.grad(loss)), (w, x), {}, None)


def specs(step: TakenStep) -> set[str]:
    return {str(one.params["sharding"].spec) for one in equations(step.jaxpr) if "sharding" in one.primitive.name}


def test_constraints_are_listed_by_line_caller_and_spec():
    rows = constraints_of(taken()).rows
    assert {(row.lines[0], row.lines[1] if row.line == HELPER else "", row.spec) for row in rows} == {
        (HELPER, SCANNED, P("data", "model")),
        (OWN, "", P("data")),
        (HELPER, LAST, P(None, ("data", "model"))),
    }
    own = next(row for row in rows if row.line == OWN)
    assert (own.shape, own.dtype, own.count) == ((8, 64), "float32", 2), "the gradient's has the same line"
    assert f"{OWN}" in repr(constraints_of(taken()))


def test_a_constraint_is_left_out_with_its_gradients_and_computes_the_same():
    step = taken()
    rows = constraints_of(step)
    without = changed(step, rows.on(SCANNED), None)
    assert specs(step) - specs(without) == {str(P("data", "model"))}
    arrays = [jnp.ones(one.shape, one.dtype) / 64 for one in step.structs]
    inner = changed(without, rows.on(HELPER) + rows.on(OWN), None)
    assert not specs(inner)
    (expected,) = jax.tree.leaves(jax.grad(lambda w, x: _plain(w, x))(*arrays))
    (found,) = jax.jit(inner.function)(*arrays)
    assert jnp.allclose(found, expected, rtol=1e-5)


def _plain(w: Any, x: Any) -> Any:
    for one in w:
        x = jnp.tanh(x @ one)
    return jnp.sin(x).sum()


def test_another_spec_takes_the_place_of_one():
    step = taken()
    other = changed(step, constraints_of(step).on(LAST), P("model", PartitionSpec.UNCONSTRAINED))
    (row,) = [one for one in constraints_of(other).rows if one.lines[1:2] == (LAST,)]
    assert row.spec == P("model", PartitionSpec.UNCONSTRAINED)
    assert row.count == 2


def test_what_does_not_fit_says_why():
    step = taken()
    rows = constraints_of(step)
    with pytest.raises(pw.ShardingError, match=r"spec=P\('x'\)\): the mesh has no axis 'x'; it has data, model\."):
        changed(step, rows.on(OWN), P("x"))
    with pytest.raises(pw.ShardingError, match=r"has 2 dimensions, the spec 3\."):
        changed(step, rows.on(OWN), P(None, None, "data"))
    with pytest.raises(pw.UsageError) as wrong:
        rows.on(at(loss, 5))
    assert str(wrong.value).startswith(
        f"try_line({at(loss, 5)!r}): no constraint stands on this line, nor is called from it, so there is nothing to "
        f"leave out. What can be tried, the nearest first: {OWN}"
    )
    with pytest.raises(pw.UsageError, match=rf"nearest first: {HELPER}, called at {SCANNED} "):
        rows.on(at(loss, 1))
    plain = jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=NamedSharding(MESH, P("data")))
    with pytest.raises(pw.UsageError, match=r"<lambda> has no constraint \(jax\.lax\.with_sharding_constraint\)"):
        constraints_of(take(jax.jit(lambda x: x + 1), (plain,), {}, None)).on("a.py:1")


def test_constraints_beside_a_line_are_on_it_before_it_or_behind_it():
    step = taken()

    def lines(line: str) -> set[str]:
        return {row.lines[1] if row.line == HELPER else row.line for row in beside(step, {line: None})}

    assert OWN in lines(OWN)
    assert SCANNED in lines(SCANNED), "what makes the value of a constraint"
    assert SCANNED in lines(at(loss, 3)), "what reads it"
    assert not lines("other.py:1")
