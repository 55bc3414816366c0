"""How much of what runs beside computation lies under it: of collectives, copies and transfers inside launches.

The same for ops that a profiler saw and for those of a launch that was predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pathways_nb.trace.launch_ops import Ops, first_source
from pathways_nb.trace.metrics import duration
from pathways_nb.util.intervals import overlaps, union
from pathways_nb.util.words import first_ones

BESIDE = ("collective", "gather", "reduce", "dcn", "host", "prefetch")
"""Kinds of ops that may run beside computation."""
COMMUNICATION = BESIDE[:4]
"""Those that are communication between devices."""
_UNDER = ("compute", "copy")
_LINES = 3
"""Lines of code whose exposed communication is named."""


def exposed_seconds(ops: Ops) -> np.ndarray:
    """Return how much of each op lies under no computation of its device.

    Returns:
        (ops,) seconds; 0 for what is computation itself, or a wait.
    """
    found = np.zeros(len(ops))
    beside, under = np.isin(ops["kind"], BESIDE), np.isin(ops["kind"], _UNDER)
    places = np.stack([ops["island"], ops["device"]], 1)
    for island, device in np.unique(places[beside], axis=0).tolist():
        here = (places == (island, device)).all(1)
        busy = union(ops["start"][here & under], ops["end"][here & under])
        which = np.flatnonzero(here & beside)
        start, end = ops["start"][which], ops["end"][which]
        found[which] = end - start - overlaps(start, end, busy)
    return np.maximum(found, 0.0)


def exposed_by_line(ops: Ops) -> list[tuple[str, float]]:
    """Return the exposed seconds of communication by the line of the user's code, the largest first.

    What stems from no known line is under its source, else under its name. Seconds of several devices are added.
    """
    exposed, total = exposed_seconds(ops), dict[str, float]()
    chosen = np.flatnonzero(np.isin(ops["kind"], COMMUNICATION) & (exposed > 0))
    names = [label.line or first_source(label.source) or label.name for label in ops.labels]
    for label, seconds in zip(ops["label"][chosen].tolist(), exposed[chosen].tolist(), strict=True):
        total[names[label]] = total.get(names[label], 0.0) + seconds
    return sorted(total.items(), key=lambda item: -item[1])


def exposed_words(exposed: Sequence[tuple[str, float]]) -> str:
    """Return exposed communication in words: how long in all, and the lines that it comes from most.

    Args:
        exposed: lines and seconds, the longest first.
    """
    lines = first_ones([f"{line} {duration(took)}" for line, took in exposed], _LINES)
    return f"exposed communication {duration(sum(took for _, took in exposed))}: {lines}"


def hidden_behind(ops: Ops, exposed: np.ndarray) -> list[str]:
    """Return of each op, in words, how much of it is exposed and behind which computation the rest is hidden most.

    Args:
        ops: inside launches.
        exposed: what ``exposed_seconds`` returned.

    Returns:
        (ops,) texts; empty for what is computation itself, or a wait.
    """
    said = [""] * len(ops)
    places = np.stack([ops["island"], ops["device"]], 1)
    for island, device in np.unique(places, axis=0).tolist():
        here = np.flatnonzero((places == (island, device)).all(1))
        under = here[np.isin(ops["kind"][here], _UNDER)]
        under = under[np.argsort(ops["start"][under], kind="stable")]
        starts, ends = ops["start"][under], ops["end"][under]
        for at in here[np.isin(ops["kind"][here], BESIDE)].tolist():
            start, end = float(ops["start"][at]), float(ops["end"][at])
            # One computation after another: those that overlap stand next to each other.
            first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(starts, end)
            said[at] = _words(float(exposed[at]) / ((end - start) or 1.0))
            if last > first:
                shared = np.minimum(ends[first:last], end) - np.maximum(starts[first:last], start)
                name = ops.labels[int(ops["label"][under[first + int(shared.argmax())]])].name
                said[at] += f", behind {name}" if exposed[at] < end - start else ""
    return said


def _words(share: float) -> str:
    """Return a share of an op that is exposed, in words."""
    return "hidden" if share < 0.005 else "exposed" if share > 0.995 else f"{share:.0%} exposed"
