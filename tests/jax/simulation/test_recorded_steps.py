"""Simulated steps beside those that were measured on a real accelerator; see ``pathways_datasets.recorded_files``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

import pathways_nb as pw
from pathways_datasets import recorded_files
from pathways_nb.examples.llama3 import Shape, loss, params

STEPS = {
    "h200_llama_8x2048": (Shape(8, 2048, 5632, 16, 8, 32_000), 8, 1024, False),
    "h200_llama_4x4096_remat": (Shape(4, 4096, 14_336, 32, 8, 32_000), 4, 2048, True),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_on_one_gpu_takes_as_long_as_predicted(name) -> None:
    shape, batch, length, remat = STEPS[name]
    of_one, optimizer, weights = loss(shape, remat), optax.adamw(1e-3), params(shape)

    def step(weights, state, tokens, targets):
        def halved(weights):
            return of_one(jax.tree.map(lambda one: one.astype(jnp.bfloat16), weights), tokens, targets)

        value, gradients = jax.value_and_grad(halved)(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    with pw.attach("sim", chip="gpu_h200_sxm", islands=1, devices_per_island=1):
        node = pw.jit(step, on=pw.virtual_slice(1), donate_argnums=(0, 1))
        with pw.record() as run:
            pw.wait(node(weights, jax.eval_shape(optimizer.init, weights), tokens, tokens)[2])
    (predicted,) = run.events.of_kind("compute")["end"] - run.events.of_kind("compute")["start"]
    measured = recorded_files()[f"{name}.xplane.pb"]["seconds_per_step"]
    assert predicted == pytest.approx(measured, rel=0.1), "2 % more and 4 % less when they were recorded"
