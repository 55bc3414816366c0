"""``pw.stages`` on real blocks: joined by shape, estimated, measured, and run as computations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.errors import UsageError
from pathways_nb.parallel import block_costs
from pathways_nb.runtime import device_facts
from tests.support.closeness import close
from tests.support.fake_devices import cpu_devices

F32 = jnp.float32


def embed(table, tokens):
    return table[tokens]


def layer(w, x):
    return jnp.tanh(x @ w)


def head(w, x):
    return x @ w


BLOCKS = [embed, layer, layer, layer, head]
SHAPES = [(16, 64), *[(64, 64)] * 3, (64, 4096)]
PARAMS = [jax.ShapeDtypeStruct(shape, F32) for shape in SHAPES]
TOKENS = jax.ShapeDtypeStruct((512,), jnp.int32)


def arrays():
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype("f4") for shape in SHAPES]


def test_estimates_come_from_both_passes_by_the_cost_model():
    found = pw.stages(BLOCKS, 2, params=PARAMS, x=TOKENS)
    assert found.basis == "forward and backward pass, estimated for one device of tpu_v3"
    assert found.block_costs[1] == found.block_costs[2] == found.block_costs[3]
    assert found.block_costs[4] > sum(found.block_costs[:4])
    assert found.cuts == (range(4), range(4, 5))
    assert found.equal.cuts == (range(3), range(3, 5))
    quick = pw.stages(BLOCKS, 2, "estimated", params=PARAMS, x=TOKENS, chip=pw.chip("tpu_v5p"))
    assert quick.largest < found.largest
    assert quick.basis.endswith("tpu_v5p")
    assert " µs" in repr(quick)


def test_an_estimate_is_the_cost_models_price_of_the_jaxpr_of_both_passes():
    from pathways_nb.cost.jaxpr.node_work import work_of
    from pathways_nb.cost.model import CostModel

    x = jax.ShapeDtypeStruct((512, 64), F32)

    def both(w, x, gradient):
        y, pull = jax.vjp(layer, w, x)
        return y, pull(gradient)

    model = CostModel.of("tpu_v3")
    work = work_of(jax.make_jaxpr(both)(PARAMS[1], x, x))
    found = pw.stages([layer], 1, params=PARAMS[1:2], x=x)
    assert found.block_costs == (model.node(work, model.topology(1), {}).compute,)


def test_equal_blocks_are_measured_once(monkeypatch):
    started = []

    def seconds_of(start):
        outputs, _ = start()
        started.append(start)
        return float(outputs[0].shape[-1])  # instead of a clock

    monkeypatch.setattr(block_costs, "seconds_of", seconds_of)
    found = pw.stages(BLOCKS, 2, "measured", params=arrays(), x=TOKENS)
    assert found.block_costs == (64, 64, 64, 64, 4096)
    assert len(set(started)) == 3
    assert len(started) == 3 * 25
    assert found.basis == "forward and backward pass, measured on cpu: the median of 25 rounds"


def test_blocks_are_measured_on_the_accelerators_that_are_attached(controller, monkeypatch):
    mine, used = cpu_devices(2), set()

    def seconds_of(start):
        used.update(*(array.devices() for array in jax.tree.leaves(start())))
        return 1.0

    monkeypatch.setattr(device_facts, "found_devices", lambda: ("gpu", mine))
    monkeypatch.setattr(block_costs, "seconds_of", seconds_of)
    with pw.attach("gpu", islands=[[1]]):
        pw.stages(BLOCKS, 2, "measured", params=arrays(), x=TOKENS)
    assert used == {mine[1]}


def test_a_measured_block_takes_time_and_futures_are_parameters(left, monkeypatch):
    monkeypatch.setattr(block_costs, "_MOST", 1)
    params = [pw.put(array, on=left) for array in arrays()]
    found = pw.stages(BLOCKS, 2, "measured", params=params, x=np.zeros(512, "i4"))
    assert all(cost > 0 for cost in found.block_costs)


def test_progress_is_shown(monkeypatch):
    lines = []
    monkeypatch.setattr(block_costs.Progress, "tell", lambda self, line: lines.append(line))
    monkeypatch.setattr(block_costs, "_MOST", 1)
    pw.stages([layer], 1, "measured", params=PARAMS[1:2], x=jax.ShapeDtypeStruct((8, 64), F32))
    assert lines == ["blocks: compiling 1 of 1", "blocks: round 1 of 1 at most"]


def test_a_stage_is_a_computation_on_a_place(left, right):
    found, params, tokens = pw.stages(BLOCKS, 2, cost=[1] * 5), arrays(), np.arange(16)
    whole = tokens
    for block, own in zip(BLOCKS, params, strict=True):
        whole = block(own, whole)
    first, second = (pw.jit(stage, on=place) for stage, place in zip(found, (left, right), strict=True))
    one, other = found.split(params)
    close(second(other, first(one, tokens)), whole)
    close(jax.jit(found[1])(other, jax.jit(found[0])(one, tokens)), whole)


def test_blocks_that_do_not_join_are_named():
    wrong = [*PARAMS[:2], jax.ShapeDtypeStruct((32, 64), F32), *PARAMS[3:]]
    text = (
        r"block 2 \('layer'\) with parameters float32\[32,64\] does not take what block 1 \('layer'\) returns: "
        r"float32\[512,64\]. TypeError: .* — Check the order of the blocks and of params."
    )
    with pytest.raises(UsageError, match=text):
        pw.stages(BLOCKS, 2, cost=[1] * 5, params=wrong, x=TOKENS)
    with pytest.raises(
        UsageError, match=r"block 0 \('layer'\) with parameters float32\[64,64\] does not take what x is: float32\[3\]"
    ):
        pw.stages([layer], 1, params=PARAMS[1:2], x=np.zeros(3, "f4"))
    with pytest.raises(UsageError, match=r"params and x have arrays as leaves, and 'w' is a str"):
        pw.stages([layer], 1, params=["w"], x=np.zeros(3, "f4"))
