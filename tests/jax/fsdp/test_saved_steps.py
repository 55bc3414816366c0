"""A training state of sharded data parallelism is saved, and goes on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import pathways_nb as pw
from tests.jax.fsdp.test_other_axes import SHARDINGS, batch, loss, model
from tests.support.closeness import close


@pytest.mark.parametrize("tensor_parallel", [False, True])
def test_a_state_of_four_devices_goes_on_two(left: pw.VirtualSlice, tmp_path: Path, tensor_parallel: bool) -> None:
    params, optimizer = model(), optax.adam(1e-2)
    four = pw.fsdp(loss, params, on=left, optimizer=optimizer)
    kept, state = four.init(params)
    for _ in range(2):
        kept, state, _ = four(kept, state, *batch())
    pw.save_state(tmp_path / "state", (kept, state))
    expected = four(kept, state, *batch())
    if tensor_parallel:
        place = pw.virtual_slice((1, 2), axes=("data", "model"), island=1)
        two = pw.fsdp(loss, params, on=place, axis="data", shardings=SHARDINGS, optimizer=optimizer)
    else:
        place = pw.virtual_slice(2, island=1)
        two = pw.fsdp(loss, params, on=place, optimizer=optimizer)
    kept, state = pw.restore_state(tmp_path / "state", like=two.init(params))
    close(two(kept, state, *batch()), expected)
    shard = kept["layers"][0]["w1"].array().sharding.shard_shape((32, 64))
    assert shard == ((32, 32) if tensor_parallel else (16, 64))


def test_an_uneven_state_goes_on_another_number_of_devices(controller: Any, tmp_path: Path) -> None:
    params = {"w": np.random.default_rng(0).normal(size=(5, 7)).astype("f4"), "b": np.zeros(7, np.float32)}

    def uneven(params: Any, x: Any) -> Any:
        return ((x @ params["w"] + params["b"]) ** 2).mean()

    x, optimizer = np.random.default_rng(1).normal(size=(12, 5)).astype("f4"), optax.adam(1e-2)
    four, three = (pw.fsdp(uneven, params, on=pw.virtual_slice(size), optimizer=optimizer) for size in (4, 3))
    trained = four(*four.init(params), x)[:2]
    pw.save_state(tmp_path / "state", four.whole(trained))
    saved = pw.restore_state(tmp_path / "state", like=three.whole(three.init(params)))
    kept, state = three.init(*saved)
    assert (kept["w"].shape, kept["w"].aval.padded) == ((5, 7), (6, 7)), "with padding for three devices"
    ours, theirs = three(kept, state, x), four(*trained, x)
    close(three.whole(ours[:2]), four.whole(theirs[:2]), 1e-6)
    with pytest.raises(pw.UsageError, match="the state"):
        three.init(params, {"no": np.zeros(1)})
