"""What tasks wait for, as columns: one form for edges that a schedule states, and for those found in a record."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

WHY = ("call", "turn", "memory", "window", "message", "lane", "link", "data")
"""Why a task waits for another: the user's call; its turn among programs; memory; the window of launches in flight; the
message or enqueue that brings it; the task before it on its lane, or on its link; what that task makes."""
CALL, TURN, MEMORY, WINDOW, MESSAGE, LANE, LINK, DATA = range(len(WHY))


class Waits(NamedTuple):
    """Edges between tasks: the target starts at ``start of source + part × its seconds + lag``, or later.

    All are columns (edges,).

    Args:
        source: position of the task that is waited for.
        target: position of the task that waits. Its edges stand together.
        why: positions in ``WHY``. Of edges that let a target start at the same time, its last one counts as the cause.
        part: of the source's seconds, after which it lets the target start; 1 is its end, and None stands for ones.
        lag: seconds from then on, such as those of a transfer.
    """

    source: np.ndarray
    target: np.ndarray
    why: np.ndarray
    part: np.ndarray | None
    lag: np.ndarray

    @classmethod
    def of(
        cls, source: ArrayLike, target: ArrayLike, why: ArrayLike, part: ArrayLike = 1.0, lag: ArrayLike = 0.0
    ) -> Self:
        """Return edges given in any order; those with one target are sorted by ``why``."""
        columns = np.broadcast_arrays(source, target, why, part, lag)
        # By target, then by ``why``: the last of those that let a target start at one time counts as its cause.
        order = np.lexsort((columns[2], columns[1]))
        dtypes = (np.intp, np.intp, np.int8, float, float)
        return cls(*(column[order].astype(dtype) for column, dtype in zip(columns, dtypes, strict=True)))
