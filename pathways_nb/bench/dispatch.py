"""Dispatch: chained small computations per second, through the controller and in plain loops (Pathways, Figure 5).

Each computation is one scalar all-reduce and an addition. ``OpByOp`` blocks on each, a plain JAX loop does not, and
the controller runs programs of 1, 16 or 128 of them with recording on; same island, same executables for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import pathways_nb as pw
from pathways_nb.bench.timing import interleaved, ratio, spread

DEVICES, CHAINS, ROUNDS = (1, 2, 4), (1, 16, 128), 15
_COMPUTATIONS = 512
"""Per contender and round."""


def run() -> dict[str, Any]:
    """Measure every chain on every number of devices."""
    figures: dict[str, float] = {}
    detail = []
    controller = pw.attach("cpu", islands=1, devices_per_island=4)
    for devices in DEVICES:
        for chain in CHAINS:
            row = _measure(controller, devices, chain)
            detail.append(row)
            figures[f"chained_over_jax_loop_{chain}x{devices}"] = row["over_loop"]
            figures[f"chained_over_jax_blocking_{chain}x{devices}"] = row["over_blocking"]
    return {"figures": figures, "detail": detail}


def _measure(controller: pw.Controller, devices: int, chain: int) -> dict[str, Any]:
    place = pw.virtual_slice(devices)
    add = pw.shard_map(lambda x: jax.lax.psum(x, "x") + 1.0, on=place, in_specs=pw.P(), out_specs=pw.P())

    def body(x: Any) -> Any:
        for _ in range(chain):
            x = add(x)
        return x

    program = pw.program(body, name=f"chain of {chain}")
    start = pw.put(1.0, on=place)
    program(start).wait()
    repeats = max(1, _COMPUTATIONS // chain)
    call, array = executable(controller, program, start), start.array()
    seconds = interleaved(
        {
            "controller": lambda: _programs(program, start, repeats),
            "loop": lambda: _loop(call, array, repeats * chain, blocking=False),
            "blocking": lambda: _loop(call, array, repeats * chain, blocking=True),
        },
        ROUNDS,
    )
    controller.record.clear()
    count = repeats * chain
    return {
        "devices": devices,
        "chain": chain,
        "over_loop": ratio(seconds, "loop", "controller"),
        "over_blocking": ratio(seconds, "blocking", "controller"),
        "computations_per_second": {name: spread([count / s for s in times]) for name, times in seconds.items()},
    }


def executable(controller: pw.Controller, program: pw.Program, *args: Any) -> Callable[..., Any]:
    """The compiled node of a program that repeats one, to call without the controller."""
    call = program.signature(args, {})
    traced = program.cached(call, call.avals(), controller.platform)
    assert traced is not None
    return next(action.call for action in controller.lowered(traced).actions if action.call is not None)


def _programs(program: pw.Program, start: Any, repeats: int) -> None:
    results = [program(start) for _ in range(repeats)]
    pw.wait(results)


def _loop(call: Callable[..., Any], array: Any, count: int, blocking: bool) -> None:
    for _ in range(count):
        (array,) = call(array)
        if blocking:
            array.block_until_ready()
    array.block_until_ready()
