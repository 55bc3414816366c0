"""A sharded step on simulated chips with their own compiler: the launch is the compiler's, the timeline the plan's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import pathways_nb as pw


def loss(params: Any, x: Any, y: Any) -> Any:
    for w1, w2 in params["layers"]:
        x = x + jnp.tanh(x @ w1) @ w2
    return jnp.mean((x - y).astype(jnp.float32) ** 2)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def test_a_compiled_launch_and_its_plan_stand_in_one_line() -> None:
    params = {"layers": [(array(1024, 4096), array(4096, 1024))] * 2}
    batch = (array(8 * 512, 1024),) * 2
    with pw.attach("sim", chip="gpu_h100_sxm", islands=1, devices_per_island=8, compiler="own"):
        step = pw.fsdp(loss, params, on=pw.virtual_slice(8), optimizer=optax.adam(1e-3), batch=batch)
        kept = step.init(params)
        planned = step.timeline()
        with pw.record() as run:
            pw.wait(step(*kept, *batch))
    (found,) = (event for event in run.events if event["kind"] == "compute" and "step" in event["name"])
    assert found["basis"].startswith("jax-cuda")
    line = repr(step).splitlines()[-1]
    assert line.startswith("compiled ")
    assert ", planned " in line
    assert line in found["basis"]
    assert found["end"] - found["start"] != planned.seconds
    assert "update" not in run.ops["name"], "the operations are those of the compiler"
    assert "update" in planned.run.ops["name"]
