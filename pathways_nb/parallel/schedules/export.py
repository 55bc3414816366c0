"""A schedule as a document for ``--json`` and as a table for CSV, with the times it was evaluated for.

The document's keys (``ranks``, ``sim``, the three peaks) are those of the reference schedules from other projects, so
that both can be compared. Memory is given three times, because projects differ in when they count a
microbatch's activations as freed: after W, after I, or half after each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pathways_nb.parallel.schedules.timing import Timing

NOTATION = (
    "stage + F|I|W|B + microbatch (+ .slice); I gradient by the input, W by the weights, B both at once; "
    "a|b before it: direction; (x;y)OVERLAP_F_B: both in one cell"
)
HEADER = ("device", "position", "cell", "start", "end", "released_by")


def document(name: str, timing: Timing) -> dict[str, Any]:
    """Return a timed schedule as plain data: the rows of each device (``ranks``) and the result (``sim``).

    Args:
        name: of the schedule.
        timing: the evaluated schedule.
    """
    size, tasks = timing.size, timing.tasks
    devices = {letter: found.tolist() for letter, found in zip(tasks.directions, tasks.device, strict=True)}
    return {
        "name": name,
        "p": size.devices,
        "microbatches": size.microbatches,
        "chunks_per_rank": size.chunks,
        "n_stages": int(tasks.cell.shape[2]),
        # One pipeline: the list itself, as other projects write it; two: by their letters.
        "stage_to_rank": devices.get("", devices),
        "seq_slices": size.token_slices,
        "notation": NOTATION,
        "ranks": [[str(cell) for cell in tasks.cells[start:end]] for start, end in pairwise(tasks.first)],
        "sim": _simulated(timing),
    }


def _simulated(timing: Timing) -> dict[str, Any]:
    """Return makespan, busy and idle times, peaks and start times as plain data."""
    starts = np.split(timing.start, timing.tasks.first[1:-1])
    return {
        "by": "cost.fixed, in the unit of the times given; transfers take no time unless said",
        "makespan": timing.makespan,
        "busy": timing.busy.tolist(),
        "idle": timing.idle.total.tolist(),
        "bubble_fraction": timing.bubble,
        "idle_within_own_span": timing.idle_within_own_span.tolist(),
        "peak_act_release_after_W": timing.peaks_if("W").tolist(),
        "peak_act_release_after_I": timing.peaks_if("I").tolist(),
        "peak_act_half_at_I_half_at_W": timing.peaks_if("half").tolist(),
        "start_times": [row.tolist() for row in starts],
    }


def table(timing: Timing) -> Iterator[Sequence[Any]]:
    """Yield ``HEADER``, then a line for each cell of each device: what, when, and the cell whose end let it start."""
    tasks = timing.tasks
    owner, source = tasks.owner, timing.released.source
    yield HEADER
    for cell, what in enumerate(tasks.cells):
        device = int(owner[cell])
        released = "" if source[cell] < 0 else str(tasks.cells[source[cell]])
        span = float(timing.start[cell]), float(timing.end[cell])
        yield device, cell - int(tasks.first[device]), str(what), *span, released
