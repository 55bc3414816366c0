"""What a cell did when it was run last: a run of the same cell is compared with it unasked.

A cell is known by the id that the notebook gives it, so its code may have changed; where the front end tells no id, by
its code. Only events are kept, no values and no code. What compares them is in ``trace.causality.headlines`` (the
sentence) and in the timeline (the outlines).
"""

from __future__ import annotations

from collections import OrderedDict

from pathways_nb.errors import UsageError
from pathways_nb.results.run import Run
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS
from pathways_nb.util.displaying import execution_of_cell
from pathways_nb.util.json_text import shortened

MOST_EVENTS = 4000
"""Number of events of the longest run that is kept and compared."""
MOST_RUNS = 64
"""Number of runs that are kept; the oldest are forgotten."""

Key = tuple[str, int]
"""A cell, and which of its recordings."""
_kept: OrderedDict[Key, Events] = OrderedDict()
_under_way: tuple[str, int] = ("", 0)
"""The execution of a cell that recorded last, and which of its recordings that was, from 0."""
_is_on = True


def compare_reruns(on: bool = True) -> None:
    """Choose whether a cell that is run again shows what has changed since its last run.

    Then the picture of a cell that is recorded a second time says how much faster or slower it is and why, and outlines
    what was elsewhere the last time. It is on until it is switched off.

    Args:
        on: whether it does.

    Raises:
        UsageError: ``on`` is neither True nor False.
    """
    global _is_on
    if not isinstance(on, bool):
        raise UsageError(f"compare_reruns({shortened(on)}): write True or False.")
    _is_on = on
    if not on:
        _kept.clear()


def exchange(run: Run) -> Events | None:
    """Keep what a run of a cell did, and return what the same recording of the same cell did the last time.

    Args:
        run: all of whose events are recorded.

    Returns:
        The events; None where nothing is known, or one of both is too long. A run in which something failed is neither
        compared nor kept: it ended early, and the next one is compared with the last that did not fail.
    """
    if not _is_on or (key := _key_of(run)) is None or (events := run.events).is_("status", "failed").any():
        return None
    last = _kept.pop(key, None)
    if len(events) > MOST_EVENTS:
        return None
    # A copy: a profile that is read later corrects stamps in place.
    _kept[key] = events.select(~events.is_("kind", *GAUGE_KINDS))
    if len(_kept) > MOST_RUNS:
        _kept.popitem(last=False)
    return last


def pass_over(run: Run) -> None:
    """Count a recording that raised, so that those after it in its cell are compared with their own last runs."""
    if _is_on:
        _key_of(run)


def _key_of(run: Run) -> Key | None:
    """Count a recording of a cell; return the cell and which of its recordings it is, None if it cannot be known."""
    global _under_way
    cell, execution = execution_of_cell()
    if not cell:
        source = run.about.get("source", "")
        return (source, 0) if source else None
    count = _under_way[1] + 1 if _under_way[0] == execution else 0
    _under_way = execution, count
    return cell, count
