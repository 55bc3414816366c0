"""Mixture of experts by a sparse exchange: tokens are sent only to the places of the chosen experts, and back.

Which experts a batch needs is known only when the router has run. The controller fetches one vector, how many tokens
each expert gets, and dispatches a program in which only chosen experts occur (Pathways, section 4.5: a node whose
needs depend on data is dispatched when they are known). That program's edges are the whole exchange, so the node that
combines the results has everything when its inputs are there: no expert need say that it sends nothing (section 4.3).

Each expert gets the same number of rows, rounded up to a power of two times ``LEAST``: shapes decide what is compiled,
and exact counts would compile anew for almost every batch.

Symbols: T tokens of D features, E experts, C rows of each chosen expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import jit

LEAST = 8
"""Fewest rows that an expert is compiled for."""


class Chosen(NamedTuple):
    """The experts that run, and C, the rows that each of them gets. A static argument: it decides the graph."""

    experts: tuple[int, ...]
    capacity: int


def bucket(count: int, least: int = LEAST) -> int:
    """Return the smallest of ``least``, 2 · ``least``, 4 · ``least``, … that is at least ``count``.

    Args:
        count: rows that must fit.
        least: the smallest size.
    """
    capacity = max(least, 1)
    while capacity < count:
        capacity *= 2
    return capacity


def choose(counts: Any, least: int = LEAST) -> Chosen:
    """Return the experts that got tokens, with room for the largest share, so that no token is dropped.

    Args:
        counts: tokens of each expert, shape (E,). A future is fetched: this is what the program must wait for.
        least: see ``bucket``.

    Raises:
        UsageError: ``counts`` is not a vector of whole numbers, or no expert got a token.
    """
    tokens = np.asarray(counts)  # (E,)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        shape = f"{tokens.dtype}[{','.join(map(str, tokens.shape))}]"
        raise UsageError(f"choose(counts): counts is {shape}; give the number of tokens of each expert, mask.sum(0).")
    if not tokens.any():
        raise UsageError(f"choose(counts): none of {len(tokens)} experts got a token; there is nothing to run.")
    return Chosen(tuple(np.flatnonzero(tokens).tolist()), bucket(int(tokens.max()), least))


def everyone(experts: int, tokens: int) -> Chosen:
    """Return all experts, each with room for all tokens.

    Right for every routing, so that no value has to be fetched, at the price of E · T rows in all.

    Args:
        experts: number of experts, E.
        tokens: number of tokens, T.
    """
    return Chosen(tuple(range(experts)), tokens)


def route(gates: jax.Array, top: int = 1) -> jax.Array:
    """Return whether each token goes to each expert, (T, E): to those of its largest gates.

    Args:
        gates: weight of each expert for each token, (T, E).
        top: number of experts of each token.
    """
    _, experts = jax.lax.top_k(gates, top)
    return jax.nn.one_hot(experts, gates.shape[1], dtype=bool).any(1)


class Experts:
    """Experts on places of their own, fed from a router's place. A call inside a program is their part of its graph.

    Args:
        expert: ``expert(params, tokens)``, (C, D) to (C, D'), each row by itself. It must be finite for rows of zeros,
            which fill the rows of a chosen expert that have no token.
        router: the place of tokens, gates and results.
        on: the place of each expert.
        spec: partition spec of the results on the router's place.
    """

    def __init__(
        self,
        expert: Callable[[Any, jax.Array], jax.Array],
        router: VirtualSlice,
        on: Sequence[VirtualSlice],
        spec: PartitionSpec = PartitionSpec(),  # noqa: B008  (it never changes)
    ):
        self._experts = [jit(expert, on=place) for place in on]
        # Both see whole arrays on each of the router's devices: any of them may hold an expert's next token.
        self._send = jit(send, on=router, static_argnames="chosen")
        self._combine = jit(combine, on=router, out_shardings=spec, static_argnames="chosen")

    def __call__(
        self, params: Mapping[int, Any], tokens: jax.Array, gates: jax.Array, mask: jax.Array, chosen: Chosen
    ) -> jax.Array:
        """Return the sum over each token's experts of gate times result, (T, D').

        Args:
            params: by expert; those of experts that are not chosen are not needed.
            tokens: input of the experts, (T, D).
            gates: weight of each expert for each token, (T, E).
            mask: result of ``route``, (T, E).
            chosen: result of ``choose`` or ``everyone``.

        Raises:
            UsageError: a chosen expert has no parameters or no place.
        """
        for expert in chosen.experts:
            if expert not in params or expert >= len(self._experts):
                raise UsageError(
                    f"expert {expert} is chosen, but there are parameters of {sorted(params)} "
                    f"and {len(self._experts)} places: give the parameters of {list(chosen.experts)}."
                )
        sent = self._send(tokens, mask, chosen=chosen)
        made = [self._experts[expert](params[expert], rows) for expert, rows in zip(chosen.experts, sent, strict=True)]
        return self._combine(made, gates, mask, chosen=chosen)


def send(tokens: jax.Array, mask: jax.Array, chosen: Chosen) -> list[jax.Array]:
    """Return for each chosen expert its tokens, (C, D), in their order, followed by rows of zeros."""
    return list(tokens.at[_rows(mask, chosen)].get(mode="fill", fill_value=0))


def combine(made: list[jax.Array], gates: jax.Array, mask: jax.Array, chosen: Chosen) -> jax.Array:
    """Return the results in the order of the tokens, times their gates and summed over the experts, (T, D').

    Args:
        made: result of each chosen expert, (C, D').
        gates: weight of each expert for each token, (T, E).
        mask: result of ``route``, (T, E).
        chosen: the experts that ran.
    """
    rows, results = _rows(mask, chosen), jnp.stack(made)  # (K, C) and (K, C, D')
    experts = jnp.array(chosen.experts)[:, None]  # (K, 1)
    # Rows without a token read the gate 0, and are dropped when rows are added to tokens.
    weighted = results * gates.at[rows, experts].get(mode="fill", fill_value=0)[:, :, None]
    return jnp.zeros((len(mask), results.shape[2]), results.dtype).at[rows].add(weighted, mode="drop")


def _rows(mask: jax.Array, chosen: Chosen) -> jax.Array:
    """Return the tokens of each of K chosen experts, (K, C), in their order, followed by T, the number of no token.

    An index out of range is what ``mode="fill"`` and ``mode="drop"`` act on: it reads zeros and writes nothing.
    """
    picked = mask[:, jnp.array(chosen.experts)]  # (T, K)
    # The row of a token is how many tokens before it chose the same expert; C, which is out of range, if it did not.
    slot = jnp.where(picked, jnp.cumsum(picked, 0) - 1, chosen.capacity)
    token, expert = jnp.indices(picked.shape)
    return jnp.full((len(chosen.experts), chosen.capacity), len(mask)).at[expert, slot].set(token, mode="drop")
