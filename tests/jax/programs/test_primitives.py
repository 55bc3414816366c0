"""The table of primitives against the JAX that is there, and its users against each other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.extend.core.primitives  # noqa: F401  (so that it can be read below)
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import tpu_custom_call
from jax._src.lax import parallel  # nothing public lists all collectives
from jax.experimental import pallas
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.collectives.kinds import BY_PRIMITIVE
from pathways_nb.cost.jaxpr.node_work import work_of
from pathways_nb.cost.jaxpr.primitives import COLLECTIVES, NAMES, VIEWS, op_class_of
from pathways_nb.cost.jaxpr.sharded_flat import flatten
from pathways_nb.jaxpr.flat import CALLS, called
from pathways_nb.program.items import FlatProgram

MESH = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
V = jax.ShapeDtypeStruct((64,), np.float32)
NEW = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
OF_OTHERS = frozenset(
    "closed_call pbroadcast_start pbroadcast_done psum_start unreduced_psum_start unreduced_reduce_scatter_start "
    "vary_unreduced_cast_p reduced_vary_cast_p".split()
    if NEW
    else "pbroadcast_dynamic unreduced_pmax unreduced_pmin vary_unreduced_cast reduced_vary_cast".split()
)
"""What is in the table for the sake of other versions of JAX."""


def primitives_of(*modules: Any) -> set[str]:
    return {one.name for module in modules for one in vars(module).values() if isinstance(one, jex.Primitive)}


def per_shard(fn: Callable[..., Any]) -> jex.ClosedJaxpr:
    return jax.make_jaxpr(jax.shard_map(fn, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False))(V)


def test_every_name_of_the_table_is_a_primitive_of_jax() -> None:
    loaded = [module for name, module in sys.modules.items() if name.startswith("jax")]
    known = primitives_of(*loaded, pallas, tpu_custom_call)
    assert NAMES - known == OF_OTHERS


def test_every_collective_of_jax_is_in_the_table() -> None:
    others = {"axis_index", "precv"} | VIEWS
    assert primitives_of(parallel) <= others | COLLECTIVES
    assert all(op_class_of(name) == "collective" for name in COLLECTIVES)


@pytest.mark.parametrize("name", BY_PRIMITIVE)
def test_what_is_costed_as_a_collective_is_drawn_as_one(name: str) -> None:
    stand_in = jex.Primitive(name)
    stand_in.def_abstract_eval(lambda value, **_: value)
    jaxpr = jax.make_jaxpr(lambda value: stand_in.bind(value, axes=("x",)))(V)
    (exchange,) = work_of(jaxpr, {"x": 4}).collectives
    assert exchange.kind == BY_PRIMITIVE[name].name
    assert all(item.is_collective for item in FlatProgram.of(jaxpr).ops)


EXCHANGES: dict[str, Callable[[Any], Any]] = {
    "psum": lambda s: lax.psum(s, "x"),
    "pmean": lambda s: lax.pmean(s, "x"),
    "pmax": lambda s: lax.pmax(s, "x"),
    "pmin": lambda s: lax.pmin(s, "x"),
    "all_gather": lambda s: lax.all_gather(s, "x", tiled=True),
    "psum_scatter": lambda s: lax.psum_scatter(s, "x", tiled=True),
    "all_to_all": lambda s: lax.all_to_all(s, "x", 0, 0, tiled=True),
    "ppermute": lambda s: lax.ppermute(s, "x", [(i, (i + 1) % 4) for i in range(4)]),
    "psum, begun and ended": lambda s: parallel.psum_scatter_start(s, "x", tiled=True).done(),
    "all_gather, begun and ended": lambda s: parallel.all_gather_start(s, "x", tiled=True).done(),
    "checkpoint": jax.checkpoint(lambda s: lax.psum(s, "x")),
    "barrier": lambda s: lax.psum(lax.optimization_barrier(s), "x"),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_real_collectives_are_drawn_as_they_are_costed(name: str) -> None:
    jaxpr = per_shard(EXCHANGES[name])
    work = work_of(jaxpr)
    assert len(work.collectives) == 1
    assert work.flops <= 16, "but for a mean, nothing is computed"
    assert [item.is_collective for item in FlatProgram.of(jaxpr).ops] == [True]


def test_what_computes_is_no_collective() -> None:
    jaxpr = per_shard(lambda s: lax.psum(jnp.sin(s), "x"))
    assert [item.is_collective for item in FlatProgram.of(jaxpr).ops] == [False]


def test_a_collective_that_is_only_begun_is_as_large_as_the_one_that_ends() -> None:
    begun, whole = (work_of(per_shard(EXCHANGES[name])) for name in ("all_gather, begun and ended", "all_gather"))
    assert begun.collectives == whole.collectives


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return x * 2


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (g * 2,))
CALLING: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(lambda x: x * 2),
    "remat2": jax.checkpoint(lambda x: x * 2),
    "custom_jvp_call": jax.nn.relu,
    "custom_vjp_call": doubled,
}


@pytest.mark.parametrize("name", CALLING)
def test_every_call_says_what_it_calls(name: str) -> None:
    (eqn,) = jax.make_jaxpr(CALLING[name])(V).eqns
    assert eqn.primitive.name == name
    assert called(eqn) is eqn.params[CALLS[name]]


def test_each_operation_keeps_its_equation() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jnp.sum(x, axis=0))(V)
    (eqn,) = jaxpr.eqns
    for op in (*flatten(jaxpr, {}).ops, *FlatProgram.of(jaxpr).ops):
        assert op.eqn is eqn
        assert (op.name, op.params) == ("reduce_sum", eqn.params)


def test_what_prints_is_kept_though_nobody_uses_it() -> None:
    def fn(x: Any) -> Any:
        lax.scan(lambda carry, _: (jax.debug.print("{}", carry), (carry * 2, None))[1], x, length=3)
        jnp.sin(x)
        return x + 1

    jaxpr = jax.make_jaxpr(fn)(V)
    assert [op.name for op in flatten(jaxpr, {}).ops] == ["scan", "add"]
    assert [op.name for op in FlatProgram.of(jaxpr).ops] == ["scan", "add"]
    assert work_of(jaxpr).notes == ("debug_print: its operations are not counted",)


def test_an_open_jaxpr_may_have_constants() -> None:
    table = np.arange(64.0, dtype=np.float32)
    closed = jax.make_jaxpr(lambda x: x * table)(V)
    assert closed.jaxpr.constvars, "JAX hands constants over apart from the jaxpr"
    assert work_of(closed.jaxpr) == work_of(closed)


def test_a_subtraction_at_positions_is_an_update_as_an_addition_is() -> None:
    added, subtracted = (
        work_of(jax.make_jaxpr(lambda x, m=method: getattr(x.at[3], m)(1.0))(V)) for method in ("add", "subtract")
    )
    assert added == subtracted
