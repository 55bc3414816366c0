"""Every mode trains a Llama as plain JAX on one device does, and keeps what it says in shards."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.examples import llama
from pathways_nb.parallel.pipelines.token_context import Context
from pathways_nb.program.specs import axes_of
from tests.support.closeness import close

SIZE = llama.Size(features=32, shared_heads=1, hidden=40, vocabulary=44)
TOKENS, STEPS = 8, 3
OPTIMIZER = optax.adamw(1e-2, eps=1e-3, weight_decay=0.1)
PLACES = {"ddp": 4, "zero2": 4, "zero3": 8, "hsdp": (2, 4), "zero1, uneven": 3, "zero3, uneven": 3}


def loss(params: Any, tokens: Any, targets: Any) -> jax.Array:
    context = Context(0, TOKENS, TOKENS, TOKENS)
    return llama.loss(llama.stage(params, tokens, context), targets)


def model() -> Any:
    return llama.stages([1], SIZE)[1][0]


def batch() -> tuple[np.ndarray, np.ndarray]:
    return llama.batch(24, TOKENS, SIZE)


def keeping_gradients() -> optax.GradientTransformation:
    """The identity, whose state is the gradients."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params), lambda updates, *_: (updates, updates)
    )


def trained(optimizer: Any, params: Any, *batch: Any, loss: Any = loss) -> tuple[Any, Any, list[float]]:
    """Parameters, state and losses of some steps of plain JAX on one device."""

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state, values = optimizer.init(params), []
    for _ in range(STEPS):
        params, state, value = step(params, state)
        values.append(float(value))
    return params, state, values


@pytest.fixture(scope="module")
def plain() -> Any:
    return trained(optax.chain(keeping_gradients(), OPTIMIZER), model(), *batch())


@pytest.fixture
def eight(watchdog: None) -> Any:
    with pw.attach("cpu", islands=1, devices_per_island=8) as made:
        yield made


def split(future: Any) -> int:
    """Into how many parts an array lies over the devices."""
    sharding = future.sharding
    return math.prod(sharding.mesh.shape[axis] for entry in sharding.spec for axis in axes_of(entry))


@pytest.mark.parametrize("name", PLACES)
def test_three_steps_are_those_of_plain_jax(eight: pw.Controller, plain: Any, name: str) -> None:
    place, mode = PLACES[name], name.split(",")[0]
    on = pw.virtual_slice(place, axes=("r", "s") if isinstance(place, tuple) else ("d",))
    step = pw.fsdp(loss, model(), on=on, mode=mode, optimizer=optax.chain(keeping_gradients(), OPTIMIZER))
    (params, state), values = step.init(model()), []
    for _ in range(STEPS):
        params, state, value = step(params, state, *batch())
        values.append(float(value))
    expected, expected_state, losses = plain
    close(values, losses)
    close(step.whole(state[0]), expected_state[0])
    close(step.whole(params), expected)
    parts = on.shape[-1]
    kept = parts if mode in ("zero2", "zero3", "hsdp") else 1
    assert {split(leaf) for leaf in jax.tree.leaves(params)} == {kept}
    moments = jax.tree.leaves(state[1][0].mu)
    assert {split(leaf) for leaf in moments} == {1 if mode == "ddp" else parts}
