"""Steps in what is installed with the tests: READMEs, examples in docstrings, kernels of JAX."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType

from tests.support import placed_shapes
from tests.support.package_steps import sources
from tests.support.package_steps.calls import Call, P, fully_sharded, mesh_of, rows, shape

WIDTH, LAYERS = 4096, 4


def jax_readme() -> Call:
    own = sources.readme("jax", "grad_loss = jax.jit")
    params = [fully_sharded((shape(WIDTH, WIDTH), shape(WIDTH))) for _ in range(LAYERS)]
    return Call(own["grad_loss"], (params, rows(8192, WIDTH), rows(8192, WIDTH)))


def jax_readme_explicit() -> Call:
    """The same step with axes that are part of types, as the README's section on scaling has it."""
    own = sources.readme("jax", "grad_loss = jax.jit")
    mesh = mesh_of("data", kind=AxisType.Explicit)
    layer = placed_shapes.on(mesh, shape(WIDTH, WIDTH), P("data")), placed_shapes.on(mesh, shape(WIDTH), P())
    batch = rows(8192, WIDTH, mesh=mesh)
    around = (lambda: jax.sharding.use_abstract_mesh(mesh),)
    return Call(own["grad_loss"], ([layer] * LAYERS, batch, batch), {}, around)


def equinox_readme() -> Call:
    own = sources.readme("equinox", "eqx.Module")
    own = sources.readme("equinox", "@jax.jit", **own)
    model = own["Linear"](WIDTH, WIDTH, key=jax.random.key(0))
    return Call(own["loss_fn"], (fully_sharded(model), rows(8192, WIDTH), rows(8192, WIDTH)))


def flax_average() -> Call:
    """The example of ``nnx.EMA``, with a layer of another size."""
    own = sources.examples(nnx.EMA, "def train_step")

    def made() -> Any:
        model = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), nnx.EMA(model, decay=0.9)

    model, optimizer, average = (fully_sharded(one) for one in nnx.eval_shape(made))
    return Call(own["train_step"], (model, optimizer, average, rows(8192, WIDTH), rows(8192, WIDTH)))


def pallas_attention() -> Call:
    """Attention as a kernel with a backward pass of its own; kernels are not divided, so it goes into a ``shard_map``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer versions of JAX name a package in its place
        attention = importlib.import_module("jax.experimental.pallas.ops.gpu.attention")

    def step(mesh: Any) -> Any:
        def each(q: Any, k: Any, v: Any) -> Any:
            return attention.mha(q, k, v, segment_ids=None)

        sharded = jax.shard_map(each, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
        return jax.jit(jax.grad(lambda q, k, v: sharded(q, k, v).astype(jnp.float32).sum(), argnums=(0, 1, 2)))

    each = rows(64, 4096, 16, 64, dtype=jnp.bfloat16)
    return Call(step, (each, each, each))
