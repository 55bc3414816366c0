"""Runs of equations that repeat: where a loop in Python wrote the same block again and again.

Only a guess: what repeats in the order of the program. Whether the units of a run are blocks, and what else belongs to
them, is found and checked by ``block_alignment`` and ``block_removal``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pathways_nb.jaxpr.block_level import BlockNode

_PERIODS = 24
"""Periods that are looked at."""
_RUNS = 8
"""Runs that are returned: those that stand for most."""
_SHARE = 0.03
"""Share of the heaviest run below which a run, such as a sum over blocks, is passed over."""
LEAST = 3
"""Units of a run."""


@dataclass(frozen=True)
class RepeatedRun:
    """Nodes ``start + k * period`` to ``start + (k + 1) * period`` are alike for all ``k`` below ``units``."""

    start: int
    period: int
    units: int

    def seeds(self, together: int = 1) -> list[list[int]]:
        """Return the nodes of each unit.

        Args:
            together: how many units are taken as one; those that are left over at the end are left out.
        """
        size = self.period * together
        firsts = (self.start + size * k for k in range(self.units // together))
        return [list(range(first, first + size)) for first in firsts]


def repeated_runs(nodes: Sequence[BlockNode], weights: Sequence[int]) -> list[RepeatedRun]:
    """Return the runs that may be blocks, those of most units first; each unit reads something of the unit before it.

    Blocks may repeat inside of what repeats with a longer period, such as microbatches.

    Args:
        nodes: in the order of the program.
        weights: how much each stands for.
    """
    numbers = np.array([node.signature for node in nodes])
    total = np.concatenate([[0], np.cumsum(weights)])
    maker = {value: at for at, node in enumerate(nodes) for value in node.outputs}
    found: dict[RepeatedRun, float] = {}
    for period in _periods(numbers):
        for first, last in _stretches(numbers[:-period] == numbers[period:]):
            # Nodes first … last + period - 1 equal those one period on.
            length = last - first + period
            if length < LEAST * period:
                continue
            start, carried = _phase(nodes, maker, first, period, length)
            run = RepeatedRun(start, period, (first + length - start) // period)
            if carried and run.units >= LEAST:
                found[run] = float(total[start + run.units * period] - total[start])
    least = _SHARE * max(found.values(), default=0.0)
    heaviest = sorted((run for run in found if found[run] >= least), key=lambda run: -found[run])[:_RUNS]
    return sorted(heaviest, key=lambda run: (-run.units, run.start))


def _periods(numbers: np.ndarray) -> list[int]:
    """Return the commonest distances between a node and the next one like it."""
    last: dict[int, int] = {}
    times: Counter[int] = Counter()
    for at, number in enumerate(numbers.tolist()):
        if number in last:
            times[at - last[number]] += 1
        last[number] = at
    # A long period has more nodes that tell it, so distances are weighed by how often, not by length.
    return [period for period, _ in times.most_common(_PERIODS)]


def _stretches(equal: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield first and end of each stretch of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], equal.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _phase(nodes: Sequence[BlockNode], maker: dict[int, int], first: int, period: int, length: int) -> tuple[int, int]:
    """Return where the first unit begins so that most units fit and the fewest values cross from unit to unit.

    Returns:
        The position, and how many values cross.
    """
    # What crosses a cut in the second period of the run, for each place of the cut.
    begin = first + period
    crossing = np.zeros(period + 1, int)
    for value, reads in _read_between(nodes, maker, first, min(first + 3 * period, first + length)).items():
        made, read = maker[value], max(reads)
        low, high = max(made + 1, begin), min(read, begin + period - 1)
        if low <= high:
            crossing[low - begin] += 1
            crossing[high - begin + 1] -= 1
    crosses = np.cumsum(crossing)[:period]
    units = (length - np.arange(period)) // period
    best = min(range(period), key=lambda at: (crosses[at], -units[at], at))
    return first + best, int(crosses[best])


def _read_between(nodes: Sequence[BlockNode], maker: dict[int, int], first: int, end: int) -> dict[int, list[int]]:
    """Return where values that are made between two nodes are read between them."""
    found: dict[int, list[int]] = {}
    for at in range(first, end):
        for value in nodes[at].inputs:
            if first <= maker.get(value, -1) < at:
                found.setdefault(value, []).append(at)
    return found
