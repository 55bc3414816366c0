"""TeraPipe for real: token slices against whole sequences, on the two islands of this machine, at batch 1.

Two effects are shown apart. On two islands, stages overlap: at most 2 times as fast with two stages. And a slice skips
the masked half of its attention, which is as fast on one island. What the slicer predicts from slices measured on these
islands is compared with what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import pathways_nb as pw
from pathways_nb.examples import llama

TOKENS, BLOCKS, GRANULARITY, ROUNDS = 512, 4, 32, 7
"""Tokens of the sequence, blocks of both stages together, tokens that slices are multiples of, repetitions."""


def run() -> dict[str, Any]:
    """Return the speed-up by token slices, its two parts, and the prediction."""
    with pw.attach("cpu", islands=2, devices_per_island=1):
        left, right = (pw.virtual_slice(1, island=island, name=name) for island, name in enumerate(("left", "right")))
        slicing = _slicing(left)
        found = _timed({
            "whole": _step([left, right], None),
            "sliced": _step([left, right], slicing.token_slices),
            "whole_on_one": _step([left, left], None),
            "sliced_on_one": _step([left, left], slicing.token_slices),
        })  # fmt: skip
    times = {name: median(rounds) for name, rounds in found.items()}
    figures = {
        "real_speedup": times["whole"] / times["sliced"],
        "real_speedup_overlap_only": times["sliced_on_one"] / times["sliced"],
        "real_over_predicted": times["sliced"] / slicing.latency,
        "noise_floor": median(abs(one / times[name] - 1) for name, rounds in found.items() for one in rounds),
    }
    detail = {
        "token_slices": list(slicing.token_slices),
        "predicted_speedup": slicing.uniform[1] / slicing.latency,
        "speedup_by_what_slices_skip": times["whole_on_one"] / times["sliced_on_one"],
        "predicted_seconds": slicing.latency,
        "seconds": times,
    }
    return {"figures": figures, "detail": {"real": detail}}


def _blocks(params: Any, x: Any, context: pw.Context) -> Any:
    return llama.stage({"blocks": params}, x, context)


def _slicing(place: pw.VirtualSlice) -> Any:
    """Return the slicing that is best for slices of a stage as they are measured on this machine."""
    size, random = llama.Size(), np.random.default_rng(0)
    params = [llama.block_params(size, random) for _ in range(BLOCKS // 2)]
    x = random.normal(size=(1, TOKENS, size.features)).astype(np.float32)
    cost = pw.terapipe.measure(_blocks, params, x, on=place, granularity=GRANULARITY, contexts=2)
    return pw.terapipe.plan(cost, length=TOKENS, stages=2, granularity=GRANULARITY)


def _step(on: list[pw.VirtualSlice], token_slices: tuple[int, ...] | None) -> Callable[[], float]:
    """Return a function that runs one sequence through two stages and returns its seconds."""
    stages, params = llama.stages([BLOCKS // 2] * 2)
    schedule = "gpipe" if token_slices is None else "terapipe"
    pipe = pw.pipeline(stages, on=on, schedule=schedule, microbatches=1, loss=llama.loss, token_slices=token_slices)
    placed = [pw.put(tree, on=place) for tree, place in zip(params, on, strict=True)]
    batch = llama.batch(1, TOKENS)

    def seconds() -> float:
        began = time.perf_counter()
        pw.wait(pipe.value_and_grad(placed, *batch))
        return time.perf_counter() - began

    return seconds


def _timed(runs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Return the seconds of each run in each round; all take turns, and a first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, seconds in runs.items():
            lasted = seconds()
            if turn:
                found[name].append(lasted)
    return found
