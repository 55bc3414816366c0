"""What computations do, on square matrices: one of each kind that JAX transforms in a way of its own.

All keep the shape and the scale of what they take, so that they can follow each other in any order. Not among them is
``jax.lax.associative_scan``: XLA partitions its transpose wrongly, in plain JAX as well (0.10 and 0.12, seen on CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

N = 12
"""Rows and columns: 1, 2, 3 and 4 devices divide them."""
Array = Any


def softmax(x: Array) -> Array:
    return jax.nn.softmax(x) * 4 - 0.5


def log_softmax(x: Array) -> Array:
    return jax.nn.log_softmax(x, axis=0) * 0.3 + 1


def logsumexp(x: Array) -> Array:
    return x - jax.nn.logsumexp(x, axis=-1, keepdims=True) * 0.5


def cross_entropy(x: Array) -> Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(x), (jnp.arange(N) * 5 % N)[:, None], axis=1)
    return x * 0.5 - picked * 0.1


def solve(x: Array) -> Array:
    return jnp.linalg.solve(x @ x.T / N + 2 * jnp.eye(N), x)


def cholesky(x: Array) -> Array:
    return jnp.linalg.cholesky(x @ x.T / N + jnp.eye(N)) * 0.5 + x * 0.5


def layer_norm(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 0.1)


def rms_norm(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 0.1)


def tanh(x: Array) -> Array:
    return jnp.tanh(x)


def silu(x: Array) -> Array:
    return jax.nn.silu(x) + 0.1


def relu(x: Array) -> Array:
    return jax.nn.relu(x + 0.3) - 0.2


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x + 0.2)


def attention(x: Array) -> Array:
    return jax.nn.softmax(x @ x.T / N) @ x


def heads(x: Array) -> Array:
    split = x.reshape(N, 3, N // 3)
    scores = jax.nn.softmax(jnp.einsum("ihd,jhd->hij", split, split) / 2)
    return jnp.einsum("hij,jhd->ihd", scores, split).reshape(N, N) + x * 0.3


def transposed(x: Array) -> Array:
    return x.T * 0.9


def cumulated(x: Array) -> Array:
    return jnp.cumsum(x, axis=0) / N + x * 0.5


def embedded(x: Array) -> Array:
    return x[jnp.arange(N) * 7 % N] * 0.8 + jax.nn.one_hot(jnp.arange(N), N) * 0.1


def updated(x: Array) -> Array:
    return x.at[jnp.arange(3)].add(x[3:6]) * 0.7


def sliced(x: Array) -> Array:
    return jnp.concatenate([x[N // 2 :], jnp.sin(x[: N // 2])]) * 0.9


def convolved(x: Array) -> Array:
    return jax.vmap(lambda row: jnp.convolve(row, jnp.array([0.2, 0.5, 0.2]), mode="same"))(x)


def sorted_rows(x: Array) -> Array:
    return jnp.sort(x, axis=-1) * 0.8


def noisy(x: Array) -> Array:
    kept = jax.random.bernoulli(jax.random.key(0), 0.8, x.shape)
    return jnp.where(kept, x, 0.1)


def scan(x: Array) -> Array:
    def step(carry: Array, row: Array) -> tuple[Array, Array]:
        carry = jnp.tanh(carry + row)
        return carry, carry * row

    return jax.lax.scan(step, jnp.zeros(N, x.dtype), x)[1]


def layers(x: Array) -> Array:
    """A scan over layers whose body is rematerialised."""
    weights = jnp.stack([x.T, x * 0.5]) / N

    @jax.checkpoint
    def step(carry: Array, weight: Array) -> tuple[Array, None]:
        return jax.nn.softmax(carry @ weight) + carry * 0.5, None

    return jax.lax.scan(step, x, weights)[0]


def looped(x: Array) -> Array:
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) + x * 0.1, x)


def cond(x: Array) -> Array:
    return jax.lax.cond(x.mean() < 100, lambda y: jnp.tanh(y) * 1.1, lambda y: y * y, x)


def switch(x: Array) -> Array:
    return jax.lax.switch(jnp.clip(x[0, 0] * 0, 0, 2).astype(int), [jnp.sin, jnp.tanh, jnp.cos], x)


def mapped(x: Array) -> Array:
    return jax.lax.map(lambda row: jax.nn.softmax(row) + row * 0.5, x)


@jax.custom_vjp
def clipped(x: Array) -> Array:
    return x * 0.9


def _clipped_forward(x: Array) -> tuple[Array, Array]:
    return clipped(x), jnp.mean(x * x, axis=-1, keepdims=True)


def _clipped_backward(size: Array, gradient: Array) -> tuple[Array]:
    return (jax.nn.softmax(gradient) * 0.1 + gradient / (1 + size),)


clipped.defvjp(_clipped_forward, _clipped_backward)


@jax.custom_jvp
def straight(x: Array) -> Array:
    return jnp.sin(x)


@straight.defjvp
def _straight_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return straight(primals[0]), jnp.cos(primals[0]) * tangents[0] + jnp.zeros((N, N))


def steered(to: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """An identity whose cotangent goes through ``to``, such as a sharding constraint."""

    @jax.custom_vjp
    def through(x: Array) -> Array:
        return to(x)

    through.defvjp(lambda x: (to(x), None), lambda _, gradient: (to(gradient * 1.5),))
    return through


def reversed_twice(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function with a derivative rule of the user's, which runs it in its forward and its backward pass."""

    @jax.custom_vjp
    def own(x: Array) -> Array:
        return f(x)

    own.defvjp(lambda x: jax.vjp(f, x), lambda pull, gradient: (pull(gradient)[0] * 0.5 + gradient * 0.1,))
    return own


def told(f: Callable[..., Array]) -> Callable[..., dict[str, Array]]:
    """A function with outputs of several shapes and types. (No maximum: its derivative is 0 / 0 where XLA rounds twice.)"""

    def several(*values: Array) -> dict[str, Array]:
        found = f(*values)
        ids = jnp.arange(N) * 5 % N + (values[0][:, 0] * 0).astype(int)
        return {"all": found, "ids": ids, "mean": found.mean()}

    return several


def heard(computation: Callable[..., dict[str, Array]]) -> Callable[..., Array]:
    """One matrix again of what such a computation makes, outside of it."""

    def one(*values: Array) -> Array:
        told = computation(*values)
        return told["all"][told["ids"]] / (1 + told["mean"] ** 2) ** 0.5

    return one


def product(x: Array, y: Array) -> Array:
    return x @ y / 4


def gated(x: Array, y: Array) -> Array:
    return jax.nn.silu(x) * y + y * 0.3


def cross(x: Array, y: Array) -> Array:
    return jax.nn.softmax(x @ y.T / 4) @ y


def joined(x: Array, y: Array) -> Array:
    return jnp.concatenate([x[:5], y[5:]]) + x * 0.2


def solved(x: Array, y: Array) -> Array:
    return jnp.linalg.solve(jnp.tanh(x) + 5 * jnp.eye(N), y) * 2


def recurrent(x: Array, y: Array) -> Array:
    return jax.lax.scan(lambda carry, row: (jnp.tanh(y @ carry / 4 + row),) * 2, x[0], x)[1]


def chosen(x: Array, y: Array) -> Array:
    return jnp.where(jnp.eye(N, dtype=bool), x, y) * 0.9


def wide(x: Array, y: Array) -> Array:
    return jax.nn.log_softmax(jnp.concatenate([x, y], axis=1), axis=1)[:, :N] * 0.3 + 1


ONE = (softmax, log_softmax, logsumexp, cross_entropy, solve, cholesky, layer_norm, rms_norm, tanh, silu, relu, gelu,
       attention, heads, transposed, cumulated, embedded, updated, sliced, convolved, sorted_rows, noisy, scan, layers,
       looped, cond, switch, mapped, clipped, straight)  # fmt: skip
"""Of one matrix."""
TWO = (product, gated, cross, joined, solved, recurrent, chosen, wide)
"""Of two."""
NO_FORWARD_MODE = (clipped,)
"""Those of which there is no ``jax.jvp``."""


def summed(x: Array, axis: str) -> Array:
    return x * 0.5 + jax.lax.psum(x, axis) / 8


def centred(x: Array, axis: str) -> Array:
    return x - jax.lax.pmean(x.mean(), axis)


def normalised(x: Array, axis: str) -> Array:
    return x / (1 + jax.lax.psum(jnp.sum(x * x), axis)) * 9


def turned(x: Array, axis: str) -> Array:
    size = jax.lax.axis_size(axis)
    return jax.lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)]) * 0.9


def gathered(x: Array, axis: str) -> Array:
    return x * 0.5 + jax.nn.softmax(jax.lax.all_gather(x, axis)).mean(0)


def scattered(x: Array, axis: str) -> Array:
    part = jax.lax.psum_scatter(x.reshape(-1), axis, tiled=True)
    return x * 0.5 + jax.lax.all_gather(jnp.tanh(part), axis, tiled=True).reshape(x.shape) * 0.3


def exchanged(x: Array, axis: str) -> Array:
    there = jax.lax.all_to_all(x.reshape(-1), axis, split_axis=0, concat_axis=0, tiled=True)
    return jax.lax.all_to_all(jnp.sin(there), axis, split_axis=0, concat_axis=0, tiled=True).reshape(x.shape)


def ranked(x: Array, axis: str) -> Array:
    return x * (1 + jax.lax.axis_index(axis)) / 3


def ring(x: Array, axis: str) -> Array:
    """Collectives in a loop."""
    size = jax.lax.axis_size(axis)
    pairs = [(i, (i + 1) % size) for i in range(size)]

    def step(carry: Array, _: None) -> tuple[Array, None]:
        return jnp.tanh(jax.lax.ppermute(carry, axis, pairs) + x * 0.5), None

    return jax.lax.scan(step, x * 0.5, None, length=2)[0]


SHARED = (summed, centred, normalised, turned, gathered, scattered, exchanged, ranked, ring)
"""Of one shard that differs along an axis."""
EVEN = (summed, centred, normalised)
"""Of one shard that may also be the same along an axis."""
