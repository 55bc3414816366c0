"""A simulated call of a step takes what its plan's timeline says, for all modes: seconds, memory, operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.examples import llama3
from pathways_nb.parallel.fsdp.passes import pass_registry
from pathways_nb.parallel.fsdp.step_work import StepWork
from tests.jax.fsdp.test_other_axes import SHARDINGS, elements, grid
from tests.jax.fsdp.test_other_axes import loss as small_loss
from tests.jax.fsdp.test_other_axes import model as small_model
from tests.jax.fsdp.test_scan_gathers import batch as small_batch
from tests.jax.fsdp.test_scan_gathers import model as stacked_model
from tests.jax.fsdp.test_scan_gathers import scanned
from tests.jax.programs import llama

__all__ = ["grid"]

DEVICES = 16
SIZE = replace(llama.cut(llama.LLAMA_8B, 2), width=512, hidden=2048, heads=8, kv_heads=4, vocabulary=4096)
PARAMS = llama.abstract(SIZE)
MODES = ["ddp", "zero1", "zero2", "zero3", "hsdp"]


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[pw.Controller]:
    with pw.attach("sim", chip="gpu_h100_sxm", islands=1, devices_per_island=DEVICES, compiler="cpu") as made:
        yield made


def loss(params: Any, tokens: Any, targets: Any) -> Any:
    return llama.language_loss(SIZE, params, tokens, targets)


def tokens(rows: int) -> Any:
    return (jax.ShapeDtypeStruct((rows, 512), jnp.int32),) * 2


def place_of(mode: str, tensor: int) -> tuple[pw.VirtualSlice, dict[str, Any]]:
    """Devices for a mode, of which so many share each parameter; options of the step that go with them."""
    data = DEVICES // tensor
    axes = {"replicate": 2, "shard": data // 2} if mode == "hsdp" else {"data": data}
    options: dict[str, Any] = {} if mode == "hsdp" else {"axis": "data"}
    if tensor > 1:
        axes["model"], options["shardings"] = tensor, llama.specs(SIZE)
    return pw.virtual_slice(tuple(axes.values()), axes=tuple(axes)), options


def step_of(mode: str = "zero3", tensor: int = 1, **options: Any) -> pw.FsdpStep:
    place, found = place_of(mode, tensor)
    return pw.fsdp(
        loss, PARAMS, on=place, mode=mode, batch=tokens(2 * DEVICES // tensor),
        **{"optimizer": optax.adamw(1e-4), **found, **options},
    )  # fmt: skip


def called(step: pw.FsdpStep, params: Any = PARAMS, batch: Any = None, gradients: bool = False) -> pw.Run:
    """A run of one call, without what came before."""
    batch = batch if batch is not None else step._functions.batch
    kept = step.init(params)
    pw.wait(kept)
    with pw.record() as run:
        pw.wait(step.value_and_grad(kept if step._spec.optimizer is None else kept[0], *batch) if gradients
                else step(*kept, *batch))  # fmt: skip
    return run


def launch_of(run: pw.Run) -> Any:
    (found,) = launches_of(run)
    return found


def launches_of(run: pw.Run) -> list[Any]:
    return [SimpleNamespace(**event) for event in run.events if event["kind"] == "compute"]


def check(step: pw.FsdpStep, run: pw.Run, planned: Any = None) -> None:
    """The record, the timeline and its run agree."""
    planned = planned or step.timeline()
    found = launch_of(run)
    assert found.end - found.start == pytest.approx(planned.seconds, rel=1e-9)
    assert found.basis.startswith(f"planned on the 2 streams of one device ({step.plan.name}, ")
    (held,) = run.memory("category")
    assert held.peak.bytes == planned.memory.peak
    own, of_plan = run.ops, planned.run.ops
    assert own["name"].tolist() == of_plan["name"].tolist()
    assert own["kind"].tolist() == of_plan["kind"].tolist()
    np.testing.assert_allclose(own["start"] - found.start, of_plan["start"], atol=1e-9)
    np.testing.assert_allclose(own["end"] - own["start"], of_plan["end"] - of_plan["start"], atol=1e-9)
    assert set(own["launch"]) == {found.name}


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_call_and_timeline_agree(mode: str, tensor: int) -> None:
    step = step_of(mode, tensor)
    check(step, called(step))


def test_the_explorer_agrees_with_the_call() -> None:
    step = step_of()
    explorer = pw.explore_fsdp(step)
    assert explorer.picture.timeline.seconds == step.timeline().seconds
    assert explorer.picture.timeline.memory.peak == step.timeline().memory.peak


def test_a_place_in_a_larger_island_is_priced_as_it_lies() -> None:
    with pw.attach("sim", chip="gpu_h100_sxm", islands=1, devices_per_island=64, devices_per_host=4, compiler="cpu"):
        step = step_of()
        check(step, called(step))


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"donate": True}, {"param_dtype": jnp.float32},
                                     {"optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-3))}])  # fmt: skip
def test_options_are_in_both(options: dict[str, Any]) -> None:
    step = step_of(**options)
    check(step, called(step))


def test_loops_over_layers_and_passes_of_the_users_are_in_both() -> None:
    def late(step: Any, count: int = 1) -> Any:
        for gather in step.gathers[:count]:
            yield step.move(gather, before=gather.read)

    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), stacked_model())
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((DEVICES, *leaf.shape[1:]), leaf.dtype), small_batch())
    step = pw.fsdp(scanned(remat=True), params, on=pw.virtual_slice(DEVICES), optimizer=optax.sgd(1e-3), batch=batch)
    check(step, called(step, params, batch))
    pw.register_pass("late", after="prefetch")(late)
    try:
        changed = step_of().with_plan(step_of().plan.with_pass("late", count=3))
        check(changed, called(changed))
    finally:
        pass_registry._passes.pop("late")


def test_gradients_alone_take_the_step_without_its_update() -> None:
    step = step_of()
    planned = step.timeline()
    found = launch_of(called(step, gradients=True))
    assert planned.update > 0
    assert found.end - found.start == pytest.approx(planned.seconds - planned.update * 1e-12, rel=1e-9)


def test_steps_in_one_node_run_one_after_another() -> None:
    step = step_of()
    kept = step.init(PARAMS)

    @pw.program(fuse=True)
    def two(params: Any, state: Any, *batch: Any) -> Any:
        params, state, _ = step(params, state, *batch)
        return step(params, state, *batch)

    with pw.record() as run:
        pw.wait(two(*kept, *step._functions.batch))
    taken = sum(one.end - one.start for one in launches_of(run))
    assert taken == pytest.approx(2 * step.timeline().seconds, rel=1e-3)


# ---- the optimizer's update


def test_the_update_is_an_operation_behind_all_gradients() -> None:
    step = step_of("zero3")
    planned, bare = step.timeline(), step_of("zero3", optimizer=None).timeline()
    assert planned.end == bare.end + planned.update
    assert bare.update == 0
    last = planned.spans[-1]
    assert (last.name, last.start, last.end) == ("update", bare.end, planned.end)
    assert planned.run.ops.of(kind="compute")["phase"][-1] == "optimizer"
    # Adam reads parameters, gradients and two moments, and writes all but the gradients: 7 numbers of 2 bytes.
    own = sum(leaf.size for leaf in jax.tree.leaves(PARAMS)) / DEVICES
    least = 7 * 2 * own / pw.chip("gpu_h100_sxm").device.hbm_bw
    assert least < planned.update * 1e-12 < 2 * least


def test_parameters_that_stay_whole_are_gathered_behind_the_update() -> None:
    planned = step_of("zero1").timeline()
    (gather,) = (span for span in planned.spans if span.name == "gather new parameters")
    assert gather.start == next(span.end for span in planned.spans if span.name == "update")
    assert gather.end == planned.end
    assert gather.bytes == sum(leaf.size * 2 for leaf in jax.tree.leaves(PARAMS))


def test_new_parameters_and_state_take_memory_unless_the_step_takes_over_the_old_ones() -> None:
    kept, donated = (step_of("ddp", donate=donate).timeline().memory for donate in (False, True))
    parameters = sum(leaf.size * 2 for leaf in jax.tree.leaves(PARAMS))
    assert kept.bytes["parameters"].max() - donated.bytes["parameters"].max() == parameters
    assert kept.bytes["optimizer"].max() > 1.9 * donated.bytes["optimizer"].max()


# ---- tensor parallelism


def work_of(step: pw.FsdpStep) -> StepWork:
    planner = step.planner()
    return StepWork.of(planner.traced, planner.sizes)


def products(work: StepWork) -> float:
    return sum(one.of("matmul").flops for one in work.works.values())


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_axis_divides_products_bytes_and_memory(mode: str) -> None:
    # As many rows on each device, with and without a tensor axis.
    whole, split = step_of(mode), step_of(mode, tensor=4)
    one, four = work_of(whole), work_of(split)
    assert products(four) == pytest.approx(products(one) / 4, rel=1e-9)

    def moved(work: StepWork) -> float:
        return sum(each.read + each.written for each in work.works.values())

    # The residual stream is whole on each device.
    assert moved(one) / 4 < moved(four) < 0.5 * moved(one)
    planned = [step.timeline().memory.peak for step in (whole, split)]
    assert planned[0] / 4 < planned[1] < 0.6 * planned[0]


def both(make: Callable[[pw.VirtualSlice, bool], pw.FsdpStep]) -> list[pw.FsdpStep]:
    """A step on 4 devices, and with a tensor axis of 4 beside them."""
    line, grid = pw.virtual_slice((4,), axes=("data",)), pw.virtual_slice((4, 4), axes=("data", "model"))
    return [make(line, False), make(grid, True)]


def test_kernels_are_divided() -> None:
    shape = llama3.Shape(layers=1, features=256, hidden=512, heads=8, shared_heads=4, vocabulary=1024)
    column, row = pw.P(None, "model"), pw.P("model")
    block = {**dict.fromkeys(("query", "key", "value", "gate", "up"), column), "out": row, "down": row,
             "attention_norm": pw.P(), "mlp_norm": pw.P()}  # fmt: skip
    shardings = {"embedding": row, "layers": [block], "norm": pw.P(), "head": column}
    batch = (jax.ShapeDtypeStruct((8, 256), jnp.int32),) * 2

    def make(on: pw.VirtualSlice, tensor: bool) -> pw.FsdpStep:
        options = {"shardings": shardings} if tensor else {}
        return pw.fsdp(llama3.loss(shape, remat=True), llama3.params(shape), on=on, batch=batch,
                       param_dtype=jnp.bfloat16, **options)  # fmt: skip

    one, four = map(work_of, both(make))
    assert products(four) == pytest.approx(products(one) / 4, rel=1e-9)
    # In the forward pass, recomputed, and backward: two sums for each, and those of embedding, head and loss.
    sums = sum(one.count for work in four.works.values() for one in work.collectives)
    assert 6 <= sums <= 12


@pytest.mark.parametrize("mode", ["zero2", "zero3"])
def test_loops_over_layers_are_divided(mode: str) -> None:
    stack = {"w1": pw.P(None, None, "model"), "w2": pw.P(None, "model"), "scale": pw.P()}
    shardings = {"embed": pw.P(), "layers": stack, "out": pw.P()}
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), stacked_model(64, 128))
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((16, *leaf.shape[1:]), leaf.dtype), small_batch())

    def make(on: pw.VirtualSlice, tensor: bool) -> pw.FsdpStep:
        options = {"shardings": shardings} if tensor else {}
        return pw.fsdp(scanned(remat=True), params, on=on, mode=mode, batch=batch, **options)

    whole, split = both(make)
    loops = [{op.outputs[0] for op in step.traced().ops if op.name == "scan"} for step in (whole, split)]
    in_loops = [sum(work_of(step).works[value].of("matmul").flops for value in found)
                for step, found in zip((whole, split), loops, strict=True)]  # fmt: skip
    assert in_loops[1] == pytest.approx(in_loops[0] / 4, rel=1e-9)
    assert split.timeline().memory.peak < whole.timeline().memory.peak
    carried = [sum(span.bytes for span in step.timeline().spans if span.params) for step in (whole, split)]
    assert carried[1] < 0.5 * carried[0]


def test_plans_with_a_tensor_axis_are_found_to_the_last_tick() -> None:
    planner = step_of(tensor=4).planner()
    for plan in (planner.per_parameter(), planner.per_block(2), planner.greedy(), planner.search(budget=40)):
        assert planner.ticks(plan) == planner.timeline(plan).end


@pytest.mark.usefixtures("usual_effort", "controller")
@pytest.mark.parametrize("mode", ["ddp", "zero3"])
def test_the_work_of_a_device_is_what_is_compiled_for_it(mode: str, grid: pw.VirtualSlice) -> None:
    params = small_model()
    step = pw.fsdp(
        small_loss, params, on=grid, axis="data", mode=mode, shardings=SHARDINGS, batch=small_batch()
    )  # fmt: skip
    planner = step.planner(chip="gpu_h100_sxm")
    found = StepWork.of(planner.traced, planner.sizes)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, *small_batch()))
    whole = pw.program(lambda params, *batch: step.value_and_grad(params, *batch), name="whole")
    (made,) = whole.compiled(*shapes).values()
    assert sum(one.flops for one in found.works.values()) == pytest.approx(made.cost_analysis()["flops"], rel=0.05)
    compiled = elements(step, params, {"data": 2, "model": 2})["all-reduce", ("model",)]
    planned = Counter[str]()
    for work in found.works.values():
        for one in work.collectives:
            assert one.axes == ("model",)
            planned[one.kind] += one.count * one.bytes // 4
    assert set(planned) == {"all-reduce"}
    assert planned["all-reduce"] == pytest.approx(compiled, rel=0.1)
