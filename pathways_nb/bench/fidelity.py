"""Fidelity: the error of simulated steps of this machine, for programs that no calibration has measured.

The bench calibrates in full, runs each program of ``_held_out`` on real devices and, from the same lines, on
``"sim:here"``. The figure of a program is the relative error of its simulated step, negative where that is too short,
against the median of warm real steps, which take turns. ``noise_floor`` is the median, over programs, of the distance
of the quartiles of the real steps over their median: a mean error below it means nothing.

The programs are held out on purpose: an error on programs that the calibration has measured would only tell how well
the fit fits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any

import pathways_nb as pw
from pathways_nb.bench import _held_out
from pathways_nb.bench.stopwatch import spread
from pathways_nb.calibration.measured_runs import seconds_of
from pathways_nb.cost.calibration.fitting import noise
from pathways_nb.trace.matching import Difference

ISLANDS, DEVICES, ROUNDS, RECORDED = 2, 4, 21, 3
"""Islands, devices of each, rounds of timed steps, and recorded steps of each program."""
QUICK = False
"""Whether to use the quick calibration."""
_Starts = Mapping[str, Callable[[], Any]]


def run() -> dict[str, Any]:
    """Return the error of the simulated step of each held-out program, after a calibration of this machine."""
    pw.attach("cpu", islands=ISLANDS, devices_per_island=DEVICES)
    # Reported, so that a reader sees whether other programs disturbed the measurement.
    load = [os.getloadavg()]
    found = pw.calibrate(QUICK)
    starts = _starts()
    seconds = _steps(starts)
    runs = {name: _recorded(name, start) for name, start in starts.items()}
    load.append(os.getloadavg())
    with pw.attach("sim:here") as controller:
        twins = {name: _twin(controller, name, start) for name, start in _starts().items()}
    errors = {name: step / median(seconds[name]) - 1 for name, (step, _) in twins.items()}
    figures = {
        "mean_step_error": fmean(map(abs, errors.values())),
        "noise_floor": median(map(noise, seconds.values())),
        **{f"error_{name}": error for name, error in errors.items()},
    }
    rows = [_row(name, seconds[name], twins[name][0], runs[name], twins[name][1]) for name in starts]
    detail = {"load before and after": load, "programs": rows}
    return {"figures": figures, "detail": detail | {"calibration": [list(row) for row in found.rows()]}}


def _starts() -> _Starts:
    """Return the programs on the current islands, compiled, each after one step."""
    left, right = (pw.virtual_slice(DEVICES, island=island, name=name) for island, name in enumerate(("left", "right")))
    starts = {name: program(left, right) for name, program in _held_out.PROGRAMS.items()}
    for start in starts.values():
        pw.wait(start())
    return starts


def _steps(starts: _Starts) -> dict[str, list[float]]:
    """Return the seconds of warm steps, from a call until the client knows of its end."""
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    for number in range(ROUNDS):
        for name in list(starts)[:: 1 if number % 2 else -1]:
            seconds[name].append(seconds_of(starts[name]))
    return seconds


def _recorded(name: str, start: Callable[[], Any]) -> pw.Run:
    """Return the record of one warm step: of several, the one of median makespan."""
    runs = []
    for _ in range(RECORDED):
        pw.wait(start())
        with pw.record(name=name) as run:
            pw.wait(start())
        runs.append(run)
    return sorted(runs, key=lambda run: run.summary().makespan)[len(runs) // 2]


def _twin(controller: pw.Controller, name: str, start: Callable[[], Any]) -> tuple[float, pw.Run]:
    """Return the virtual seconds of a warm step, and its record."""
    pw.wait(start())
    with pw.record(name=f"{name}, simulated") as run:
        began = controller.clock()
        pw.wait(start())
        lasted = controller.clock() - began
    return lasted, run


def _row(name: str, seconds: list[float], simulated: float, run: pw.Run, twin: pw.Run) -> dict[str, Any]:
    """Return both times, the ratio of both halves of the real steps, and where the two records differ.

    Args:
        name: of the program.
        seconds: of real steps; halves that differ show a machine that changed meanwhile.
        simulated: virtual seconds of a step.
        run: record of a real step.
        twin: record of a simulated step.
    """
    found = pw.compare(run, twin).difference
    return {
        "program": name,
        "real": spread(seconds),
        "simulated": simulated,
        "error": simulated / median(seconds) - 1,
        "halves": median(seconds[::2]) / median(seconds[1::2]) - 1,
        "unmatched": found.only_a + found.only_b,
        "events": _by_kind(found),
        "worst": found.worst(3),
    }


def _by_kind(found: Difference) -> dict[str, dict[str, float]]:
    """Return the seconds of the matched events of each kind, real and simulated."""
    table = found.table
    kinds = {kind: table["kind"] == kind for kind in dict.fromkeys(table["kind"].tolist())}
    return {
        kind: {"count": int(chosen.sum()), "real": float(table["takes_a"][chosen].sum()),
               "simulated": float(table["takes_b"][chosen].sum())}
        for kind, chosen in kinds.items()
    }  # fmt: skip
