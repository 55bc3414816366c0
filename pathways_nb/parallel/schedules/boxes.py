"""The boxes of a timed schedule, as columns: one for each action, two that touch for an overlapped pair.

Columns and not objects: widgets pass them to Bokeh as they are. What depends on the order alone is computed once per
schedule (``actions_of_tasks``), so that a change of times recomputes only start and end.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pathways_nb.parallel.schedules.tasks import Tasks
from pathways_nb.parallel.schedules.timing import Timing

KEYS = ("operation", "direction", "stage", "microbatch", "token_slice")
"""Columns that identify an action; ``operation``, ``direction``: positions in ``"FIWB"`` and ``Tasks.directions``."""


def boxes_of(timing: Timing) -> dict[str, np.ndarray]:
    """Return a row for each action, in the order of the cells.

    Returns:
        ``KEYS``, with ``token_slice`` -1 if there are none; ``cell`` and its ``device``; ``shade``, which lightness
        tells apart on a device; ``start`` and ``end``; and of its whole cell ``cell_start``, ``cell_end``, ``idle``
        (how long its device was idle before), ``by`` (the cell whose end let it start, -1 for none), ``wire`` (transfer
        time of that cell's result), ``pair`` (whether it is one of two).
    """
    tasks, released = timing.tasks, timing.released
    columns = dict(actions_of_tasks(tasks))
    cell = columns["cell"]
    start, end = timing.start[cell], timing.end[cell]
    # (actions,) each. The two actions of a pair follow each other, F first, and B begins where F ends.
    pair, second = np.bincount(cell)[cell] > 1, np.concatenate([[False], cell[1:] == cell[:-1]])
    middle = start + timing.forward[cell]
    columns |= {"start": np.where(second, middle, start), "end": np.where(pair & ~second, middle, end)}
    columns |= {"cell_start": start, "cell_end": end, "idle": timing.gaps[cell], "pair": pair}
    return columns | {"by": released.source[cell], "wire": released.seconds[cell], "device": tasks.owner[cell]}


@lru_cache(16)
def actions_of_tasks(tasks: Tasks) -> dict[str, np.ndarray]:
    """Return ``KEYS``, ``cell`` and ``shade`` of every action, in the order of the cells; F comes first in a pair."""
    # (directions, stages, microbatches, slices) each: the number of a cell, or -1.
    forward, gradient, weights = tasks.cell
    # B is one cell for I and W. It is a box of its own, and neither one of I nor one of W.
    both = gradient == weights
    tables = forward, np.where(both, -1, gradient), np.where(both, -1, weights), np.where(both, gradient, -1)
    # For each table its actions as columns: code of the operation, the four indices, and the cell.
    found = [(np.full(len(at), code), *at.T, table[tuple(at.T)])
             for code, table in enumerate(tables) for at in [np.argwhere(table >= 0)]]  # fmt: skip
    columns = dict(zip((*KEYS, "cell"), map(np.concatenate, zip(*found, strict=True)), strict=True))
    directions, chunks, slices = varieties(tasks)
    # (directions, stages, slices): equal roles on different devices have equal numbers.
    shades = (np.arange(directions)[:, None, None] * chunks + _chunks(tasks)[:, :, None]) * slices + np.arange(slices)
    columns["shade"] = shades[columns["direction"], columns["stage"], columns["token_slice"]]
    if forward.shape[-1] == 1:
        columns["token_slice"] = np.full_like(columns["token_slice"], -1)
    # Stable: F is the first table, so it stays in front of the gradient of its pair.
    order = np.argsort(columns["cell"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def varieties(tasks: Tasks) -> tuple[int, int, int]:
    """Return the largest number of directions, chunks and token slices that one device works on."""
    return len(tasks.directions), int(_chunks(tasks).max()) + 1, tasks.cell.shape[-1]


def _chunks(tasks: Tasks) -> np.ndarray:
    """Return for each stage, by direction, the number of earlier stages on its device."""
    device = tasks.device
    return np.array([[np.count_nonzero(row[:stage] == row[stage]) for stage in range(len(row))] for row in device])
