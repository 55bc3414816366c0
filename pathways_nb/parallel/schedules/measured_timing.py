"""A recorded call of a pipeline as timings: the plan with its medians, and what ran.

Both are ``Timing`` objects, so that bubbles, memory and pictures of a run are those of any schedule. What ran is the
timing of a schedule of its own, whose rows are the orders that the devices had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from pathways_nb.parallel.schedules.actions import Action, actions_of
from pathways_nb.parallel.schedules.recorded_calls import RecordedCall
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.parallel.schedules.timing import Timing
from pathways_nb.timing.fixed_order import Evaluated
from pathways_nb.timing.timed import StartCause

PART = {"F": 0, "I": 1, "B": 1, "W": 2}
"""Which row of the durations of cells holds those of an operation; B is measured as a whole."""


def with_starts_after_causes(schedule: Schedule, call: RecordedCall) -> RecordedCall:
    """Return a call in which no action begins before it has what it needs, as far as starts were not measured.

    The record infers such a start from the launch and from the end before it on the device. What an action needs from
    another stage may have come later. Ends stay, and no start is later than its end.

    Args:
        schedule: that the call carried out.
        call: as recorded.
    """
    executed = _executed(schedule, call)
    edges, cells = executed.dependencies, _cells(executed)
    starts, ends = ({one: span[at] for one, span in call.spans.items()} for at in (0, 1))
    # A measured start is left alone: where it is before the end of what it needed, the record is told, not changed.
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        made, needed = cells[source], cells[target]
        if needed in call.inferred:
            starts[needed] = max(starts[needed], ends[made], call.sent.get((made, needed), (0.0, -np.inf))[1])
    spans = {one: (min(starts[one], end), end) for one, end in ends.items()}
    sent = {pair: (min(max(start, ends[pair[0]]), end), end) for pair, (start, end) in call.sent.items()}
    return replace(call, spans=spans, sent=sent)


def planned_timing(schedule: Schedule, call: RecordedCall) -> Timing:
    """Return a schedule evaluated with the medians of a call."""
    durations = medians_of(call)
    # (3, cells) seconds of F, I and W; a measured B is all in the row of I.
    parts = np.zeros((3, len(schedule.tasks.cells)))
    for number, cell in enumerate(schedule.tasks.cells):
        for one in actions_of(cell):
            parts[PART[one.operation], number] += durations[_kind(one)]
    edges = schedule.dependencies
    # By the lower stage and the token slice, as dependencies name what is sent.
    taken = _medians(
        ((min(source.stage, target.stage), source.token_slice or 0), end - start)
        for (source, target), (start, end) in call.sent.items()
    )
    wires = zip(edges.stage.tolist(), edges.token_slice.tolist(), strict=True)
    return schedule.timing_of(parts, np.array([taken.get(wire, 0.0) for wire in wires], float))


def medians_of(call: RecordedCall) -> dict[tuple[str, int, int | None], float]:
    """Return the median duration of each operation, by stage and token slice."""
    return _medians((_kind(one), end - start) for one, (start, end) in call.spans.items())


def _kind(action: Action) -> tuple[str, int, int | None]:
    """Return what microbatches have in common: operation, stage and token slice."""
    return action.operation, action.stage, action.token_slice


def _medians(pairs: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    """Return the median of the numbers that each key has."""
    found: dict[Any, list[float]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: float(np.median(values)) for key, values in found.items()}


def executed_timing(schedule: Schedule, call: RecordedCall) -> Timing:
    """Return what ran as the timing of a schedule of its own, whose rows are the orders that devices had."""
    executed = _executed(schedule, call)
    tasks, begin = executed.tasks, min(start for start, _ in call.spans.values())
    # (cells,) seconds since the first action began
    start, end = np.array([call.spans[one] for one in _cells(executed)]).T - begin
    found = Evaluated(start, end, float(end.max()))
    forward = np.zeros(len(start))  # read for overlapped pairs only, of which a run has none
    return Timing(tasks, executed.size, found, _released(executed, call, found, begin), forward)


def _executed(schedule: Schedule, call: RecordedCall) -> Schedule:
    """Return the actions of each device in the order of their starts; those that start together as planned."""
    planned = ([action for cell in row for action in actions_of(cell)] for row in schedule.rows)
    ran = [sorted(row, key=lambda one: call.spans[one]) for row in planned]
    return Schedule(tuple(tuple(row) for row in ran), schedule.name)


def _cells(executed: Schedule) -> list[Action]:
    """Return the cells of a schedule without overlapped pairs."""
    return [action for row in executed.rows for cell in row for action in actions_of(cell)]


def _released(executed: Schedule, call: RecordedCall, found: Evaluated, begin: float) -> StartCause:
    """Return what each action waited for last: its predecessor on the device, or a producer and its transfer."""
    edges, cells, count = executed.dependencies, _cells(executed), len(found.start)
    # (cells,) when the last input came, from which cell (-1 for none), and how long it was on the way
    arrive, source, wire = np.full(count, -np.inf), np.full(count, -1), np.zeros(count)
    # All but the first cell of each device wait for the one before them.
    after = np.setdiff1d(np.arange(count), executed.tasks.first)
    arrive[after], source[after] = found.end[after - 1], after - 1
    for made, needed in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        sent = call.sent.get((cells[made], cells[needed]))
        there = max(found.end[made], sent[1] - begin) if sent else found.end[made]
        if there > arrive[needed]:
            arrive[needed], source[needed], wire[needed] = there, made, there - found.end[made]
    return StartCause(source, wire)


def in_other_unit(timing: Timing, scale: float) -> Timing:
    """Return a timing in another unit."""
    found = Evaluated(timing.start * scale, timing.end * scale, timing.makespan * scale)
    cause = StartCause(timing.released.source, timing.released.seconds * scale)
    return replace(timing, found=found, released=cause, forward=timing.forward * scale)
