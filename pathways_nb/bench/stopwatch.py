"""Side-by-side timing of several contenders in one run.

Contenders take turns, and the order is reversed in every second round, so that a change of the machine's load or clock
rate affects all of them alike. Ratios are taken within a round and then their median, not between medians of all
rounds, for the same reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call of each contender.

    Args:
        contenders: functions to time, by name; called once a round.
        rounds: number of rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for index in range(rounds):
        for name in order if index % 2 == 0 else reversed(order):
            began = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: Mapping[str, list[float]], over: str, under: str) -> float:
    """Return the median, over rounds, of one contender's time divided by another's in the same round.

    Args:
        seconds: result of ``interleaved``.
        over: name of the contender in the numerator.
        under: name of the contender in the denominator.
    """
    return median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def spread(values: list[float]) -> dict[str, float]:
    """Return the quartiles of some values, and how many values there are."""
    ordered = sorted(values)
    quarter = [ordered[min(len(ordered) - 1, len(ordered) * k // 4)] for k in (1, 2, 3)]
    return {"lower": quarter[0], "median": quarter[1], "upper": quarter[2], "count": len(ordered)}
