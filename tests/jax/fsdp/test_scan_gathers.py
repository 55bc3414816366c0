"""A loss that scans over stacked layers: parameters are gathered, and gradients reduced, in the loops' bodies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.cost.hlo.hlo_collectives import hlo_collectives_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.model import CostModel
from pathways_nb.parallel.fsdp.operation_costs import OperationCosts
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.timeline import timeline
from tests.support.closeness import close

LAYERS, WORDS = 6, 40
Loss = Callable[..., jax.Array]


def model(width: int = 30, inner: int = 50) -> dict[str, Any]:
    """Two embeddings and a stack of layers, of which no size is a multiple of four devices unless asked for."""
    made = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (made.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)

    layers = {"w1": normal(LAYERS, width, inner), "w2": normal(LAYERS, inner, width),
              "scale": np.ones((LAYERS, width), np.float32)}  # fmt: skip
    return {"embed": normal(WORDS, width), "layers": layers, "out": normal(width, WORDS)}


def scanned(remat: bool = False, body: Callable[..., Any] | None = None) -> Loss:
    """Return a loss that scans over ``layers``; its body reads a transposed weight."""

    def block(h: Any, layer: Any) -> Any:
        return h + jnp.tanh(h * layer["scale"] @ layer["w1"]) @ layer["w2"].T.T, None

    step: Any = jax.checkpoint(body or block) if remat else body or block

    def loss(params: Any, words: Any, targets: Any) -> jax.Array:
        h, _ = jax.lax.scan(step, params["embed"][words], params["layers"])
        found = jax.nn.log_softmax(h @ params["out"])
        return -jnp.take_along_axis(found, targets[..., None], -1).mean()

    return loss


def batch() -> tuple[np.ndarray, np.ndarray]:
    made = np.random.default_rng(1)
    words, targets = made.integers(0, WORDS, (2, 8, 16), dtype=np.int32)
    return words, targets


def place_of(mode: str) -> pw.VirtualSlice:
    shape: Any = ((2, 2), ("replicate", "shard")) if mode == "hsdp" else (4, ("data",))
    return pw.virtual_slice(shape[0], axes=shape[1], island=0)


def check_gradients(step: pw.FsdpStep, loss: Loss, params: Any, tolerance: float = 1e-5) -> None:
    """The loss and the gradients are those of the whole batch on one device."""
    value, gradients = step.value_and_grad(step.init(params), *batch())
    expected, whole = jax.jit(jax.value_and_grad(loss))(params, *batch())
    close((value, gradients), (expected, whole), tolerance)


def loops(step: pw.FsdpStep) -> list[list[tuple[str, str]]]:
    """Return the collectives in the body of each loop, with the name of their parameter."""
    graph = step.traced(*batch())
    return [
        [(one.name, graph.parameters[one.param].name) for one in op.exchanges]
        for op in graph.ops
        if isinstance(op, ShardedScan)
    ]


W1, W2 = "layers.w1", "layers.w2"
GATHERS = [("all_gather", W1), ("all_gather", W2)]
REDUCTIONS = [("reduce_scatter", W1), ("reduce_scatter", W2)]


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("mode", ["zero3", "hsdp"])
def test_gradients_are_exact_and_layers_are_gathered_in_loops(
    controller: pw.Controller, mode: str, remat: bool
) -> None:
    loss, params = scanned(remat), model()
    step = pw.fsdp(loss, params, on=place_of(mode), mode=mode)
    check_gradients(step, loss, params)
    assert loops(step) == [GATHERS, [*GATHERS, *REDUCTIONS]]


def test_zero2_keeps_stacks_gathered_and_reduces_in_the_loop(left: pw.VirtualSlice) -> None:
    loss, params = scanned(), model()
    step = pw.fsdp(loss, params, on=left, mode="zero2")
    check_gradients(step, loss, params)
    assert loops(step) == [REDUCTIONS]


@pytest.mark.parametrize("mode", ["zero1", "ddp"])
def test_modes_of_whole_parameters_leave_loops_alone(left: pw.VirtualSlice, mode: str) -> None:
    loss, params = scanned(), model()
    step = pw.fsdp(loss, params, on=left, mode=mode)
    check_gradients(step, loss, params)
    assert loops(step) == []


def test_microbatches_reduce_each_in_its_loop(left: pw.VirtualSlice) -> None:
    loss, params = scanned(remat=True), model()
    step = pw.fsdp(loss, params, on=left, accumulate=2)
    check_gradients(step, loss, params)
    assert loops(step) == [GATHERS, [*GATHERS, *REDUCTIONS]] * 2


def test_a_checkpoint_around_the_whole_loop(left: pw.VirtualSlice) -> None:
    loss, params = scanned(), model()
    step = pw.fsdp(jax.checkpoint(loss), params, on=left)
    check_gradients(step, loss, params)
    assert loops(step) == [GATHERS, GATHERS, [*GATHERS, *REDUCTIONS]]


def test_two_loops_over_one_stack_and_layers_smaller_than_the_place(left: pw.VirtualSlice) -> None:
    def loss(params: Any, words: Any, targets: Any) -> jax.Array:
        def body(h: Any, layer: Any) -> Any:
            return h + jnp.tanh(h * layer["scale"] @ layer["w1"]) @ layer["w2"], None

        h, _ = jax.lax.scan(body, params["embed"][words], params["layers"], unroll=2)
        h, _ = jax.lax.scan(jax.checkpoint(body), h, params["layers"], reverse=True)
        return -jnp.take_along_axis(jax.nn.log_softmax(h @ params["out"]), targets[..., None], -1).mean()

    params = model(width=3, inner=5)
    step = pw.fsdp(loss, params, on=left)
    check_gradients(step, loss, params)
    assert loops(step) == [*[GATHERS] * 2, *[[*GATHERS, *REDUCTIONS]] * 2]


def test_a_frozen_stack_is_gathered_and_not_reduced(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(scanned(), model(), on=left, frozen=lambda name: name == W1)
    assert loops(step) == [GATHERS, [*GATHERS, REDUCTIONS[1]]]


def test_a_conversion_in_the_body_is_made_again_not_stacked(left: pw.VirtualSlice) -> None:
    def body(h: Any, layer: Any) -> Any:
        w1, w2 = (layer[name].astype(jnp.bfloat16) for name in ("w1", "w2"))
        return h + (jnp.tanh((h * layer["scale"]).astype(jnp.bfloat16) @ w1) @ w2).astype(jnp.float32), None

    loss, params = scanned(body=body), model()
    step = pw.fsdp(loss, params, on=left)
    check_gradients(step, loss, params, tolerance=3e-2)
    made = [step.traced(*batch()).flat.avals[value].shape for op in step.traced(*batch()).ops for value in op.outputs]
    assert (LAYERS, 30, 50) not in made
    assert (LAYERS, 50, 30) not in made


def test_dtypes_of_use_and_of_reduction(left: pw.VirtualSlice) -> None:
    loss, params = scanned(), model()
    step = pw.fsdp(loss, params, on=left, param_dtype=jnp.bfloat16, reduce_dtype=jnp.float32)
    check_gradients(step, loss, params, tolerance=5e-2)
    graph = step.traced(*batch())
    (forward, backward) = (op for op in graph.ops if isinstance(op, ShardedScan))
    assert {(one.name, one.bytes) for op in (forward, backward) for one in op.exchanges} == {
        ("all_gather", 30 * 50 * 2), ("reduce_scatter", 30 * 50 * 4),
    }  # fmt: skip


def test_what_else_reads_the_stack_has_it_gathered_in_front(left: pw.VirtualSlice) -> None:
    inner, params = scanned(), model()

    def loss(params: Any, *batch: Any) -> jax.Array:
        return inner(params, *batch) + 0.01 * jnp.sum(params["layers"]["w1"] ** 2)

    step = pw.fsdp(loss, params, on=left)
    check_gradients(step, loss, params)
    assert loops(step) == [GATHERS[1:], [GATHERS[1], REDUCTIONS[1]]]


def compiled_gathers(step: pw.FsdpStep, params: Any) -> list[tuple[int, int]]:
    """Return the elements of each all-gather of the compiled step, and how often it runs."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, *batch()))
    whole = pw.program(lambda params, *batch: step.value_and_grad(params, *batch), name="whole")
    (made,) = whole.compiled(*shapes).values()
    found = hlo_collectives_of(parse(made.as_text()), {"data": 4})
    return [(sum(math.prod(dims) for _, dims in one.parts), one.times) for one in found if one.kind == "all-gather"]


@pytest.mark.usefixtures("usual_effort")
def test_the_compiled_step_gathers_layers_only_and_needs_less_memory(left: pw.VirtualSlice) -> None:
    loss, params = scanned(remat=True), model(width=64, inner=128)
    by_layers = pw.fsdp(loss, params, on=left)
    in_front = pw.fsdp(loss, params, on=left, stacked=lambda name: False)
    gathers, stacks = compiled_gathers(by_layers, params), compiled_gathers(in_front, params)
    assert [times for _, times in gathers if times > 1] == [LAYERS] * 4, "w1 and w2, in both passes"
    assert {times for _, times in stacks} == {1}
    assert max(stacks)[0] > LAYERS * max(gathers)[0], "no collective carries a whole stack"
    found, before = by_layers.compiled(*batch()), in_front.compiled(*batch())
    assert found.differences == ()
    assert found.temporary < before.temporary / 2


@pytest.mark.parametrize("given", [lambda name: name.startswith("layers"), "tree"])
def test_the_user_says_what_is_stacked(left: pw.VirtualSlice, given: Any) -> None:
    loss, params = scanned(), model()
    tree = {"embed": False, "layers": {"w1": True, "w2": True, "scale": True}, "out": False}
    step = pw.fsdp(loss, params, on=left, stacked=tree if given == "tree" else given)
    check_gradients(step, loss, params)
    scale = "layers.scale"
    assert loops(step)[0] == [("all_gather", scale), *GATHERS]


def test_stacked_of_another_form_is_refused(left: pw.VirtualSlice) -> None:
    with pytest.raises(pw.UsageError, match="fsdp: stacked has the form"):
        pw.fsdp(scanned(), model(), on=left, stacked={"layers": True, "none": False})


def test_a_loop_waits_for_its_collectives_in_simulated_time(left: pw.VirtualSlice) -> None:
    step = pw.fsdp(scanned(), model(), on=left)
    costs = OperationCosts.of(step.traced(*batch()), CostModel.of("tpu_v3"), {left.axes[0]: 4})
    found = timeline(step.graph(*batch()), costs)
    in_loops = [span for span in found.spans if span.params in ((2,), (3,))]
    assert [(span.name, span.again) for span in in_loops] == [
        *(("gather layers.w1", False), ("gather layers.w2", False)),
        *(("regather layers.w1", True), ("regather layers.w2", True)),
        *(("reduce layers.w1", False), ("reduce layers.w2", False)),
    ]  # fmt: skip
    assert all(span.bytes == LAYERS * 30 * 50 * 4 for span in in_loops)
    assert sum(stall.seconds for stall in found.stalls) == pytest.approx(found.exposed)
