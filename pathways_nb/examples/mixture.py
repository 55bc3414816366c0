"""A small mixture of experts in plain JAX without virtual slices or programs.

Symbols: T tokens of D features, E experts with H hidden features each. Tokens come in kinds: a kind has a centre in
feature space and a linear map of its own, which the mixture must learn. So the right expert of a token is known, and
the number of tokens of each kind sets the load of each expert. Experts on devices are in ``parallel.sparse_experts``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.parallel.sparse_experts import route

Params = dict[str, Any]


class Kinds:
    """Random tokens of several kinds.

    Args:
        count: number of kinds.
        dim: D, features of a token.
        seed: seed of centres, maps and batches.
    """

    def __init__(self, count: int = 4, dim: int = 64, seed: int = 0):
        self.random = np.random.default_rng(seed)
        self.centres = self.random.choice([-1.0, 1.0], (count, dim))
        self.maps = self.random.standard_normal((count, dim, dim)) / np.sqrt(dim)

    def batch(self, *tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens of all kinds in random order, with their targets.

        Args:
            *tokens: number of tokens of each kind.

        Returns:
            Inputs (T, D) near their kind's centre and targets (T, D), the kind's map of them, as float32.
        """
        kind = self.random.permutation(np.repeat(np.arange(len(tokens)), tokens))
        x = self.centres[kind] + 0.3 * self.random.standard_normal((len(kind), self.centres.shape[1]))
        y = np.empty_like(x)
        for one, map_ in enumerate(self.maps):  # a map for each token at once would take T · D² numbers
            y[kind == one] = x[kind == one] @ map_
        return x.astype(np.float32), y.astype(np.float32)


def init(kinds: Kinds, hidden: int = 256, seed: int = 0) -> tuple[Params, list[Params]]:
    """Return the parameters of the router and of each expert, as host values.

    The router starts with the kinds' centres, so that each kind has an expert of its own from the first step.

    Args:
        kinds: the tokens to learn.
        hidden: H, hidden features of an expert.
        seed: seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    experts, dim = kinds.centres.shape

    def weight(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    front = {"mix": np.eye(dim, dtype=np.float32), "router": (kinds.centres.T / dim).astype(np.float32)}
    return front, [{"up": weight(dim, hidden), "down": weight(hidden, dim)} for _ in range(experts)]


def features(front: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return tokens (T, D) as experts receive them, and their gates (T, E), which sum to one."""
    tokens = jnp.tanh(x @ front["mix"])
    # Sharp: most of the weight goes to one expert.
    return tokens, jax.nn.softmax(4 * tokens @ front["router"])


def expert(params: Params, tokens: jax.Array) -> jax.Array:
    """Return the output (C, D) of one expert for its C tokens (C, D)."""
    return jax.nn.gelu(tokens @ params["up"]) @ params["down"]


def error(y: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean squared error."""
    return jnp.mean((y - targets) ** 2)


def dense_loss(front: Params, experts: list[Params], x: jax.Array, targets: jax.Array, top: int = 1) -> jax.Array:
    """Return the loss computed on one device: every expert computes every token, and outputs not chosen are masked.

    Args:
        front: parameters of the router.
        experts: parameters of each expert.
        x: tokens (T, D).
        targets: what the mixture should return for them, (T, D).
        top: number of experts for each token.
    """
    tokens, gates = features(front, x)
    made = jnp.stack([expert(params, tokens) for params in experts])
    # (T, E) gates that are 0 for experts that were not chosen, times (E, T, D) outputs.
    return error(jnp.einsum("te,etd->td", gates * route(gates, top), made), targets)
