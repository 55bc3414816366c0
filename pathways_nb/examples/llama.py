"""Transformer blocks of Llama's form (Touvron et al. 2023) as stages of a pipeline, in plain JAX.

RMS norm, rotary positions, grouped-query attention and SwiGLU. Attention goes through ``context``, so the same stages
run whole sequences and token slices. Weights are random: this is for parallelism, not for text.

Symbols: B sequences of L tokens, D features, E features of a head, D / E query heads, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.parallel.pipelines.token_context import Context

Params = dict[str, Any]


WIDTH = 32
"""E, features of a head."""


class Size(NamedTuple):
    """The size of a model: features, key and value heads, features of the hidden layer, vocabulary."""

    features: int = 256
    shared_heads: int = 4
    hidden: int = 688
    vocabulary: int = 512


def block_params(size: Size, random: np.random.Generator) -> Params:
    """Return the weights of one block."""
    d, shared = size.features, WIDTH * size.shared_heads
    shapes = {"query": (d, d), "key": (d, shared), "value": (d, shared), "out": (d, d),
              "gate": (d, size.hidden), "up": (d, size.hidden), "down": (size.hidden, d)}  # fmt: skip
    return {name: _normal(random, *shape) for name, shape in shapes.items()} | {
        "attention_norm": np.ones(d, np.float32), "mlp_norm": np.ones(d, np.float32)
    }  # fmt: skip


def block(params: Params, x: jax.Array, context: Context) -> jax.Array:
    """Return the features of a slice of tokens after one block, (B, l, D) to (B, l, D)."""
    x = x + _attention(params, _norm(x, params["attention_norm"]), context)
    h = _norm(x, params["mlp_norm"])
    return x + (jax.nn.silu(h @ params["gate"]) * (h @ params["up"])) @ params["down"]


def stages(blocks: list[int], size: Size = Size(), seed: int = 0) -> tuple[list[Callable[..., Any]], list[Params]]:  # noqa: B008
    """Return the stages of a language model, and their parameters.

    Args:
        blocks: number of blocks of each stage. The first stage embeds tokens, the last one has the output layer.
        size: of the model; E divides its features, and its key and value heads divide its query heads.
        seed: of the random weights.
    """
    random = np.random.default_rng(seed)
    params: list[Params] = [{"blocks": [block_params(size, random) for _ in range(count)]} for count in blocks]
    # Undoes the division by the square root of the rows, which a lookup does not sum over.
    params[0]["embedding"] = _normal(random, size.vocabulary, size.features) * np.sqrt(size.vocabulary)
    params[-1] |= {"norm": np.ones(size.features, np.float32), "head": _normal(random, size.features, size.vocabulary)}
    return [stage] * len(blocks), params


def stage(params: Params, x: jax.Array, context: Context) -> jax.Array:
    """Return what a stage makes of tokens (B, l) or features (B, l, D): features, or logits (B, l, V) of the last."""
    if "embedding" in params:
        x = params["embedding"][x]
    for one in params["blocks"]:
        x = block(one, x, context)
    return _norm(x, params["norm"]) @ params["head"] if "head" in params else x


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of the next tokens, in nats.

    Args:
        logits: (B, l, V).
        targets: the next tokens, (B, l).
    """
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -jnp.mean(found)


def batch(rows: int, tokens: int, size: Size = Size(), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:  # noqa: B008
    """Return random tokens (B, L) and the tokens that follow each of them."""
    found = np.random.default_rng(seed).integers(0, size.vocabulary, (rows, tokens + 1), dtype=np.int32)
    return found[:, :-1], found[:, 1:]


def _attention(params: Params, x: jax.Array, context: Context) -> jax.Array:
    query, key, value = ((x @ params[name]).reshape(*x.shape[:2], -1, WIDTH) for name in ("query", "key", "value"))
    # Rotated before they are stored: positions of earlier tokens do not change.
    keys, values = context.append(_rotated(key, context.positions), value)
    # (B, l, key and value heads, query heads of each, E): grouped queries read keys without copies of them.
    query = _rotated(query, context.positions).reshape(*x.shape[:2], keys.shape[2], -1, WIDTH)
    scores = jnp.einsum("blkge,bmke->bkglm", query, keys) / np.sqrt(WIDTH)
    # A token may always read itself, so no row of the mask is empty and no softmax is NaN.
    weights = jax.nn.softmax(jnp.where(context.mask, scores, -jnp.inf))
    return jnp.einsum("bkglm,bmke->blkge", weights, values).reshape(x.shape) @ params["out"]


def _norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * gain


def _rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Return queries or keys (B, l, H, E) turned by angles that grow with their positions."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 1e4 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    low, high = x[..., :half], x[..., half:]
    return jnp.concatenate([low * cos - high * sin, low * sin + high * cos], -1).astype(x.dtype)


def _normal(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return (random.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
