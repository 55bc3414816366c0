"""A formula of a slice's seconds with four constants: a floor that short slices share, and what grows with the work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Hinge(NamedTuple):
    """Seconds ``max(floor, fixed + per_token · b l + per_pair · b l (l + c))``, a cost that ``plan`` takes.

    The values without arguments are fitted to the paper's equal slices of 175B (TeraPipe, setting 9).

    Args:
        floor: seconds of the shortest slices.
        fixed: seconds of each slice above the floor.
        per_token: seconds of a token.
        per_pair: seconds of a pair of a token and one that it may attend to.
    """

    floor: float = 0.00975
    fixed: float = 0.006
    per_token: float = 4.31e-5
    per_pair: float = 1.17e-9

    def __call__(self, sequences: Any, tokens: Any, context: Any) -> np.ndarray:
        """Return the seconds of slices, by their sequences, tokens and context."""
        size = sequences * tokens
        return np.maximum(self.floor, self.fixed + self.per_token * size + self.per_pair * size * (tokens + context))
