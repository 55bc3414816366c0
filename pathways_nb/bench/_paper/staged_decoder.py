"""Table 2 and Figure 10: a decoder in pipelined stages, all microbatches forward and then backward (GPipe).

A stage lasts its part of the step's work. The work itself is fitted on rows of the table; beyond that, only the size of
the activations between stages is known of the model. Two fits are compared, because one parameter cannot tell whether
a stage on more cores is less efficient.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import pathways_nb as pw
from pathways_nb.bench._paper.found import Found
from pathways_nb.bench._paper.pods import PAPER, PodSetting

TOKENS = 2**18
"""Tokens of a step on 128 cores, assumed: decides how much dispatch and latencies count, which is little."""
WIDTH = int(PAPER["table 2"]["model dimension"]["value"])
_PER_HOST = 8
_FORWARD = 1 / 3
"""Share of the forward pass in a microbatch's work; the backward pass takes twice as long."""


class CoreWork(NamedTuple):
    """Core-seconds for each token, and by what part each further core of a stage adds to that."""

    per_token: float
    width_cost: float = 0.0

    def stage(self, row: TableRow) -> float:
        """Return the seconds of one microbatch on a stage, forward and backward."""
        slower = 1 + self.width_cost * (row.cores // row.stages - 1)
        return self.per_token * slower * row.tokens / row.cores / row.microbatches


_TOKENS = jax.ShapeDtypeStruct((), jnp.float32)
"""Stands for a microbatch of tokens, which is small compared with its activations."""


@dataclass(frozen=True)
class TableRow:
    """One row of Table 2."""

    stages: int
    microbatches: int
    cores: int = 128
    islands: int = 1

    @classmethod
    def of(cls, name: str) -> TableRow:
        """Return the row with a name of the table, such as ``"S=16 M=64, 512 cores"``; SPMD is a single stage."""
        found = re.fullmatch(r"S=(\d+) M=(\d+)(?:, (\d+) cores)?", name)
        return cls(*(int(number or 128) for number in found.groups())) if found else cls(1, 1)

    @property
    def tokens(self) -> int:
        """Tokens of a step; a larger machine gets a larger batch."""
        return TOKENS * self.cores // 128

    @property
    def bubble(self) -> float:
        """Time of a step as a multiple of its time without a bubble: (M + S - 1) / M."""
        return (self.microbatches + self.stages - 1) / self.microbatches

    def places(self) -> list[pw.VirtualSlice]:
        """Return a virtual slice for each stage; an island takes consecutive stages."""
        each = self.stages // self.islands
        return [
            pw.virtual_slice(self.cores // self.stages, island=stage // each, name=f"stage {stage}")
            for stage in range(self.stages)
        ]


def step_of(row: TableRow, stage_seconds: float) -> tuple[pw.Program, Any]:
    """Return a program of one training step, and its microbatches.

    Args:
        row: of the table.
        stage_seconds: of one microbatch on a stage, forward and backward.
    """
    places, size = row.places(), row.tokens // row.microbatches * WIDTH * 2  # bytes of activations, split over cores

    def stages(name: str, part: float, on: list[pw.VirtualSlice]) -> list[pw.Computation]:
        """Return a computation for each place that takes a part of the stage's seconds."""
        return [pw.work(stage_seconds * part, on=place, output_bytes=size, name=name) for place in on]

    forward, backward = stages("forward", _FORWARD, places), stages("backward", 1 - _FORWARD, places[::-1])

    def through(stages: list[pw.Computation], x: Any) -> Any:
        """Return what leaves the last stage."""
        for stage in stages:
            x = stage(x)
        return x

    def step(microbatches: list[Any]) -> list[Any]:
        made = [through(forward, x) for x in microbatches]
        # As in GPipe, the last microbatch forward is the first one backward.
        return [through(backward, x) for x in reversed(made)]

    return pw.program(step, name=f"{row.stages} stages"), [_TOKENS] * row.microbatches


@cache
def tokens_per_second(row: TableRow, stage_seconds: float) -> float:
    """Return the tokens per second of a step through the controller, from the first launch to the last end."""
    pod = PodSetting(row.cores // row.islands // _PER_HOST, _PER_HOST, row.islands)
    with pod.attached():
        step, microbatches = step_of(row, stage_seconds)
        run = step.run(microbatches)
    work = run.events.of_kind("compute")
    return row.tokens / float(work["end"].max() - work["start"].min())


def fitted_stage(name: str) -> float:
    """Return the core-seconds for each token at which a row of the table comes out as published."""
    row, wanted = TableRow.of(name), PAPER["table 2"][name]["value"]
    guess = CoreWork(row.cores / wanted / row.bubble)
    # One correction suffices: throughput is inverse to the stage's time but for small latencies.
    return guess.per_token * tokens_per_second(row, guess.stage(row)) / wanted


def fit_work() -> CoreWork:
    """Return the work fitted with one parameter on one row."""
    return CoreWork(fitted_stage("S=4 M=16"))


def fit_work_and_width() -> CoreWork:
    """Return the work fitted with two parameters on two rows: stages of 32 and of 16 cores."""
    wide, narrow = fitted_stage("S=4 M=16"), fitted_stage("S=8 M=32")
    slope = (wide - narrow) / (32 - 16)
    per_token = wide - 31 * slope
    return CoreWork(per_token, slope / per_token)


def table_2(work: CoreWork) -> dict[str, Found]:
    """Return every row; the baseline is the bubble's closed form, scaled on the first row."""
    rows = [name for name, known in PAPER["table 2"].items() if known["unit"] == "tokens/s"]
    first = TableRow.of("S=4 M=16")
    scale = PAPER["table 2"]["S=4 M=16"]["value"] * first.bubble / first.cores
    found = {}
    for name in rows:
        row = TableRow.of(name)
        says = "the pipelines' rows cannot tell what SPMD over all cores costs" if name == "SPMD" else ""
        found[name] = Found(tokens_per_second(row, work.stage(row)), scale * row.cores / row.bubble, says)
    return found


def figure_10(work: CoreWork) -> dict[str, Found]:
    """Return 16 stages over four islands against one island; the baseline is that DCN costs nothing."""
    row = TableRow.of("S=16 M=64")
    seconds, sent = work.stage(row), row.tokens // row.microbatches * WIDTH * 2
    apart = tokens_per_second(replace(row, islands=4), seconds)
    says = f"{sent / 1e6:.0f} MB travel between stages that take {seconds * 1e3:.0f} ms, forward and backward"
    return {"four islands over one": Found(apart / tokens_per_second(row, seconds), 1.0, says)}
