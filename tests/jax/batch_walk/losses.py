"""Losses by name, and whether the mean over the parts of a batch is that of the whole.

``RIGHT`` are means over rows, ``WRONG`` are not and their structure says so, ``UNKNOWN`` mix rows in ways that only
numbers can judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pathways_nb as pw

ROWS, FEATURES, CLASSES = 16, 8, 5

Loss = Callable[[Any, Any, Any], Any]


def logits(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def each(w: Any, x: Any, y: Any) -> Any:
    """The cross-entropy of every row."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(w, x), y)


def seen(y: Any) -> Any:
    return (y > 1).astype(jnp.float32)


def _layers(w: Any, x: Any, y: Any) -> Any:
    last, _ = jax.lax.scan(lambda h, scale: (jnp.tanh(h * scale), None), x, w.T[:, :FEATURES])
    return (last * seen(y)[:, None]).mean()


def _while(w: Any, x: Any, y: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h) + i, each(w, x, y)).mean()


def _attention(w: Any, x: Any, y: Any) -> Any:
    """Attention within each row, over features as tokens."""
    h = x[:, :, None] * w[None, :, :]
    scores = jax.nn.softmax(jnp.einsum("bte,bse->bts", h, h))
    return (jnp.einsum("bts,bse->bte", scores, h) ** 2).mean() + each(w, x, y).mean()


def _checkpointed(w: Any, x: Any, y: Any) -> Any:
    return jax.checkpoint(lambda w: each(w, x, y).mean())(w)


def _custom(w: Any, x: Any, y: Any) -> Any:
    @jax.custom_vjp
    def double(a):
        return 2 * a

    double.defvjp(lambda a: (2 * a, None), lambda _, g: (2 * g,))
    return double(each(w, x, y)).mean()


def _chunks(w: Any, x: Any, y: Any) -> Any:
    return jax.lax.map(lambda pair: each(w, pair[0][None], pair[1][None])[0], (x, y)).mean()


def _whole_numbers(w: Any, x: Any, y: Any) -> Any:
    return each(w, x, y).mean() + (jnp.argmax(logits(w, x), -1) == y).mean()


@jax.custom_jvp
def _rounded(z: Any) -> Any:
    return jnp.round(z * 4) / 4


@_rounded.defjvp
def _as_if_not_rounded(given: Any, tangents: Any) -> Any:
    return _rounded(*given), tangents[0]


@jax.custom_jvp
def _same(z: Any) -> Any:
    return z


@_same.defjvp
def _mean_of_tangents(given: Any, tangents: Any) -> Any:
    return given[0], jnp.zeros_like(given[0]) + tangents[0].mean(0)


@jax.custom_vjp
def _clipped(w: Any) -> Any:
    """Gradients of parameters clipped on their way back, which is no linear function of a sum over rows."""
    return w


_clipped.defvjp(lambda w: (w, None), lambda _, given: (jnp.clip(given, -0.01, 0.01),))

RIGHT: dict[str, Loss] = {
    "rounded, with straight gradients": lambda w, x, y: (_rounded(logits(w, x)) ** 2).mean(),
    "functions with tangents of their own": lambda w, x, y: (
        jnp.logaddexp(jax.nn.silu(logits(w, x)), jax.nn.relu6(logits(w, x))) * jax.nn.gelu(logits(w, x))
    ).mean(),
    "mean": lambda w, x, y: each(w, x, y).mean(),
    "sum over rows": lambda w, x, y: each(w, x, y).sum() / len(x),
    "times a reciprocal": lambda w, x, y: each(w, x, y).sum() * (1.0 / x.size) * FEATURES,
    "index by arange": lambda w, x, y: -jax.nn.log_softmax(logits(w, x))[jnp.arange(len(x)), y].mean(),
    "index by NumPy": lambda w, x, y: -jax.nn.log_softmax(logits(w, x))[np.arange(len(x)), y].mean(),
    "one-hot": lambda w, x, y: -(jax.nn.one_hot(y, CLASSES) * jax.nn.log_softmax(logits(w, x))).sum() / len(x),
    "vmap": lambda w, x, y: jax.vmap(lambda a, b: each(w, a[None], b[None])[0])(x, y).mean(),
    "map over rows": _chunks,
    "regularised": lambda w, x, y: each(w, x, y).mean() + 0.1 * jnp.sqrt(jnp.sum(w**2)),
    "masked, over all rows": lambda w, x, y: (each(w, x, y) * seen(y)).mean(),
    "pw.mean": lambda w, x, y: pw.mean((each(w, x, y) * seen(y)).sum(), seen(y).sum()),
    "pw.mean of whole numbers": lambda w, x, y: pw.mean((each(w, x, y) * seen(y)).sum(), (y > 1).sum()),
    "pw.mean as a term": lambda w, x, y: (
        0.5 * pw.mean((each(w, x, y) * seen(y)).sum(), seen(y).sum()) + each(w, x, y).mean() + jnp.sum(w**2)
    ),
    "two means": lambda w, x, y: (
        pw.mean((each(w, x, y) * seen(y)).sum(), seen(y).sum()) - pw.mean(jnp.sum(x[:, 0] * (y < 2)), jnp.sum(y < 2))
    ),
    "checkpoint": _checkpointed,
    "pw.mean in jit": lambda w, x, y: jax.jit(lambda v: pw.mean((v * seen(y)).sum(), seen(y).sum()))(each(w, x, y)),
    "layers by scan": _layers,
    "loop": _while,
    "attention within rows": _attention,
    "norm of each row": lambda w, x, y: jnp.mean(jnp.sqrt(1e-3 + (logits(w, x) ** 2).sum(-1))) + each(w, x, y).mean(),
    "variance of each row": lambda w, x, y: logits(w, x).var(-1).mean() + each(w, x, y).mean(),
    "rows merged with features": lambda w, x, y: jnp.mean(logits(w, x).reshape(-1) ** 2),
    "trace of a covariance": lambda w, x, y: jnp.trace(logits(w, x).T @ logits(w, x) / len(x)),
    "batch mean as a linear term": lambda w, x, y: (logits(w, x) + 0.3 * logits(w, x).mean(0)).mean(),
    "branch by a parameter": lambda w, x, y: jax.lax.cond(w[0, 0] > 0, jnp.mean, lambda v: 2 * v.mean(), each(w, x, y)),
    "parameters only": lambda w, x, y: jnp.sum(w**2),
    "accuracy beside it": _whole_numbers,
    "dot of rows": lambda w, x, y: jnp.dot(each(w, x, y), seen(y)) / len(x),
    "convolution": lambda w, x, y: (
        jax.lax.conv_general_dilated(x[:, None], w.T[:, None, :3], (1,), "SAME") ** 2
    ).mean(),
}  # fmt: skip

WRONG: dict[str, Loss] = {
    "sum": lambda w, x, y: each(w, x, y).sum(),
    "sum over a constant": lambda w, x, y: each(w, x, y).sum() / 32,
    "sum over a root": lambda w, x, y: each(w, x, y).sum() / len(x) ** 0.5,
    "sum and regularised": lambda w, x, y: each(w, x, y).sum() + 0.1 * jnp.sum(w**2),
    "masked": lambda w, x, y: (each(w, x, y) * seen(y)).sum() / seen(y).sum(),
    "masked, at least 1": lambda w, x, y: (each(w, x, y) * seen(y)).sum() / jnp.maximum(seen(y).sum(), 1),
    "mean where": lambda w, x, y: jnp.mean(each(w, x, y), where=y > 1),
    "nanmean": lambda w, x, y: jnp.nanmean(jnp.where(y > 1, each(w, x, y), jnp.nan)),
    "root of a mean": lambda w, x, y: jnp.sqrt((logits(w, x) ** 2).mean()),
    "batch statistics": lambda w, x, y: (jax.nn.standardize(logits(w, x), axis=0) ** 4).mean(),
    "variance over rows": lambda w, x, y: logits(w, x).var(),
    "contrastive": lambda w, x, y: optax.softmax_cross_entropy_with_integer_labels(
        logits(w, x) @ logits(w, x).T, jnp.arange(len(x))
    ).mean(),
    "largest": lambda w, x, y: each(w, x, y).max(),
    "log of a sum": lambda w, x, y: jax.nn.logsumexp(each(w, x, y)),
    "clipped": lambda w, x, y: jnp.minimum(each(w, x, y).mean(), 1.7),
    "balance of experts": lambda w, x, y: (
        jax.nn.softmax(logits(w, x)).mean(0) * jax.nn.one_hot(y, CLASSES).mean(0)
    ).sum(),
    "covariance squared": lambda w, x, y: ((logits(w, x).T @ logits(w, x) / len(x)) ** 2).sum(),
    "branch by the batch": lambda w, x, y: jax.lax.cond(x.sum() > 0, jnp.mean, lambda v: 2 * v.mean(), each(w, x, y)),
    "pw.mean over a maximum": lambda w, x, y: pw.mean((each(w, x, y) * seen(y)).sum(), jnp.maximum(seen(y).sum(), 1)),
    "pw.mean of a mean": lambda w, x, y: pw.mean((each(w, x, y) * seen(y)).mean(), seen(y).sum()),
    "pw.mean squared": lambda w, x, y: pw.mean((each(w, x, y) * seen(y)).sum(), seen(y).sum()) ** 2,
    "count of parameters": lambda w, x, y: pw.mean(each(w, x, y).sum(), (logits(w, x) > 0).sum()),
}  # fmt: skip

TABLE = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float32)


def _pairs(w: Any, x: Any, y: Any) -> Any:
    """Every row against every other, one at a time."""
    z = logits(w, x)
    return jnp.mean(jax.lax.map(lambda one: jnp.mean(jnp.sqrt(1e-3 + jnp.sum((one - z) ** 2, -1))), z))


def _all_pairs(w: Any, x: Any, y: Any) -> Any:
    z = logits(w, x)
    far = jax.lax.map(lambda a: jax.lax.map(lambda b: jnp.sqrt(1e-3 + jnp.sum((a - b) ** 2)), z), z)
    return jnp.mean(far)


WRONG |= {
    "pairs by map": _pairs,
    "pairs by two maps": _all_pairs,
    "by the size": lambda w, x, y: each(w, x, y).mean() * (1.0 if len(x) >= ROWS else 0.5),
    "sum over a logarithm": lambda w, x, y: each(w, x, y).sum() / np.log2(len(x)),
    "last number of the rows": lambda w, x, y: each(w, x, y).mean() * jnp.arange(len(x))[-1],
    "largest number of the rows": lambda w, x, y: each(w, x, y).mean() * jnp.max(jnp.arange(len(x))),
}

WRONG_GRADIENTS: dict[str, Loss] = {
    "tangents of other rows": lambda w, x, y: jnp.mean(_same(logits(w, x)) ** 2),
    "clipped gradients": lambda w, x, y: each(_clipped(w), x, y).mean(),
}
"""Losses whose parts have the right value, and gradients that only numbers tell from those of the whole."""

WRONG |= {
    "selected by the size": lambda w, x, y: jnp.where(jnp.asarray(len(x)) > 8, 1.0, 0.3) * each(w, x, y).mean(),
    "a parameter by the size": lambda w, x, y: each(w, x, y).mean() * w[len(x) % 7, 0],
    "a slice of parameters by the size": lambda w, x, y: (
        each(w, x, y).mean() * jax.lax.dynamic_slice(w, (jnp.int32(len(x) % 7), jnp.int32(0)), (1, CLASSES)).sum()
    ),
    "parameters by the size": lambda w, x, y: each(w, x, y).mean() * w[jnp.ones_like(y).sum() % 7].sum(),
    "features by the size": lambda w, x, y: (x[:, len(x) % 7] * each(w, x, y)).mean(),
    "a table by the size": lambda w, x, y: each(w, x, y).mean() + w[(y * len(x)) % 7].mean(),
    "a power by the size": lambda w, x, y: jnp.mean((0.5 * logits(w, x)) ** (len(x) // 4)),
    "noise by the size": lambda w, x, y: each(
        w + jax.random.normal(jax.random.fold_in(jax.random.key(0), len(x)), w.shape), x, y
    ).mean(),
    "sum over a square of the size": lambda w, x, y: (each(w, x, y)[:, None] * jnp.ones((len(x),) * 2)).sum(1).mean(),
    "sum over repeated rows": lambda w, x, y: jnp.repeat(each(w, x, y)[:, None], len(x), 1).sum(1).mean(),
    "product with as many": lambda w, x, y: (jnp.repeat(each(w, x, y)[:, None], len(x), 1) @ jnp.ones(len(x))).mean(),
    "softmax over as many": lambda w, x, y: (
        jax.nn.softmax(jnp.repeat(each(w, x, y)[:, None], len(x), 1), 1)[:, 0] * each(w, x, y)
    ).mean(),
    "sum over classes by the size": lambda w, x, y: logits(w, x)[:, jnp.arange(len(x)) % CLASSES].sum(1).mean(),
    "one hot of the size": lambda w, x, y: (jax.nn.one_hot(y * 2, len(x)) * each(w, x, y)[:, None]).sum(1).mean(),
    "product of as many": lambda w, x, y: each(w, x, y).mean() * jnp.prod(jnp.full(len(x), 0.9)),
}
RIGHT["mean over a square of the size"] = lambda w, x, y: (
    (each(w, x, y)[:, None] * jnp.ones((len(x),) * 2)).mean(1).mean()
)


UNKNOWN: dict[str, Loss] = {
    "a branch by the size": lambda w, x, y: jax.lax.cond(
        jnp.asarray(len(x)) > 8, lambda v: v.mean(), lambda v: 0.3 * v.mean(), each(w, x, y)
    ),
    "running by scan": lambda w, x, y: jnp.mean(
        jax.lax.scan(lambda c, a: (c * 0.5 + a,) * 2, jnp.zeros(()), each(w, x, y))[1] ** 2
    ),
    "running minimum": lambda w, x, y: jnp.mean(
        jax.lax.scan(lambda c, a: (jnp.minimum(c, a),) * 2, jnp.full((), 9.0), each(w, x, y))[1]
    ),
    "weights by a counting carry": lambda w, x, y: jnp.mean(
        jax.lax.scan(lambda g, a: (g * 0.5, g * a), jnp.ones(()), each(w, x, y))[1]
    ),
    "weights of a table": lambda w, x, y: jnp.mean(jnp.asarray(TABLE)[: len(x), 0] * each(w, x, y)),
    "table read from 0": lambda w, x, y: jnp.mean(
        jax.lax.dynamic_slice_in_dim(jnp.asarray(TABLE), 0, len(x))[:, 0] * each(w, x, y)
    ),
    "padded weights": lambda w, x, y: jnp.mean(jnp.pad(jnp.ones(len(x) - 1), (0, 1)) * each(w, x, y)),
    "its own feature": lambda w, x, y: jnp.mean(x[jnp.arange(len(x)), jnp.arange(len(x)) % 3] * w.sum()),
    "first row": lambda w, x, y: jnp.where(jnp.arange(len(x)) == 0, each(w, x, y).mean(), 0).mean(),
    "as many turns as rows": lambda w, x, y: jax.lax.while_loop(
        lambda c: c[0] < len(x), lambda c: (c[0] + 1, c[1] * 0.9), (jnp.zeros(()), each(w, x, y).mean())
    )[1],
    "Fourier transform over rows": lambda w, x, y: jnp.mean(jnp.abs(jnp.fft.fftn(logits(w, x)))),
    "neighbours": lambda w, x, y: (logits(w, x) * jnp.roll(logits(w, x), 1, 0)).mean(),
    "running sum": lambda w, x, y: jnp.cumsum(each(w, x, y)).mean(),
    "weights by position": lambda w, x, y: (each(w, x, y) * jnp.arange(len(x))).mean(),
    "first half": lambda w, x, y: each(w, x, y)[: len(x) // 2].mean(),
    "sorted": lambda w, x, y: (jnp.sort(each(w, x, y)) * jnp.linspace(0, 1, len(x))).mean(),
}


def _ranked(w: Any, x: Any, y: Any) -> Any:
    """A surrogate that is 0 for every batch, whose gradients weigh rows by their rank."""
    ranks = jnp.argsort(jnp.argsort(x[:, 0])) / len(x)
    own = each(w, x, y)
    return jnp.mean(jnp.exp(own - jax.lax.stop_gradient(own)) * (ranks - ranks.mean()))


UNKNOWN_BUT_RIGHT: dict[str, Loss] = {
    "custom gradient": _custom,
    "sorted and averaged": lambda w, x, y: jnp.sort(each(w, x, y)).mean(),
    "rows in two groups": lambda w, x, y: jnp.mean(logits(w, x).reshape(2, -1) ** 2),
    "host function": lambda w, x, y: (
        each(w, x, y) * jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape[:1], jnp.float32), x[:, 0])
    ).mean(),
}  # fmt: skip


def data(seed: int = 0, rows: int = ROWS) -> tuple[Any, Any, Any]:
    """Weights, input and labels."""
    random = np.random.default_rng(seed)
    w, x = random.normal(size=(FEATURES, CLASSES)), random.normal(size=(rows, FEATURES))
    return w.astype(np.float32), x.astype(np.float32), random.integers(0, CLASSES, rows).astype(np.int32)
