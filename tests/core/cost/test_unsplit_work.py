"""What depends on nothing split costs each of a thousand devices its own part of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.jaxpr.node_work import layouts_of, work_of
from pathways_nb.cost.jaxpr.sharded_flat import flatten
from tests.support.memory_cases import CASES, gradient

x = jax.ShapeDtypeStruct((1024, 64, 64), np.float32)


def flops(fn: Any, devices: int) -> float:
    return work_of(jax.make_jaxpr(fn)(x), {"x": devices}, [P("x")]).flops


def masked(x: Any) -> Any:
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((64, 64), bool)), (1024, 64, 64)) & (jnp.zeros((1024, 64, 64)) < 1)
    return jnp.where(mask, x, 0.0)


def test_the_work_on_a_broadcast_mask_is_divided_with_what_it_masks() -> None:
    assert flops(masked, 8) * 8 < 1.1 * flops(masked, 1)
    assert flops(masked, 1024) * 1024 < 1.1 * flops(masked, 1) + 1024 * 3 * 64 * 64, "but for the one triangle"


def test_what_is_returned_stays_whole_as_xla_leaves_it() -> None:
    def fn(x: Any) -> Any:
        mask = jnp.zeros((1024, 64, 64)) < 1
        return jnp.where(mask, x, 0.0), mask

    jaxpr = jax.make_jaxpr(fn)(x)
    assert layouts_of(jaxpr, {"x": 8}, [P("x")]) == ((("x",), (), ()), ((), (), ()))


def test_zeros_that_split_rows_are_added_to_are_split_as_their_reader_is() -> None:
    rows = jax.ShapeDtypeStruct((1024, 1), np.int32)

    def fn(x: Any, rows: Any) -> Any:
        grad = jnp.zeros((1024, 64, 64)).at[jnp.arange(1024)[:, None], rows].add(1.0)
        return x + grad

    flat = flatten(jax.make_jaxpr(fn)(x, rows), {"x": 8}, [P("x"), P("x")])
    (scatter,) = (op for op in flat.ops if op.name.startswith("scatter"))
    assert scatter.outputs[0].split[0] == ("x",)


def test_those_who_disagree_leave_it_whole() -> None:
    def fn(x: Any, y: Any) -> Any:
        table = jnp.zeros((1024, 64, 64)) * 2.0
        return x + table, y + table

    flat = flatten(jax.make_jaxpr(fn)(x, x), {"x": 8}, [P("x"), P(None, "x")])
    made = [value for op in flat.ops for value in op.outputs if op.name == "mul"]
    assert [any(value.split) for value in made] == [False]


LOSSES = [name for name in CASES if name.startswith("cross-entropy") and "whole" not in name]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_over_a_split_vocabulary_is_divided_forward_and_backward(name: str) -> None:
    sizes = {"data": 16, "model": 8}
    args, specs = CASES[name].on(tuple(sizes), 128, jnp.float32)
    jaxpr = jax.make_jaxpr(gradient(CASES[name]))(*args)
    each = work_of(jaxpr, sizes, specs)
    whole = work_of(jaxpr, {"data": 1, "model": 1}, specs)
    weights = 4 * args[0].size / 8
    assert (each.read + each.written) * 128 < 1.1 * (whole.read + whole.written) + 128 * 4 * weights
    assert each.flops * 128 < 1.1 * whole.flops


def test_gradients_of_rows_looked_up_are_split_as_the_rows_are() -> None:
    args, specs = CASES["embedding"].on(("data", "model"), 64, jnp.float32)
    jaxpr = jax.make_jaxpr(gradient(CASES["embedding"]))(*args)
    assert layouts_of(jaxpr, {"data": 4, "model": 2}, specs)[1] == ((), ("model",))


def test_what_a_loop_carries_and_reads_is_split_as_its_body_needs_it() -> None:
    """A mask that every turn reads, and zeros to which every turn adds."""

    def fn(x: Any) -> Any:
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((64, 64), bool)), (1024, 64, 64))
        turn = lambda total, _: (total + jnp.where(mask, x, 0.0), None)  # noqa: E731
        return jax.lax.scan(turn, jnp.zeros((1024, 64, 64)), None, length=4)[0]

    flat = flatten(jax.make_jaxpr(fn)(x), {"x": 8}, [P("x")])
    (loop,) = (op for op in flat.ops if op.name == "scan")
    assert {value.split[0] for value in loop.inputs if value.shape == x.shape} == {("x",)}
    assert {value.split[0] for value in loop.bodies[0].inputs if value.shape == x.shape} == {("x",)}
    assert loop.outputs[0].split[0] == ("x",)


def test_declared_layouts_of_outputs_reach_what_they_are_made_of() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jnp.zeros((1024, 64)) + 1.0)(x)
    declared = flatten(jaxpr, {"x": 8}, [P("x")], [P("x")])
    assert declared.outputs[0].split[0] == ("x",)
    assert flatten(jaxpr, {"x": 8}, [P("x")]).outputs[0].split[0] == ()
