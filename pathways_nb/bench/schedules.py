"""Every pipeline schedule in three sizes: makespan and its closed form, bubble, peak, and time to generate it.

Makespans are those of F = I = W = 1 for a microbatch on a whole device, transfers take none; see ``Schedule.timing``.
A schedule of 300,000 actions whose last one is repeated is read from its text and refused (``refuse_seconds_300k``).
Generation and evaluation are timed apart, each as the median of ``ROUNDS`` rounds: a schedule is generated once and
evaluated for every change of times. Generation is also compared with making the same actions from their tuples, the
least that any generator does (``generation_over_listing_worst``).
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import Any

from pathways_nb.bench.stopwatch import interleaved, ratio
from pathways_nb.errors import ScheduleError
from pathways_nb.parallel.schedules.actions import Action, actions_of
from pathways_nb.parallel.schedules.closed_forms import Times
from pathways_nb.parallel.schedules.registry import ScheduleKind, kind_of, schedules
from pathways_nb.parallel.schedules.schedule import Schedule, schedule

SIZES = ((4, 8), (8, 32), (16, 128))
"""Numbers of devices and microbatches."""
TOKEN_SLICES = 4
"""Token slices of the schedules that slice sequences."""
LARGE = ("zb-h1", 8, 12_500)
"""Name, devices and microbatches of the schedule of 300,000 actions."""
ROUNDS = 5
"""Repetitions whose median is reported."""
SPEED = {"*_over_text_16x128_worst": "lower", "generation_over_listing_worst": "lower"}


def run(short: bool = False) -> dict[str, Any]:
    """Return makespan, bubble, peak and milliseconds of all schedules in all sizes; the short form has the largest."""
    sizes = SIZES[-1:] if short else SIZES
    rows = {f"{p}x{m}": [_row(kind_of(name), p, m) for name in schedules()] for p, m in sizes}
    largest = rows["{}x{}".format(*SIZES[-1])]
    figures = {
        "generation_ms_16x128_worst": max(row["generation_ms"] for row in largest),
        "evaluation_ms_16x128_worst": max(row["evaluation_ms"] for row in largest),
        "generation_over_text_16x128_worst": max(row["generation_ms"] / row["text_ms"] for row in largest),
        "evaluation_over_text_16x128_worst": max(row["evaluation_ms"] / row["text_ms"] for row in largest),
        "generation_over_listing_worst": max(row["generation_over_listing"] for row in largest),
        "refuse_seconds_300k": median(_refusal() for _ in range(ROUNDS)),
    }
    return {"figures": figures, "detail": rows}


def _row(kind: ScheduleKind, devices: int, microbatches: int) -> dict[str, Any]:
    """Return the row of the table for one schedule in one size."""
    slices = TOKEN_SLICES if "token_slices" in kind.defaults else None
    made = schedule(kind.name, devices, microbatches, None, slices)
    tuples = [tuple(action) for row in made.rows for cell in row for action in actions_of(cell)]
    seconds = interleaved(
        {
            "generation": partial(schedule, kind.name, devices, microbatches, None, slices),
            "listing": lambda: list(map(Action._make, tuples)),
        },
        ROUNDS,
    )
    actions = sum(map(len, made.rows))
    text = [_timed(_text, actions)[0] for _ in range(ROUNDS)]
    proof, size = made.check(), made.size
    idle = kind.bubble.at(size, Times()) if kind.bubble else None
    peaks = [kind.peak.at(size, device) for device in range(devices)] if kind.peak else []
    return {
        "schedule": kind.name,
        "makespan": proof.makespan,
        "closed_form": None if idle is None else idle + 3 * microbatches,
        "formula": f"3m + {kind.bubble.text}" if kind.bubble else "",
        "bubble": proof.bubble,
        "peak": max(proof.peaks),
        "peak_closed_form": max((peak for peak in peaks if peak is not None), default=None),
        "generation_ms": 1e3 * median(seconds["generation"]),
        "generation_over_listing": ratio(seconds, "generation", "listing"),
        "evaluation_ms": 1e3 * median(_timed(made.timing)[0] for _ in range(ROUNDS)),
        "text_ms": 1e3 * median(text),
    }


def _refusal() -> float:
    """Return the seconds from the text of a wrong schedule to its error."""
    text = schedule(*LARGE).text
    seconds, said = _timed(_refused, f"{text} {text.split()[-1]}")
    assert "is done 2 times" in said, said
    return seconds


def _refused(text: str) -> str:
    """Return the error of a wrong schedule."""
    try:
        Schedule.parse(text).check()
    except ScheduleError as error:
        return str(error)
    return "it was not refused"


def _text(actions: int) -> list[str]:
    """Return as many texts of actions: the least that a schedule in Python does, and the floor of both times."""
    return [f"{stage}F{stage}" for stage in range(actions)]


def _timed(make: Any, *arguments: Any) -> tuple[float, Any]:
    """Return the seconds of one call, and its result."""
    began = time.perf_counter()
    made = make(*arguments)
    return time.perf_counter() - began, made
