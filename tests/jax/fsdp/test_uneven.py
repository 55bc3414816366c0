"""Parameters that the devices do not divide: padded inside a step, of their true shape for everybody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import pathways_nb as pw
from tests.jax.fsdp.test_modes import split, trained
from tests.support.closeness import close

ADAM = optax.adam(1e-2, eps=1e-3)
SHAPES = {"five": (5,), "table": (7, 3), "scalar": (), "one": (1,), "two": (2,), "w": (3, 7), "even": (12, 12)}
X = np.random.default_rng(1).normal(size=(24, 3)).astype("f4")


def model() -> dict[str, Any]:
    chance = np.random.default_rng(0)
    return {name: np.asarray(chance.normal(size=shape), "f4") for name, shape in SHAPES.items()}


def loss(params: Any, x: Any) -> Any:
    y = jnp.tanh(x @ params["w"]) @ params["table"] * params["scalar"] + params["one"]
    rest = sum((jnp.cos(params[name]) ** 2).mean() for name in ("five", "two", "even"))
    return ((y - 1) ** 2).mean() + rest


def steps(step: pw.FsdpStep, count: int, kept: Any, state: Any) -> tuple[Any, Any, list[float]]:
    values = []
    for _ in range(count):
        kept, state, value = step(kept, state, X)
        values.append(float(value))
    return kept, state, values


def of(devices: int | tuple[int, int]) -> pw.VirtualSlice:
    return pw.virtual_slice(devices, axes=("r", "s") if isinstance(devices, tuple) else ("x",), island=0)


def is_padded(future: pw.Future) -> bool:
    return future.aval.padded is not None


def test_the_picture_of_a_padded_parameter_says_what_each_device_has(controller: Any) -> None:
    place = of(4)
    kept = pw.fsdp(loss, model(), on=place).init(model())
    layout = pw.show_sharding(kept["table"])
    assert is_padded(kept["table"])
    assert layout.lines[1:] == [
        "dimension 0 of size 7: 2 on 3 devices, 1 and 1 of padding on 1 device",
        "padding is memory behind the array, which no shape and no read shows",
    ]
    assert "JAX takes no uneven array" in str(pw.show_sharding((7, 3), pw.P("x"), place))


# ---- training


CASES = [
    ("ddp", 3),
    ("zero1", 3),
    ("zero1", 4),
    ("zero2", 3),
    ("zero3", 2),
    ("zero3", 3),
    ("zero3", 4),
    ("hsdp", (2, 2)),
]


@pytest.fixture(scope="module")
def plain() -> Any:
    return trained(ADAM, model(), X, loss=loss)


@pytest.mark.parametrize(("mode", "devices"), CASES)
def test_every_mode_trains_as_plain_jax_and_keeps_true_shapes(
    controller: Any, plain: Any, mode: str, devices: Any
) -> None:
    step = pw.fsdp(loss, model(), on=of(devices), mode=mode, optimizer=ADAM)
    kept, state, values = steps(step, 3, *step.init(model()))
    params, moments, losses = plain
    close(values, losses)
    close(kept, params)
    close(state, moments, 1e-4)
    expected = {"ddp": (False, False), "zero1": (False, True)}.get(mode, (True, True))
    assert (is_padded(kept["five"]), is_padded(state[0].mu["five"])) == expected
    value, gradients = step.value_and_grad(kept, X)
    exact = jax.value_and_grad(loss)(pw.get(kept), X)
    close((value, gradients), exact, least=1e-3)


@pytest.mark.parametrize("mode", ["zero1", "zero3"])
def test_momentum_and_donation(controller: Any, mode: str) -> None:
    optimizer = optax.sgd(1e-1, momentum=0.9)
    step = pw.fsdp(loss, model(), on=of(4), mode=mode, optimizer=optimizer, donate=True)
    first, state = step.init(model())
    kept, state, values = steps(step, 3, first, state)
    params, moments, losses = trained(optimizer, model(), X, loss=loss)
    close((values, kept, state), (losses, params, moments), 1e-4)
    with pytest.raises(pw.LostError, match="was donated at"):
        first["five"].result()


def test_parameters_that_were_not_laid_out_are_padded_by_the_step(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(loss, model(), on=left, optimizer=ADAM)
    close(step.value_and_grad(model(), X), jax.value_and_grad(loss)(model(), X))
    close(step(model(), ADAM.init(model()), X), step(*step.init(model()), X))


def test_arrays_of_the_padded_shape_are_refused(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(loss, model(), on=left, optimizer=ADAM)
    kept, state = step.init(model())
    wide = np.zeros(8, np.float32)
    with pytest.raises(pw.UsageError, match=r"parameter five has the shape \[8\], but the step was made for \[5\]"):
        step.value_and_grad({**kept, "five": wide}, X)
    moments = state[0]._replace(mu={**state[0].mu, "five": wide})
    with pytest.raises(
        pw.UsageError, match=r"0.mu.five of the state has the shape \[8\], but \[5\] for these parameters"
    ):
        step(kept, (moments, *state[1:]), X)


def test_other_axes_dtypes_microbatches_and_auxiliary_outputs(controller: Any) -> None:
    place = pw.virtual_slice((2, 2), axes=("data", "model"), island=0)
    params = {"w": np.random.default_rng(0).normal(size=(3, 4)).astype("f4"), "b": np.arange(3, dtype=np.float32)}

    def with_aux(params: Any, x: Any) -> Any:
        value = ((x @ params["w"]) ** 2).mean() + ((x * params["b"]) ** 2).mean()
        return value, {"b": jnp.full(4, value), "w": jnp.full((4, 4), value)}  # of the padded shapes

    step = pw.fsdp(
        with_aux, params, on=place, axis="data", shardings={"w": pw.P(None, "model"), "b": None}, has_aux=True,
        accumulate=2, optimizer=ADAM, param_dtype=jnp.float16, reduce_dtype=jnp.float32,
    )  # fmt: skip
    kept, state = step.init(params)
    assert kept["w"].aval.padded == (4, 4)
    assert kept["w"].sharding.spec == pw.P("data", "model")
    (value, aux), gradients = step.value_and_grad(kept, X)
    (expected, _), exact = jax.value_and_grad(with_aux, has_aux=True)(params, X)
    close((value, gradients), (expected, exact), 1e-2)
    close(aux, {"b": np.full(4, value.result()), "w": np.full((4, 4), value.result())}, 1e-2)
    close(step(kept, state, X)[0], trained_once(with_aux, params, X), 1e-2)


def trained_once(loss: Any, params: Any, *batch: Any) -> Any:
    gradients = jax.grad(loss, has_aux=True)(params, *batch)[0]
    return optax.apply_updates(params, ADAM.update(gradients, ADAM.init(params))[0])


# ---- what a user reads


def test_every_read_is_of_the_true_shape(left: pw.VirtualSlice, right: pw.VirtualSlice) -> None:
    step = pw.fsdp(loss, model(), on=left, optimizer=ADAM)
    kept, five = step.init(model()), model()["five"]
    future, moment = kept[0]["five"], kept[1][0].mu["five"]
    assert is_padded(future)
    assert is_padded(moment)
    assert (future.shape, future.size, future.nbytes, len(future), future.ndim) == ((5,), 5, 20, 5, 1)
    assert "float32[5]" in repr(future)
    for read in (future.result(), np.asarray(future), jax.device_get(future), list(future), future.array()):
        np.testing.assert_array_equal(read, five)
    assert moment.result().shape == np.asarray(moment).shape == moment.array().shape == (5,)
    close(pw.get(kept[0]), model())
    assert str(pw.show_sharding(future)).startswith("float32[5], 20 B, as P('x') on left")
    mean = np.float32(five.mean())
    for on in (left, right):
        close(pw.jit(jnp.mean, on=on)(future), mean)
        close(pw.jit(lambda v: v, on=on)(future), five)
    close(pw.jit(loss, on=left)(kept[0], X), loss(model(), X))
    close(pw.program(lambda v: (v.mean(), v))(future), (mean, five))
    with pw.record():
        doubled = pw.jit(lambda v: v * 2, on=left)(future)
        again = pw.jit(jnp.mean, on=right)(doubled)
    close(again, 2 * mean)
    close(pw.put(future, on=right), five)


def test_a_pipeline_and_another_step_read_it(controller: Any) -> None:
    four, three = (pw.fsdp(loss, model(), on=of(devices), optimizer=ADAM) for devices in (4, 3))
    kept, state, _ = steps(four, 1, *four.init(model()))
    expected = four(kept, state, X)
    close(three(kept, state, X), expected)
    close(three.value_and_grad(kept, X), four.value_and_grad(kept, X))
    close(three(*three.init(kept, state), X), expected)
    stages = [lambda params, x: jnp.tanh(x @ params), lambda params, x: x @ params]
    places = [pw.virtual_slice(1, island=island) for island in (0, 1)]
    pipe = pw.pipeline(
        stages, on=places, schedule="gpipe", microbatches=2, loss=lambda y, targets: jnp.mean((y - targets) ** 2)
    )
    pair, targets = (kept["w"], kept["table"]), np.ones((24, 3), np.float32)
    value, gradients = pipe.value_and_grad(pair, X, targets)
    exact = jax.value_and_grad(lambda pair: ((jnp.tanh(X @ pair[0]) @ pair[1] - targets) ** 2).mean())(pw.get(pair))
    close((value, list(gradients)), (exact[0], list(exact[1])))


def test_inside_a_program_values_are_true_and_results_stay_split(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(loss, model(), on=left, optimizer=ADAM)

    @pw.program
    def twice(params: Any, state: Any, x: Any) -> Any:
        params, state, _ = step(params, state, x)
        mean = params["five"].mean()
        return *step(params, state, x), mean

    kept, state, _, mean = twice(*step.init(model()), X)
    once = steps(step, 1, *step.init(model()))[0]
    close(mean, np.float32(once["five"].result().mean()))
    close((kept, state), steps(step, 2, *step.init(model()))[:2])
    assert split(kept["five"]) == split(state[0].mu["five"]) == 4
    assert is_padded(kept["five"])
    titles = [node.name for node in twice.graph(*step.init(model()), X).nodes]
    assert sum("slice" in title for title in titles) == 1, "only what somebody reads is cropped"


# ---- small ones


def test_small_ones_stay_whole_and_are_counted_so(left: pw.VirtualSlice) -> None:
    params = {"table": np.ones((1001, 63), np.float32), "bias": np.ones(63, np.float32), "even": np.ones(8, np.float32)}

    def mean(params: Any, x: Any) -> Any:
        return ((x @ params["table"] + params["bias"]) ** 2).mean() * params["even"].mean()

    x = np.ones((8, 1001), np.float32) / 1001
    for mode in ("ddp", "zero1", "zero2", "zero3"):
        step = pw.fsdp(mean, params, on=left, mode=mode, optimizer=ADAM, batch=(x,))
        assert {one.name: one.dim for one in step.parameters} == {"bias": None, "even": 0, "table": 0}
        kept, state = step.init(params)
        parts = {"ddp": 1, "zero1": 1}.get(mode, 4)
        assert [split(kept[name]) for name in ("bias", "even", "table")] == [1, parts, parts]
        moments = {name: split(leaf) for name, leaf in state[0].nu.items()}
        assert moments == {"bias": 1, "even": 1 if mode == "ddp" else 4, "table": 1 if mode == "ddp" else 4}
    assert step.whole_below == pytest.approx(4 * (1001 * 63 + 63 + 8) / 1000)
    assert "3 arrays (2 uneven: 1 below 253 B stay whole, 1 are padded)" in repr(step)
    graph = step.graph()
    kinds = {graph.names(op.carries): op.name for op in graph.collectives if op.carries and not op.is_gather}
    assert kinds == {("bias",): "all_reduce", ("even",): "reduce_scatter", ("table",): "reduce_scatter"}
    assert not any("bias" in graph.names(op.carries) for op in graph.collectives if op.is_gather)
    peak = step.timeline(chip="gpu_h100_sxm").memory.at_peak()
    assert peak["parameters"] == 4 * (63 + 2 + 251 * 63)
    assert peak["optimizer"] == 2 * peak["parameters"] + 4
    planner = step.planner(chip="gpu_h100_sxm")
    for plan in (planner.per_block(), planner.greedy(), planner.search(budget=20)):
        assert planner.timeline(plan).exposed >= planner.bound_of(plan) * (1 - 1e-9)
    close(
        step(kept, state, x), pw.fsdp(mean, params, on=left, mode="ddp", optimizer=ADAM)(params, ADAM.init(params), x)
    )
    large = pw.fsdp(mean, {"a": jax.ShapeDtypeStruct((2**30,), "f4"), "b": jax.ShapeDtypeStruct((1,), "f4")}, on=left)
    assert large.whole_below == 2**20


# ---- saved states


def test_a_state_goes_from_four_devices_to_three_and_two_and_back(controller: Any, tmp_path: Path) -> None:
    four, three, two = (pw.fsdp(loss, model(), on=of(devices), optimizer=ADAM) for devices in (4, 3, 2))
    now = steps(four, 1, *four.init(model()))[:2]
    for number, step in enumerate((three, two, four, three, four)):
        path = tmp_path / str(number)
        pw.save_state(path, now)
        close(pw.restore_state(path, like=pw.get(now)), now)
        assert {leaf.shape for leaf in jax.tree.leaves(pw.restore_state(path))} == set(SHAPES.values())
        restored = pw.restore_state(path, like=step.init(model()))
        close(restored, now)
        assert is_padded(restored[0]["five"])
        assert split(restored[1][0].nu["five"]) == step.parameters[0].parts
        now = steps(step, 1, *restored)[:2]
    params, moments, gradient = model(), ADAM.init(model()), jax.jit(jax.grad(loss))
    for _ in range(6):
        updates, moments = ADAM.update(gradient(params, X), moments, params)
        params = optax.apply_updates(params, updates)
    close(now, (params, moments), 1e-4)
    on = pw.restore_state(path, like=four.init(model()), on=of(1))
    assert not is_padded(on[0]["five"])
    close(on[0]["five"], pw.restore_state(path)[0]["five"])


def as_before(path: Path) -> None:
    """Let a saved state not say whether it may have padding, and have no digests."""
    about = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({"format": 1, "tree": about["tree"], "leaves": about["leaves"]}))


def old_state(path: Path, params: Any, state: Any, parts: int) -> None:
    """Save as it was done when steps showed their padding: arrays with zeros at the end."""
    step = pw.fsdp(loss, model(), on=of(parts), optimizer=ADAM)
    layout = step._spec.layout
    pw.save_state(path, jax.tree.map(np.asarray, (layout.padded(params), layout.padded(state))))
    as_before(path)


@pytest.mark.filterwarnings("ignore:.*older than digests:RuntimeWarning")
def test_old_states_with_padding_open(controller: Any, tmp_path: Path) -> None:
    params, state, _ = trained(ADAM, model(), X, loss=loss)
    path = tmp_path / "old"
    old_state(path, params, state, 4)
    assert pw.restore_state(path)[0]["five"].shape == (8,)
    for devices in (4, 3, 2, 1):
        step = pw.fsdp(loss, model(), on=of(devices), optimizer=ADAM)
        restored = pw.restore_state(path, like=step.init(model()))
        close(restored, (params, state))
        close(step(*restored, X)[2], loss(params, X))
    close(pw.restore_state(path, like=(model(), ADAM.init(model()))), (params, state))
    close(pw.restore_state(path, like=(model(), ADAM.init(model())), on=of(2)), (params, state))


@pytest.mark.filterwarnings("ignore:.*older than digests:RuntimeWarning")
def test_what_is_cut_off_an_old_state_is_zero(controller: Any, tmp_path: Path) -> None:
    path, like = tmp_path / "old", {"w": np.zeros(5, np.float32)}
    refused = r"\['w'\] has the shape \(8,\) in the saved state and \(5,\) in like=. Pass the saved shape"
    pw.save_state(path, {"w": np.r_[np.ones(5), 0, 0, 0].astype("f4")})
    with pytest.raises(pw.UsageError, match=refused):
        pw.restore_state(path, like=like)
    as_before(path)
    np.testing.assert_array_equal(pw.restore_state(path, like=like)["w"], np.ones(5))
    pw.save_state(path, {"w": np.ones(8, np.float32)}, overwrite=True)
    as_before(path)
    with pytest.raises(pw.UsageError, match=refused):
        pw.restore_state(path, like=like)


# ---- simulated devices


def test_simulated_devices_with_values_and_without(tmp_path: Path) -> None:
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4, values=True):
        step = pw.fsdp(loss, model(), on=of(4), optimizer=ADAM)
        kept, state, values = steps(step, 2, *step.init(model()))
        params, moments, losses = trained(ADAM, model(), X, loss=loss)
        close(values, losses[:2])
        assert kept["five"].result().shape == (5,)
        close(pw.jit(jnp.mean, on=of(1))(kept["five"]), np.float32(kept["five"].result().mean()))
        pw.save_state(tmp_path / "state", (kept, state))
        restored = pw.restore_state(tmp_path / "state", like=step.init(model()))
        close(restored, (kept, state))
        close(step(*restored, X)[:2], (params, moments), 1e-4)
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4):
        step = pw.fsdp(loss, model(), on=of(4), optimizer=ADAM)
        kept, state = step.init(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), model()))
        restored, _ = pw.restore_state(tmp_path / "state", like=(kept, state))
        assert restored["five"].shape == (5,)
        pw.wait(step(restored, state, X))
        pw.wait(pw.jit(jnp.mean, on=of(1))(restored["five"]))


# ---- models


class Words(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(1001, 64, rngs=rngs)
        self.mlp = nnx.Linear(64, 50, rngs=rngs)
        self.out = nnx.Linear(50, 1001, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        return self.out(nnx.tanh(self.mlp(self.embed(words))))


def test_a_vocabulary_of_1001_words(controller: Any) -> None:
    graph, params = nnx.split(Words(nnx.Rngs(0)))
    words = np.random.default_rng(3).integers(0, 1001, (2, 12), dtype=np.int32)

    def cross_entropy(params: Any, words: Any, targets: Any) -> Any:
        logits = nnx.merge(graph, params)(words)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    for devices in (3, 4):
        step = pw.fsdp(cross_entropy, params, on=of(devices), optimizer=ADAM)
        kept, state = step.init(params)
        for _ in range(2):
            kept, state, value = step(kept, state, *words)
        expected = trained_twice(cross_entropy, params, *words)
        close((kept, value), expected, 1e-4)
        assert nnx.merge(graph, pw.get(kept)).embed.embedding[...].shape == (1001, 64)


def trained_twice(loss: Any, params: Any, *batch: Any) -> Any:
    state, value_and_grad = ADAM.init(params), jax.jit(jax.value_and_grad(loss))
    for _ in range(2):
        value, gradients = value_and_grad(params, *batch)
        updates, state = ADAM.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    return params, value
