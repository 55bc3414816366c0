"""Where an island's time went within a window: busy, or idle and why, as far as the record knows.

Each moment counts once, so the parts add up to the whole. While no device of an island is busy, the first of these
that was going on is named: compiling, a stall, a transfer to it, work on another island; else nothing had been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pathways_nb.trace.metrics import BUSY, duration, intervals, size
from pathways_nb.trace.record import Events

CAUSES = ("busy", "compile", "stall", "transfer", "elsewhere", "unsent")
"""In the order in which a moment is counted."""


@dataclass(frozen=True)
class Breakdown:
    """The time of one island, in seconds; ``busy`` means that at least one device was.

    Args:
        island: its index.
        seconds: by cause, in the order of ``CAUSES``; they add up to the length of the window.
        bytes: sent to it by transfers that began within the window.
    """

    island: int
    seconds: dict[str, float]
    bytes: int

    def __str__(self) -> str:
        total = sum(self.seconds.values()) or 1.0
        parts = [f"{name} {duration(s)} ({s / total:.0%})" for name, s in self.seconds.items() if s > 0]
        return f"island {self.island}: {', '.join(parts)}; {size(self.bytes)} received"


def breakdown(events: Events, islands: Sequence[int], start: float, end: float) -> list[Breakdown]:
    """Where the time of each island went between ``start`` and ``end``, in seconds of the record."""
    near = events.select((events["end"] > start) & (events["start"] < end))
    busy = [near.select(near.is_("kind", *BUSY) & near.is_("island", i)) for i in range(len(islands))]
    moves = [near.select(near.is_("kind", "transfer") & near.is_("island", i)) for i in range(len(islands))]
    shared = {"compile": near.of_kind("trace", "lower", "compile"), "stall": near.of_kind("stall")}
    found = []
    for island in range(len(islands)):
        going_on = {
            "busy": busy[island],
            **shared,
            "transfer": moves[island],
            "elsewhere": near.select(near.is_("kind", *BUSY) & ~near.is_("island", island)),
        }
        began = moves[island].select(moves[island]["start"] >= start)
        found.append(Breakdown(island, _partition(going_on, start, end), int(began["bytes"].sum())))
    return found


def _partition(going_on: dict[str, Events], start: float, end: float) -> dict[str, float]:
    """Seconds of each cause; a moment counts for the first that was going on, the rest as ``unsent``."""
    spans = {name: intervals(events) for name, events in going_on.items()}
    stamps = np.concatenate([[start, end], *(part for span in spans.values() for part in span)])
    edges = np.unique(np.clip(stamps, start, end))
    middle, lasts = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    left, seconds = np.ones(len(middle), bool), {}
    for name, (begins, ends) in spans.items():
        during = np.searchsorted(begins, middle, "right") > np.searchsorted(ends, middle, "right")
        seconds[name] = float(lasts[left & during].sum())
        left &= ~during
    return seconds | {"unsent": float(lasts[left].sum())}
