"""Durations of the cells of a schedule, from given times of F, I, W and of transfers.

A number is the time of one microbatch through one whole device: its chunks and its token slices share it equally. So
schedules with different chunks do the same work and can be compared. An array gives the time of each stage,
``(stages,)``, or of each stage and token slice, ``(stages, slices)``; a length of 1 stands for all. What is sent
between two stages is a microbatch's activations, which its token slices share.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from pathways_nb.errors import UsageError
from pathways_nb.parallel.schedules.closed_forms import ScheduleSize
from pathways_nb.parallel.schedules.tasks import Dependencies, Tasks
from pathways_nb.util.words import counted

_LONGEST = 1e290
"""Largest time: a sum over the cells of any schedule is a float still, and its picture has an axis."""


class ActionDurations(NamedTuple):
    """Seconds of each part of the work, ``(stages, slices)``, and of sending, ``(stages - 1, slices)``."""

    F: np.ndarray
    I: np.ndarray  # noqa: E741 - what the field calls it
    W: np.ndarray
    transfer: np.ndarray

    @classmethod
    def of(cls, size: ScheduleSize, stages: int, F: ArrayLike, I: ArrayLike, W: ArrayLike, transfer: ArrayLike) -> Self:  # noqa: E741
        """Return times of any accepted form as arrays of full shape.

        Args:
            size: of the schedule, for chunks and token slices.
            stages: number of stages of the model.
            F: time of a forward pass.
            I: time of the gradient by the input.
            W: time of the gradient by the weights.
            transfer: time of sending between two stages on different devices.

        Raises:
            UsageError: no times, or not as many as there are stages and slices.
        """
        shape = (stages, size.token_slices)
        return cls(
            _table("F", F, shape, size.chunks),
            _table("I", I, shape, size.chunks),
            _table("W", W, shape, size.chunks),
            _table("transfer", transfer, (stages - 1, size.token_slices), 1),
        )

    def of_parts(self, tasks: Tasks) -> np.ndarray:
        """Return the seconds that F, I and W take of each cell, shape (3, cells)."""
        found = np.empty((3, len(tasks.cells)))
        for part, (cell, table) in enumerate(zip(tasks.cell, (self.F, self.I, self.W), strict=True)):
            # Both (directions, stages, microbatches, slices): the cell that does each part, and its seconds.
            takes = np.broadcast_to(table[:, None, :], cell.shape)
            found[part] = np.bincount(cell[cell >= 0], takes[cell >= 0], len(tasks.cells))
        return found

    def of_edges(self, edges: Dependencies) -> np.ndarray:
        """Return the seconds from the end of each source to the arrival of its result."""
        # A model of one stage has no pair of stages.
        if not len(self.transfer):
            return np.zeros(len(edges.stage))
        # A stage of -1 picks the last time, which is not used: nothing is sent there.
        return np.where(edges.stage >= 0, self.transfer[edges.stage, edges.token_slice], 0.0)


def _table(name: str, value: ArrayLike, shape: tuple[int, int], chunks: int) -> np.ndarray:
    """Return a number or an array of times in the shape (stages, slices).

    Args:
        name: of the argument, for the error.
        value: as the user gave it.
        shape: number of stages, or of pairs of stages, and of slices.
        chunks: that share a number given for a whole device; 1 for transfers.

    Raises:
        UsageError: not a time, or a shape that does not fit.
    """
    try:
        given = np.asarray(value)
    except ValueError:
        raise UsageError(f"{name}={value!r} has rows of different lengths. Give each stage as many times.") from None
    # The comparison refuses NaN, too.
    if given.dtype.kind not in "fiu" or not np.all((given >= 0) & (given <= _LONGEST)):
        raise UsageError(f"{name}={value!r} is no time. Give a number of at least 0, or an array of such numbers.")
    if given.ndim == 0:
        # A number is of a whole device, which its chunks and slices share; an array is of single stages already.
        return np.full(shape, given / (chunks * shape[1]))
    given = given[:, None] / shape[1] if given.ndim == 1 else given
    if given.ndim > 2 or any(have not in (1, want) for have, want in zip(given.shape, shape, strict=True)):
        stages = f"{counted(shape[0], 'pair')} of stages" if name == "transfer" else counted(shape[0], "stage")
        what = f"{stages} and {counted(shape[1], 'token slice')}"
        raise UsageError(
            f"{name} of shape {np.shape(value)} does not fit {what}. Give a number, or an array of shape "
            f"({shape[0]},) or {shape}, where a length of 1 stands for all."
        )
    return np.broadcast_to(given, shape)
