"""What part of a run's time a picture opens on; the rest is folded, and one click shows it.

Before the first launch of a run, programs are compiled or Python prepares data, which is often longer than all that
follows. A loop repeats one call; its last calls are what it is like once everything is warm. Events are as they were:
only the axis is another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pathways_nb.trace.matching import beginning
from pathways_nb.trace.metrics import BUSY, clients_of, duration
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS
from pathways_nb.util.intervals import union
from pathways_widgets.drawing.time_axis import last_end

SET_UP_KINDS = frozenset({"trace", "lower", "compile"})
WAITING_KINDS = frozenset({"wait", "stall"})
"""Kinds of events before a first launch: what is done for it (``SET_UP_KINDS``), and who waits meanwhile."""
LAST_CALLS = 3
"""Number of calls of a loop on which a picture opens."""
_LEAST_FOLDED = 0.2
"""Smallest part of a run that is folded."""


class Fold(NamedTuple):
    """Time at the beginning of a run that is not visible until the reader unfolds it.

    Args:
        until: when what is visible begins, in seconds since the start of the run.
        words: what was before.
        less: what the reader does to fold it again.
    """

    until: float
    words: str
    less: str


def fold_of(events: Events, of_one: bool = True) -> Fold | None:
    """Return what is folded: of a loop all but its last calls, else the time before the first launch.

    Nothing is folded where that would be a small part of the run, or all of it.

    Args:
        events: of a run.
        of_one: whether they are those of one run, whose calls have numbers.
    """
    found = (_loop(events) if of_one else None) or _before_the_first_launch(events)
    end = last_end(events)
    return found if found and _LEAST_FOLDED * end <= found.until < end else None


def _before_the_first_launch(events: Events) -> Fold | None:
    launched = events.without(GAUGE_KINDS | SET_UP_KINDS | WAITING_KINDS)["start"]
    before, until = events.of_kind(*SET_UP_KINDS), float(launched.min(initial=np.inf))
    if until == np.inf:
        return None
    if not len(before):
        return Fold(until, f"nothing ran for {duration(until)} before · show", "hide what was before the first launch")
    starts, ends = union(before["start"], np.minimum(before["end"], until))
    seconds = float(np.maximum(ends - starts, 0.0).sum())
    return Fold(until, f"compiled for {duration(seconds)} before · show", "hide what was before the first launch")


def _loop(events: Events) -> Fold | None:
    """Return what is before the last calls of a loop, if that is what the run is: many calls of one program."""
    busy = events.of_kind(*BUSY)
    called = busy["run"][busy["run"] >= 0]
    # Of several clients or programs the whole is what matters: who waited for whom.
    programs = {label.program for label in events.labels if label.kind in BUSY}
    if len(programs) != 1 or len(clients_of(events)) > 1 or not len(called):
        return None
    # (calls,) the numbers of calls; by counting, since there may be a million events.
    numbers = np.flatnonzero(np.bincount(called - called.min())) + called.min()
    if len(numbers) <= LAST_CALLS:
        return None
    shown = busy["start"][busy["run"] >= numbers[-LAST_CALLS]]
    words = f"the last {LAST_CALLS} of {len(numbers):,} calls · show all"
    return Fold(float(shown.min()), words, f"show the last {LAST_CALLS} calls")


def time_span(events: Events, of_one: bool = True, last: Events | None = None) -> dict[str, Any]:
    """Return the properties of a time axis: the visible part, with 1 % more on each side, and what is folded.

    Args:
        events: of a run.
        of_one: as for ``fold_of``.
        last: what is drawn of the last run of the same cell, which may have taken longer.

    Returns:
        ``start`` and ``end``; and ``tags``, which ``legends.js`` reads: nothing, or the fold's texts (``words``,
        ``less``), where it ends (``until``), and the bounds of the axis with it (``folded``) and without (``whole``).
    """
    extent, fold = last_end(events), fold_of(events, of_one)
    if last is not None:
        extent = max(extent, last_end(last) + beginning(events) - beginning(last))
    whole = [-0.01 * extent, 1.01 * extent]
    if fold is None:
        return {"start": whole[0], "end": whole[1], "tags": []}
    margin = 0.01 * (extent - fold.until)
    folded = [fold.until - margin, extent + margin]
    return {"start": folded[0], "end": folded[1], "tags": [{**fold._asdict(), "folded": folded, "whole": whole}]}
