"""A byte-level transformer language model in two stages, in plain JAX: it knows nothing of places or programs.

Symbols: B sequences, L bytes each, D features, H heads. ``embed_and_blocks`` is the first stage, ``blocks_and_loss``
the second; ``whole_loss`` is both on one device, to compare with.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

HEADS = 4
Params = dict[str, Any]


def init(seed: int = 0, dim: int = 64, length: int = 64, layers: int = 1) -> dict[str, Params]:
    """Parameters of both stages as host values, ``{"first": …, "second": …}``, with ``layers`` blocks each.

    Args:
        seed: of the random numbers.
        dim: D, a multiple of 4 heads.
        length: L, the longest sequence.
        layers: blocks of each stage.
    """
    random = np.random.default_rng(seed)

    def weight(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * gain / np.sqrt(rows)).astype(np.float32)

    def block() -> Params:
        return {
            "qkv": weight(dim, 3 * dim),
            "out": weight(dim, dim, 0.3),
            "up": weight(dim, 4 * dim),
            "down": weight(4 * dim, dim, 0.3),
        }

    first = {
        "embed": weight(256, dim, 16.0),
        "position": weight(length, dim),
        "blocks": [block() for _ in range(layers)],
    }
    return {"first": first, "second": {"blocks": [block() for _ in range(layers)], "head": weight(dim, 256)}}


def embed_and_blocks(params: Params, tokens: jax.Array) -> jax.Array:
    """First stage: tokens (B, L) to features (B, L, D)."""
    x = params["embed"][tokens] + params["position"][: tokens.shape[-1]]
    for block in params["blocks"]:
        x = _block(block, x)
    return x


def blocks_and_loss(params: Params, x: jax.Array, targets: jax.Array) -> jax.Array:
    """Second stage: features (B, L, D) and next bytes (B, L) to the mean cross-entropy, in nats per byte."""
    for block in params["blocks"]:
        x = _block(block, x)
    logits = _normalise(x) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def whole_loss(params: dict[str, Params], tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Both stages on tokens and targets of shape (microbatches, B, L): the mean over microbatches."""
    flat = tokens.reshape(-1, tokens.shape[-1]), targets.reshape(-1, targets.shape[-1])
    return blocks_and_loss(params["second"], embed_and_blocks(params["first"], flat[0]), flat[1])


def _block(params: Params, x: jax.Array) -> jax.Array:
    heads = (*x.shape[:2], HEADS, -1)
    query, key, value = (part.reshape(heads) for part in jnp.split(_normalise(x) @ params["qkv"], 3, axis=-1))
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + mixed.reshape(x.shape) @ params["out"]
    return x + jax.nn.gelu(_normalise(x) @ params["up"]) @ params["down"]


def _normalise(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
