"""Recording: its overhead on chains of computations of about half a millisecond on four devices.

The same program runs in three ways: ends watched as they are by default; all ends watched; and no more ends watched
than flow control needs, with the events thrown away. The last is run twice, so that noise can be seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import pathways_nb as pw
from pathways_nb.bench.stopwatch import interleaved, ratio, spread
from pathways_nb.runtime.local.look_budget import BUDGET
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Row

DEVICES, CHAIN, ROUNDS = 4, 128, 100
"""Devices of the island, computations of a chain, and rounds."""
SIZES, WANTED = (32, 64, 96, 128, 192, 256), 0.5e-3
"""Sizes of matrices to choose from, and the wanted seconds of a computation."""


class _Nowhere(Record):
    """A record that forgets its events."""

    def add(self, row: Row) -> None:
        """Forget one event."""


def run() -> dict[str, Any]:
    """Return the overhead of recording, on computations of the size that lasts nearest to half a millisecond."""
    controller = pw.attach("cpu", islands=1, devices_per_island=DEVICES)
    place = pw.virtual_slice(DEVICES)
    chains = {size: _chain(place, size) for size in SIZES}
    once = partial(_once, controller)
    chain = min(chains.values(), key=lambda chain: abs(_seconds(once, chain) / CHAIN - WANTED))
    history, nowhere = controller.record, _Nowhere()
    contenders = {
        "watched": partial(once, chain, BUDGET, history),
        "every end watched": partial(once, chain, float("inf"), history),
        "not watched": partial(once, chain, 0.0, nowhere),
        "not watched again": partial(once, chain, 0.0, nowhere),
    }
    seconds = interleaved(contenders, ROUNDS)
    # ``_once`` leaves the budget of the last contender.
    controller.driver.spend(BUDGET)
    pairs = zip(seconds["not watched"], seconds["not watched again"], strict=True)
    # The mean of both unwatched runs of a round is less noisy than either.
    against = seconds | {"both": [(one + two) / 2 for one, two in pairs]}
    figures = {
        "recording_cost": ratio(against, "watched", "both") - 1,
        "recording_cost_null": ratio(against, "not watched again", "not watched") - 1,
        "recording_cost_every_end": ratio(against, "every end watched", "both") - 1,
    }
    per_computation = {name: spread([s / CHAIN for s in times]) for name, times in seconds.items()}
    return {"figures": figures, "detail": {"seconds per computation": per_computation}}


def _chain(place: pw.VirtualSlice, size: int) -> Callable[[], Any]:
    """Return a call of a program of ``CHAIN`` matrix products of this size."""
    multiply = pw.shard_map(
        lambda x, w: x @ w + jax.lax.psum(x[0, 0], "x"),
        on=place, in_specs=(pw.P("x"), pw.P()), out_specs=pw.P("x"),
    )  # fmt: skip

    def body(x: Any, w: Any) -> Any:
        for _ in range(CHAIN):
            x = multiply(x, w)
        return x

    program = pw.program(body, name=f"chain of {size}")
    x = pw.put(np.zeros((2 * size, size), np.float32), on=place, shardings=pw.P("x"))
    w = pw.put(np.eye(size, dtype=np.float32), on=place)
    return lambda: program(x, w)


def _once(controller: pw.Controller, chain: Callable[[], Any], budget: float = BUDGET, record: Any = None) -> None:
    """Run a chain to its end, with a budget for watching ends and another record.

    Args:
        controller: of the session.
        chain: call of a program.
        budget: share of one core that watching may keep busy.
        record: replaces the controller's record for this call; None keeps it.
    """
    controller.driver.spend(budget)
    history = controller.record
    controller.record = record or history
    try:
        pw.wait(chain())
    finally:
        controller.record = history


def _seconds(once: Callable[..., None], chain: Callable[[], Any]) -> float:
    """Return the mean seconds of five warm calls."""
    once(chain)
    began = time.perf_counter()
    for _ in range(5):
        once(chain)
    return (time.perf_counter() - began) / 5
