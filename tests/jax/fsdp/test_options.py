"""What ``pw.fsdp`` takes beside a mode: dtypes, microbatches, frozen and tied parameters, optimizers, other leaves."""

from __future__ import annotations

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
from pathways_nb.parallel.fsdp.measured import planned_collectives
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph
from tests.jax.fsdp.test_modes import keeping_gradients, split, trained
from tests.support.closeness import close

WIDTH, INNER, WORDS, LAYERS = 6, 10, 13, 3


def model() -> dict[str, Any]:
    """Layers, and an embedding that is the output layer, too; no size is a multiple of four."""
    made = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (made.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    layers = [{"up": normal(WIDTH, INNER), "bias": normal(INNER), "down": normal(INNER, WIDTH)} for _ in range(LAYERS)]
    return {"embed": normal(WORDS, WIDTH), "layers": layers}


def loss(params: Any, words: Any, targets: Any, scale: Any = 1.0) -> jax.Array:
    h = params["embed"][words]
    for layer in params["layers"]:
        h = h + jnp.tanh(h @ layer["up"] + layer["bias"]) @ layer["down"]
    logits = h @ params["embed"].T * scale
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def batch() -> tuple[np.ndarray, np.ndarray]:
    words, targets = np.random.default_rng(1).integers(0, WORDS, (2, 24, 5), dtype=np.int32)
    return words, targets


@pytest.fixture(scope="module")
def plain() -> Any:
    return jax.jit(jax.value_and_grad(loss))(model(), *batch())


def dtypes(graph: StepGraph, name: str) -> set[str]:
    found = (op for op in graph.ops if isinstance(op, CollectiveOp) and op.carries and op.name == name)
    return {str(graph.flat.avals[op.inputs[0]].dtype) for op in found}


@pytest.mark.parametrize(
    ("param_dtype", "reduce_dtype", "tolerance"),
    [("bfloat16", "float32", 3e-2), (None, "bfloat16", 1e-2)],
)
def test_dtypes_of_parameters_and_sums(
    left: pw.VirtualSlice, plain: Any, param_dtype: Any, reduce_dtype: Any, tolerance: float
) -> None:
    step = pw.fsdp(loss, model(), on=left, param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    graph = step.graph(*batch())
    assert dtypes(graph, "all_gather") == {param_dtype or "float32"}
    assert dtypes(graph, "reduce_scatter") == {reduce_dtype or param_dtype or "float32"}
    found = pw.get(step.value_and_grad(step.init(model()), *batch()))
    close(found, plain, tolerance)
    assert {leaf.dtype for leaf in jax.tree.leaves(found[1])} == {np.dtype(np.float32)}


def test_microbatches_frozen_parameters_and_a_checkpoint(left: pw.VirtualSlice, plain: Any) -> None:
    recomputed = jax.checkpoint(loss, policy=jax.checkpoint_policies.dots_saveable)
    optimizer = optax.chain(keeping_gradients(), optax.adamw(1e-2, weight_decay=0.5))
    step = pw.fsdp(
        recomputed, model(), on=left, accumulate=3, optimizer=optimizer, frozen=lambda name: name.endswith("bias"),
    )  # fmt: skip
    graph = step.graph(*batch())
    assert graph.schedule().count("R") == 1 + LAYERS, "each bucket once, not for each microbatch"
    params, state, value = step(*step.init(model()), *batch())
    gradients = pw.get(step.whole(state[0]))
    close(value, plain[0])
    for ours, whole in zip(gradients["layers"], plain[1]["layers"], strict=True):
        close(ours, {**whole, "bias": np.zeros(INNER)})
    close(gradients["embed"], plain[1]["embed"])
    after = pw.get(step.whole(params))
    for ours, before in zip(after["layers"], model()["layers"], strict=True):
        np.testing.assert_array_equal(ours["bias"], before["bias"], "weight decay leaves frozen parameters alone")
        assert np.abs(ours["up"] - before["up"]).max() > 1e-3


def test_a_tied_parameter_is_one_leaf_with_the_gradient_of_all_its_uses(left: pw.VirtualSlice, plain: Any) -> None:
    step = pw.fsdp(loss, model(), on=left)
    graph = step.graph(*batch())
    embed = [op for op in graph.collectives if graph.names(op.carries) == ("embed",)]
    assert [(op.name, op.again) for op in embed] == [
        ("all_gather", False), ("all_gather", True), ("reduce_scatter", False)
    ]  # fmt: skip
    close(step.value_and_grad(step.init(model()), *batch()), plain)


OPTIMIZERS = {
    "sgd, clipped, decayed": optax.chain(
        optax.clip_by_global_norm(0.1), optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9)
    ),
    "multi_transform of adafactor": optax.multi_transform(
        {"fast": optax.chain(optax.ema(0.5), optax.sgd(1e-3)), "slow": optax.adafactor(1e-2, min_dim_size_to_factor=4)},
        {"embed": "fast", "layers": "slow"},
    ),
    "masked, accumulated": optax.MultiSteps(
        optax.masked(optax.lion(1e-3), lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)), 2
    ).gradient_transformation(),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_transform_of_optax(left: pw.VirtualSlice, name: str) -> None:
    optimizer = OPTIMIZERS[name]
    step = pw.fsdp(loss, model(), on=left, optimizer=optimizer)
    (params, state), values = step.init(model()), []
    for _ in range(3):
        params, state, value = step(params, state, *batch())
        values.append(float(value))
    expected, expected_state, losses = trained(optimizer, model(), *batch(), loss=loss)
    close(values, losses)
    close(step.whole(params), expected, 2e-5)
    shapes = {leaf.shape for leaf in jax.tree.leaves(model()) if leaf.ndim > 1}
    moments = zip(jax.tree.leaves(state), jax.tree.leaves(expected_state), strict=True)
    assert all(split(ours) == 4 for ours, whole in moments if whole.shape in shapes)


def test_auxiliary_outputs_scalars_keys_and_integers(left: pw.VirtualSlice) -> None:
    """Positions are integers among the parameters; a scale and a random key are scalars of the batch."""
    params = {**model(), "order": np.arange(WORDS, dtype=np.int32)[::-1].copy()}

    def both(params: Any, words: Any, targets: Any, scale: Any, key: Any) -> Any:
        value = loss(params, params["order"][words], targets, scale)
        return value, {"even": jnp.mean(words % 2 == 0), "noise": jax.random.normal(key)}

    step = pw.fsdp(
        both, params, on=left, has_aux=True, frozen=lambda name: name == "order",
        optimizer=optax.chain(keeping_gradients(), optax.adamw(1e-2)),
    )  # fmt: skip
    words, targets = batch()
    key = jax.random.key(7)
    kept, state, (value, aux) = step(*step.init(params), words, targets, 2.0, key)
    gradients = pw.get(step.whole(state[0]))
    expected, whole = jax.jit(jax.value_and_grad(loss))(model(), params["order"][words], targets, 2.0)
    close(value, expected)
    close({name: leaf for name, leaf in gradients.items() if name != "order"}, whole)
    own = np.mean([jax.random.normal(jax.random.fold_in(key, device)) for device in range(4)])
    close(aux, {"even": np.mean(words % 2 == 0), "noise": own})
    after = pw.get(step.whole(kept))["order"]
    assert after.dtype == np.int32
    np.testing.assert_array_equal(after, params["order"])


@pytest.mark.usefixtures("usual_effort")
def test_the_update_of_uneven_parameters_exchanges_nothing(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(loss, model(), on=left, optimizer=optax.adam(1e-3))
    whole = pw.program(lambda *args: step(*args), name="whole")
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (*step.init(model()), *batch()))
    (made,) = whole.compiled(*shapes).values()
    found = Counter[str]()
    for one in hlo_collectives_of(parse(made.as_text()), {left.axes[0]: 4}):
        found[one.kind] += one.times
    assert found == planned_collectives(step.graph(*batch())), "as many as in value_and_grad"


@pytest.mark.usefixtures("usual_effort")
def test_parameters_are_born_in_shards(left: pw.VirtualSlice) -> None:
    shapes = {"even": (24, 36), "odd": (23, 35), "small": (13, 11)}

    def init(key: Any) -> Any:
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(one, shape) for one, (name, shape) in zip(keys, shapes.items(), strict=True)}

    key = jax.random.key(3)
    step = pw.fsdp(lambda p, x: x.mean(), jax.eval_shape(init, key), on=left, optimizer=optax.adam(1e-3))
    params, _ = step.init(init, key)
    close(step.whole(params), init(key), 1e-6)
    assert {name: leaf.sharding.spec for name, leaf in params.items()} == {
        "even": pw.P(left.axes[0]), "odd": pw.P(None, left.axes[0]), "small": pw.P(None, left.axes[0])
    }  # fmt: skip
    (made,) = pw.program(lambda key: step.init(init, key), name="born").compiled(key).values()
    text = made.as_text()
    assert "f32[6,36]" in text
    for rows, columns in shapes.values():
        assert f"[{rows},{columns}]" not in text, "a device holds a whole parameter"
        assert f"[{rows * columns}]" not in text


@pytest.mark.parametrize("frozen", [None, lambda name: name == "key"])
def test_a_random_key_is_no_parameter(left: pw.VirtualSlice, frozen: Any) -> None:
    params = {"w": np.ones(8, np.float32), "key": jax.random.key(0)}
    with pytest.raises(
        pw.UsageError, match=r"fsdp: parameter key is key<fry>, a random key, .*or give it in the batch"
    ):
        pw.fsdp(lambda p, x: jnp.mean(x * p["w"]), params, on=left, frozen=frozen)
