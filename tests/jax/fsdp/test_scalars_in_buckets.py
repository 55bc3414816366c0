"""Buckets in which some parameters are split and others are whole on each device, in every mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.closeness import close


def loss(params: Any, x: Any) -> Any:
    y = jnp.tanh(x @ params["w"] * params["scale"]) + params["b"] * params["shift"]
    return (y**2).mean()


def model() -> dict[str, Any]:
    chance = np.random.default_rng(0)
    return {"w": chance.normal(size=(8, 8)).astype("f4"), "scale": np.float32(1.3),
            "b": chance.normal(size=8).astype("f4"), "shift": np.float32(0.7)}  # fmt: skip


X = np.random.default_rng(1).normal(size=(16, 8)).astype("f4")
BUCKETS = [
    [["w", "scale"], ["b", "shift"]],
    [["w", "b", "scale", "shift"]],
    [["w"], ["b", "scale", "shift"]],
]


@pytest.mark.parametrize("buckets", BUCKETS)
@pytest.mark.parametrize("mode", ["hsdp", "zero3", "ddp"])
def test_gradients_and_both_evaluations(controller: Any, mode: str, buckets: list[list[str]]) -> None:
    on = pw.virtual_slice((2, 2), axes=("r", "s"), island=0) if mode == "hsdp" else pw.virtual_slice(4, island=0)
    plan = pw.FsdpPlan(tuple(pw.Bucket(tuple(names)) for names in buckets))
    step = pw.fsdp(loss, model(), on=on, mode=mode, plan=plan, batch=(X,))
    value, gradients = step.value_and_grad(step.init(model()), X)
    expected, exact = jax.value_and_grad(loss)(model(), X)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    close(gradients, exact)
    graph = step.graph()
    labels = [graph.label(op) for op in graph.collectives]
    assert len(set(labels)) == len(labels)
    planner = step.planner(chip="gpu_h100_sxm")
    assert planner.ticks(plan) == planner.timeline(plan).end
