"""The sizes of one slicing problem, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from pathways_nb.errors import UsageError, is_index
from pathways_nb.util.json_text import shortened
from pathways_nb.util.words import counted


@dataclass(frozen=True)
class Problem:
    """A batch of equal sequences that goes through equal stages.

    Args:
        length: L, tokens of a sequence.
        batch: B, sequences.
        stages: K, stages of the pipeline.
        granularity: tokens; each slice is a multiple of it.

    Raises:
        UsageError: a size that is no whole number of at least 1, or a length that is no multiple of the granularity.
    """

    length: int
    batch: int
    stages: int
    granularity: int

    def __post_init__(self) -> None:
        for name in ("length", "batch", "stages", "granularity"):
            value = getattr(self, name)
            if not is_index(value) or value < 1:
                raise UsageError(f"{name}={shortened(value)}: a whole number of at least 1 is needed.")
        # Two ways out are named: a longer sequence, or the largest unit that divides both.
        if self.length % self.granularity:
            raise UsageError(
                f"length={self.length} is no multiple of granularity={self.granularity}, of which each slice is a "
                f"multiple: pad to length={self.length + -self.length % self.granularity}, or take "
                f"granularity={gcd(self.length, self.granularity)}."
            )

    @property
    def units(self) -> int:
        """Length of a sequence in units of the granularity."""
        return self.length // self.granularity

    def __str__(self) -> str:
        sequences = counted(self.batch, "sequence")
        return f"{sequences} of {self.length} tokens on {counted(self.stages, 'stage')}"
