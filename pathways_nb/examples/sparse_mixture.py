"""The small mixture of ``examples.mixture`` on places: training steps whose experts are chosen by data, or all run.

Symbols: T tokens of D features, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

import pathways_nb as pw
from pathways_nb.examples import mixture
from pathways_nb.parallel.sparse_experts import LEAST, Chosen, Experts, choose, group, route

RATE = 0.1
"""Learning rate."""


class SparseMixture:
    """A router at one place and experts at others.

    Args:
        router: the place of tokens, gates and results.
        homes: the place of each expert.
        top: number of experts of each token.
        least: fewest rows of an expert, as for ``choose``.
        spec: how tokens are split on the router's place.
    """

    def __init__(
        self,
        router: pw.VirtualSlice,
        homes: Sequence[pw.VirtualSlice],
        top: int = 1,
        least: int = LEAST,
        spec: PartitionSpec = pw.P(),  # noqa: B008  (it never changes)
    ):
        def look(front: mixture.Params, x: jax.Array) -> Any:
            tokens, gates = mixture.features(front, x)
            return (tokens, gates), group(route(gates, top))

        self.least, self.experts = least, Experts(mixture.expert, router, homes, spec)
        self._look = pw.jit(look, on=router, in_shardings=(None, spec), out_shardings=(spec, pw.P()))
        self._error = pw.jit(mixture.error, on=router, in_shardings=spec)
        self.begin = pw.program(
            lambda front, x: jax.vjp(lambda front: self._look(front, x), front, has_aux=True), name="begin"
        )
        self._finish = pw.program(jax.value_and_grad(self._error), name="finish")
        self._end = pw.program(lambda back, cotangents: back(cotangents)[0], name="end")
        self._learn = pw.program(learned, name="learn")
        self.step_in_one_graph = pw.program(self._step_in_one_graph, static_argnames="chosen", name="one graph")
        """``(front, experts, x, targets, chosen=)`` to loss and learned parameters: ``chosen`` decides the graph."""

    def gradients(
        self,
        front: mixture.Params,
        experts: Any,
        x: Any,
        targets: Any,
        choice: Callable[[Any], Chosen] | None = None,
    ) -> tuple[Any, Any, dict[int, Any]]:
        """Return the loss and its gradients of the router's parameters and, by number, of chosen experts.

        Args:
            front: parameters of the router.
            experts: parameters by expert; those of experts without tokens are not needed.
            x: tokens (T, D).
            targets: what the mixture should return for them, (T, D).
            choice: from counts, (E,), to the experts that run; by default those that got tokens.
        """
        (tokens, gates), front_back, groups = self.begin(front, x)
        chosen = choice(groups.counts) if choice else choose(groups.counts, self.least)
        outputs, experts_back = self.experts.vjp(experts, tokens, gates, groups, chosen)
        value, cotangent = self._finish(outputs, targets)
        of_experts, *cotangents = experts_back(cotangent)
        return value, self._end(front_back, tuple(cotangents)), of_experts

    def step(self, front: mixture.Params, experts: Any, x: Any, targets: Any) -> tuple[Any, Any, dict[int, Any]]:
        """Return the loss, and what the router's parameters and, by number, those of chosen experts become."""
        value, of_front, of_experts = self.gradients(front, experts, x, targets)
        changed = {expert: self._learn(experts[expert], gradients) for expert, gradients in of_experts.items()}
        return value, self._learn(front, of_front), changed

    def loss(self, front: mixture.Params, experts: Any, x: Any, targets: Any, chosen: Chosen) -> Any:
        """Return the loss, inside a program; JAX differentiates it.

        Args:
            front: parameters of the router.
            experts: parameters by expert.
            x: tokens (T, D).
            targets: what the mixture should return for them, (T, D).
            chosen: the experts that run.
        """
        (tokens, gates), groups = self._look(front, x)
        return self._error(self.experts(experts, tokens, gates, groups, chosen), targets)

    def _step_in_one_graph(self, front: Any, experts: Any, x: Any, targets: Any, chosen: Chosen) -> Any:
        of_both = jax.value_and_grad(self.loss, argnums=(0, 1))
        value, gradients = of_both(front, experts, x, targets, chosen=chosen)
        return value, *learned((front, experts), gradients)


def learned(params: Any, gradients: Any) -> Any:
    """Return parameters after one step of plain gradient descent."""
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
