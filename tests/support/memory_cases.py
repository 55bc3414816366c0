"""Functions whose memory the simulator must judge as the compiler does: what each computes, on what, laid out how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

Make = Callable[[int, Any], tuple[tuple[Any, ...], tuple[Any, ...]]]
"""Of a size and a dtype: the arguments, and their specs over ``"data"`` and ``"model"``."""


@dataclass(frozen=True)
class Case:
    """One function of whole arrays, and what it is called with."""

    fn: Callable[..., Any]
    make: Make

    def on(self, axes: tuple[str, ...], size: int, dtype: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Arguments, and their specs on a mesh that has only these axes."""
        args, specs = self.make(size, dtype)
        return args, jax.tree.map(lambda spec: _only(spec, axes), specs, is_leaf=lambda x: isinstance(x, P))


def _only(spec: P, axes: tuple[str, ...]) -> P:
    return P(*(entry if entry in axes else None for entry in spec))


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def ids(*shape: int) -> jax.ShapeDtypeStruct:
    return array(*shape, dtype=jnp.int32)


# ---- losses: rows by data, the vocabulary by model


def indexed(w: Any, x: Any, labels: Any) -> Any:
    scores = jax.nn.log_softmax((x @ w).astype(jnp.float32))
    return -jnp.mean(scores[jnp.arange(labels.shape[0]), labels])


def along_axis(w: Any, x: Any, labels: Any) -> Any:
    scores = jax.nn.log_softmax((x @ w).astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], -1))


def by_logsumexp(w: Any, x: Any, labels: Any) -> Any:
    logits = (x @ w).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def by_one_hot(w: Any, x: Any, labels: Any) -> Any:
    scores = jax.nn.log_softmax((x @ w).astype(jnp.float32))
    return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, w.shape[1]) * scores, -1))


def by_optax(w: Any, x: Any, labels: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels((x @ w).astype(jnp.float32), labels)
    return jnp.mean(losses)


def of_loss(n: int, dtype: Any) -> Any:
    args = array(n, 16 * n, dtype=dtype), array(8 * n, n, dtype=dtype), ids(8 * n)
    return args, (P(None, "model"), P("data"), P("data"))


def of_narrow_loss(n: int, dtype: Any) -> Any:
    return of_loss(n, dtype)[0], (P(None, "model"), P(), P())


# ---- layers


def embedding(table: Any, tokens: Any) -> Any:
    return jnp.mean(jnp.square(table[tokens]))


def of_embedding(n: int, dtype: Any) -> Any:
    return (array(16 * n, n, dtype=dtype), ids(64, n)), (P(None, "model"), P("data"))


def of_rows(n: int, dtype: Any) -> Any:
    return (array(16 * n, n, dtype=dtype), ids(64, n)), (P("model"), P("data"))


def layer_norm(scale: Any, bias: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    normed = (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + 1e-5)
    return jnp.mean(jnp.tanh(normed * scale + bias))


def of_norm(n: int, dtype: Any) -> Any:
    return (array(n, dtype=dtype), array(n, dtype=dtype), array(64, n, n, dtype=dtype)), (P(), P(), P("data"))


def rms(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def rms_norm(scale: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(rms(x, scale)))


def of_rms(n: int, dtype: Any) -> Any:
    return (array(n, dtype=dtype), array(64, n, n, dtype=dtype)), (P(), P("data"))


def convolution(kernels: Any, x: Any) -> Any:
    for kernel in kernels:
        x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return jnp.mean(jnp.square(x))


def of_convolution(n: int, dtype: Any) -> Any:
    kernels = array(3, 3, 8, n // 4, dtype=dtype), array(3, 3, n // 4, n // 4, dtype=dtype)
    return (kernels, array(16, 32, 32, 8, dtype=dtype)), ((P(), P()), P("data"))


def mlp(weights: Any, x: Any) -> Any:
    for up, down in weights:
        x = jnp.tanh(jnp.tanh(x @ up) @ down)
    return jnp.mean(jnp.square(x))


def of_mlp(n: int, dtype: Any) -> Any:
    pair, specs = (array(n, 4 * n, dtype=dtype), array(4 * n, n, dtype=dtype)), (P(None, "model"), P("model"))
    return ((pair, pair), array(16 * n, n, dtype=dtype)), ((specs, specs), P("data"))


def of_fsdp(n: int, dtype: Any) -> Any:
    args, _ = of_mlp(n, dtype)
    return args, (((P("data"), P("data")),) * 2, P("data"))


def scanned(weights: Any, x: Any) -> Any:
    layer = jax.checkpoint(lambda c, w: (jnp.tanh(jnp.tanh(c @ w[0]) @ w[1]), None))
    return jnp.mean(jnp.square(lax.scan(layer, x, weights)[0]))


def of_scan(n: int, dtype: Any) -> Any:
    weights = array(6, n, 4 * n, dtype=dtype), array(6, 4 * n, n, dtype=dtype)
    return (weights, array(16 * n, n, dtype=dtype)), ((P(None, None, "model"), P(None, "model")), P("data"))


def plain_scan(weights: Any, x: Any) -> Any:
    layer = lambda c, w: (jnp.tanh(jnp.tanh(c @ w[0]) @ w[1]), None)  # noqa: E731
    return jnp.mean(jnp.square(lax.scan(layer, x, weights)[0]))


def swiglu(gate: Any, up: Any, down: Any, x: Any) -> Any:
    return jnp.mean(jnp.square((jax.nn.silu(x @ gate) * (x @ up)) @ down))


def of_swiglu(n: int, dtype: Any) -> Any:
    wide, narrow = array(n, 4 * n, dtype=dtype), array(4 * n, n, dtype=dtype)
    specs = P(None, "model"), P(None, "model"), P("model"), P("data")
    return (wide, wide, narrow, array(16 * n, n, dtype=dtype)), specs


def attend(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    shares = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)


def attention(weights: Any, x: Any) -> Any:
    q, k, v, out = weights
    heads = [jnp.einsum("bsd,dhk->bshk", x, w) for w in (q, k, v)]
    return jnp.mean(jnp.square(jnp.einsum("bshk,hkd->bsd", attend(*heads), out)))


def of_attention(n: int, dtype: Any) -> Any:
    into, out = array(n, 8, n // 8, dtype=dtype), array(8, n // 8, n, dtype=dtype)
    specs = (P(None, "model"),) * 3 + (P("model"),)
    return ((into, into, into, out), array(16, 2 * n, n, dtype=dtype)), (specs, P("data"))


def llama_block(p: dict[str, Any], x: Any) -> Any:
    h = rms(x, p["first"])
    q, k, v = (jnp.einsum("bsd,dhk->bshk", h, p[name]) for name in "qkv")
    k, v = (jnp.repeat(one, q.shape[2] // k.shape[2], axis=2) for one in (k, v))
    x = x + jnp.einsum("bshk,hkd->bsd", attend(q, k, v), p["out"])
    h = rms(x, p["second"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def block_weights(n: int, dtype: Any, heads: int = 16, kv: int = 8) -> tuple[dict[str, Any], dict[str, Any]]:
    each = n // heads
    shapes = {"first": (n,), "q": (n, heads, each), "k": (n, kv, each), "v": (n, kv, each), "out": (heads, each, n),
              "second": (n,), "gate": (n, 4 * n), "up": (n, 4 * n), "down": (4 * n, n)}  # fmt: skip
    specs = {name: P(None, "model") for name in shapes}
    specs |= {"first": P(), "second": P(), "out": P("model"), "down": P("model")}
    return {name: array(*shape, dtype=dtype) for name, shape in shapes.items()}, specs


def llama(params: Any, tokens: Any, labels: Any) -> Any:
    """Blocks, and the loss with the vocabulary split."""
    x = params["table"][tokens]
    for block in params["blocks"]:
        x = llama_block(block, x)
    scores = jax.nn.log_softmax((rms(x, params["norm"]) @ params["head"]).astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], -1))


def of_llama(n: int, dtype: Any) -> Any:
    weights, specs = block_weights(n, dtype)
    params = {"table": array(8 * n, n, dtype=dtype), "blocks": [weights, weights], "norm": array(n, dtype=dtype),
              "head": array(n, 8 * n, dtype=dtype)}  # fmt: skip
    laid = {"table": P(None, "model"), "blocks": [specs, specs], "norm": P(), "head": P(None, "model")}
    return (params, ids(16, n), ids(16, n)), (laid, P("data"), P("data"))


def deep_llama(params: Any, tokens: Any, labels: Any) -> Any:
    """The same, its blocks in a scan that computes them again on the way back."""
    x = params["table"][tokens]
    x, _ = lax.scan(jax.checkpoint(lambda c, block: (llama_block(block, c), None)), x, params["blocks"])
    scores = jax.nn.log_softmax((rms(x, params["norm"]) @ params["head"]).astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(scores, labels[..., None], -1))


def of_deep_llama(n: int, dtype: Any) -> Any:
    (params, *rest), (laid, *others) = of_llama(n, dtype)
    (weights, _), (specs, _) = params["blocks"], laid["blocks"]
    stacked = {name: array(4, *w.shape, dtype=dtype) for name, w in weights.items()}
    params = {**params, "blocks": stacked}
    laid = {**laid, "blocks": {name: P(None, *spec) for name, spec in specs.items()}}
    return (params, *rest), (laid, *others)


def mixture(router: Any, up: Any, down: Any, x: Any) -> Any:
    shares = jax.nn.softmax(x @ router)
    hidden = jax.nn.gelu(jnp.einsum("td,edf->tef", x, up))
    return jnp.mean(jnp.square(jnp.einsum("tef,efd,te->td", hidden, down, shares)))


def of_mixture(n: int, dtype: Any) -> Any:
    args = array(n, 8, dtype=dtype), array(8, n, 2 * n, dtype=dtype), array(8, 2 * n, n, dtype=dtype)
    return (*args, array(8 * n, n, dtype=dtype)), (P(), P("model"), P("model"), P("data"))


def contracted(w: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(x @ w))


def of_contracted(n: int, dtype: Any) -> Any:
    return (array(4 * n, n, dtype=dtype), array(16 * n, 4 * n, dtype=dtype)), (P("model"), P("data", "model"))


def reductions(x: Any) -> Any:
    centred = x - x.mean(0)
    return jnp.sum(jnp.max(centred, -1)) + jnp.std(x) + jnp.sum(jnp.cumsum(x, -1)[:, -1])


def of_reductions(n: int, dtype: Any) -> Any:
    return (array(16 * n, 4 * n, dtype=dtype),), (P("data", "model"),)


def dropout(w: Any, x: Any, key: Any) -> Any:
    hidden = jax.nn.relu(x @ w)
    kept = jax.random.bernoulli(key, 0.9, hidden.shape)
    return jnp.mean(jnp.square(jnp.where(kept, hidden / 0.9, 0)))


def of_dropout(n: int, dtype: Any) -> Any:
    key = jax.eval_shape(lambda: jax.random.key(0))
    return (array(n, 4 * n, dtype=dtype), array(16 * n, n, dtype=dtype), key), (P(None, "model"), P("data"), P())


CASES = {
    "cross-entropy, indexed": Case(indexed, of_loss),
    "cross-entropy, along an axis": Case(along_axis, of_loss),
    "cross-entropy, logsumexp": Case(by_logsumexp, of_loss),
    "cross-entropy, one-hot": Case(by_one_hot, of_loss),
    "cross-entropy, Optax": Case(by_optax, of_loss),
    "cross-entropy, rows whole": Case(along_axis, of_narrow_loss),
    "embedding": Case(embedding, of_embedding),
    "embedding by rows": Case(embedding, of_rows),
    "layer norm": Case(layer_norm, of_norm),
    "RMS norm": Case(rms_norm, of_rms),
    "convolution": Case(convolution, of_convolution),
    "MLP": Case(mlp, of_mlp),
    "MLP, FSDP": Case(mlp, of_fsdp),
    "scan": Case(plain_scan, of_scan),
    "scan, remat": Case(scanned, of_scan),
    "SwiGLU": Case(swiglu, of_swiglu),
    "attention": Case(attention, of_attention),
    "two Llama blocks": Case(llama, of_llama),
    "Llama in a scan": Case(deep_llama, of_deep_llama),
    "mixture of experts": Case(mixture, of_mixture),
    "contracted": Case(contracted, of_contracted),
    "reductions": Case(reductions, of_reductions),
    "dropout": Case(dropout, of_dropout),
}
"""By name. What is judged is ``value_and_grad`` of each."""

MESHES: dict[str, dict[str, int]] = {
    "data 4": {"data": 4},
    "model 8": {"model": 8},
    "2 x 4": {"data": 2, "model": 4},
    "4 x 2": {"data": 4, "model": 2},
}
SIZES, DTYPES = (64, 128), (jnp.float32, jnp.bfloat16)


def gradient(case: Case) -> Callable[..., Any]:
    """The value and its gradients with respect to all that has one."""

    def step(*args: Any) -> Any:
        return jax.value_and_grad(case.fn, argnums=_floating(args))(*args)

    return step


def _floating(args: tuple[Any, ...]) -> tuple[int, ...]:
    def floats(tree: Any) -> bool:
        return all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(tree))

    return tuple(i for i, arg in enumerate(args) if floats(arg))


def table() -> Iterator[tuple[str, str, int, Any]]:
    """Every case, mesh, size and dtype."""
    for name in CASES:
        for mesh in MESHES:
            for size in SIZES:
                for dtype in DTYPES:
                    yield name, mesh, size, dtype
