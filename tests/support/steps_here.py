"""Training steps on four of JAX's own CPU devices, for processes that have set those up."""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
D = 64
ADAM = optax.adam(1e-2)


def mesh_of(kind: AxisType) -> Mesh:
    """A mesh of 2 × 2 devices."""
    return Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"), axis_types=(kind,) * 2)


def placed(tree: Any, mesh: Mesh) -> Any:
    """A tree with its matrices' columns over the model's axis."""

    def one(leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        return jax.device_put(leaf, NamedSharding(mesh, P(None, "model") if leaf.ndim == 2 else P()))

    return jax.tree.map(one, tree)


def batch(mesh: Mesh) -> Any:
    """An input, divided over the data's axis."""
    return jax.device_put(
        np.random.default_rng(0).normal(size=(32, D)).astype(np.float32), NamedSharding(mesh, P("data"))
    )


def loss_of(output: Any) -> Any:
    return (output**2).mean()


def plain(mesh: Mesh) -> tuple[Any, Any]:
    """A step with donation, a loop and a constraint that closes over the mesh, and its state."""
    key = jax.random.key(0)
    params = placed(
        {"up": jax.random.normal(key, (D, 4 * D)) / 8, "down": jax.random.normal(key, (4 * D, D)) / 16}, mesh
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            def block(h: Any, _: None) -> Any:
                h = jnp.matmul(jax.nn.gelu(h @ params["up"]), params["down"], out_sharding=out)
                return constrained(h), None

            return loss_of(jax.lax.scan(block, x, None, 2)[0])

        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = ADAM.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    explicit = AxisType.Explicit in mesh.axis_types
    out = NamedSharding(mesh, P("data")) if explicit else None
    constrained = (
        (lambda h: h) if explicit else (lambda h: jax.lax.with_sharding_constraint(h, NamedSharding(mesh, P("data"))))
    )
    return train_step, (params, ADAM.init(params))


def equinox(mesh: Mesh) -> tuple[Any, Any]:
    """A step of Equinox, whose model has functions among its leaves, and its state."""
    model = placed(eqx.nn.MLP(D, D, 4 * D, 1, key=jax.random.key(0)), mesh)

    @eqx.filter_jit
    def train_step(state: Any, x: Any) -> Any:
        model, moments = state
        value, gradients = eqx.filter_value_and_grad(lambda model: loss_of(jax.vmap(model)(x)))(model)
        updates, moments = ADAM.update(gradients, moments, model)
        return (eqx.apply_updates(model, updates), moments), value

    return train_step, (model, ADAM.init(eqx.filter(model, eqx.is_array)))


class Dense(nn.Module):
    """Two layers of Linen."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(D)(nn.relu(nn.Dense(4 * D)(x)))


def linen(mesh: Mesh) -> tuple[Any, Any]:
    """A step of Flax Linen with its state."""
    model = Dense()
    params = placed(model.init(jax.random.key(0), jnp.ones((2, D))), mesh)

    @jax.jit
    def train_step(state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda params: loss_of(state.apply_fn(params, x)))(state.params)
        return state.apply_gradients(grads=gradients), value

    return train_step, TrainState.create(apply_fn=model.apply, params=params, tx=ADAM)


class Layers(nnx.Module):
    """Two layers of NNX."""

    def __init__(self, rngs: nnx.Rngs):
        self.up, self.down = nnx.Linear(D, 4 * D, rngs=rngs), nnx.Linear(4 * D, D, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(nnx.relu(self.up(x)))


def nnx_model(mesh: Mesh) -> tuple[Any, Any]:
    """A model of Flax NNX and its optimizer, which the step changes in place."""
    model = Layers(nnx.Rngs(0))
    nnx.update(model, placed(nnx.state(model), mesh))
    return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)


@nnx.jit
def nnx_step(model: Any, optimizer: Any, x: Any) -> Any:
    """A step of Flax NNX."""
    value, gradients = nnx.value_and_grad(lambda model: loss_of(model(x)))(model)
    optimizer.update(model, gradients)
    return value
