"""The shortest node with which a chain is as fast as a plain loop (Pathways, Figure 6), on one device.

Nodes are matrix products one after another, which JAX's CPU client hands to threads of its own. Elementwise operations
and loops it computes in the thread that launches them, and beside them nothing can be hidden. The number of products
grows by half from one size to the next. In a round each size is run by the controller and by the loop, next to each
other; the longest comes last in one round and first in the next. A size hides dispatch if it and all longer ones reach
``ENOUGH`` of the loop's throughput, at the median of the rounds, so one lucky size decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import pathways_nb as pw
from pathways_nb.bench.stopwatch import interleaved, ratio

SIZES = tuple(round(4 * 1.5**step) for step in range(14))
"""Products of a node."""
LENGTH, PROGRAMS, ENOUGH = 64, 4, 0.95
"""Nodes of a chain, chains that are called in a row, and the share of the loop's throughput that counts as the same."""
_SIDE = 32
"""Rows and columns of a factor: a product takes about a microsecond."""


class Rung(NamedTuple):
    """One size: products of a node, seconds of a node in a plain loop, and the chain's throughput over the loop's."""

    products: int
    seconds: float
    chained_over_loop: float


def measured(
    controller: pw.Controller, rounds: int, executable: Callable[..., Callable[..., Any]]
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return ``smallest_hidden_ms_1`` and the row of each size; without the figure if not even the longest hides it.

    Args:
        controller: current, with one island of at least one device.
        rounds: number of rounds.
        executable: returns the compiled node of a program, given the controller, the program and its arguments.
    """
    contenders: dict[str, Callable[[], object]] = {}
    for size in SIZES:
        contenders[f"chained {size}"], contenders[f"loop {size}"] = _chain(controller, size, executable)
    seconds = interleaved(contenders, rounds)
    # The record would grow with every bench.
    controller.record.clear()
    rungs = [
        Rung(size, median(seconds[f"loop {size}"]) / (LENGTH * PROGRAMS),
             ratio(seconds, f"loop {size}", f"chained {size}"))
        for size in SIZES
    ]  # fmt: skip
    found = smallest_hidden(rungs)
    figures = {} if found is None else {"smallest_hidden_ms_1": found.seconds * 1e3}
    return figures, [rung._asdict() | {"nodes": LENGTH, "devices": 1} for rung in rungs]


def smallest_hidden(rungs: Sequence[Rung]) -> Rung | None:
    """Return the first of the sizes from which on all reach ``ENOUGH``; None if the longest does not.

    Args:
        rungs: from the shortest to the longest.
    """
    found = None
    for rung in reversed(rungs):
        if rung.chained_over_loop < ENOUGH:
            break
        found = rung
    return found


def _chain(
    controller: pw.Controller, size: int, executable: Callable[..., Callable[..., Any]]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a function that runs chains of nodes of so many products, and one that loops over as many, compiled.

    Args:
        controller: current.
        size: products of a node.
        executable: see ``measured``.
    """

    def products(x: Any) -> Any:
        for _ in range(size):
            x = x @ x
        return x

    node = pw.jit(products, on=pw.virtual_slice(1))

    def body(x: Any) -> Any:
        for _ in range(LENGTH):
            x = node(x)
        return x

    program = pw.program(body, name=f"chain of {size} products each")
    # The identity: its powers are neither denormal nor infinite.
    start = pw.put(np.eye(_SIDE, dtype=np.float32), on=pw.virtual_slice(1))
    program(start).wait()
    call, first = executable(controller, program, start), start.array()

    def loop() -> None:
        array = first
        for _ in range(LENGTH * PROGRAMS):
            (array,) = call(array)
        array.block_until_ready()

    return lambda: pw.wait([program(start) for _ in range(PROGRAMS)]), loop
