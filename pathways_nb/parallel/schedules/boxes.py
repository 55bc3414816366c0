"""The boxes of a timed schedule, as columns: one for each action, two that touch for an overlapped pair."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pathways_nb.parallel.schedules.tasks import Tasks
from pathways_nb.parallel.schedules.timing import Timing

KEYS = ("operation", "direction", "stage", "microbatch", "token_slice")
"""What an action is; ``operation`` and ``direction`` are positions in ``"FIWB"`` and ``Tasks.directions``."""


def boxes_of(timing: Timing) -> dict[str, np.ndarray]:
    """A row for each action, in the order of the cells.

    Returns:
        ``KEYS``, ``token_slice`` -1 if there are none; ``cell`` and its ``device``; ``shade``, what lightness tells
        apart on a device; ``start`` and ``end``; and of its whole cell ``cell_start``, ``cell_end``, ``idle`` (how long
        its device was idle before), ``by`` (the cell that let it start, -1 for none), ``wire`` (how long its result was
        on the way), ``pair`` (whether it is one of two).
    """
    tasks, released = timing.tasks, timing.released
    columns = dict(actions_of_tasks(tasks))
    cell = columns["cell"]
    start, end = timing.start[cell], timing.end[cell]
    pair, second = np.bincount(cell)[cell] > 1, np.concatenate([[False], cell[1:] == cell[:-1]])
    middle = start + timing.forward[cell]
    columns |= {"start": np.where(second, middle, start), "end": np.where(pair & ~second, middle, end)}
    columns |= {"cell_start": start, "cell_end": end, "idle": timing.gaps[cell], "pair": pair}
    return columns | {"by": released.source[cell], "wire": released.seconds[cell], "device": tasks.owner[cell]}


@lru_cache(16)
def actions_of_tasks(tasks: Tasks) -> dict[str, np.ndarray]:
    """``KEYS``, ``cell`` and ``shade`` of every action, in the order of the cells; of a pair F comes first."""
    forward, gradient, weights = tasks.cell
    both = gradient == weights
    tables = forward, np.where(both, -1, gradient), np.where(both, -1, weights), np.where(both, gradient, -1)
    found = [(np.full(len(at), code), *at.T, table[tuple(at.T)])
             for code, table in enumerate(tables) for at in [np.argwhere(table >= 0)]]  # fmt: skip
    columns = dict(zip((*KEYS, "cell"), map(np.concatenate, zip(*found, strict=True)), strict=True))
    columns["shade"] = _shades(tasks)[columns["direction"], columns["stage"], columns["token_slice"]]
    if forward.shape[-1] == 1:
        columns["token_slice"] = np.full_like(columns["token_slice"], -1)
    order = np.argsort(columns["cell"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def varieties(tasks: Tasks) -> tuple[int, int, int]:
    """How many directions, chunks and token slices a device has to do with."""
    return len(tasks.directions), int(_chunks(tasks).max()) + 1, tasks.cell.shape[-1]


def _shades(tasks: Tasks) -> np.ndarray:
    """A number for each direction, stage and token slice, the same for what a device does alike."""
    directions, chunks, slices = varieties(tasks)
    direction, part = np.arange(directions)[:, None, None], np.arange(slices)
    return np.asarray((direction * chunks + _chunks(tasks)[:, :, None]) * slices + part)


def _chunks(tasks: Tasks) -> np.ndarray:
    """Of each stage, by direction: how many earlier ones its device has."""
    device = tasks.device
    return np.array([[np.count_nonzero(row[:stage] == row[stage]) for stage in range(len(row))] for row in device])
