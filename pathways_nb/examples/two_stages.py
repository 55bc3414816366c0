"""The byte-level language model as programs: two stages on two islands, or all of it on one virtual slice.

Both are built from the same functions of ``byte_lm`` and take the same arguments, so that their losses can be compared
step by step. Notebook 01, tests and benches use them.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

import pathways_nb as pw
from pathways_datasets.text import batches, stdlib_source
from pathways_nb.examples import byte_lm

MICROBATCHES, BATCH, LENGTH = 8, 8, 64
adam = optax.adamw(3e-3)


def pipelined(left: pw.VirtualSlice, right: pw.VirtualSlice, microbatches: int = MICROBATCHES) -> pw.Program:
    """Return a training step with the first stage on ``left`` and the second on ``right``, data-parallel in each.

    Args:
        left: virtual slice of the first stage.
        right: virtual slice of the second stage.
        microbatches: number of microbatches of a step.
    """
    rows = pw.P(left.axes[0])
    first = pw.jit(byte_lm.embed_and_blocks, on=left, in_shardings=(None, rows), out_shardings=rows)
    second = pw.jit(byte_lm.blocks_and_loss, on=right, in_shardings=(None, rows, rows))

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        # In a Python loop, which the tracer unrolls: each microbatch has nodes of its own, which overlap.
        parts = [second(params["second"], first(params["first"], tokens[i]), targets[i]) for i in range(microbatches)]
        return sum(parts) / microbatches

    return pw.program(training_step(loss), name="train_step")


def spmd(place: pw.VirtualSlice) -> pw.Computation:
    """Return the same training step as one computation on one virtual slice, data-parallel over all its devices."""
    rows = pw.P(None, place.axes[0])
    return pw.jit(training_step(byte_lm.whole_loss), on=place, in_shardings=(None, None, rows, rows))


def training_step(loss: Any) -> Any:
    """Return an AdamW step on a loss.

    Args:
        loss: ``loss(params, tokens, targets)``, a scalar.

    Returns:
        A function of ``(params, state, tokens, targets)`` that returns new parameters, new state and the loss.
    """

    def train_step(params: Any, state: Any, tokens: Any, targets: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens, targets)
        updates, state = adam.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return train_step


def start() -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """Return initial parameters, optimizer state, and one batch with its targets, as host values.

    Returns:
        Parameters, state, tokens and targets; the latter two of shape (microbatches, B, L).
    """
    params = byte_lm.init(length=LENGTH)
    shape = (MICROBATCHES, BATCH, LENGTH)
    tokens, targets = next(batches(stdlib_source(), batch=MICROBATCHES * BATCH, length=LENGTH, seed=0))
    return params, jax.tree.map(np.asarray, adam.init(params)), tokens.reshape(shape), targets.reshape(shape)
