"""Steps of several frameworks are taken over as they are: their jaxprs on a mesh of another size, layouts, donation."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import pathways_nb as pw
from pathways_nb.adopt.step_node import StepNode
from pathways_nb.adopt.taken_step import TakenStep, take
from pathways_nb.program.items import equations
from tests.support import placed_shapes

P = PartitionSpec
D = 64
SIZES = {"data": 16, "model": 8}


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    """A mesh of one device, with two axes that are left to the compiler."""
    return Mesh(np.array(jax.devices("cpu")[:1]).reshape(1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


on = functools.partial(placed_shapes.on, spec=placed_shapes.columns)


def batch(mesh: Any) -> Any:
    return on(mesh, jax.ShapeDtypeStruct((32, D), jnp.float32), spec=P("data"))


def check(taken: TakenStep, arguments: int, donated: int) -> None:
    """Check that a step came whole, on the mesh of the wanted size."""
    assert dict(taken.mesh.shape_tuple) == SIZES
    assert len(taken.structs) == len(taken.names) == arguments
    assert len(taken.donated) == donated
    assert {one.sharding.mesh for one in taken.structs} == {taken.mesh}
    specs = [one.sharding.spec for one in taken.structs]
    assert P("data") in specs
    assert P(None, "model") in specs
    assert sum(eqn.primitive.name == "dot_general" for eqn in equations(taken.jaxpr)) >= 3
    made = jax.eval_shape(taken.function, *(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in taken.structs))
    assert len(made) == len(taken.jaxpr.out_avals)


class NnxModel(nnx.Module):
    """Two layers and dropout."""

    def __init__(self, rngs: nnx.Rngs):
        self.up, self.down = nnx.Linear(D, 4 * D, rngs=rngs), nnx.Linear(4 * D, D, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(self.dropout(nnx.relu(self.up(x))))


def test_an_nnx_step_with_its_optimizer(mesh):
    model = NnxModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit(donate_argnums=(0, 1))
    def train_step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    taken = take(train_step, (on(mesh, model), on(mesh, optimizer), batch(mesh)), {}, SIZES)
    check(taken, len(jax.tree.leaves((model, optimizer))) + 1, len(jax.tree.leaves((model, optimizer))))
    assert taken.name == "train_step"


def test_an_equinox_step_with_functions_among_its_leaves(mesh):
    model = eqx.nn.MLP(D, D, 4 * D, 2, key=jax.random.key(0))
    adam = optax.adam(1e-3)
    state = adam.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all")
    def make_step(model: Any, state: Any, x: Any) -> Any:
        loss, gradients = eqx.filter_value_and_grad(lambda model: (jax.vmap(model)(x) ** 2).mean())(model)
        updates, state = adam.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    taken = take(make_step, (on(mesh, model), on(mesh, state), batch(mesh)), {}, SIZES)
    arrays = len(jax.tree.leaves(eqx.filter((model, state), eqx.is_array)))
    check(taken, arrays + 1, arrays + 1)
    assert taken.names[0] == "args[0].layers[0].weight"


class LinenModel(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(D)(nn.relu(nn.Dense(4 * D)(x)))


def test_a_linen_train_state_whose_step_is_a_number(mesh):
    model = LinenModel()
    params = model.init(jax.random.key(0), jnp.ones((2, D)))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda params: (state.apply_fn(params, x) ** 2).mean())(state.params)
        return state.apply_gradients(grads=gradients), loss

    taken = take(train_step, (on(mesh, state), batch(mesh)), {}, SIZES)
    check(taken, len(jax.tree.leaves(state)) + 1, len(jax.tree.leaves(state)))


def test_an_optax_chain_that_accumulates(mesh):
    chain = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), 4)
    params = {"up": jnp.ones((D, 4 * D)), "down": jnp.ones((4 * D, D))}
    state = chain.init(params)

    @jax.jit
    def train_step(params: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(lambda params: (jnp.tanh(x @ params["up"]) @ params["down"]).sum())(params)
        updates, state = chain.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    check(take(train_step, (on(mesh, params), on(mesh, state), batch(mesh)), {}, SIZES),
          len(jax.tree.leaves((params, state))) + 1, 0)  # fmt: skip


def test_a_random_key_that_lies_on_explicit_axes(mesh):
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        key = nnx.Rngs(0).params.key[...]  # its layout has a dimension for the words of the key
    step = jax.jit(lambda key, x: x + jax.random.normal(key, x.shape, out_sharding=P("data")))
    x = on(explicit, jax.ShapeDtypeStruct((32, D), jnp.float32), spec=P("data"))
    with jax.sharding.use_abstract_mesh(explicit.abstract_mesh):
        taken = take(step, (key, x), {}, SIZES)
    assert [one.sharding.spec for one in taken.structs] == [P(), P("data")]


def test_layouts_of_the_jit_itself_count_where_arguments_have_none(mesh):
    layouts = NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("data"))
    step = jax.jit(lambda w, x: x @ w, in_shardings=layouts, out_shardings=NamedSharding(mesh, P("data", "model")))
    taken = take(step, (jnp.ones((D, D)), jnp.ones((32, D))), {}, SIZES)
    assert [one.sharding.spec for one in taken.structs] == [P(None, "model"), P("data")]
    assert [one and one.spec for one in taken.results] == [P("data", "model")]


def test_a_layout_that_closes_over_a_mesh_is_on_the_one_of_another_size(mesh):
    step = jax.jit(lambda w, x: jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("data", None))))
    taken = take(step, (on(mesh, jnp.ones((D, D))), batch(mesh)), {}, SIZES)
    (eqn,) = [eqn for eqn in equations(taken.jaxpr) if eqn.primitive.name == "sharding_constraint"]
    assert eqn.params["sharding"] == NamedSharding(taken.mesh, P("data", None))


def test_a_layout_without_a_mesh_is_on_that_of_the_context_or_of_the_arguments(mesh):
    step = jax.jit(lambda w, x: jax.lax.with_sharding_constraint(x @ w, P("data", None)))
    arguments = on(mesh, jnp.ones((D, D))), batch(mesh)
    found = [take(step, arguments, {}, SIZES)]
    with jax.set_mesh(mesh):
        found.append(take(step, arguments, {}, SIZES))
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
    for taken in found:
        assert dict(taken.mesh.shape_tuple) == SIZES
        assert any(eqn.primitive.name == "sharding_constraint" for eqn in equations(taken.jaxpr))


def test_axes_keep_the_order_of_the_mesh_that_the_step_was_written_for(mesh):
    step = jax.jit(lambda w, x: x @ w)
    taken = take(step, (on(mesh, jnp.ones((D, D))), batch(mesh)), {}, {"other": 2, "model": 8, "data": 16})
    assert taken.mesh.shape_tuple == (("data", 16), ("model", 8), ("other", 2))


def test_types_of_explicit_axes_are_kept():
    explicit = Mesh(
        np.array(jax.devices("cpu")[:1]).reshape(1, 1), ("data", "model"), axis_types=(AxisType.Explicit,) * 2
    )
    step = jax.jit(lambda w, x: jax.sharding.reshard(x @ w, P("data", None)))
    with jax.set_mesh(explicit):
        taken = take(
            step, (on(explicit, jnp.ones((D, D))), on(explicit, jnp.ones((32, D)), spec=P("data", None))), {}, SIZES
        )
    assert taken.mesh == AbstractMesh((16, 8), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    assert taken.jaxpr.out_avals[0].sharding.spec == P("data", None)


def per_shard(mesh: Any) -> Any:
    """A step with code per shard, for any mesh."""

    def local(w: Any, x: Any) -> Any:
        return jax.lax.psum((x @ w).sum(), "data")

    summed = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    return jax.jit(lambda w, x: jax.grad(lambda w: summed(w, x))(w))


def test_code_per_shard_is_taken_over_as_it_is_or_made_for_the_mesh(mesh):
    arguments = jnp.ones((D, D)), batch(mesh)
    as_it_is = take(per_shard(mesh), arguments, {}, None)
    assert dict(as_it_is.mesh.shape_tuple) == {"data": 1, "model": 1}
    made = take(per_shard, arguments, {}, SIZES)
    (eqn,) = [eqn for eqn in equations(made.jaxpr) if eqn.primitive.name == "shard_map"][:1]
    assert eqn.params["mesh"].shape_tuple == (("data", 16), ("model", 8))
    with pytest.raises(
        pw.UsageError,
        match=r"the shard_map at test_taking_over\.py:\d+ was written for a mesh of \{'data': 1, 'model': 1\}, and its "
        r"shapes are those of a shard, so it is not resized to \{'data': 16, 'model': 8\}\. Give a function of the mesh",
    ):
        take(per_shard(mesh), arguments, {}, SIZES)


def test_what_is_printed_is_left_out_and_said(mesh):
    def loss(w: Any, x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return jnp.tanh(x @ w).sum()

    taken = take(jax.jit(jax.grad(loss)), (on(mesh, jnp.ones((D, D))), batch(mesh)), {}, SIZES)
    assert not any("debug" in eqn.primitive.name for eqn in equations(taken.jaxpr))
    assert not taken.jaxpr.effects
    (note,) = taken.notes
    assert note.startswith("what is printed at test_taking_over.py:")


def test_what_moves_to_the_hosts_memory_stays_so_and_is_said(mesh):
    @jax.jit
    def step(x: Any) -> Any:
        return jax.device_put(x * 2, NamedSharding(mesh, P("data"), memory_kind="pinned_host"))

    taken = take(step, [batch(mesh)], {}, SIZES)
    (put,) = (eqn for eqn in equations(taken.jaxpr) if eqn.primitive.name == "device_put")
    (layout,) = put.params["devices"]
    assert (layout.memory_kind, layout.mesh) == ("pinned_host", taken.mesh)
    (note,) = taken.notes
    assert note.startswith("what test_taking_over.py:")
    assert note.endswith(" moves to the host's memory may be counted in the chip's as well")


def test_options_of_a_jit_are_given_to_adopt(mesh):
    step = jax.jit(lambda x: x * 2, compiler_options={"xla_embed_ir_in_executable": True})
    with pytest.raises(pw.UsageError, match=r"<lambda>\): it is jitted with compiler_options, .*options=\{…\}\)"):
        take(step, [batch(mesh)], {}, SIZES)


def test_steps_that_cannot_be_taken_over_say_why_and_what_to_do(mesh):
    w, x = on(mesh, jnp.ones((D, D))), batch(mesh)

    def plain(w: Any, x: Any) -> Any:
        return x @ w

    def calls(w: Any, x: Any) -> Any:
        return jax.pure_callback(lambda one: one, jax.ShapeDtypeStruct((32, D), jnp.float32), x @ w)

    def refuses(step: Any, *args: Any, match: str, error: type[Exception] = pw.UsageError) -> None:
        with pytest.raises(error, match=match):
            take(step, args, {}, SIZES)

    refuses(plain, w, x, match=r"adopt\(plain\): it is not jitted\. Give pw\.adopt\(jax\.jit\(plain\), \*args\)")
    refuses(jax.pmap(plain, axis_name="data"), w, x,
            match=r"adopt\(plain\): it is a jax\.pmap, which is for the devices of this machine\. Give a function of the "
            r"mesh: pw\.adopt\(lambda mesh: jax\.jit\(jax\.shard_map\(plain, mesh=mesh")  # fmt: skip
    refuses(lambda mesh: 3, w, x, match=r"called with the mesh, it returns an int and no jitted step\. Give pw\.adopt")
    refuses(jax.jit(calls), w, x, match=r"test_taking_over\.py:\d+ calls back to Python \(pure_callback\)")
    whole = jnp.ones((D, D)), jnp.ones((32, D))
    refuses(jax.jit(plain), *whole, match=r"adopt\(plain\): no argument is divided over the 128 devices of the mesh",
            error=pw.ShardingError)  # fmt: skip
    other = AbstractMesh((4,), ("rows",), axis_types=(AxisType.Auto,))
    refuses(jax.jit(plain), w, on(other, jnp.ones((32, D)), spec=P("rows")), error=pw.ShardingError,
            match=r"meshes with different axes: args\[0\] on data 1 × model 1; args\[1\] on rows 4")  # fmt: skip
    rows = {f"x{number}": on(other, jnp.ones((32, D)), spec=P("rows")) for number in range(9)}
    refuses(jax.jit(lambda w, rows: w), w, rows, error=pw.ShardingError,
            match=r"args\[0\] on data 1 × model 1; args\[1\]\['x0'\], .*args\[1\]\['x7'\] and 1 more on rows 4")  # fmt: skip
    with pytest.raises(pw.ShardingError, match=r"args\[0\] is divided over the axis 'model', and the mesh has data 4"):
        take(jax.jit(plain), (w, x), {}, {"data": 4})
    with pytest.raises(pw.ShardingError, match=r"args\[0\]\['a'\], args\[0\]\['b'\] are divided over the axis 'model'"):
        take(jax.jit(lambda tree, x: x), ({"a": w, "b": w}, x), {}, {"data": 4})
    with pytest.raises(pw.ShardingError, match=r"adopt\(mesh=\{'data': 0\}\): 'data' needs a whole number of devices"):
        take(jax.jit(plain), (w, x), {}, {"data": 0})
    with pytest.raises(pw.ShardingError, match=r"adopt\(mesh=\[16, 8\]\): write the devices along each axis"):
        take(jax.jit(plain), (w, x), {}, [16, 8])  # type: ignore[arg-type]
    with pytest.raises(
        pw.ShardingError,
        match=r"args\[1\] has 32 along dimension 0, which is divided over data, and 3 devices do not divide that\.",
    ):
        take(jax.jit(plain), (w, x), {}, {"data": 3, "model": 8})
    with pytest.raises(
        pw.ShardingError,
        match=r"no argument is on a mesh, and there is none in .* for one device mesh={'data': 1} alone",
    ):
        take(jax.jit(plain), whole, {}, None)


def test_a_step_without_a_function_of_its_own_says_what_to_call():
    with pytest.raises(pw.UsageError, match=r"no function of its own: .* block called, .* Call the function itself\."):
        StepNode(None)(jnp.ones(3))
