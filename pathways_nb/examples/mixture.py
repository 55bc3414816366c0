"""A small mixture of experts in plain JAX: it knows nothing of places or programs.

Symbols: T tokens of D features, E experts with H hidden features each. Tokens come in kinds, as words come from
languages: a kind is a centre in the space of features and a map of its own, which the mixture is to learn.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.parallel.experts import route

Params = dict[str, Any]


class Kinds:
    """Tokens of ``count`` kinds: (T, D) inputs near a kind's centre, and what its own linear map makes of them."""

    def __init__(self, count: int = 4, dim: int = 64, seed: int = 0):
        self.random = np.random.default_rng(seed)
        self.centres = self.random.choice([-1.0, 1.0], (count, dim))
        self.maps = self.random.standard_normal((count, dim, dim)) / np.sqrt(dim)

    def batch(self, *tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """So many ``tokens`` of each kind in any order, and their targets, as float32."""
        kind = self.random.permutation(np.repeat(np.arange(len(tokens)), tokens))
        x = self.centres[kind] + 0.3 * self.random.standard_normal((len(kind), self.centres.shape[1]))
        y = np.einsum("td,tde->te", x, self.maps[kind])
        return x.astype(np.float32), y.astype(np.float32)


def init(kinds: Kinds, hidden: int = 256, seed: int = 0) -> tuple[Params, list[Params]]:
    """Parameters of the router and of each expert, as host values; each kind has an expert that it begins with."""
    random = np.random.default_rng(seed)
    experts, dim = kinds.centres.shape

    def weight(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    front = {"mix": np.eye(dim, dtype=np.float32), "router": (kinds.centres.T / dim).astype(np.float32)}
    return front, [{"up": weight(dim, hidden), "down": weight(hidden, dim)} for _ in range(experts)]


def features(front: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tokens (T, D) as experts see them, and their gates (T, E), which add up to one."""
    tokens = jnp.tanh(x @ front["mix"])
    return tokens, jax.nn.softmax(4 * tokens @ front["router"])


def expert(params: Params, tokens: jax.Array) -> jax.Array:
    """One expert: (C, D) to (C, D)."""
    return jax.nn.gelu(tokens @ params["up"]) @ params["down"]


def error(y: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean squared error."""
    return jnp.mean((y - targets) ** 2)


def dense_loss(front: Params, experts: list[Params], x: jax.Array, targets: jax.Array, top: int = 1) -> jax.Array:
    """The loss as one function on one device: every expert computes every token, and what was not chosen is masked."""
    tokens, gates = features(front, x)
    made = jnp.stack([expert(params, tokens) for params in experts])
    return error(jnp.einsum("te,etd->td", gates * route(gates, top), made), targets)
