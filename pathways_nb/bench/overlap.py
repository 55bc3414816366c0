"""Overlap: the gain of parallel asynchronous over sequential dispatch, and the controller's overhead on an SPMD step.

A laptop's islands share one processor: with as many cores as islands, two stages can at best take half the time that
they take one after the other. Plain JAX with all cores on one device is measured, too, and may well be faster; it
has a figure of its own. ``null_ratio`` compares plain JAX with itself and shows the noise of the comparison.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import jax

import pathways_nb as pw
from pathways_nb.bench.dispatch import executable
from pathways_nb.bench.stopwatch import interleaved, ratio, spread
from pathways_nb.examples import byte_lm, two_stages

PAIRS, TURNS, STEPS = 48, 4, 4
"""Rounds of the SPMD step, turns of the two-island step, and steps in a turn."""
SHORT = 8, 2, 3
"""The same of the short form."""
SPEED = {"pipelined_*": "higher", "spmd_step_ratio": "lower"}
PLAIN = "plain JAX, one device, all cores"
"""Plain JAX as a contender, named in the report."""
_plain_step = jax.jit(two_stages.training_step(byte_lm.whole_loss))


def run(short: bool = False) -> dict[str, Any]:
    """Return the speed-up of parallel over sequential dispatch, both with plain JAX, and the SPMD overhead."""
    pairs, turns, steps = SHORT if short else (PAIRS, TURNS, STEPS)
    seconds: dict[str, list[float]] = {"parallel": [], "sequential": [], PLAIN: []}
    for _ in range(turns):
        for dispatch in ("parallel", "sequential"):
            seconds[dispatch] += _pipelined(dispatch, steps)
        seconds[PLAIN] += _steps(_plain_step, jax.block_until_ready, steps)
    overhead = _spmd(pairs)
    figures = {
        "pipelined_speedup": median(seconds["sequential"]) / median(seconds["parallel"]),
        "spmd_step_ratio": ratio(overhead, "controller", "plain"),
        "null_ratio": ratio(overhead, "plain again", "plain"),
        "pipelined_over_plain_jax_all_cores": median(seconds[PLAIN]) / median(seconds["parallel"]),
    }
    note = "Two islands on one processor: the speed-up is bounded by its cores, not by the program."
    return {
        "figures": figures,
        "detail": {"seconds": {k: spread(v) for k, v in (seconds | overhead).items()}, "note": note},
    }


def _pipelined(dispatch: Any, steps: int) -> list[float]:
    """Return the seconds of warm steps in two stages on two islands."""
    pw.attach("cpu", islands=2, devices_per_island=4, dispatch=dispatch)
    step = two_stages.pipelined(pw.virtual_slice(4), pw.virtual_slice(4))
    return _steps(step, pw.wait, steps)


def _steps(step: Any, wait: Any, count: int) -> list[float]:
    """Return the seconds of some steps after a first one, which compiles."""
    params, state, tokens, targets = two_stages.start()

    def once() -> None:
        nonlocal params, state
        params, state, _ = wait(step(params, state, tokens, targets))

    once()
    return interleaved({"step": once}, count)["step"]


def _spmd(pairs: int) -> dict[str, list[float]]:
    """Return the seconds of an SPMD step through the controller and of its executable alone."""
    controller = pw.attach("cpu", islands=1, devices_per_island=4)
    place = pw.virtual_slice(4)
    step = two_stages.spmd(place)
    program = pw.program(lambda *arguments: step(*arguments), name="spmd_step")
    params, state, tokens, targets = two_stages.start()
    rows = pw.P(None, "x")
    arguments = (
        *pw.put((params, state), on=place),
        *pw.put((tokens, targets), on=place, shardings=rows),
    )
    pw.wait(program(*arguments))
    call = executable(controller, program, *arguments)
    arrays = [leaf.array() for leaf in jax.tree.leaves(arguments)]

    def plain() -> None:
        jax.block_until_ready(call(*arrays))

    contenders = {"controller": lambda: pw.wait(program(*arguments)), "plain": plain, "plain again": plain}
    return interleaved(contenders, pairs)
