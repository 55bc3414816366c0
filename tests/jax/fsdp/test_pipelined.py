"""Stages of a pipeline whose parameters are split over the devices of their place."""

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
from tests.support.closeness import close

ROWS, FEATURES = 32, 12


def stage(params: Any, x: Any) -> Any:
    """Two matrices, a scale that four devices divide, and a bias that they do not."""
    hidden = jnp.tanh(x @ params["up"] * params["scale"] + params["bias"].sum())
    return x + hidden @ params["down"]


def loss(y: Any, targets: Any) -> Any:
    return ((y - targets) ** 2).mean()


def model(stages: int) -> list[dict[str, np.ndarray]]:
    chance = np.random.default_rng(0)
    shapes = {"up": (FEATURES, 20), "down": (20, FEATURES), "scale": (20,), "bias": (3,)}
    return [{name: chance.normal(0, 0.3, shape).astype("f4") for name, shape in shapes.items()} for _ in range(stages)]


X, TARGETS = np.random.default_rng(1).normal(size=(2, ROWS, FEATURES)).astype("f4")


def pipe_of(on: list[pw.VirtualSlice], schedule: str = "1f1b", stages: int = 2, **options: Any) -> pw.Pipeline:
    fn = options.pop("stage", stage)
    return pw.pipeline(
        [fn] * stages, on=on, schedule=schedule, microbatches=4, loss=loss, **{"fsdp": "zero3", **options}
    )


@pytest.mark.parametrize(
    ("schedule", "stages", "mode"),
    [("1f1b", 2, "zero3"), ("1f1b", 2, "ddp"), ("gpipe", 2, "zero3"), ("zb-h1", 2, "zero3"), ("zb-v", 4, "zero3"),
     ("interleaved-1f1b", 4, "zero3")],
)  # fmt: skip
def test_loss_and_gradients_are_those_of_plain_jax(left, right, schedule, stages, mode) -> None:
    pipe, params = pipe_of([left, right], schedule, stages, fsdp=mode), model(stages)
    value, gradients = pipe.value_and_grad(params, X, TARGETS)
    expected, exact = jax.value_and_grad(pipe.composed)(params, X, TARGETS)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    close(gradients, exact)
    split = {name: leaf.sharding.spec for name, leaf in gradients[0].items()}
    axis = left.axes[0]
    dims = {"up": (axis,), "down": (axis,), "scale": (axis,), "bias": ()} if mode == "zero3" else {}
    assert split == {name: pw.P(*dims.get(name, ())) for name in split}


@pytest.mark.usefixtures("usual_effort")
def test_each_part_gathers_once_and_reduces_once(left, right) -> None:
    pipe, params = pipe_of([left, right], "zb-h1"), model(2)
    found = {
        name: Counter(one.kind for one in hlo_collectives_of(parse(made.as_text()), {left.axes[0]: 4}))
        for name, made in pipe.value_and_grad.compiled(params, X, TARGETS).items()
    }
    gathers, reduces = {"all-gather": 1}, {"reduce-scatter": 1, "all-reduce": 1}  # the bias is whole
    for microbatch in range(4):
        assert found[f"0F{microbatch}"] == gathers
        assert found[f"1F{microbatch}"] == {**gathers, "all-reduce": 1}, "and adds up the loss"
        assert found[f"1I{microbatch}"] == gathers, "gathers again"
        assert found[f"1W{microbatch}"] == reduces
        assert found[f"0I{microbatch}"] == {}, "the first stage delays all its work until W"


def test_three_steps_of_adam_with_its_state_in_shards(left, right) -> None:
    pipe, params, optimizer = pipe_of([left, right]), model(2), optax.adam(1e-2)
    step, state, ours = pipe.step(optimizer), pipe.init(optimizer, params), params
    plain, plain_state = params, optimizer.init(params)
    for _ in range(3):
        ours, state, value = step(ours, state, X, TARGETS)
        expected, gradients = jax.value_and_grad(pipe.composed)(plain, X, TARGETS)
        updates, plain_state = optimizer.update(gradients, plain_state)
        plain = optax.apply_updates(plain, updates)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    close(ours, plain, 1e-4)
    assert state[0].mu[1]["up"].sharding.spec == ours[1]["up"].sharding.spec == pw.P(left.axes[0])


def test_a_checkpointed_stage_and_the_hybrid_mode(controller) -> None:
    on = [pw.virtual_slice((2, 2), axes=("r", "s"), island=island) for island in (0, 1)]
    checkpointed = jax.checkpoint(stage, policy=jax.checkpoint_policies.dots_saveable)
    pipe, params = pipe_of(on, fsdp="hsdp", stage=lambda params, x: checkpointed(params, x)), model(2)
    value, gradients = pipe.value_and_grad(params, X, TARGETS)
    expected, exact = jax.value_and_grad(pipe.composed)(params, X, TARGETS)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    close(gradients, exact)
    assert gradients[0]["up"].sharding.spec == pw.P("s")


def test_what_cannot_be_split_is_refused(left, right) -> None:
    on = [left, right]
    with pytest.raises(pw.UsageError, match=r"fsdp='zero2' is no mode for stages; choose from 'ddp', 'zero3', 'hsdp'"):
        pipe_of(on, fsdp="zero2")
    with pytest.raises(pw.UsageError, match=r'mode "hsdp"'):
        pipe_of(on, fsdp="hsdp")
    with pytest.raises(pw.UsageError, match=r"fsdp='zero3' splits parameters and batch itself; leave shardings= out"):
        pipe_of(on, shardings=[pw.P(), pw.P()])
    with pytest.raises(pw.UsageError, match=r"stage 0 \(noisy\) takes a key for dropout, and with fsdp='zero3'"):
        pipe_of(on, stage=noisy)
    with pytest.raises(pw.UsageError, match=r"stage 0 splits the 6 rows of a microbatch over 4 devices of left"):
        pipe_of(on).value_and_grad(model(2), X[:24], TARGETS[:24])


def noisy(params: Any, x: Any, key: Any) -> Any:
    return stage(params, x) + jax.random.normal(key, x.shape)
