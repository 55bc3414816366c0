"""A Llama-3 block in plain JAX, with the specs of tensor and data parallelism: a model of real shape for tests.

RMSNorm, attention with grouped queries and rotary positions, SwiGLU; a stack of such blocks, with embedding and head or
without. Weights are ordinary nested dictionaries, so that shapes alone (``abstract``) do where nothing is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P


@dataclass(frozen=True)
class Size:
    """Of a model; by default of Llama-3 8B.

    Args:
        width, hidden: of the residual stream, and within SwiGLU.
        heads, kv_heads: of queries, and of keys and values, each ``width // heads`` wide.
        blocks, vocabulary: how many. dtype: of the weights.
    """

    width: int = 4096
    hidden: int = 14336
    heads: int = 32
    kv_heads: int = 8
    blocks: int = 32
    vocabulary: int = 128256
    dtype: Any = jnp.bfloat16


LLAMA_8B = Size()
TINY = Size(width=64, hidden=128, heads=8, kv_heads=4, blocks=2, vocabulary=96, dtype=jnp.float32)


def shapes(size: Size) -> dict[str, Any]:
    """The shape of each weight."""
    keys = size.width // size.heads * size.kv_heads
    block = {
        "attention": {
            "norm": (size.width,),
            "q": (size.width, size.width),
            "k": (size.width, keys),
            "v": (size.width, keys),
            "o": (size.width, size.width),
        },
        "mlp": {
            "norm": (size.width,),
            "gate": (size.width, size.hidden),
            "up": (size.width, size.hidden),
            "down": (size.hidden, size.width),
        },
    }
    return {
        "embedding": (size.vocabulary, size.width),
        "blocks": [block for _ in range(size.blocks)],
        "norm": (size.width,),
        "head": (size.width, size.vocabulary),
    }


def specs(size: Size, model: str = "model") -> dict[str, Any]:
    """How tensor parallelism splits each weight over an axis: columns, then rows (Megatron-LM, section 3)."""
    columns, rows = P(None, model), P(model, None)
    block = {
        "attention": {"norm": P(), "q": columns, "k": columns, "v": columns, "o": rows},
        "mlp": {"norm": P(), "gate": columns, "up": columns, "down": rows},
    }
    return {"embedding": rows, "blocks": [block for _ in range(size.blocks)], "norm": P(), "head": columns}


def blocks_only(tree: dict[str, Any]) -> list[Any]:
    """The part of shapes, specs or weights that belongs to the blocks."""
    return tree["blocks"]  # type: ignore[no-any-return]


def abstract(size: Size) -> dict[str, Any]:
    """The weights as shapes and types."""
    return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, size.dtype), shapes(size), is_leaf=_is_shape)


def weights(size: Size, seed: int = 0) -> dict[str, Any]:
    """Random weights on the host."""
    random = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return np.ones(shape, size.dtype)
        return (random.normal(size=shape) / shape[0] ** 0.5).astype(size.dtype)

    return jax.tree.map(draw, shapes(size), is_leaf=_is_shape)  # type: ignore[no-any-return]


def run_blocks(size: Size, blocks: list[Any], x: Any) -> Any:
    """Activations ``(batch, tokens, width)`` after all blocks."""
    for one in blocks:
        x = x + attention(size, one["attention"], x)
        x = x + mlp(one["mlp"], x)
    return x


def squared_loss(size: Size, blocks: list[Any], x: Any, y: Any) -> Any:
    """Of blocks without embedding and head."""
    return jnp.mean((run_blocks(size, blocks, x) - y).astype(jnp.float32) ** 2)


def language_loss(size: Size, params: dict[str, Any], tokens: Any, targets: Any) -> Any:
    """Mean cross-entropy of the next token; ``tokens`` and ``targets`` are ``(batch, tokens)`` of integers."""
    x = rms_norm(params["norm"], run_blocks(size, params["blocks"], params["embedding"][tokens]))
    logits = jax.nn.log_softmax((x @ params["head"]).astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(logits, targets[..., None], axis=-1))


def rms_norm(scale: Any, x: Any) -> Any:
    """Scaled to a mean square of one."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def attention(size: Size, params: dict[str, Any], x: Any) -> Any:
    """Causal attention, in which several heads of queries share one of keys and values."""
    batch, tokens, _ = x.shape
    each, share = size.width // size.heads, size.heads // size.kv_heads
    h = rms_norm(params["norm"], x)
    q = rotate((h @ params["q"]).reshape(batch, tokens, size.kv_heads, share, each))
    k = rotate((h @ params["k"]).reshape(batch, tokens, size.kv_heads, 1, each))[:, :, :, 0]
    v = (h @ params["v"]).reshape(batch, tokens, size.kv_heads, each)
    scores = jnp.einsum("bqgsd,bkgd->bgsqk", q, k).astype(jnp.float32) / each**0.5
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    weight = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
    mixed = jnp.einsum("bgsqk,bkgd->bqgsd", weight, v)
    return mixed.reshape(batch, tokens, size.width) @ params["o"]


def rotate(x: Any) -> Any:
    """Rotary positions of ``(batch, tokens, heads, heads, each)``."""
    tokens, half = x.shape[1], x.shape[-1] // 2
    angles = jnp.arange(tokens)[:, None] * 500000.0 ** (-jnp.arange(half) / half)
    cos, sin = (f(angles)[None, :, None, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def mlp(params: dict[str, Any], x: Any) -> Any:
    """SwiGLU."""
    h = rms_norm(params["norm"], x)
    return (jax.nn.silu(h @ params["gate"]) * (h @ params["up"])) @ params["down"]


def cut(size: Size, blocks: int) -> Size:
    """The same model with fewer blocks."""
    return replace(size, blocks=blocks)


def _is_shape(leaf: object) -> bool:
    return isinstance(leaf, tuple)
