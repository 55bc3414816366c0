"""A schedule as arrays: the cell of each action, and the dependencies.

A forward pass needs that of the stage before and, with token slices, that of the slice before on its own stage (whose
keys and values it reads). A gradient by the input needs the forward pass, the gradient of the stage after and, with
token slices, that of the slice after on its own stage (which holds the gradients of those keys and values): TeraPipe
(Li et al. 2021), section 3. A gradient by the weights needs the gradient by the input.

Arrays in place of dictionaries, because the explorer evaluates thousands of actions at every change of a control.
Whether each action is there once is checked in ``work_parts``, and whether the order of a device agrees with the
dependencies in ``checker``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pathways_nb.errors import ScheduleError
from pathways_nb.parallel.schedules.actions import Cell, Rows
from pathways_nb.parallel.schedules.work_parts import WorkParts, require_each_once


class Dependencies(NamedTuple):
    """Dependencies between cells, as columns (dependencies,); cells are numbered device by device."""

    source: np.ndarray
    target: np.ndarray
    stage: np.ndarray
    """The lower of the two stages between which something is sent; -1 if nothing leaves its device."""
    token_slice: np.ndarray


@dataclass(frozen=True, eq=False)
class Tasks:
    """All cells of a schedule, numbered device by device.

    Args:
        cells: all of them.
        first: for each device the number of its first cell, then the number of all cells: (devices + 1,).
        cell: number of the cell that does each part of the work, by part (F, I, W), direction, stage, microbatch and
            token slice: (3, directions, stages, microbatches, slices); -1 for microbatches that a direction does not
            have.
        device: of each stage, (directions, stages).
        directions: letter of each direction.
        count: number of microbatches of each direction.
    """

    cells: tuple[Cell, ...]
    first: np.ndarray
    cell: np.ndarray
    device: np.ndarray
    directions: tuple[str, ...]
    count: tuple[int, ...]

    @classmethod
    def of(cls, rows: Rows) -> Tasks:
        """Return the arrays of a schedule.

        Args:
            rows: for each device its cells.

        Raises:
            ScheduleError: something is done twice or not at all, or a stage is on several devices.
        """
        for device, row in enumerate(rows):
            if not row:
                raise ScheduleError(f"Device {device} has nothing to do. Give it actions, or leave its line away.")
        parts = WorkParts.of(rows)
        if len(parts.cell) != parts.wanted:  # checked before arrays are made for all that is missing
            require_each_once(rows, parts)
        stages, slices = parts.shape
        where = np.full((3, len(parts.directions), stages, max(parts.microbatches), slices), -1)
        where[parts.part, parts.direction, parts.stage, parts.microbatch, parts.token_slice] = parts.cell
        # The right number of parts may hide one that is done twice and one that is missing: two then share a place.
        if np.count_nonzero(where >= 0) != len(parts.cell):
            require_each_once(rows, parts)
        first, done = np.cumsum([0, *map(len, rows)]), tuple(cell for row in rows for cell in row)
        devices = _devices(where, first, parts.directions)
        return cls(done, first, where, devices, parts.directions, parts.microbatches)

    @property
    def owner(self) -> np.ndarray:
        """The device of each cell."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of F, I and W in each cell, shape (3, cells)."""
        return np.stack([np.bincount(part[part >= 0], minlength=len(self.cells)) for part in self.cell])

    def dependencies(self) -> Dependencies:
        """Return all dependencies, each once; a dependency within one cell is left out."""
        found = [_edges(*pair, stage) for pair, stage in self._pairs()]
        source, target, stage, part = (np.concatenate(column) for column in zip(*found, strict=True))
        # -1 where a direction has fewer microbatches than another, and for I and W of one B.
        keep = (source >= 0) & (target >= 0)
        return Dependencies(source[keep], target[keep], stage[keep], part[keep])

    def _pairs(self) -> Iterator[tuple[tuple[np.ndarray, np.ndarray], np.ndarray]]:
        """Yield each kind of dependency: cells of source and target, and the stage that sends something, or -1."""
        forward, gradient, weights = self.cell
        stages = forward.shape[1]
        stay, here = np.full((len(self.directions), stages), -1), np.arange(stages - 1)
        # Neighbouring stages on one device (the fold of a V) hand their result over without a transfer.
        sent = np.where(self.device[:, :-1] != self.device[:, 1:], here, -1)
        # F of a stage needs F of the stage before, I that of the stage after.
        yield (forward[:, :-1], forward[:, 1:]), sent
        yield (gradient[:, 1:], gradient[:, :-1]), sent
        # On its own stage I needs F, and W needs I.
        yield (forward, gradient), stay
        yield (gradient, np.where(gradient == weights, -1, weights)), stay  # I and W of one B are one cell
        # A slice reads the keys and values of those before it, and gets their gradients from those after it.
        yield (forward[..., :-1], forward[..., 1:]), stay
        yield (gradient[..., 1:], gradient[..., :-1]), stay


def _edges(source: np.ndarray, target: np.ndarray, stage: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return source, target, stage and token slice of one kind of dependency, flat; cells may be -1."""
    parts = np.broadcast_to(np.arange(source.shape[-1]), source.shape)
    stages = np.broadcast_to(stage[..., None, None], source.shape)
    return source.ravel(), target.ravel(), stages.ravel(), parts.ravel()


def _devices(where: np.ndarray, first: np.ndarray, directions: tuple[str, ...]) -> np.ndarray:
    """Return the device of each stage, by direction.

    Raises:
        ScheduleError: a stage is on several devices.
    """
    # (3, directions, stages, microbatches, slices): cells of device d are those from first[d] on. -1 for no cell.
    device = np.searchsorted(first, where, side="right") - 1
    found = np.full(device.shape[1:3], -1)
    for direction, stage in np.ndindex(found.shape):
        on = np.unique(device[:, direction, stage][where[:, direction, stage] >= 0])
        if len(on) > 1:
            raise ScheduleError(
                f"Stage {directions[direction]}{stage} stands on devices {' and '.join(map(str, on))}: its weights "
                "are on one device. Move its actions to one line."
            )
        found[direction, stage] = on[0]
    return found
