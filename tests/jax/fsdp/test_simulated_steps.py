"""Steps of a Llama of 1.5 billion parameters on 128 simulated devices, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import pathways_nb as pw
from tests.jax.programs import llama

DEVICES, TOKENS, BLOCKS = 128, 2048, 2
SIZE = llama.cut(llama.LLAMA_8B, BLOCKS)
BATCH = (jax.ShapeDtypeStruct((DEVICES, TOKENS), jnp.int32),) * 2


@pytest.fixture
def simulated() -> Iterator[pw.Controller]:
    with pw.attach("sim", chip="tpu_v5p", islands=1, devices_per_island=DEVICES) as made:
        yield made


def loss(params: Any, tokens: Any, targets: Any) -> Any:
    return llama.language_loss(SIZE, params, tokens, targets)


def bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def simulate(step: pw.FsdpStep, params: Any) -> tuple[Any, Any]:
    """Return what a step leaves, and its recording."""
    kept = step.init(params)
    with pw.record() as run:
        params, state, _ = step(*kept, *BATCH)
    return (params, state), run


def test_each_device_holds_its_part_of_parameters_and_state(simulated: pw.Controller) -> None:
    params, optimizer = llama.abstract(SIZE), optax.adamw(1e-4)
    step = pw.fsdp(loss, params, on=pw.virtual_slice(DEVICES), optimizer=optimizer, mode="zero3")
    kept, run = simulate(step, params)
    assert 0.01 < run.summary().makespan < 1
    simulated.wait_all()
    whole = bytes_of((params, jax.eval_shape(optimizer.init, params)))
    (held,) = simulated.machine.memory.islands[0].totals
    assert held == pytest.approx(whole / DEVICES, rel=1e-4)
    del kept


def test_a_function_makes_the_parameters_where_they_are_kept(simulated: pw.Controller) -> None:
    params = llama.abstract(SIZE)
    step = pw.fsdp(loss, params, on=pw.virtual_slice(DEVICES))

    def normal(key: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape, leaf.dtype), params)

    kept = step.init(normal, jax.ShapeDtypeStruct((2,), jnp.uint32))
    value, gradients = step.value_and_grad(kept, *BATCH)
    assert value.shape == ()
    assert bytes_of(gradients) == bytes_of(params)


def test_tensor_parallelism_over_a_second_axis(simulated: pw.Controller) -> None:
    params = llama.abstract(SIZE)
    place = pw.virtual_slice((16, 8), axes=("data", "model"))
    shardings = llama.specs(SIZE)
    step = pw.fsdp(loss, params, on=place, axis="data", shardings=shardings, optimizer=optax.sgd(1e-4))
    kept, run = simulate(step, params)
    assert 0.01 < run.summary().makespan < 1
    simulated.wait_all()
    (held,) = simulated.machine.memory.islands[0].totals
    assert held == pytest.approx(bytes_of(params) / DEVICES, rel=1e-2), "norms are split over one axis only"
    del kept
