"""The quickstart's two-island training step against plain JAX on one device."""

from __future__ import annotations

import jax

import pathways_nb as pw
from pathways_nb.examples import byte_lm, two_stages
from tests.support.closeness import close


def test_three_steps_equal_the_unsharded_model(controller) -> None:
    left, right = pw.virtual_slice(4), pw.virtual_slice(4)
    step = two_stages.pipelined(left, right)
    plain = jax.jit(two_stages.training_step(byte_lm.whole_loss))
    params, state, tokens, targets = two_stages.start()
    ours, theirs, losses = (params, state), (params, state), []
    for _ in range(3):
        *ours, loss = step(*ours, tokens, targets)
        *theirs, expected = plain(*theirs, tokens, targets)
        losses.append(float(loss))
        close(losses[-1], expected)
    assert losses[2] < losses[0]
    close(ours, theirs, 1e-4)  # Adam divides by the roots of small squares


def test_gradients_equal_the_unsharded_model(controller) -> None:
    left, right = pw.virtual_slice(4), pw.virtual_slice(4)
    rows = pw.P("x")
    first = pw.jit(byte_lm.embed_and_blocks, on=left, in_shardings=(None, rows), out_shardings=rows)
    second = pw.jit(byte_lm.blocks_and_loss, on=right, in_shardings=(None, rows, rows))

    def loss(params, tokens, targets):
        parts = [second(params["second"], first(params["first"], tokens[i]), targets[i]) for i in range(2)]
        return sum(parts) / 2

    params, _, tokens, targets = two_stages.start()
    tokens, targets = tokens[:2], targets[:2]
    ours = pw.program(jax.grad(loss))(params, tokens, targets)
    theirs = jax.jit(jax.grad(byte_lm.whole_loss))(params, tokens, targets)
    close(ours, theirs)
