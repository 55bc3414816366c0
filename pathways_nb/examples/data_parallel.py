"""Data parallelism over islands: each trains on its part of the batch, and ``pw.all_reduce`` adds the gradients.

The model is ``llama``'s. Each block is a computation of its own, so the backward pass has a node for each block, and
the gradients of one block cross while the block before it still computes (Pathways, section 5.3 and Figure 12). Every
place keeps its own parameters and optimizer state; they stay equal to the last bit, because the sums are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

import pathways_nb as pw
from pathways_nb.examples import llama
from pathways_nb.parallel.pipelines.token_context import Context

Stages = list[Any]
"""The parameters of each stage of ``llama.stages``."""


def training_step(places: Sequence[pw.VirtualSlice], optimizer: Any, bucket_mb: float = 25.0) -> pw.Program:
    """Return a training step over several places; with one place, there is no exchange.

    Args:
        places: one on each island.
        optimizer: of Optax.
        bucket_mb: as for ``pw.all_reduce``.

    Returns:
        ``step(params, states, batches)``, where each argument is a list with an entry for each place, as from
        ``start``; it returns parameters, states, and the loss of the whole batch at each place.
    """
    losses = [loss_on(place) for place in places]

    def train_step(params: Any, states: Any, batches: Any) -> tuple[Any, Any, Any]:
        inputs = zip(losses, params, batches, strict=True)
        # Each block is a computation, so its gradients are there, and can be sent, before the whole backward pass is
        # done.
        made = [jax.value_and_grad(loss)(at, *batch) for loss, at, batch in inputs]
        if len(places) > 1:
            made = list(pw.all_reduce(made, across=list(places), mean=True, bucket_mb=bucket_mb))
        values, gradients = zip(*made, strict=True)
        changed = [optimizer.update(g, s, p) for g, s, p in zip(gradients, states, params, strict=True)]
        params = [optax.apply_updates(p, update) for p, (update, _) in zip(params, changed, strict=True)]
        return params, [state for _, state in changed], list(values)

    return pw.program(train_step, donate_argnums=(0, 1))


def loss_on(place: pw.VirtualSlice) -> Callable[..., Any]:
    """Return the loss of a list of stages at a place, a computation for each; rows of the batch are split."""
    rows = pw.P(place.axes[0])
    forward = pw.jit(_stage, on=place, in_shardings=(None, rows), out_shardings=rows)
    compare = pw.jit(llama.loss, on=place, in_shardings=rows)

    def loss(params: Stages, tokens: Any, targets: Any) -> Any:
        x = tokens
        for one in params:
            x = forward(one, x)
        return compare(x, targets)

    return loss


def whole_loss(params: Stages, tokens: Any, targets: Any) -> Any:
    """Return the same loss in plain JAX."""
    x = tokens
    for one in params:
        x = _stage(one, x)
    return llama.loss(x, targets)


def start(
    places: Sequence[pw.VirtualSlice], optimizer: Any, params: Stages, tokens: Any, targets: Any
) -> tuple[Any, Any, Any]:
    """Return the arguments of a first step: parameters and state at every place, and its equal part of the batch.

    Args:
        places: one on each island.
        optimizer: of Optax.
        params: as from ``llama.stages``, on the host.
        tokens: (B, L), as from ``llama.batch``; the number of places divides B.
        targets: (B, L).
    """
    # On the host, so that every place gets the same bits.
    state = jax.tree.map(np.asarray, optimizer.init(params))
    parts = [np.split(array, len(places)) for array in (tokens, targets)]
    here = [pw.put(part, on=place, shardings=pw.P(place.axes[0]))
            for place, part in zip(places, zip(*parts, strict=True), strict=True)]  # fmt: skip
    return [pw.put(params, on=place) for place in places], [pw.put(state, on=place) for place in places], here


def _stage(params: Any, x: Any) -> Any:
    length = x.shape[1]
    # Whole sequences: a context of one slice.
    return llama.stage(params, x, Context(0, length, length, length))
