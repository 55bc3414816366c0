"""Sharded data parallelism over one axis of a place and tensor parallelism over another."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.cost.hlo.hlo_collectives import hlo_collectives_of
from pathways_nb.cost.hlo.hlo_text import parse
from tests.jax.fsdp.test_scan_gathers import batch, scanned
from tests.jax.fsdp.test_scan_gathers import model as stacked_model
from tests.support.closeness import close

LAYERS, WORDS = 3, 40
COLUMN, ROW = pw.P(None, "model"), pw.P("model")


def model(width: int = 32, inner: int = 64) -> dict[str, Any]:
    made = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (made.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)

    layers = [
        {"w1": normal(width, inner), "w2": normal(inner, width), "bias": np.zeros(inner, np.float32),
         "scale": np.ones(width, np.float32)} for _ in range(LAYERS)
    ]  # fmt: skip
    return {"embed": normal(WORDS, width), "layers": layers, "out": normal(width, WORDS)}


LAYER = {"w1": COLUMN, "w2": ROW, "bias": ROW, "scale": pw.P()}
SHARDINGS = {"embed": pw.P(), "layers": [LAYER] * LAYERS, "out": COLUMN}


def loss(params: Any, words: Any, targets: Any) -> jax.Array:
    h = params["embed"][words]
    for layer in params["layers"]:
        h = h + jnp.tanh(h * layer["scale"] @ layer["w1"] + layer["bias"]) @ layer["w2"]
    return -jnp.take_along_axis(jax.nn.log_softmax(h @ params["out"]), targets[..., None], -1).mean()


@pytest.fixture
def grid(controller: pw.Controller) -> pw.VirtualSlice:
    return pw.virtual_slice((2, 2), axes=("data", "model"), island=0, name="grid")


def check(step: pw.FsdpStep, loss: Any, params: Any, state: bool = False) -> Any:
    """The loss and the gradients are those of plain JAX; return the gradients' futures."""
    made = step.init(params)
    value, gradients = step.value_and_grad(made[0] if state else made, *batch())
    expected, whole = jax.jit(jax.value_and_grad(loss))(params, *batch())
    close((value, gradients), (expected, whole))
    return gradients


def spec_of(future: Any) -> Any:
    return future.array().sharding.spec


@pytest.mark.parametrize("mode", ["ddp", "zero1", "zero2", "zero3"])
def test_gradients_and_steps_are_those_of_plain_jax(grid: pw.VirtualSlice, mode: str) -> None:
    params, optimizer = model(), optax.sgd(0.1, momentum=0.9)
    step = pw.fsdp(loss, params, on=grid, axis="data", mode=mode, shardings=SHARDINGS, optimizer=optimizer)
    check(step, loss, params, state=True)
    kept, state = step.init(params)
    plain, plain_state = params, optimizer.init(params)
    for _ in range(2):
        kept, state, _ = step(kept, state, *batch())
        gradients = jax.jit(jax.grad(loss))(plain, *batch())
        updates, plain_state = optimizer.update(gradients, plain_state, plain)
        plain = optax.apply_updates(plain, updates)
    close(kept, plain)


def test_parameters_gradients_and_state_are_split_over_both_axes(grid: pw.VirtualSlice) -> None:
    params = model()
    step = pw.fsdp(loss, params, on=grid, axis="data", shardings=SHARDINGS, optimizer=optax.adam(1e-3))
    gradients = check(step, loss, params, state=True)
    kept, state = step.init(params)
    for tree in (kept, gradients, state[0].mu):
        layer = tree["layers"][0]
        assert spec_of(layer["w1"]) == pw.P("data", "model")
        assert spec_of(layer["w2"]) == pw.P("model", "data")
        assert spec_of(layer["scale"]) == pw.P("data")
        assert spec_of(layer["bias"]) == pw.P("model"), "its one dimension is taken"


def elements(step: pw.FsdpStep, params: Any, sizes: dict[str, int]) -> Counter[tuple[str, tuple[str, ...]]]:
    """Return the elements on one device that each kind of collective exchanges over each axis, compiled."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, *batch()))
    whole = pw.program(lambda params, *batch: step.value_and_grad(params, *batch), name="whole")
    (made,) = whole.compiled(*shapes).values()
    found = Counter[tuple[str, tuple[str, ...]]]()
    for one in hlo_collectives_of(parse(made.as_text()), sizes):
        found[one.kind, one.axes] += one.times * sum(math.prod(dims) for _, dims in one.parts)
    return found


@pytest.mark.usefixtures("usual_effort")
def test_nothing_is_gathered_over_the_other_axis(grid: pw.VirtualSlice) -> None:
    params = model()
    step = pw.fsdp(loss, params, on=grid, axis="data", mode="zero2", shardings=SHARDINGS)
    found = elements(step, params, {"data": 2, "model": 2})
    assert {key for key in found if key[1] == ("model",)} == {("all-reduce", ("model",))}
    split = sum(math.prod(leaf.shape) for leaf in [params["out"], *(layer[name] for layer in params["layers"]
                                                                    for name in ("w1", "w2"))])  # fmt: skip
    biases = LAYERS * 64  # whole on each device of the axis of the batch
    rest = sum(leaf.size for leaf in jax.tree.leaves(params)) - split - biases
    assert found["all-gather", ("data",)] == split // 2 + rest
    assert len(step.plan.buckets) == 2 + LAYERS, "parameters share buckets, whatever splits them"


@pytest.mark.usefixtures("usual_effort")
def test_stacked_parameters_are_gathered_in_loops(grid: pw.VirtualSlice) -> None:
    loss, params = scanned(remat=True), stacked_model(width=30, inner=50)
    stack = {"w1": pw.P(None, None, "model"), "w2": pw.P(None, "model"), "scale": pw.P()}
    shardings = {"embed": pw.P(), "layers": stack, "out": pw.P()}
    step = pw.fsdp(loss, params, on=grid, axis="data", shardings=shardings)
    check(step, loss, params)
    found = elements(step, params, {"data": 2, "model": 2})
    assert not any(kind == "all-gather" and axes != ("data",) for kind, axes in found)


def test_hybrid_sharding_leaves_a_third_axis_to_the_compiler(controller: pw.Controller) -> None:
    with pw.attach("cpu", islands=1, devices_per_island=8):
        place = pw.virtual_slice((2, 2, 2), axes=("replicate", "shard", "model"))
        params = model(width=30)
        step = pw.fsdp(loss, params, on=place, mode="hsdp", shardings=SHARDINGS)
        gradients = check(step, loss, params)
        assert spec_of(gradients["layers"][0]["w1"]) == pw.P("shard", "model")


def test_a_prefix_of_the_tree_is_enough(grid: pw.VirtualSlice) -> None:
    params = model()
    step = pw.fsdp(loss, params, on=grid, shardings={"embed": None, "layers": ROW, "out": None})
    check(step, loss, params)
    assert [one.others for one in step.parameters if one.name == "layers.1.w2"] == [pw.P("model")]


def test_the_axis_of_the_batch_is_refused(grid: pw.VirtualSlice) -> None:
    with pytest.raises(pw.UsageError, match=r"parameter embed has shardings=P\('data'\), which names 'data', the axis"):
        pw.fsdp(loss, model(), on=grid, axis="data", shardings=pw.P("data"))


def test_a_parameter_that_is_not_divided_is_refused(grid: pw.VirtualSlice) -> None:
    with pytest.raises(
        pw.ShardingError, match=r"fsdp: parameter layers.0.bias has shape \(63,\) and shardings=P\('model'"
    ):
        pw.fsdp(loss, model(inner=63), on=grid, axis="data", shardings=SHARDINGS)


def test_numbers_of_16_bits_are_added_up(grid: pw.VirtualSlice) -> None:
    """XLA on CPU ends the process at such a sum in code that leaves an axis to the compiler."""
    params = model()
    step = pw.fsdp(loss, params, on=grid, axis="data", shardings=SHARDINGS, param_dtype=jnp.bfloat16)
    _, gradients = step.value_and_grad(step.init(params), *batch())
    whole = jax.jit(jax.grad(loss))(params, *batch())
    close(gradients, whole, 5e-2)
