"""Executed pipelines of Llama blocks on the two islands of this machine: time, bubble, memory, order, gradients.

Every schedule trains the same model on the same batch. A step of GPipe is timed after each step of another schedule,
so that both see the same machine. Islands have one core each at best, so the four places of the schedules with four
devices share two islands and take turns: their measured bubble is that of islands. The claimed bubble is that of
F = I = W, the planned one that of the medians of the run; both without transfers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, cast

import jax
import numpy as np

import pathways_nb as pw
from pathways_nb.bench import _first_calls
from pathways_nb.examples import llama
from pathways_nb.parallel.pipelines import activations
from pathways_nb.parallel.schedules.run_over_schedule import RunOverSchedule
from pathways_nb.runtime.local_islands import LocalAttachment

MICROBATCHES, ROWS, TOKENS, BLOCKS = 8, 16, 128, 4
ROUNDS = 5
"""Pairs of steps, GPipe's and the other schedule's, of which the median ratio is reported."""
SIZES = {
    "2 stages": (2, ("gpipe", "1f1b", "zb-h1", "zb-h2")),
    "4 stages": (4, ("gpipe", "1f1b", "zb-h1")),
    "4 stages in chunks": (2, ("gpipe", "interleaved-1f1b", "interleaved-zb", "zb-v", "v-half", "dualpipe-v")),
}
"""Number of devices of the schedules and their names; the first is what the others are compared with."""


def run() -> dict[str, Any]:
    """Return the times of all schedules over GPipe's, bubbles, memory, order and errors."""
    with pw.attach("cpu", islands=2, devices_per_island=2):
        rows = {size: list(_rows(devices, names)) for size, (devices, names) in SIZES.items()}
        flat = [{"size": size, **row} for size, found in rows.items() for row in found]
        split, whole = _parts()
    checks = _first_calls.of_pipelines()
    figures = {_name(row): row["step_over_gpipe"] for row in flat} | {
        "gradient_error_worst": max(row["gradient_error"] for row in flat),
        "order_mismatches": sum(row["order_mismatches"] for row in flat),
        "split_over_whole_backward": split / whole,
        "check_over_first_call": max(checks.values()),
        "check_alone_over_first_call": max(_first_calls.of_pipelines(concurrent=False).values()),
        "peak_measured_over_claimed_worst": max(row["peak_measured_bytes"] / row["peak_claimed_bytes"] for row in flat),
    }
    return {
        "figures": figures,
        "detail": {"backward_ms": whole * 1e3, "input_and_weight_ms": split * 1e3, "checks": checks, **rows},
    }


def _name(row: dict[str, Any]) -> str:
    return f"{row['size']}_{row['schedule']}_step_over_gpipe".replace(" ", "_").replace("-", "_")


def _rows(devices: int, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the row of the table of each schedule."""
    on = [pw.virtual_slice(1, island=device % 2, name=f"place {device}") for device in range(devices)]
    reference = _pipeline(names[0], on)
    for name in names:
        yield _row(_pipeline(name, on), reference)


def _pipeline(name: str, on: Sequence[pw.VirtualSlice]) -> tuple[pw.Pipeline, Any]:
    schedule = pw.schedule(name, devices=len(on), microbatches=MICROBATCHES)
    stages, params = llama.stages([BLOCKS // schedule.stages] * schedule.stages)
    return pw.pipeline(stages, on=on, schedule=schedule, loss=llama.loss), params


def _row(tested: tuple[pw.Pipeline, Any], reference: tuple[pw.Pipeline, Any]) -> dict[str, Any]:
    (pipe, params), batch = tested, llama.batch(ROWS, TOKENS)
    placed = [pw.put(tree, on=pipe.place_of(stage)) for stage, tree in enumerate(params)]
    error = _error(pipe, params, batch)
    pw.wait(reference[0].value_and_grad(reference[1], *batch))
    pairs = [(_seconds(pipe, placed, batch), _seconds(reference[0], reference[1], batch)) for _ in range(ROUNDS)]
    with _live_bytes() as live:
        found = pipe.value_and_grad.run(placed, *batch)
    graph, over = pipe.value_and_grad.graph(placed, *batch), RunOverSchedule.of(found.events, pipe.schedule)
    claims = pipe.value_and_grad.peaks(placed, *batch)
    return {
        "schedule": pipe.schedule.name,
        "step_ms": median(step for step, _ in pairs) * 1e3,
        "step_over_gpipe": median(step / gpipe for step, gpipe in pairs),
        "bubble_measured": _bubble(found),
        "bubble_claimed": pipe.schedule.bubble,
        "bubble_planned": pipe.schedule.timing(**{**over.times, "transfer": 0.0}).bubble,
        "peak_measured_bytes": max(live),
        "peak_claimed_bytes": max(
            sum(claim.others for claim in claims if claim.where.island == island) for island in (0, 1)
        ),
        "activations_claimed_bytes": max(activations.peaks(pipe.schedule, graph)),
        "gradient_error": error,
        "order_mismatches": int(np.count_nonzero(over.table["position"] != over.table["ran_position"])),
    }


def _seconds(pipe: pw.Pipeline, params: Any, batch: Any) -> float:
    began = time.perf_counter()
    pw.wait(pipe.value_and_grad(params, *batch))
    return time.perf_counter() - began


def _error(pipe: pw.Pipeline, params: Any, batch: Any) -> float:
    """Return the largest error of any gradient, relative to the largest entry of its tensor."""
    _, gradients = pw.get(pipe.value_and_grad(params, *batch))
    _, exact = jax.jit(jax.value_and_grad(pipe.composed))(params, *batch)
    pairs = zip(jax.tree.leaves(gradients), jax.tree.leaves(exact), strict=True)
    return max(float(np.abs(found - right).max() / np.abs(right).max()) for found, right in pairs)


def _bubble(run: pw.Run) -> float:
    """Return the share of the islands' time, from the first to the last action, in which no action ran."""
    events = run.events.of_kind("compute")
    actions = events.select(events["stage"] >= 0)
    span = float(actions["end"].max() - actions["start"].min())
    islands = set(actions["island"].tolist())
    busy = sum(_covered(actions.select(actions["island"] == island)) for island in islands)
    return 1 - busy / (span * len(islands))


def _covered(events: Any) -> float:
    """Return the seconds in which at least one of the events lasted."""
    order = np.argsort(events["start"])
    start, end = events["start"][order], np.maximum.accumulate(events["end"][order])
    before = np.concatenate([[-np.inf], end[:-1]])
    return float(np.sum(np.maximum(end - np.maximum(start, before), 0)))


@contextmanager
def _live_bytes() -> Iterator[list[int]]:
    """Yield a list that gets the bytes of all live arrays of the busiest island beyond those at the beginning."""
    attachment = cast(LocalAttachment, pw.attach("cpu", islands=2, devices_per_island=2).driver.attachment)
    clients = {device.client for island in attachment.islands for device in island.devices}
    first = {client: _bytes(client) for client in clients}
    found, stop = [1], threading.Event()

    def sample() -> None:
        while not stop.wait(1e-3):
            found.append(max(_bytes(client) - first[client] for client in clients))

    thread = threading.Thread(target=sample)
    thread.start()
    yield found
    stop.set()
    thread.join()


def _bytes(client: Any) -> int:
    return sum(array.nbytes for array in client.live_arrays())


def _parts() -> tuple[float, float]:
    """Return the seconds of I and W together, and those of B, of one block on one device."""
    from pathways_nb.parallel.pipelines.stage_parts import Inputs, TokenSlice
    from pathways_nb.parallel.pipelines.stage_trace import trace_stage

    size = llama.Size()
    params = llama.block_params(size, np.random.default_rng(0))
    x = np.random.default_rng(1).normal(size=(2, TOKENS, size.features)).astype(np.float32)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), Inputs(params, x))
    at = TokenSlice(0, 1, 0, TOKENS, TOKENS)
    parts = trace_stage(lambda p, h, _, context: llama.block(p, h, context), shapes, at, None, 1.0, by_input=True)
    values = dict(zip(parts.inputs["params"], jax.tree.leaves(params), strict=True))
    values |= {parts.inputs["x"][0]: x, parts.arriving["y"][0]: x}

    def timed(part: Any) -> Any:
        compiled = jax.jit(part.function)

        def call() -> float:
            inputs = [values[v] for v in part.inputs]
            began = time.perf_counter()
            values.update(zip(part.outputs, jax.block_until_ready(compiled(*inputs)), strict=True))
            return time.perf_counter() - began

        call()
        return call

    timed(parts.forward)
    whole, first, second = timed(parts.backward), timed(parts.input_gradient), timed(parts.weight_gradient)
    pairs = [(first() + second(), whole()) for _ in range(30)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)
