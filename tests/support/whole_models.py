"""Training steps whose blocks cannot be taken out one by one, or read others than their neighbours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.block_models import (
    SEQ,
    D,
    Made,
    causal,
    llama_layer,
    llama_loss,
    mixture,
    nll,
    params_of,
    plain_step,
    tables_of,
    tokens_of,
    weights,
)  # fmt: skip


def scanned_blocks(n: int) -> Made:
    def loss(params: Any, tokens: Any) -> Any:
        tables, mask = tables_of(SEQ), causal()
        x, _ = jax.lax.scan(
            lambda x, p: (llama_layer(p, x, tables, mask), None), params["embed"][tokens], params["blocks"]
        )
        return nll(params, x, tokens)

    params = params_of(n)
    params["blocks"] = jax.tree.map(lambda *p: jnp.stack(p), *params["blocks"])
    return plain_step(loss), (params, tokens_of(2, SEQ))


def indexed_blocks(n: int) -> Made:
    """Stacked parameters of which each block takes its own."""
    _, (params, tokens) = scanned_blocks(n)

    def loss(params: Any, tokens: Any) -> Any:
        blocks = [jax.tree.map(lambda p, at=at: p[at], params["blocks"]) for at in range(n)]
        return llama_loss({**params, "blocks": blocks}, tokens)

    return plain_step(loss), (params, tokens)


def all_hidden_states(n: int) -> Made:
    """A loss that reads what each block made, at once."""

    def loss(params: Any, tokens: Any) -> Any:
        x, seen = params["embed"][tokens], []
        for p in params["blocks"]:
            x = llama_layer(p, x, tables_of(SEQ), causal())
            seen.append(x)
        return nll(params, jnp.concatenate(seen, -1).reshape(*x.shape, n).mean(-1), tokens)

    return plain_step(loss), (params_of(n), tokens_of(2, SEQ))


def two_before(n: int) -> Made:
    """Each block reads the two blocks before it."""

    def loss(params: Any, x: Any) -> Any:
        before = x
        for p in params:
            before, x = x, jnp.tanh(x @ p["a"] + jnp.sin(before))
        return (x * before).mean()

    rng = np.random.default_rng(n)
    return plain_step(loss), ([weights(rng, a=(D, D)) for _ in range(n)], weights(rng, x=(4, D))["x"])


def growing(n: int) -> Made:
    """Layers of which each is wider than the one before."""

    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = jnp.tanh(x @ p["a"])
        return (x**2).mean()

    rng = np.random.default_rng(n)
    return plain_step(loss), ([weights(rng, a=(D + at, D + at + 1)) for at in range(n)], weights(rng, x=(4, D))["x"])


def u_net(n: int) -> Made:
    """Each block of the second half reads what one of the first half made."""

    def loss(params: Any, x: Any) -> Any:
        seen = []
        for p in params[: n // 2]:
            x = jnp.tanh(x @ p["a"])
            seen.append(x)
        for p in params[n // 2 :]:
            x = jnp.tanh((x + seen.pop()) @ p["a"])
        return (x**2).mean()

    rng = np.random.default_rng(n)
    return plain_step(loss), ([weights(rng, a=(D, D)) for _ in range(n)], weights(rng, x=(4, D))["x"])


def counted_in_arrays(n: int) -> Made:
    """A loop in each block that runs as often as an array says, in one block more often."""

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embed"][tokens]
        for number, p in enumerate(params["blocks"]):
            x = llama_layer(p, x, tables_of(SEQ), causal())
            trips = jnp.asarray(np.array([100 if number == n // 2 else 1], np.int32))[0]
            x += jax.lax.stop_gradient(jax.lax.fori_loop(0, trips, lambda _, y: jnp.sin(y), x))
        return nll(params, x, tokens)

    return plain_step(loss), (params_of(n), tokens_of(2, SEQ))


UNCHANGED: dict[str, Callable[[int], Made]] = {
    "a scan over blocks": scanned_blocks,
    "blocks take theirs from a stack": indexed_blocks,
    "losses of all routers are stacked": functools.partial(mixture, summed=False),
    "a loss reads all blocks": all_hidden_states,
    "layers that grow": growing,
    "loops counted in arrays": counted_in_arrays,
}
"""Steps of blocks that cannot be taken out one by one."""
