"""Mixture of experts by a sparse exchange: tokens are sent only to the places of the chosen experts, and back.

Which experts a batch needs is known only when the router has run. The controller fetches one vector, how many tokens
each expert gets, and calls each chosen expert by itself (Pathways, section 4.5: a node whose needs depend on data is
dispatched when they are known). The other experts are neither called nor sent to, and nobody need say that nothing
comes from them (section 4.3).

A call is traced once for a place and a capacity, the rows that an expert is given: its tokens, rounded up to a power of
two times ``LEAST``. So another choice of experts needs no new trace, nor does another expert at the same place: its
number is data.

Symbols: T tokens of D features, E experts, C rows of one expert, K chosen experts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import jit
from pathways_nb.session.calls.program import program

LEAST = 8
"""Fewest rows that an expert is compiled for."""

Params = Mapping[int, Any] | Sequence[Any]
"""Parameters by expert."""
PullBack = Callable[[jax.Array], tuple[dict[int, Any], jax.Array, jax.Array]]
"""From a result's cotangent to those of parameters, tokens and gates."""


class Chosen(NamedTuple):
    """The experts that run, and the rows, C, that each of them is given."""

    experts: tuple[int, ...]
    rows: tuple[int, ...]


class Groups(NamedTuple):
    """The tokens of each expert.

    Attributes:
        rows: (E, T): the tokens of each expert, in their order, followed by T, the number of no token.
        counts: (E,): how many tokens each expert gets.
        numbers: E arrays of shape (): the numbers of the experts. Sent from the host, they would cost each call a
            transfer.
    """

    rows: jax.Array
    counts: jax.Array
    numbers: list[jax.Array]


def route(gates: jax.Array, top: int = 1) -> jax.Array:
    """Return whether each token goes to each expert, (T, E): to those of its largest gates.

    Args:
        gates: weight of each expert for each token, (T, E).
        top: number of experts of each token.
    """
    _, experts = jax.lax.top_k(gates, top)
    return jax.nn.one_hot(experts, gates.shape[1], dtype=bool).any(1)


def group(mask: jax.Array) -> Groups:
    """Return the tokens of each expert, for ``choose`` and ``Experts``. Call it in a computation of the router.

    Args:
        mask: whether each token goes to each expert, (T, E): any number of experts for a token, also none.
    """
    tokens, experts = mask.shape
    # The row of a token is how many tokens before it chose the same expert; T, which is out of range, if it did not.
    row = jnp.where(mask, jnp.cumsum(mask, 0) - 1, tokens)
    token, expert = jnp.indices(mask.shape)
    rows = jnp.full((experts, tokens), tokens).at[expert, row].set(token, mode="drop")
    return Groups(rows, mask.sum(0), list(jnp.arange(experts)))


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
    """Return the experts that got tokens, each with room for all of its own, so that no token is dropped.

    Args:
        counts: tokens of each expert, shape (E,). A future is fetched: this is what Python must wait for.
        least: see ``bucket``. A larger one makes more rows of padding and fewer sizes to trace and compile.

    Raises:
        UsageError: ``counts`` is not a vector of whole numbers.
    """
    tokens = np.asarray(counts)  # (E,)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        shape = f"{tokens.dtype}[{','.join(map(str, tokens.shape))}]"
        raise UsageError(f"choose(counts): counts is {shape}; give the tokens of each expert, group(mask).counts.")
    experts = tuple(np.flatnonzero(tokens).tolist())
    return Chosen(experts, tuple(bucket(int(tokens[expert]), least) for expert in experts))


def everyone(experts: int, tokens: int) -> Chosen:
    """Return all experts, each with room for all tokens.

    Right for every routing, so that no value has to be fetched, at the price of E · T rows in all.

    Args:
        experts: number of experts, E.
        tokens: number of tokens, T.
    """
    return Chosen(tuple(range(experts)), (tokens,) * experts)


class Experts:
    """Experts on places of their own, fed from a router's place.

    Called outside programs, ``chosen`` comes from data and costs no new trace; ``vjp`` has the gradients. A call inside
    a program is a part of its graph, where ``chosen`` is static: each other choice is another graph, which JAX
    differentiates.

    Args:
        expert: ``expert(params, tokens)``, (C, D) to (C, D'), each row by itself. It must be finite for rows of zeros,
            which fill the rows that have no token.
        router: the place of tokens, gates and results.
        on: the place of each expert; several experts may be at one.
        spec: how tokens, gates and results are split on the router's place.
    """

    def __init__(
        self,
        expert: Callable[[Any, jax.Array], jax.Array],
        router: VirtualSlice,
        on: Sequence[VirtualSlice],
        spec: PartitionSpec = PartitionSpec(),  # noqa: B008  (it never changes)
    ):
        self._expert, self._router = expert, _AtRouter(router, spec)
        # One for a place: experts that share it share their traces.
        at = {place: _AtPlace(expert, place, self._router) for place in on}
        self._places = [at[place] for place in on]

    def __call__(
        self, params: Params, tokens: jax.Array, gates: jax.Array, groups: Groups, chosen: Chosen
    ) -> jax.Array:
        """Return the sum over each token's experts of gate times result, (T, D').

        Args:
            params: by expert; those of experts that are not chosen are not needed.
            tokens: input of the experts, (T, D).
            gates: weight of each expert for each token, (T, E).
            groups: result of ``group``.
            chosen: result of ``choose`` or ``everyone``. A token for which an expert has no row left gets nothing from
                this expert.

        Raises:
            UsageError: a chosen expert has no parameters or no place.
        """
        return self._run(params, tokens, gates, groups, chosen, keep=False)[0]

    def vjp(
        self, params: Params, tokens: jax.Array, gates: jax.Array, groups: Groups, chosen: Chosen
    ) -> tuple[jax.Array, PullBack]:
        """Return what a call returns, and the function that pulls its cotangent back, as ``jax.vjp`` does.

        Args:
            params: as for a call, like all that follow.
            tokens: (T, D).
            gates: (T, E).
            groups: the tokens of each expert.
            chosen: the experts that run.

        Returns:
            The result, (T, D'), and a function of its cotangent, (T, D'), that returns the cotangents of ``params``, by
            chosen expert, of ``tokens`` and of ``gates``. What it needs stays at its places as long as it lives.

        Raises:
            UsageError: as for a call.
        """
        total, kept = self._run(params, tokens, gates, groups, chosen, keep=True)
        like = _structs((tokens, gates))

        def pull_back(cotangent: jax.Array) -> tuple[dict[int, Any], jax.Array, jax.Array]:
            made = [self._places[expert].backward(*backs, cotangent) for expert, backs in kept]
            sums = self._router.zeros(like)
            for (expert, _), (_, cotangents) in zip(kept, made, strict=True):
                sums = self._router.collect(sums, cotangents, groups.rows, groups.numbers[expert])
            return {expert: gradients for (expert, _), (gradients, _) in zip(kept, made, strict=True)}, *sums

        return total, pull_back

    def _run(
        self, params: Params, tokens: Any, gates: Any, groups: Groups, chosen: Chosen, keep: bool
    ) -> tuple[Any, list[tuple[int, tuple[Any, Any]]]]:
        """Return the result, and for each chosen expert its number and what its backward pass needs, if kept."""
        self._check(params, chosen)
        rows, numbers = groups.rows, groups.numbers
        # All are sent their tokens before the first result is waited for: a device launches in the order of the calls.
        made = [
            self._places[expert].forward(params[expert], tokens, rows, numbers[expert], capacity, keep)
            for expert, capacity in zip(*chosen, strict=True)
        ]
        total, kept = self._router.zeros(self._result(params, tokens, gates, made)), []
        for expert, (part, back) in zip(chosen.experts, made, strict=True):
            total, combine_back = self._router.combine(total, part, gates, rows, numbers[expert], keep)
            kept.append((expert, (back, combine_back)))
        return total, kept

    def _check(self, params: Params, chosen: Chosen) -> None:
        """Check that each chosen expert has parameters and a place."""
        given = sorted(params) if isinstance(params, Mapping) else list(range(len(params)))
        for expert in chosen.experts:
            if expert not in given or expert >= len(self._places):
                raise UsageError(
                    f"expert {expert} is chosen, but there are parameters of {given} "
                    f"and {len(self._places)} places: give the parameters of {list(chosen.experts)}."
                )

    def _result(self, params: Params, tokens: Any, gates: Any, made: Sequence[tuple[Any, Any]]) -> Any:
        """Return the shape and type of the result, (T, D')."""
        some = next(iter(params.values() if isinstance(params, Mapping) else params), None)
        if made:
            part = made[0][0]
        elif some is not None:
            part = jax.eval_shape(self._expert, *_structs((some, tokens)))
        else:
            raise UsageError(
                "no expert is chosen, and no parameters tell the shape of its result: give those of any expert."
            )
        return jax.ShapeDtypeStruct((tokens.shape[0], *part.shape[1:]), jnp.result_type(gates.dtype, part.dtype))


class _AtPlace:
    """What is called for each expert at one place: forward and backward.

    Args:
        expert: the function.
        place: where it runs.
        router: what is called at the router's place.
    """

    def __init__(self, expert: Callable[[Any, jax.Array], jax.Array], place: VirtualSlice, router: _AtRouter):
        @functools.wraps(expert)
        def received(params: Any, rows: jax.Array) -> jax.Array:
            # What the backward pass keeps of an argument is the argument, which is on the router's place and would be
            # sent again; behind the barrier it is a value of this place.
            return expert(params, jax.lax.optimization_barrier(rows))

        call = jit(received, on=place)

        def forward(params: Any, tokens: Any, rows: Any, number: Any, capacity: int, keep: bool) -> tuple[Any, Any]:
            sent = router.send(tokens, rows, number, capacity=capacity)
            return jax.vjp(call, params, sent) if keep else (call(params, sent), None)

        def backward(expert_back: Any, combine_back: Any, cotangent: Any) -> tuple[Any, tuple[Any, Any]]:
            part, gates = combine_back(cotangent)
            gradients, rows = expert_back(part)
            return gradients, (rows, gates)

        self.forward = program(forward, static_argnames=("capacity", "keep"), name=f"to {place.label}")
        self.backward = program(backward, name=f"back to {place.label}")


class _AtRouter:
    """What is called at the router's place: make a sum, and add to it in place what comes from one expert."""

    def __init__(self, place: VirtualSlice, spec: PartitionSpec):
        add = jit(combine, on=place, in_shardings=(spec, None, spec, None, None), out_shardings=spec)
        self.send = jit(send, on=place, in_shardings=(spec, None, None), static_argnames="capacity")

        def combined(total: Any, made: Any, gates: Any, rows: Any, number: Any, keep: bool) -> tuple[Any, Any]:
            def of(made: Any, gates: Any) -> Any:
                return add(total, made, gates, rows, number)

            return jax.vjp(of, made, gates) if keep else (of(made, gates), None)

        self.zeros = program(jit(zeros, on=place, out_shardings=spec, static_argnames="like"), static_argnames="like")
        self.combine = program(combined, static_argnames="keep", donate_argnames="total", name="combine")
        add_cotangents = jit(collect, on=place, in_shardings=(spec, (None, spec), None, None), out_shardings=spec)
        self.collect = program(add_cotangents, donate_argnames="sums")


def zeros(like: Any) -> Any:
    """Return zeros of these shapes and types."""
    return jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), like)


def send(tokens: jax.Array, rows: jax.Array, number: jax.Array, capacity: int) -> jax.Array:
    """Return the tokens of one expert, (C, D), in their order, followed by rows of zeros."""
    # An index out of range is what ``mode="fill"`` and ``mode="drop"`` act on: it reads zeros and writes nothing.
    return tokens.at[rows[number, :capacity]].get(mode="fill", fill_value=0)


def combine(total: jax.Array, made: jax.Array, gates: jax.Array, rows: jax.Array, number: jax.Array) -> jax.Array:
    """Return ``total``, (T, D'), plus the result of one expert, (C, D'), times its gates, at its tokens."""
    made = jax.lax.optimization_barrier(made)  # as in ``_AtPlace``: kept here, not where it comes from
    tokens = rows[number, : made.shape[0]]
    weights = gates.at[tokens, number].get(mode="fill", fill_value=0)  # (C,)
    return total.at[tokens].add(weights[:, None] * made, mode="drop")


def collect(sums: tuple[Any, Any], cotangents: tuple[Any, Any], rows: jax.Array, number: jax.Array) -> tuple[Any, Any]:
    """Return the cotangents of tokens and gates, (T, D) and (T, E), plus those of one expert, (C, D) and (T, E)."""
    tokens, gates = sums
    of_rows, of_gates = cotangents
    return tokens.at[rows[number, : of_rows.shape[0]]].add(of_rows, mode="drop"), gates + of_gates


def _structs(tree: Any) -> Any:
    """Return shapes and types of arrays or futures."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
