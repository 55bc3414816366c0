"""Attention as one kernel on each device: JAX's own on a TPU, a stand-in for a library's on a GPU.

On a GPU a call without code stands for the kernel: it has the kernel's operands and results, which is all that schedule
and memory depend on, and the library need not be here.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from pathways_nb.published.step_rows import PublishedStep


@jax.custom_vjp
def library_kernel(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Return causal attention of (batch, length, heads, width), keys and values with as many heads or fewer."""
    return _library_forward(query, key, value)[0]


def _library_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
    batch, length, heads, _ = query.shape
    made = (
        jax.ShapeDtypeStruct(query.shape, query.dtype),
        jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
    )
    out, statistics = jax.ffi.ffi_call("pathways_nb.attention", made)(query, key, value)
    out, statistics = checkpoint_name(out, "attended"), checkpoint_name(statistics, "statistics")
    return out, (query, key, value, out, statistics)


def _library_backward(kept: Any, cotangent: jax.Array) -> Any:
    made = tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in kept[:3])
    return tuple(jax.ffi.ffi_call("pathways_nb.attention_backward", made)(*kept, cotangent))


library_kernel.defvjp(_library_forward, _library_backward)


def splash(row: PublishedStep, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Return attention by JAX's kernel for TPUs, in blocks as the recipes of its chip have them."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length, heads = query.shape[1], query.shape[2]
    size = min(length, 2048 if row.chip == "tpu_v6e" else 512)
    fused = row.chip == "tpu_v6e"
    blocks = kernels.BlockSizes(
        block_q=size, block_kv=size, block_kv_compute=min(size, 512), block_q_dkv=size, block_kv_dkv=size,
        block_kv_dkv_compute=min(size, 512), block_q_dq=None if fused else size, block_kv_dq=None if fused else size,
        use_fused_bwd_kernel=fused,
    )  # fmt: skip
    mask = masks.MultiHeadMask([masks.CausalMask((length, length)) for _ in range(heads)])
    kernel = kernels.make_splash_mha(
        mask, block_sizes=blocks, head_shards=1, q_seq_shards=1, residual_checkpoint_name="statistics"
    )
    turned = [one.swapaxes(1, 2) for one in (query, key, value)]
    turned = [turned[0] * query.shape[-1] ** -0.5, *(_repeated(one, heads) for one in turned[1:])]
    return checkpoint_name(jax.vmap(kernel)(*turned).swapaxes(1, 2), "attended")


def _repeated(x: jax.Array, heads: int) -> jax.Array:
    """Return keys or values with one head for each head of queries."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)
