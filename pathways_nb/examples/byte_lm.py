"""A byte-level transformer language model in two stages, in plain JAX without virtual slices or programs.

Symbols: B sequences, L bytes each, D features, H heads. ``embed_and_blocks`` is the first stage, ``blocks_and_loss``
the second. ``whole_loss`` runs both on one device, as the reference that distributed training is compared with.
Virtual slices and programs for this model are in ``two_stages``.
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
    """Return the parameters of both stages as host values, ``{"first": …, "second": …}``.

    Args:
        seed: seed of the random numbers.
        dim: D, a multiple of the 4 heads.
        length: L, the longest sequence.
        layers: number of transformer blocks of each stage.
    """
    random = np.random.default_rng(seed)

    def weight(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * gain / np.sqrt(rows)).astype(np.float32)

    def block() -> Params:
        return {
            "qkv": weight(dim, 3 * dim),
            # Small, so that each block begins close to the identity.
            "out": weight(dim, dim, 0.3),
            "up": weight(dim, 4 * dim),
            "down": weight(4 * dim, dim, 0.3),
        }

    first = {
        # ``weight`` divides by the square root of its rows, which an embedding does not sum over: 16² = 256.
        "embed": weight(256, dim, 16.0),
        "position": weight(length, dim),
        "blocks": [block() for _ in range(layers)],
    }
    return {"first": first, "second": {"blocks": [block() for _ in range(layers)], "head": weight(dim, 256)}}


def embed_and_blocks(params: Params, tokens: jax.Array) -> jax.Array:
    """Return the features (B, L, D) of tokens (B, L): the first stage."""
    x = params["embed"][tokens] + params["position"][: tokens.shape[-1]]
    for block in params["blocks"]:
        x = _block(block, x)
    return x


def blocks_and_loss(params: Params, x: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean cross-entropy in nats per byte: the second stage.

    Args:
        params: parameters of the second stage.
        x: features (B, L, D) from the first stage.
        targets: the next bytes (B, L).
    """
    for block in params["blocks"]:
        x = _block(block, x)
    logits = _normalise(x) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def whole_loss(params: dict[str, Params], tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the loss of both stages, the mean over microbatches.

    Args:
        params: parameters of both stages.
        tokens: bytes (microbatches, B, L).
        targets: the next bytes, of the same shape.
    """
    # Equal microbatches: the mean over all rows is the mean of their means.
    flat = tokens.reshape(-1, tokens.shape[-1]), targets.reshape(-1, targets.shape[-1])
    return blocks_and_loss(params["second"], embed_and_blocks(params["first"], flat[0]), flat[1])


def _block(params: Params, x: jax.Array) -> jax.Array:
    """Return the features (B, L, D) after one pre-norm block: causal attention, then a feed-forward layer."""
    heads = (*x.shape[:2], HEADS, -1)
    query, key, value = (part.reshape(heads) for part in jnp.split(_normalise(x) @ params["qkv"], 3, axis=-1))
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + mixed.reshape(x.shape) @ params["out"]
    return x + jax.nn.gelu(_normalise(x) @ params["up"]) @ params["down"]


def _normalise(x: jax.Array) -> jax.Array:
    """Return features divided by their root mean square (RMSNorm without a scale)."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
