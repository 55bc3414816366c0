"""The training state of a pipeline is saved, and goes on at places of another number of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import pathways_nb as pw
from tests.support.closeness import close

ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
X = np.random.default_rng(0).normal(size=(12, 6)).astype("f4")


def stage(layer: Any, x: Any) -> Any:
    return x + jnp.tanh(x @ layer["up"] + layer["bias"]) @ layer["down"]


def layer(seed: int) -> dict[str, np.ndarray]:
    """Parameters of which no dimension is a multiple of four."""
    draw = np.random.default_rng(seed)
    shapes = {"up": (6, 7), "bias": (7,), "down": (7, 6)}
    return {name: draw.normal(size=shape).astype("f4") / 3 for name, shape in shapes.items()}


def pipeline(devices: int) -> Any:
    on = [pw.virtual_slice(devices, island=island) for island in (0, 1)]
    return pw.pipeline(
        [stage] * 2, on=on, schedule="1f1b", microbatches=3, loss=lambda y, t: jnp.mean((y - t) ** 2), fsdp="zero3"
    )


def test_a_state_goes_on_with_another_number_of_devices(controller: Any, tmp_path: Path) -> None:
    four, two = pipeline(4), pipeline(2)
    params: Any = [layer(0), layer(1)]
    state, step = four.init(ADAM, params), four.step(ADAM)
    for _ in range(2):
        params, state, _ = step(params, state, X, X)
    tree = {"params": params, "state": state, "step": 3_000_000_000}
    pw.save_state(tmp_path / "state", tree)
    begun: Any = [layer(2), layer(3)]
    like = {"params": two.step(ADAM)(begun, two.init(ADAM, begun), X, X)[0], "state": two.init(ADAM, begun), "step": 0}
    saved = pw.restore_state(tmp_path / "state", like=like)
    assert saved["step"] == 3_000_000_000
    close(saved["params"], params, 0)
    close(saved["state"], state, 0)
    assert {len(leaf["up"].sharding.device_set) for leaf in saved["params"]} == {2}
    close(two.step(ADAM)(saved["params"], saved["state"], X, X), step(params, state, X, X), 1e-5)
