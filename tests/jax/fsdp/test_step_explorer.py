"""The explorer of sharded steps without a notebook: what it shows equals the planner's answers, and errors are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.cost.model import CostModel
from pathways_nb.examples import llama3
from pathways_nb.parallel.fsdp.step_explorer import FsdpExplorer
from pathways_nb.parallel.fsdp.step_picture import shortened
from pathways_nb.parallel.fsdp.step_work import StepWork
from pathways_nb.parallel.fsdp.variants import Variants, with_network
from tests.support.closeness import close

SHAPE = llama3.Shape(layers=3, features=256, hidden=512, heads=4, shared_heads=2, vocabulary=1024)
TOKENS = jax.ShapeDtypeStruct((16, 128), jnp.int32)
NETWORK = {"bandwidth": 20e9, "latency": 40e-6}


def made(mode: str = "zero3", **options: Any) -> pw.FsdpStep:
    on = pw.virtual_slice((2, 8), axes=("r", "s")) if mode == "hsdp" else pw.virtual_slice(16)
    options = {"param_dtype": jnp.bfloat16, "reduce_dtype": jnp.float32, **options}
    return pw.fsdp(
        llama3.loss(SHAPE), llama3.params(SHAPE), on=on, mode=mode, optimizer=optax.adamw(1e-4),
        batch=(TOKENS, TOKENS), **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def variants() -> Variants:
    return Variants(made(), chip="gpu_h100_sxm")


@pytest.fixture
def explorer(variants: Variants) -> FsdpExplorer:
    return FsdpExplorer(variants, **NETWORK)


def planner(mode: str = "zero3", devices: int = 16) -> Any:
    """The planner of a step made for these devices from the beginning."""
    on = pw.virtual_slice(devices)
    batch = tuple(jax.ShapeDtypeStruct((devices, 128), jnp.int32) for _ in range(2))
    step = pw.fsdp(
        llama3.loss(SHAPE), llama3.params(SHAPE), on=on, mode=mode, optimizer=optax.adamw(1e-4),
        param_dtype=jnp.bfloat16, reduce_dtype=jnp.float32,
    )  # fmt: skip
    model = with_network(CostModel.of("gpu_h100_sxm"), devices, *NETWORK.values())
    return step.planner(batch=batch, chip=model)


# ---- choices


@pytest.mark.parametrize(("mode", "devices"), [("zero3", 16), ("zero3", 40), ("zero2", 64), ("ddp", 16), ("zero1", 8)])
def test_a_step_elsewhere_is_that_of_a_step_made_there(explorer: FsdpExplorer, mode: str, devices: int) -> None:
    explorer.mode, explorer.devices, explorer.prefetch = mode, devices, 2
    expected = planner(mode, devices)
    for wrapping, plan in (("per block", expected.per_block(2)), ("per parameter", expected.per_parameter(2)),
                           ("greedy", replace(expected.greedy(), prefetch=2))):  # fmt: skip
        explorer.wrapping = wrapping
        if mode in ("ddp", "zero1"):
            plan = replace(plan, buckets=plan.reduced, backward=None).keeping(True)
        found, there = explorer.timeline, expected.timeline(plan)
        assert explorer.plan == plan
        assert (found.end, found.compute, found.copied) == (there.end, there.compute, there.copied)
        assert found.memory.at_peak() == there.memory.at_peak()
        assert explorer.bound == expected.bound_of(plan)
    explorer.three_streams = True
    assert explorer.bound == expected.bound_of(plan, 3) <= explorer.timeline.exposed
    assert explorer.picture is explorer.picture, "it is planned once"


@pytest.mark.parametrize("mode", ["zero3", "hsdp"])
def test_the_work_of_a_loss_is_that_read_in_each_mode(mode: str) -> None:
    step = made(mode)
    for names in (("zero3", "zero2", *(["hsdp"] if mode == "hsdp" else [])), ("ddp", "zero1")):
        first = step.elsewhere(names[0]).planner(chip="gpu_h100_sxm")
        work = StepWork.of(first.traced, first.sizes)
        for name, devices in ((name, devices) for name in names for devices in (16, 6)):
            there = step.elsewhere(name, devices).planner(chip="gpu_h100_sxm")
            found = work.carried_to(there.traced, first.traced, there.sizes)
            read = StepWork.of(there.traced, there.sizes)
            used = {value for op in there.traced.ops for value in (*op.inputs, *op.outputs)}
            assert (found.works, found.views) == (read.works, read.views)
            assert found.fused & used == read.fused & used


def test_streams_keep_and_network_change_the_timeline(explorer: FsdpExplorer) -> None:
    base = explorer.timeline
    explorer.three_streams = True
    assert explorer.timeline.seconds <= base.seconds
    assert explorer.picture.lanes == ("compute", "gathers", "reductions")
    explorer.keep = True
    assert all(bucket.keep for bucket in explorer.plan.buckets)
    assert not any(box.kind == "all-gather again" for box in explorer.collectives)
    explorer.bandwidth = 1e9
    assert explorer.timeline.exchanged > 5 * base.exchanged
    explorer.bandwidth = explorer.latency = None
    assert explorer.timeline.exchanged < base.exchanged
    assert "GB/s" not in repr(explorer)


def test_typed_buckets_are_the_plan(explorer: FsdpExplorer) -> None:
    explorer.buckets = "embedding; layers.0-1 kept; layers.2; norm, head"
    assert explorer.wrapping == "own"
    assert [len(bucket.params) for bucket in explorer.plan.buckets] == [1, 18, 9, 2]
    assert [bucket.keep for bucket in explorer.plan.buckets] == [False, True, False, False]
    assert explorer.picture.bands[0].lines == ("embedding", "layers.0-1 (kept)", "layers.2", "head, norm")
    assert explorer.text == explorer.buckets


def test_own_buckets_begin_with_those_that_were_shown(explorer: FsdpExplorer) -> None:
    assert explorer.text == "embedding\nhead\nlayers.*\nnorm"
    before = explorer.timeline.end
    explorer.wrapping = "own"
    assert explorer.buckets == "embedding\nhead\nlayers.*\nnorm"
    assert explorer.timeline.end == before


def test_a_step_with_a_plan_of_its_own_is_shown_with_it() -> None:
    step = made()
    plan = pw.FsdpPlan((pw.Bucket(tuple(one.name for one in step.parameters), keep=True),), prefetch=0)
    explorer = pw.explore_fsdp(step.with_plan(plan), chip="gpu_h100_sxm")
    assert (explorer.wrapping, explorer.buckets, explorer.prefetch, explorer.keep) == (
        "own", "embedding, head, layers, norm", 0, True,
    )  # fmt: skip
    assert explorer.plan == plan


def test_a_plan_that_keeps_some_blocks_is_shown_as_it_is() -> None:
    step = made()
    plan = step.plan.keeping(lambda bucket: bucket.params[0].startswith("layers.0"))
    explorer = pw.explore_fsdp(step.with_plan(plan), chip="gpu_h100_sxm")
    assert explorer.buckets == "embedding\nhead\nlayers.0 kept\nlayers.*\nnorm"
    assert set(explorer.plan.buckets) == set(plan.buckets)


def test_a_search_finds_a_better_plan_and_says_when_it_is_old(explorer: FsdpExplorer) -> None:
    block = explorer.timeline.exposed
    explorer.wrapping = "searched"
    assert explorer.bound <= explorer.timeline.exposed < block
    assert explorer.searches == 1
    assert explorer.picture.note == ""
    explorer.bandwidth = 40e9
    assert explorer.picture.note == "The plan was searched for other choices: search again."
    explorer.search()
    assert (explorer.picture.note, explorer.searches) == ("", 2)
    explorer.memory = 1e6
    explorer.search()
    assert "no plan fits 1 MB per device" in repr(explorer)


# ---- what is shown


def test_the_picture_adds_up(explorer: FsdpExplorer) -> None:
    picture, found = explorer.picture, explorer.timeline
    exchanges = sum(box.end - box.start for box in picture.collectives)
    assert exchanges == pytest.approx(found.exchanged)
    stalls = [box for box in picture.boxes if box.kind == "stall"]
    assert sum(box.exposed for box in stalls) == pytest.approx(found.waited)
    assert sum(box.exposed for box in picture.collectives) <= found.waited * (1 + 1e-9)
    assert picture.sizes.sum() == pytest.approx(2 * sum(one.size for one in made().parameters))
    assert sorted(picture.names) == sorted(one.name for one in made().parameters)
    assert picture.names[0] == "embedding"
    assert picture.names[-1] == "head"
    total = np.sum(list(picture.memory.values()), axis=0)
    assert total.max() == found.memory.peak
    assert picture.headings[0].startswith(
        "zero3 on 16 devices, gpu_h100_sxm, 20 GB/s, 40 µs latency, each with int32[1,128] · per block: 6 buckets"
    )


def test_every_pass_has_its_schedule(explorer: FsdpExplorer) -> None:
    lines = dict(explorer.picture.passes)
    assert list(lines) == ["traced", "sink", "regather", "bucket", "prefetch", "finish", "pace"]
    assert lines["traced"].startswith("(A)×30")
    assert "a" in lines["regather"]
    assert "a" not in lines["sink"]
    assert lines["bucket"].count("A") < lines["regather"].count("A")
    explorer.mode = "ddp"
    assert list(dict(explorer.picture.passes)) == ["traced", "sink", "bucket", "prefetch", "finish", "pace"]


@pytest.mark.parametrize(
    ("line", "short"),
    [("AAA1A|2R", "AAA1A|2R"), ("A" * 30 + "1|", "(A)×30 1|"), ("A" + "A7" * 31 + "A|", "A (A7)×31 A|")],
)
def test_a_schedule_is_written_once_where_it_repeats(line: str, short: str) -> None:
    assert shortened(line) == short


def test_a_hybrid_step_has_all_modes_and_keeps_its_replicas() -> None:
    explorer = pw.explore_fsdp(made("hsdp"), chip="gpu_h100_sxm", devices=32)
    assert explorer.modes == ("ddp", "zero1", "zero2", "zero3", "hsdp")
    assert repr(explorer).startswith("hsdp on 2 × 16 devices")
    explorer.devices = 9
    assert "9 devices are no multiple of 2" in repr(explorer)
    explorer.mode = "zero3"
    assert repr(explorer).startswith("zero3 on 9 devices")


# ---- errors, export


@pytest.mark.parametrize(
    ("choice", "value", "says"),
    [
        ("buckets", "layers.*", "parameter embedding and 2 more of the model is in no bucket of the forward plan."),
        ("buckets", "layer.0", "line 1 of the buckets: 'layer.0' is no parameter and no part of the model."),
        ("devices", 0, "fsdp: devices=0: a positive whole number is needed."),
        ("prefetch", -1, "the plan's prefetch=-1 is negative"),
        ("chip", "gpu_h200", "gpu_h200"),
        ("mode", "zero4", "there is no mode 'zero4'"),
        ("mode", "hsdp", 'mode "hsdp" needs a place of two axes'),
        ("bandwidth", -1.0, "link_bw"),
        ("latency", float("nan"), "start_latency"),
        ("bandwidth", 1e-6, "one operation of the step takes "),  # sums in ticks would be no int64, and negative times
        ("latency", 1e300, "one operation of the step takes 1e+300 s on this chip and network; a plan counts up to"),
    ],
)
def test_what_cannot_be_planned_is_told_and_can_be_mended(
    explorer: FsdpExplorer, choice: str, value: Any, says: str
) -> None:
    before = getattr(explorer, choice)
    setattr(explorer, choice, value)
    assert says in explorer.picture.error
    assert explorer.picture.boxes == ()
    with pytest.raises(pw.UsageError):
        _ = explorer.plan
    setattr(explorer, choice, before)
    explorer.wrapping = "per block"
    assert explorer.picture.error == ""


def test_what_is_no_step_and_no_choice_is_refused() -> None:
    with pytest.raises(pw.UsageError, match=r"explore_fsdp: 3 is no step; pass what pw.fsdp\(loss_fn"):
        pw.explore_fsdp(3)  # type: ignore[arg-type]
    with pytest.raises(pw.UsageError, match="explore_fsdp: there is no 'plan' to choose; all: mode, wrapping"):
        pw.explore_fsdp(made(), plan=1)


def test_the_plan_is_saved_and_run(explorer: FsdpExplorer, tmp_path: Path) -> None:
    explorer.wrapping = "greedy"
    explorer.save(tmp_path / "plan.json")
    assert pw.FsdpPlan.load(tmp_path / "plan.json") == explorer.plan == explorer.step.plan
    explorer.mode = "zero2"
    assert (explorer.step.mode, explorer.step.plan) == ("zero2", explorer.plan)


def test_an_explored_plan_computes_the_same(controller: pw.Controller) -> None:
    random = np.random.default_rng(0)
    params = {f"layer{n}": random.normal(size=(8, 8)).astype("f4") for n in range(3)}
    x = random.normal(size=(4, 8)).astype("f4")

    def loss(params: Any, x: Any) -> Any:
        for layer in params.values():
            x = jnp.tanh(x @ layer)
        return (x * x).mean()

    step = pw.fsdp(loss, params, on=pw.virtual_slice(2), batch=(x,))
    expected = jax.value_and_grad(loss)(params, x)
    explorer = pw.explore_fsdp(step, chip="gpu_h100_sxm", buckets="layer0, layer1; layer2")
    for mode in ("zero3", "zero2", "ddp"):
        explorer.mode = mode
        found = explorer.step.value_and_grad(explorer.step.init(params), x)
        close(found, expected, 2e-5)
