"""A Llama in Flax NNX as its users write one: grouped queries, Adam, parameters divided over both axes of a mesh."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

WIDTH, HEADS, GROUPS, HIDDEN, WORDS, LENGTH, ROWS, LAYERS = 4096, 32, 8, 14336, 32000, 4096, 64, 8
MESH = AbstractMesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
Linear = functools.partial(nnx.Linear, use_bias=False, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)
Norm = functools.partial(nnx.RMSNorm, WIDTH, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)


def rope(x: jax.Array) -> jax.Array:
    """Turn queries or keys by their positions."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nnx.Module):
    """Attention with grouped queries."""

    def __init__(self, rngs: nnx.Rngs):
        few = WIDTH // HEADS * GROUPS
        self.query, self.key = Linear(WIDTH, WIDTH, rngs=rngs), Linear(WIDTH, few, rngs=rngs)
        self.value, self.out = Linear(WIDTH, few, rngs=rngs), Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return what each position takes from those before it."""
        rows, length, _ = x.shape
        q = rope(self.query(x).reshape(rows, length, HEADS, -1))
        k = rope(self.key(x).reshape(rows, length, GROUPS, -1))
        v = self.value(x).reshape(rows, length, GROUPS, -1)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.reshape(rows, length, WIDTH))


class Mlp(nnx.Module):
    """A gated layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.gate, self.up = Linear(WIDTH, HIDDEN, rngs=rngs), Linear(WIDTH, HIDDEN, rngs=rngs)
        self.down = Linear(HIDDEN, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the hidden features, gated and put together."""
        hidden = nnx.silu(self.gate(x)) * self.up(x)
        return self.down(hidden)


class Block(nnx.Module):
    """Attention and a gated layer, each behind a norm."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm1, self.norm2 = Norm(rngs=rngs), Norm(rngs=rngs)
        self.attention, self.mlp = Attention(rngs), Mlp(rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the stream with what the block adds."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nnx.Module):
    """The model."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)
        self.layers = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm, self.head = Norm(rngs=rngs), Linear(WIDTH, WORDS, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits of the next words."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = jax.lax.with_sharding_constraint(x, PartitionSpec("data", None, None))
            x = layer(x)
        return self.head(self.norm(x))


def loss(model: Llama, tokens: jax.Array) -> jax.Array:
    """Return the mean cross-entropy."""
    logits = model(tokens).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


@nnx.jit(donate_argnums=(0, 1))
def step(model: Llama, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    """Train on a batch."""
    value, gradients = nnx.value_and_grad(loss)(model, tokens)
    optimizer.update(model, gradients)
    return value


def step_args() -> tuple[Any, ...]:
    """Return shapes of the arguments, with their layouts."""

    def on(leaf: Any) -> Any:
        spec = PartitionSpec("data", "model") if leaf.ndim == 2 else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(MESH, spec))

    model = nnx.eval_shape(lambda: Llama(nnx.Rngs(0)))
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(Llama(nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param))
    rows = NamedSharding(MESH, PartitionSpec("data"))
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32, sharding=rows)
    return jax.tree.map(on, model), jax.tree.map(on, optimizer), tokens
