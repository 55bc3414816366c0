"""Llama 3 at its true shapes (arXiv 2407.21783, table 3), as a loss for one device, to plan and simulate its training.

Attention is one kernel (FlashAttention, arXiv 2205.14135): on the devices here it is plain JAX, and the cost model
counts its products but not the scores between them. Products over masked positions are counted, too.

Symbols: B sequences of L tokens, D features, H heads of E features, K key and value heads, F hidden features, V words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Params = dict[str, Any]


class Shape(NamedTuple):
    """The size of a model: layers, features, hidden features, heads, key and value heads, words."""

    layers: int
    features: int
    hidden: int
    heads: int
    shared_heads: int = 8
    vocabulary: int = 128_256

    @property
    def width(self) -> int:
        """E, features of a head."""
        return self.features // self.heads


SHAPES = {
    "8b": Shape(32, 4096, 14_336, 32),
    "70b": Shape(80, 8192, 28_672, 64),
    "405b": Shape(126, 16_384, 53_248, 128),
}
"""The three models, by name."""


def params(shape: Shape, dtype: Any = jnp.float32) -> Params:
    """Return the shapes of all parameters."""

    def array(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    d, f, shared = shape.features, shape.hidden, shape.shared_heads * shape.width
    block = {"attention_norm": array(d), "query": array(d, d), "key": array(d, shared), "value": array(d, shared),
             "out": array(d, d), "mlp_norm": array(d), "gate": array(d, f), "up": array(d, f),
             "down": array(f, d)}  # fmt: skip
    return {"embedding": array(shape.vocabulary, d), "layers": [dict(block) for _ in range(shape.layers)],
            "norm": array(d), "head": array(d, shape.vocabulary)}  # fmt: skip


def loss(shape: Shape, remat: bool = False) -> Any:
    """Return the loss of a model, ``loss(params, tokens, targets)``: the mean cross-entropy of the next tokens.

    Args:
        shape: of the model.
        remat: whether each block is computed again in the backward pass.
    """
    one = jax.checkpoint(_block, static_argnums=2) if remat else _block

    def llama3(params: Params, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        x = params["embedding"][tokens]
        for block in params["layers"]:
            x = one(block, x, shape)
        # The sum over 128,256 words, too.
        logits = (_norm(x, params["norm"]) @ params["head"]).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    return llama3


def _block(params: Params, x: jax.Array, shape: Shape) -> jax.Array:
    batch, length, _ = x.shape
    h = _norm(x, params["attention_norm"])
    query, key, value = (
        (h @ params[name]).reshape(batch, length, heads, shape.width)
        for name, heads in (("query", shape.heads), ("key", shape.shared_heads), ("value", shape.shared_heads))
    )
    mixed = attention(_rotated(query), _rotated(key), value).reshape(batch, length, shape.features)
    x = x + mixed @ params["out"]
    h = _norm(x, params["mlp_norm"])
    return x + (jax.nn.silu(h @ params["gate"]) * (h @ params["up"])) @ params["down"]


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    # In 32 bits: a sum of thousands of squares loses too much in bfloat16.
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean + 1e-5).astype(x.dtype) * scale


def _rotated(x: jax.Array) -> jax.Array:
    """Return queries or keys (B, L, heads, E) turned by their positions."""
    frequencies = 500_000.0 ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = jnp.arange(x.shape[1])[:, None] * frequencies
    cos, sin = (f(angles).astype(x.dtype)[None, :, None] for f in (jnp.cos, jnp.sin))
    one, two = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)


@jax.custom_vjp
def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Return causal attention of queries (B, L, H, E) over keys and values (B, L, K, E) as one kernel."""
    return _forward(query, key, value)[0]


def _attend(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    batch, length, heads, width = query.shape
    grouped = query.reshape(batch, length, key.shape[2], -1, width)
    scores = jnp.einsum("blkge,bmke->bkglm", grouped, key).astype(jnp.float32) * width**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    made = jnp.einsum("bkglm,bmke->blkge", jnp.exp(scores - total).astype(value.dtype), value)
    return made.reshape(batch, length, heads, width), total


def kernel__attention(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the attention and the logarithms of its sums."""
    return _attend(query, key, value)


def kernel__attention_backward(
    query: jax.Array, key: jax.Array, value: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, ...]:
    """Return the gradients by queries, keys and values; scores are computed again."""
    # As FlashAttention does: keeping scores (L × L) would take more memory than computing them again takes time.
    return jax.vjp(lambda *parts: _attend(*parts)[0], query, key, value)[1](gradient)


# The names tell the cost model that what is inside never reaches memory.
_forward = jax.jit(kernel__attention)
_backward = jax.jit(kernel__attention_backward)
attention.defvjp(
    lambda query, key, value: (_forward(query, key, value)[0], (query, key, value)),
    lambda kept, gradient: _backward(*kept, gradient),
)
