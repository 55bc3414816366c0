"""Side-by-side timing: contenders take turns in one run, so that what the machine does meanwhile hits them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call of each contender; the order turns round every round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for index in range(rounds):
        for name in order if index % 2 == 0 else reversed(order):
            began = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: Mapping[str, list[float]], over: str, under: str) -> float:
    """The median, over rounds, of ``over``'s time divided by ``under``'s in the same round."""
    return median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def spread(values: list[float]) -> dict[str, float]:
    """Quartiles, and how many."""
    ordered = sorted(values)
    quarter = [ordered[min(len(ordered) - 1, len(ordered) * k // 4)] for k in (1, 2, 3)]
    return {"lower": quarter[0], "median": quarter[1], "upper": quarter[2], "count": len(ordered)}
