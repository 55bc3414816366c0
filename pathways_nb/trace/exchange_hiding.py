"""How much of the exchange between islands lies under computation (Pathways, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathways_nb.trace.metrics import BUSY, duration, intervals
from pathways_nb.trace.record import Events
from pathways_nb.util.intervals import overlaps


@dataclass(frozen=True)
class Exchange:
    """The time of the transfers between islands; the seconds of several islands are added.

    Args:
        seconds: during which at least one transfer to an island was under way, for each island.
        hidden: of these, the seconds during which a device of that island computed.
    """

    seconds: float
    hidden: float

    @property
    def hidden_share(self) -> float:
        """The share of the seconds that lies under computation; 1 if there was no exchange."""
        return self.hidden / self.seconds if self.seconds else 1.0

    def __str__(self) -> str:
        return f"exchange between islands {duration(self.seconds)}, {self.hidden_share:.0%} under computation"


def exchange(events: Events) -> Exchange:
    """Return how much of the exchange between islands lies under computation of the island that receives it."""
    moves = events.select(events.is_("kind", "transfer") & events.is_("route", "DCN"))
    busy = events.of_kind(*BUSY)
    seconds = hidden = 0.0
    for island in np.unique(moves["island"]):
        arriving = intervals(moves.select(moves["island"] == island))
        computing = intervals(busy.select(busy["island"] == island))
        seconds += float((arriving[1] - arriving[0]).sum())
        hidden += length_of_intersection(arriving, computing)
    return Exchange(seconds, hidden)


def length_of_intersection(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the length of the intersection of two unions of intervals, each as rising starts and ends."""
    return float(overlaps(*one, other).sum())
