"""TeraPipe: how fast its optimal slicing is found, and how well the paper's results are predicted.

Solving is timed as the median of ``ROUNDS`` rounds, from the call of ``pw.terapipe.plan`` with a formula to the
slicing. Nothing is compiled; the first call of the process, which is not counted, is in the detail.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from pathways_nb.bench import _token_slices
from pathways_nb.parallel.terapipe import published_steps as published
from pathways_nb.parallel.terapipe.slice_costs import Hinge
from pathways_nb.parallel.terapipe.slice_planner import plan

ROUNDS = 5
"""Repetitions whose median is reported."""
HINGES = {
    "175b": ((0.00975, 0.006, 4.31e-5, 1.17e-9), {"length": 2048, "batch": 2, "stages": 96}),
    "8192": ((0.0049, 0.003, 1.03e-5, 5.08e-10), {"length": 8192, "batch": 2, "stages": 40}),
}
"""Constants of ``Hinge`` and sizes. 175b: fitted to the paper's equal slices of setting 9; 8192: to 13B, long ones."""


def run() -> dict[str, Any]:
    """Return the figures of the slicer and of the published results."""
    parts = [_solving(), _published(), _token_slices.run()]
    return {
        "figures": {name: value for part in parts for name, value in part["figures"].items()},
        "detail": {name: value for part in parts for name, value in part["detail"].items()},
    }


def _solving() -> dict[str, Any]:
    """Return the seconds of finding optimal slicings."""
    figures, rows = {}, []
    for name, (constants, sizes) in HINGES.items():
        cost, times = Hinge(*constants), []
        for _ in range(ROUNDS + 1):
            began = time.perf_counter()
            found = plan(cost, **sizes)
            times.append(time.perf_counter() - began)
        figures[f"solve_seconds_{name}"] = median(times[1:])
        best = min(found.uniform.values())
        rows.append({"case": name, "first": times[0], "latency": found.latency, "best_uniform": best})
    return {"figures": figures, "detail": {"solving": rows}}


def _published() -> dict[str, Any]:
    """Return the errors of predictions of the paper's results."""
    rows = {reading: published.settings(reading) for reading in published.READINGS}
    fits = [
        {
            "reading": reading,
            "fitted_parameters": published.fitted(reading).parameter_count,
            "fitted_on": published.fitted(reading).fitted_on,
            "error_of_fit": published.fitted(reading).error,
            "mean_error": published.mean_error(rows[reading]),
        }
        for reading in published.READINGS
    ]
    figures = {"published_mean_error": published.mean_error(rows["maximum"])}
    detail = {
        "readings": fits,
        "parameters": published.fitted().parameters._asdict(),
        "settings": rows["maximum"],
        "longer_sequences": published.longer_sequences(),
        "ablation": published.ablation(),
    }
    return {"figures": figures, "detail": detail}
