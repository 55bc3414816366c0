"""A training state of sharded data parallelism is saved, and goes on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import pathways_nb as pw
from tests.jax.fsdp.test_other_axes import SHARDINGS, batch, loss, model, results


def close(ours: Any, theirs: Any) -> None:
    for one, other in zip(jax.tree.leaves(results(ours)), jax.tree.leaves(results(theirs)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


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
