"""Sharded data parallelism: variants of one step as they are compiled here, and plans of Llama 3 in simulated time.

The variants are those of a model of 4 blocks (features 256, hidden 1024, 512 words, 128 tokens, 16 sequences) on 8
devices of this machine. Devices share its cores, so times say what passes cost, not what overlap saves. The planner's
table prices each collective by a latency and a bandwidth, and products at 400 TFLOP/s.

The ablation repeats the question of the paper (SimpleFSDP, section 5) in simulated time: by how much is a planned and
compiled step faster and smaller than FSDP2, which gathers each block before its turn and runs operations one by one?
The published figures are the best of the paper's settings on real H100s, which are not these.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pathways_nb as pw
from pathways_nb.bench import _first_calls
from pathways_nb.bench.stopwatch import interleaved, ratio
from pathways_nb.examples import llama, llama3
from pathways_nb.parallel.fsdp.memory import MemoryCurve
from pathways_nb.parallel.fsdp.step_planner import Planner
from pathways_nb.parallel.fsdp.step_work import StepWork

DEVICES, ROWS, TOKENS, ROUNDS = 8, 16, 128, 8
SIZE = llama.Size(256, 4, 1024, 512)
SETTINGS = [("8b", 8, 350e9, 15e-6), ("8b", 64, 100e9, 30e-6), ("8b", 128, 50e9, 40e-6), ("8b", 512, 50e9, 40e-6),
            ("70b", 128, 50e9, 40e-6), ("405b", 512, 50e9, 40e-6)]  # fmt: skip
"""Model, devices, bytes/s and latency in seconds of a collective."""
MEMORY = 80e9
SHORT = ("vanilla", "all passes"), SETTINGS[2:3], 3
"""Variants, settings and rounds of the short form."""
SPEED = {"step_all_passes_over_*": "lower", "*_over_make_jaxpr_8b": "lower"}


def run(short: bool = False) -> dict[str, Any]:
    """Return the figures of the variants and of the planner."""
    chosen_variants, settings, rounds = SHORT if short else ((), SETTINGS, ROUNDS)
    variants, figures = _variants(chosen_variants, rounds)
    _make_jaxpr("8b", 128)  # fills JAX's own caches
    table = [_planned(*setting) for setting in settings]
    floor = statistics.median(_make_jaxpr("8b", 128) for _ in range(3))
    chosen = next(row for row in table if (row["model"], row["devices"]) == ("8b", 128))
    figures |= {
        "searched_over_greedy_8b_128": chosen["searched_ms"] / chosen["greedy_ms"],
        "searched_over_block_prefetch_8b_128": chosen["searched_ms"] / chosen["block_prefetch_ms"],
        "searched_over_bound_8b_128": chosen["searched_ms"] / chosen["bound_ms"],
        "searched_over_bound_worst": max(row["searched_ms"] / row["bound_ms"] for row in table),
        "plan_seconds_8b": chosen["plan_seconds"],
        "trace_seconds_8b": chosen["trace_seconds"],
        "plan_over_make_jaxpr_8b": chosen["plan_seconds"] / floor,
        "trace_over_make_jaxpr_8b": chosen["trace_seconds"] / floor,
        **_compared_with_published(table),
    }
    checks = {} if short else _first_calls.of_steps()
    if checks:
        figures["check_over_first_call"] = max(checks.values())
        figures["check_alone_over_first_call"] = max(_first_calls.of_steps(concurrent=False).values())
    return {"figures": figures, "detail": {"variants": variants, "plans": table, "checks": checks}}


def _compared_with_published(table: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return by how much steps are faster and smaller than FSDP2 at best, in simulated time and in the paper."""
    ends = [(row["ablation"]["fsdp2_eager"], row["ablation"]["searched"]) for row in table]
    return {
        "throughput_gain_best": max(eager["step_ms"] / searched["step_ms"] for eager, searched in ends) - 1,
        "throughput_gain_published": 0.6867,
        "memory_saved_best": 1 - min(searched["peak_gb"] / eager["peak_gb"] for eager, searched in ends),
        "memory_saved_published": 0.2854,
    }


def _variants(names: Sequence[str], rounds: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return a row for each of these variants of the step, and the figures that compare them.

    Args:
        names: of the variants that are timed with plain ``jax.jit``; none for all.
        rounds: how often each step is timed.
    """
    with pw.attach("cpu", islands=1, devices_per_island=DEVICES):
        place = pw.virtual_slice(DEVICES, name="place")
        params, batch = llama.stages([4], SIZE)[1][0], llama.batch(ROWS, TOKENS)
        expected = jax.jit(jax.value_and_grad(_loss(False)))(params, *batch)[1]
        calls: dict[str, Callable[[], Any]] = {}
        steps = [(name, step) for name, step in _steps(place, params) if name in names or not names]
        rows = [_variant(name, step, params, batch, expected, calls) for name, step in steps]
        rows.append(_gspmd(place, params, batch, calls))
        seconds = interleaved(calls, rounds)
    for row in rows:
        row["step_over_vanilla"] = ratio(seconds, row["variant"], "vanilla")
    temporary = {row["variant"]: row["temporary_mib"] for row in rows}
    figures = {
        "temp_all_passes_over_gspmd": temporary["all passes"] / temporary["GSPMD"],
        "step_all_passes_over_vanilla": ratio(seconds, "all passes", "vanilla"),
        "step_all_passes_over_gspmd": ratio(seconds, "all passes", "GSPMD"),
        "gradient_error_worst": max(row["gradient_error"] for row in rows if "gradient_error" in row),
        "predicted_over_compiled_temp": statistics.median(_predicted_over_compiled(rows)),
        "predicted_over_compiled_temp_worst": max(_predicted_over_compiled(rows), key=lambda one: abs(math.log(one))),
        "collectives_changed": sum(len(row["changed"]) for row in rows if "changed" in row),
    }
    if not names:
        figures["temp_full_remat_over_gspmd"] = temporary["all passes, full remat"] / temporary["GSPMD"]
    return rows, figures


def _steps(place: pw.VirtualSlice, params: Any) -> Iterator[tuple[str, pw.FsdpStep]]:
    """Yield the variants: what is gathered once, again, in buckets, early, and with activations computed again."""
    step = pw.fsdp(_loss(False), params, on=place)
    remat = pw.fsdp(_loss(True), params, on=place)
    block = step.plan
    single = pw.FsdpPlan(tuple(pw.Bucket((name.name,)) for name in step.parameters), prefetch=0)
    yield "vanilla", step.with_plan(single.keeping(True))
    yield "bucketed", step.with_plan(replace(block, prefetch=0).keeping(True))
    yield "re-gathered", step.with_plan(single)
    yield "re-gathered and bucketed", step.with_plan(replace(block, prefetch=0))
    yield "all passes", step
    yield "full remat", remat.with_plan(single)
    yield "all passes, full remat", remat


def _variant(
    name: str, step: pw.FsdpStep, params: Any, batch: Any, expected: Any, calls: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    placed = step.init(params)
    found = step.compiled(*batch)
    _, gradients = step.value_and_grad(placed, *batch)
    calls[name] = lambda: pw.wait(step.value_and_grad(placed, *batch))
    return {
        "variant": name, "planned": dict(found.planned), "compiled": dict(found.compiled),
        "changed": list(found.differences), "temporary_mib": found.temporary / 2**20,
        "predicted_temporary_mib": _most_temporary(step.timeline(batch, "gpu_h100_sxm").memory) / 2**20,
        "gradient_error": _error(gradients, expected), "schedule": step.graph(*batch).schedule(),
    }  # fmt: skip


def _most_temporary(memory: MemoryCurve) -> int:
    """Return the most bytes that are neither parameters nor optimizer state; the chip changes when, hardly how many."""
    kept = memory.bytes["parameters"] + memory.bytes["optimizer"]
    return int((memory.total - kept).max())


def _predicted_over_compiled(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [row["predicted_temporary_mib"] / row["temporary_mib"] for row in rows if "predicted_temporary_mib" in row]


def _gspmd(place: pw.VirtualSlice, params: Any, batch: Any, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the row of plain ``jax.jit`` with sharded parameters and batch, the comparison."""
    axis = place.axes[0]
    laid = jax.tree.map(lambda leaf: pw.P(axis), params)
    call = pw.jit(
        jax.value_and_grad(_loss(False)), on=place, in_shardings=(laid, pw.P(axis), pw.P(axis)),
        out_shardings=(pw.P(), laid),
    )  # fmt: skip
    placed = pw.put(params, on=place, shardings=laid)
    made = next(iter(pw.program(lambda *args: call(*args)).compiled(params, *batch).values()))
    calls["GSPMD"] = lambda: pw.wait(call(placed, *batch))
    calls["GSPMD"]()
    counts = {kind: made.as_text().count(f" {kind}(") for kind in ("all-gather", "reduce-scatter", "all-reduce")}
    return {"variant": "GSPMD", "compiled": counts, "temporary_mib": made.memory_analysis().temp_size_in_bytes / 2**20}


def _loss(remat: bool) -> Callable[..., Any]:
    block = jax.checkpoint(llama.block, static_argnums=2) if remat else llama.block

    def loss(params: Any, tokens: Any, targets: Any) -> Any:
        length = tokens.shape[1]
        x = params["embedding"][tokens]
        for one in params["blocks"]:
            x = block(one, x, pw.Context(0, length, length, length))
        return llama.loss(llama.stage({"blocks": [], "norm": params["norm"], "head": params["head"]}, x, None), targets)  # type: ignore[arg-type]

    return loss


def _error(found: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(pw.get(found)), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(np.asarray(b)).max()) for a, b in pairs)


def _planned(model: str, devices: int, bandwidth: float, latency: float) -> dict[str, Any]:
    """Return the exposed communication of one model's plans, in ms, at a sequence of 8192 tokens for each device."""
    began = time.perf_counter()
    planner = planner_of(model, devices, bandwidth, latency)
    traced = time.perf_counter()
    plan = planner.search(MEMORY)
    searched = planner.timeline(plan)
    ended = time.perf_counter()
    others = {"greedy": planner.greedy(MEMORY), "block_prefetch": planner.per_block(1), "block": planner.per_block(0),
              "vanilla": planner.per_parameter(0)}  # fmt: skip
    timelines = {name: planner.timeline(other) for name, other in others.items()}
    eager = replace(planner, work=StepWork.eager(planner.traced, planner.sizes)).timeline(others["block_prefetch"])
    ablation = {"fsdp2_eager": eager, **timelines, "searched": searched}
    return {
        "model": model, "devices": devices, "GB/s": bandwidth / 1e9, "latency_us": latency * 1e6,
        "compute_ms": planner.outline.compute / 1e9, "exchanged_ms": searched.exchanged * 1e3,
        **{f"{name}_ms": one.exposed * 1e3 for name, one in timelines.items()},
        "searched_ms": searched.exposed * 1e3, "bound_ms": planner.bound * 1e3,
        "searched_waits_ms": searched.waited * 1e3, "peak_gib": searched.memory.peak / 2**30,
        "trace_seconds": traced - began, "plan_seconds": ended - traced,
        "ablation": {name: {"step_ms": one.seconds * 1e3, "peak_gb": one.memory.peak / 1e9}
                     for name, one in ablation.items()},
    }  # fmt: skip


def _make_jaxpr(model: str, devices: int) -> float:
    """Return the seconds in which JAX alone traces the same loss and its gradient, the least that planning can take."""
    shape, tokens = llama3.SHAPES[model], jax.ShapeDtypeStruct((devices, 8192), jnp.int32)
    loss, params = llama3.loss(shape, remat=model != "8b"), llama3.params(shape)
    began = time.perf_counter()
    jax.make_jaxpr(jax.value_and_grad(loss))(params, tokens, tokens)
    return time.perf_counter() - began


def planner_of(model: str, devices: int, bandwidth: float, latency: float) -> Planner:
    """Return the planner of a Llama 3 model in bfloat16, with gradients reduced in float32, without the update.

    Args:
        model: ``"8b"``, ``"70b"`` or ``"405b"``; the last two compute activations again.
        devices: that each train one sequence of 8192 tokens.
        bandwidth: of collectives, in bytes/s for each device.
        latency: of a collective, in seconds.
    """
    chip = pw.chip("gpu_h100_sxm").replace(
        pod=(devices,), links=1, link_bw=bandwidth, link_efficiency=1.0, hop_latency=1e-12, start_latency=latency,
        bf16_flops=400e12 / 0.7,
    )  # fmt: skip
    shape, tokens = llama3.SHAPES[model], jax.ShapeDtypeStruct((devices, 8192), jnp.int32)
    step = pw.fsdp(
        llama3.loss(shape, remat=model != "8b"), llama3.params(shape), on=pw.virtual_slice(devices),
        optimizer=optax.adamw(1e-4), param_dtype=jnp.bfloat16, reduce_dtype=jnp.float32, batch=(tokens, tokens),
    )  # fmt: skip
    return replace(step.planner(chip=chip), update=None)
