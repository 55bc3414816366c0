"""The calls of a pipeline in a record: when each action ran, and when what it made arrived at another stage.

An event is an action if its name is that of the action (``2F3``, or ``2F3.1`` with token slices) and its columns
``stage`` and ``microbatch`` agree. Nothing but the record is read, so a loaded run gives the same as the run itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from pathways_nb.errors import UsageError, is_index
from pathways_nb.parallel.schedules.actions import Action, actions_of, parse_action
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.trace.metrics import BUSY
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label
from pathways_nb.util.words import counted

Span = tuple[float, float]
_INFERRED = ("estimated", "interpolated")
"""Qualities of events whose start is inferred."""
_NAMED = 4
"""Most actions that an error names."""


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One pass of a batch through a pipeline.

    Args:
        program: name of the program whose call it is.
        spans: start and end of each action, in seconds since the run began.
        sent: by the actions that made and that needed something on another stage: start and end of its transfer.
        inferred: the actions whose start was not measured.
        origin: how the times are known, such as ``"real, estimated"`` or ``"simulated, roofline"``.
    """

    program: str
    spans: dict[Action, Span]
    sent: dict[tuple[Action, Action], Span]
    inferred: frozenset[Action]
    origin: str


def find_call(
    events: Events, schedule: Schedule, call: int | None = None, name: str = "run"
) -> tuple[RecordedCall, str]:
    """Return a call that has exactly the actions of a schedule.

    Args:
        events: of a run.
        schedule: the schedule that it is laid over.
        call: which of these calls, from 0 in the order of time; negative numbers count from the end; None is the last.
        name: of the run, for errors.

    Returns:
        The call, and its number in words: empty if it is the only one.

    Raises:
        UsageError: the run has no actions, none of its calls has the schedule's, or there is no call of that number.
    """
    found = _passes(events)
    if not found:
        raise UsageError(
            f"compare: run {name!r} has no actions of a pipeline: none of its {counted(len(events), 'event')} is named "
            f"like {schedule.rows[0][0]} of schedule {schedule.name!r}. Record a call of a pw.pipeline that has this "
            "schedule, such as run = pipe.value_and_grad.run(params, x, targets)."
        )
    wanted = {action for row in schedule.rows for cell in row for action in actions_of(cell)}
    whole = [one for one in found if one.keys() == wanted]
    if not whole:
        raise UsageError(_other_size(schedule, wanted, found[-1].keys(), name))
    at = -1 if call is None else call
    if not is_index(at) or not -len(whole) <= at < len(whole):
        raise UsageError(
            f"compare: call={call!r}, but run {name!r} has {counted(len(whole), 'call')} of schedule {schedule.name!r}."
            f" Take a number from 0 to {len(whole) - 1}, or none for the last."
        )
    number = f"call {at % len(whole) + 1} of {len(whole)}" if len(whole) > 1 else ""
    return _call(events, whole[at]), number


def _passes(events: Events) -> list[dict[Action, int]]:
    """Return for each pass through a pipeline the position of each action's event, in the order of their first starts.

    A program may call a pipeline several times: the second occurrence of an action in it belongs to the second pass.
    """
    action = [_action(label) for label in events.labels]
    is_action = np.array([one is not None for one in action], bool)[events.label] & events.is_("status", "ok")
    rows = np.flatnonzero(is_action)
    # By start, so that the n-th event of an action in a program's call is that of the n-th pass.
    rows = rows[np.argsort(events["start"][rows], kind="stable")]
    seen: Counter[tuple[int, Action]] = Counter()
    found: dict[tuple[int, int], dict[Action, int]] = defaultdict(dict)
    columns = rows, events.label[rows], events["run"][rows]
    for row, label, serial in zip(*(column.tolist() for column in columns), strict=True):
        one = action[label]
        assert one is not None
        found[serial, seen[serial, one]][one] = row
        seen[serial, one] += 1
    return list(found.values())


def _action(label: Label) -> Action | None:
    """Return the action that events of this label are; None if they are none."""
    if label.kind not in BUSY or label.stage < 0:
        return None
    try:
        found = parse_action(label.name, "")
    except UsageError:
        return None
    part = -1 if found.token_slice is None else found.token_slice
    named = found.stage, found.microbatch, part
    return found if named == (label.stage, label.microbatch, label.token_slice) else None


def _call(events: Events, rows: dict[Action, int]) -> RecordedCall:
    """Return a pass with its times and transfers."""
    at = np.array(list(rows.values()))
    launches = events.select(at)
    spans = zip(launches["start"].tolist(), launches["end"].tolist(), strict=True)
    by_node = dict(zip(launches["node"].tolist(), rows, strict=True))
    of_call = events["run"] == launches["run"][0]
    # Moves that an action caused have its stage; others bring arguments and results.
    moves = events.select(events.is_("kind", "transfer") & of_call & (events["stage"] >= 0))
    sent: dict[tuple[Action, Action], Span] = {}
    columns = (moves[name].tolist() for name in ("parents", "node", "start", "end"))
    for parents, node, start, end in zip(*columns, strict=True):
        for source in (by_node[parent] for parent in parents if parent in by_node and node in by_node):
            # Several arrays between two actions, or several pieces of one, count as one transfer from first to last.
            known = sent.get((source, by_node[node]), (start, end))
            sent[source, by_node[node]] = min(start, known[0]), max(end, known[1])
    is_inferred = launches.is_("quality", *_INFERRED).tolist()
    inferred = frozenset(one for one, starts_inferred in zip(rows, is_inferred, strict=True) if starts_inferred)
    program = str(launches["program"][0])
    return RecordedCall(program, dict(zip(rows, spans, strict=True)), sent, inferred, _origin(launches))


def _origin(events: Events) -> str:
    """Return how the times of actions are known, in words."""
    qualities = sorted(set(events["quality"].tolist()))
    if "simulated" not in qualities:
        return f"real, {' and '.join(qualities)}"
    bases = dict.fromkeys(basis.partition(";")[0] for basis in events["basis"].tolist())
    return ", ".join(["simulated", *filter(None, [" and ".join(filter(None, bases))])])


def _other_size(schedule: Schedule, wanted: set[Action], has: Collection[Action], name: str) -> str:
    """Return the error for a run of another schedule or another size."""
    missing = [one for row in schedule.rows for cell in row for one in actions_of(cell) if one not in has]
    more = sorted(set(has) - wanted, key=lambda one: (one.stage, one.microbatch, one.operation))
    differ = [f"{says} {_list(these)}" for says, these in (("lacks", missing), ("has", more)) if these]
    return (
        f"compare: schedule {schedule.name!r} has {_size(wanted)}, but the last call of a pipeline in run {name!r} has "
        f"{_size(has)}: beside the schedule it {' and '.join(differ)}. Take the schedule that the pipeline ran, "
        "pipe.schedule."
    )


def _size(actions: Collection[Action]) -> str:
    """Return the number of stages, microbatches and token slices, and the operations, in words."""
    stages, microbatches, slices = (
        len({getattr(one, name) for one in actions}) for name in ("stage", "microbatch", "token_slice")
    )
    operations = "".join(one for one in "FIWB" if any(action.operation == one for action in actions))
    sliced = f", {slices} token slices" if slices > 1 else ""
    said = f"{counted(stages, 'stage')}, {counted(microbatches, 'microbatch', 'es')}{sliced}"
    return f"{said} and operations {', '.join(operations)}"


def _list(actions: Sequence[Action]) -> str:
    """Return some actions in words."""
    rest = len(actions) - _NAMED
    return ", ".join(chain(map(str, islice(actions, _NAMED)), [f"{rest} more"] if rest > 0 else []))
