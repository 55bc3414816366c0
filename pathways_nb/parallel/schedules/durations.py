"""How long each cell of a schedule lasts, from the times of F, I, W and of transfers that somebody gives.

A number is the time of one microbatch through one whole device: its chunks and its token slices share it equally. An
array says it for each stage, ``(stages,)``, or for each stage and token slice, ``(stages, slices)``; a length of 1
stands for all. What is sent between two stages is a microbatch's activations, which its token slices share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pathways_nb.errors import UsageError
from pathways_nb.parallel.schedules.actions import Action, Overlap, actions_of
from pathways_nb.parallel.schedules.closed_forms import Size
from pathways_nb.parallel.schedules.tasks import Dependencies, Tasks


class Costs(NamedTuple):
    """Seconds of each part of the work, ``(stages, slices)``, and of sending, ``(stages - 1, slices)``."""

    F: np.ndarray
    I: np.ndarray  # noqa: E741 - what the field calls it
    W: np.ndarray
    transfer: np.ndarray

    @classmethod
    def of(cls, size: Size, stages: int, F: ArrayLike, I: ArrayLike, W: ArrayLike, transfer: ArrayLike) -> Costs:  # noqa: E741
        """Bring times into one form.

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

    def of_cells(self, tasks: Tasks) -> np.ndarray:
        """Seconds of each cell; an overlapped pair lasts as long as both."""
        return np.array([sum(self._of(action) for action in actions_of(cell)) for cell in tasks.cells])

    def forward_share(self, cell: Overlap) -> float:
        """Which part of an overlapped pair's time the forward pass would take alone."""
        forward, backward = self._of(cell.forward), self._of(cell.backward)
        return forward / (forward + backward) if forward + backward else 0.5

    def of_edges(self, edges: Dependencies) -> np.ndarray:
        """Seconds between the end of the source and when its result has arrived."""
        if not len(self.transfer):
            return np.zeros(len(edges.stage))
        return np.where(edges.stage >= 0, self.transfer[edges.stage, edges.token_slice], 0.0)

    def _of(self, action: Action) -> float:
        at = (action.stage, action.token_slice or 0)
        if action.operation == "B":
            return float(self.I[at] + self.W[at])
        return float(getattr(self, action.operation)[at])


def _table(name: str, value: ArrayLike, shape: tuple[int, int], chunks: int) -> np.ndarray:
    given = np.asarray(value)
    if given.dtype.kind not in "fiu" or not np.all(np.isfinite(given)) or np.any(given < 0):
        raise UsageError(f"{name}={value!r} is no time. Give a number of at least 0, or an array of such numbers.")
    if given.ndim == 0:
        return np.full(shape, given / (chunks * shape[1]))
    given = given[:, None] / shape[1] if given.ndim == 1 else given
    if given.ndim > 2 or any(have not in (1, want) for have, want in zip(given.shape, shape, strict=True)):
        what = f"{shape[0]} {'stages' if name != 'transfer' else 'pairs of stages'} and {shape[1]} token slices"
        raise UsageError(
            f"{name} of shape {np.shape(value)} does not fit {what}. Give a number, or an array of shape "
            f"({shape[0]},) or {shape}, where a length of 1 stands for all."
        )
    return np.broadcast_to(given, shape)
