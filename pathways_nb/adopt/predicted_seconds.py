"""Predicted seconds: a number that knows how far it may be off."""

from __future__ import annotations

from typing import Self

from pathways_nb.cost.launch.bands import SecondsBand
from pathways_nb.trace.metrics import duration


class PredictedSeconds(float):
    """Seconds with a band: what hiding could do, what the spread of constants does, and what no constant explains.

    Args:
        band: the seconds and their band.
    """

    low: float
    high: float

    def __new__(cls, band: SecondsBand) -> Self:
        """Return the number, with its band as attributes."""
        made = super().__new__(cls, band.seconds)
        made.low, made.high = band.low, band.high
        return made

    def __repr__(self) -> str:
        return f"{duration(self)} ({duration(self.low)} … {duration(self.high)})"
