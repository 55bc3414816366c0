"""Tasks of a trace as events of a record, and as the operations inside launches.

A kind of device is an island, its devices are numbered in order; an event is on one stream of one device. The call of
the host that sent it is an enqueue, so that a run shows whether devices waited for the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pathways_nb.cost.hlo.hlo_sources import HloOp
from pathways_nb.runtime.recorded.recorded_tasks import UNKNOWN as NO_CALL
from pathways_nb.runtime.recorded.recorded_tasks import RecordedTasks, TaskLabel
from pathways_nb.runtime.recorded.task_kinds import TaskKind, as_op_kind, route_of
from pathways_nb.timing.waits import MESSAGE
from pathways_nb.trace.launch_ops import OP_STORED, OpLabel, Ops, phase_of
from pathways_nb.trace.record import STORED, UNKNOWN, Events
from pathways_nb.trace.rows import QUALITIES, Label

_PLAIN = re.compile(r"^jit_(pw_)?")
"""How JAX begins the name of a module, and this package that of a node's."""
_LONGEST = 120
"""Characters of a kernel's name: templates of C++ may have thousands."""
_WAITS = re.compile(r"(?<!Async)Synchronize", re.IGNORECASE)
"""How calls are named that wait until a device has done what it was sent."""
_COPIES = re.compile("memcpy", re.IGNORECASE)
_KINDS = ("GPU", "TPU", "CPU")
ALL_RANKS = "all ranks"
"""Who takes part in a collective of which the trace does not say it."""


class RecordedRun(NamedTuple):
    """A trace as the parts of a run.

    Args:
        islands: number of devices of each island.
        devices: names of the devices, island by island.
        events: on devices, and the calls that sent them; in seconds since the first.
        ops: the same on devices, as the operations of launches.
        began: when the first of them began, in seconds on the clock of the trace.
    """

    islands: tuple[int, ...]
    devices: tuple[tuple[str, ...], ...]
    events: Events
    ops: Ops
    began: float


def recorded_run(
    recorded: RecordedTasks, kind_of: Callable[[TaskLabel], TaskKind], modules: Mapping[str, Mapping[str, HloOp]]
) -> RecordedRun:
    """Return a trace as the parts of a run.

    Args:
        recorded: the trace.
        kind_of: says the kind of a task.
        modules: the operations of compiled modules by name, as far as they are known.
    """
    labels, places = list(recorded.labels), _places(recorded.labels)
    order = np.argsort(recorded.tasks.column("start"), kind="stable")
    label, start, end, call = (recorded.tasks.column(name)[order] for name in ("label", "start", "end", "call"))
    kinds = [kind_of(one) for one in labels]
    islands = np.array([places[one.device][0] for one in labels], np.int64)
    calls = _Calls(recorded, call, start, end, islands[label] if len(label) else label)
    run, of_launch = _launches(recorded, labels, label, calls.sent(call, start), recorded.tasks.column("launch")[order])
    runs_of_calls = int(run.max(initial=-1)) + 1 + np.arange(len(calls.start))
    begin = min(float(start.min(initial=np.inf)), float(calls.start.min(initial=np.inf)))
    begin = begin if np.isfinite(begin) else 0.0
    made = [_label(one, kind, of_launch(one), *places[one.device]) for one, kind in zip(labels, kinds, strict=True)]
    waiting, waits = calls.waits_after(begin)
    sent = calls.sent_last(call, start, _stream_ends(labels, label, end))
    stored: dict[str, np.ndarray] = {
        "label": np.concatenate([label, calls.label + len(made), waiting + len(made)]),
        "start": np.concatenate([start, calls.start, waits[0]]) - begin,
        "end": np.concatenate([end, calls.end, waits[1]]) - begin,
        "run": np.concatenate([run, runs_of_calls, np.full(len(waiting), -1)]),
    }
    count = len(stored["label"])
    alike = {**UNKNOWN, "quality": QUALITIES.index("exact"), "status": 0}
    stored |= {name: np.full(count, value, STORED[name]) for name, value in alike.items()}
    known = np.flatnonzero(sent >= 0)
    stored["why"][known] = MESSAGE
    stored["released_label"][known] = calls.label[sent[known]] + len(made)
    stored["released_run"][known] = runs_of_calls[sent[known]]
    # By start, so that positions are in the order of time; one column after another, as there may be millions of rows.
    by_start = np.argsort(stored["start"], kind="stable")
    columns: dict[str, np.ndarray] = {
        name: stored.pop(name).astype(dtype, copy=False)[by_start] for name, dtype in STORED.items()
    }
    events = Events([*made, *calls.labels], columns, np.arange(count))
    ops = _ops(labels, made, kinds, modules, {"label": label, "start": start - begin, "end": end - begin, "run": run})
    names: list[list[str]] = [[] for _ in range(len({island for island, _ in places.values()}))]
    for (kind, number), (island, _) in places.items():
        names[island].append(f"{kind} {number}")
    return RecordedRun(tuple(map(len, names)), tuple(map(tuple, names)), events, ops, begin)


def _places(labels: Mapping[TaskLabel, int]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return island and position of each device."""
    devices = sorted({label.device for label in labels}, key=lambda one: ((*_KINDS, one[0]).index(one[0]), one))
    kinds = list(dict.fromkeys(kind for kind, _ in devices))
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for device in devices:
        island = kinds.index(device[0])
        found[device] = island, sum(1 for other, _ in found.values() if other == island)
    return found


def _label(label: TaskLabel, kind: TaskKind, program: str, island: int, device: int) -> Label:
    """Return the label of an event."""
    name = label.name if len(label.name) <= _LONGEST else f"{label.name[: _LONGEST - 1]}…"
    about = " · ".join(filter(None, (label.line, label.source)))
    place = f"{label.device[0]} {label.device[1]}" + (f", {label.stream}" if label.stream else "")
    taking_part = f"{label.group or ALL_RANKS}; {label.detail}".removesuffix("; ") if kind == "collective" else ""
    return Label(
        kind, name, program, place=place, island=island, device=device, devices=1, bytes=label.bytes, line=about,
        route=route_of(label.name) if kind == "transfer" else "", basis=taking_part, stream=label.stream,
    )  # fmt: skip


def _launches(
    recorded: RecordedTasks, labels: Sequence[TaskLabel], label: np.ndarray, sent: np.ndarray, told: np.ndarray
) -> tuple[np.ndarray, Callable[[TaskLabel], str]]:
    """Return the number of each task's launch or step, -1 for none, and what names the program of a task.

    Args:
        recorded: the trace.
        labels: of the tasks.
        label: of each task.
        sent: when it was sent, in seconds: a device may be in an earlier step than its host.
        told: the launch of each task, as the trace tells it.
    """
    if recorded.steps and not any(one.module for one in labels):
        steps = sorted(recorded.steps, key=lambda step: step.start)
        at = np.searchsorted([step.start for step in steps], sent, side="right") - 1
        return at, lambda _: steps[0].name
    if not any(one.module for one in labels):
        return np.zeros(len(label), np.int64), lambda _: ""
    # Of a launch that is not told apart, tasks of its module in a row on one device belong together.
    module, found = [one.module for one in labels], told.copy()
    numbers: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], tuple[str, int]] = {}
    seen: dict[tuple[tuple[str, int], str], int] = {}
    first = int(told.max(initial=-1)) + 1
    for row in np.flatnonzero((told < 0) & np.array([bool(one) for one in module])[label]).tolist():
        one = labels[label[row]]
        before, count = last.get(one.device, ("", -1))
        if before != one.module:
            count = seen[one.device, one.module] = seen.get((one.device, one.module), -1) + 1
        last[one.device] = one.module, count
        found[row] = numbers.setdefault((one.module, count), first + len(numbers))
    return found, lambda one: _PLAIN.sub("", one.module)


def _stream_ends(labels: Sequence[TaskLabel], label: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return when the task before each on its stream ended, in seconds; minus infinity for none."""
    numbers: dict[tuple[tuple[str, int], str], int] = {}
    stream = np.array([numbers.setdefault((one.device, one.stream), len(numbers)) for one in labels], np.int64)
    stream = stream[label] if len(label) else np.zeros(0, np.int64)
    order = np.argsort(stream, kind="stable")
    found = np.full(len(label), -np.inf)
    same = stream[order][1:] == stream[order][:-1]
    found[order[1:][same]] = end[order[:-1][same]]
    return found


class _Calls:
    """The calls of the host that sent tasks to devices, and those that waited for devices.

    Args:
        recorded: the trace.
        call: number of each task's call.
        start: of each task.
        end: of each task.
        island: of each task.
    """

    def __init__(
        self, recorded: RecordedTasks, call: np.ndarray, start: np.ndarray, end: np.ndarray, island: np.ndarray
    ):
        # Of several with one number the first counts.
        self._numbers, rows = np.unique(recorded.calls.column("call"), return_index=True)
        used = np.isin(self._numbers, call[call != NO_CALL])
        self._numbers, rows = self._numbers[used], rows[used]
        self.start, self.end = (recorded.calls.column(name)[rows] for name in ("start", "end"))
        names = list(recorded.call_names)
        name = recorded.calls.column("label")
        waiting = np.array([bool(_WAITS.search(one)) for one in names], bool)
        waited = np.flatnonzero(waiting[name]) if len(name) else rows[:0]
        waited = waited[~np.isin(waited, rows)]
        waits = np.stack([recorded.calls.column(one)[waited] for one in ("start", "end")])
        # The island of a call is that of a task that it sent. A copy may hold its call until it has ended.
        at = self._position(call)
        sent = np.flatnonzero(at >= 0)
        where, begun, done = np.zeros(len(rows), np.int64), np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
        where[at[sent]] = island[sent]
        np.minimum.at(begun, at[sent], start[sent])
        np.maximum.at(done, at[sent], end[sent])
        copies = np.array([bool(_COPIES.search(one)) for one in names], bool)
        held = (copies[name[rows]] if len(name) else copies[:0]) & (done <= self.end) & (begun > self.start)
        self._waits = np.concatenate([waits, np.stack([begun[held], self.end[held]])], 1)
        self.end = np.where(held, begun, self.end)
        keys: dict[tuple[int, int], int] = {}
        pairs = zip(name[rows].tolist(), where.tolist(), strict=True)
        self.label = np.array([keys.setdefault(pair, len(keys)) for pair in pairs], np.int64)
        self.labels = [Label("enqueue", names[one], island=island) for one, island in keys]
        numbers = np.concatenate([name[waited], name[rows][held]]).tolist()
        self._waiting = np.array([keys.setdefault((one, -1), len(keys)) for one in numbers], np.int64)
        self.labels += [Label("wait", names[one]) for one, island in list(keys)[len(self.labels) :]]

    def waits_after(self, begin: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of the waits that end after a time, and their starts and ends: (waits,) and (2, waits)."""
        later = self._waits[1] > begin
        return self._waiting[later], self._waits[:, later]

    def _position(self, call: np.ndarray) -> np.ndarray:
        """Return which of the calls sent each task; -1 for none."""
        if not len(self._numbers):
            return np.full(len(call), -1)
        at = np.minimum(np.searchsorted(self._numbers, call), len(self._numbers) - 1)
        return np.where(self._numbers[at] == call, at, -1)

    def sent(self, call: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Return when each task was sent, in seconds; its own start where that is not known."""
        at = self._position(call)
        return np.where(at >= 0, np.append(self.start, 0.0)[at], start)

    def sent_last(self, call: np.ndarray, start: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the call that each task waited for, -1 where it waited for what ran before it on its stream.

        Args:
            call: number of each task's call.
            start: of each task.
            before: when the task before it on its stream ended.
        """
        at = self._position(call)
        began, ended = (np.append(column, np.inf)[at] for column in (self.start, self.end))
        # A call may go on when its task has begun.
        return np.where((began <= start) & (np.minimum(ended, start) > before), at, -1)


def _ops(
    labels: Sequence[TaskLabel],
    made: Sequence[Label],
    kinds: Sequence[TaskKind],
    modules: Mapping[str, Mapping[str, HloOp]],
    columns: Mapping[str, np.ndarray],
) -> Ops:
    """Return the tasks that are part of a launch as its operations.

    Args:
        labels: of the tasks.
        made: of their events.
        kinds: of their events.
        modules: the operations of compiled modules, by name.
        columns: label, start, end and run of each task.
    """
    found = []
    for label, event, kind in zip(labels, made, kinds, strict=True):
        name = label.op or event.name
        known = modules.get(label.module, {}).get(label.op)
        if known is None:
            op_kind = as_op_kind(kind, label.name)
            known = HloOp(label.source, op_kind, (), label.line, phase_of(label.source))
        source = known.source or label.source
        said = name, source, known.kind, event.program, event.program, -1, known.line, known.phase, known.work
        found.append(OpLabel(*said))
    # A launch of transfers alone keeps no device busy, and has no box in which its operations could be.
    busy = np.array([kind != "transfer" for kind in kinds], bool)
    with_work = np.unique(columns["run"][busy[columns["label"]]]) if len(kinds) else columns["run"]
    chosen = np.flatnonzero((columns["run"] >= 0) & np.isin(columns["run"], with_work))
    stored = {name: columns[name][chosen] for name in ("label", "start", "end", "run")}
    for name in ("island", "device"):
        of_labels = np.array([getattr(label, name) for label in made], np.int32)
        stored[name] = of_labels[stored["label"]] if len(made) else np.zeros(0, np.int32)
    return Ops(found, {name: stored[name].astype(dtype) for name, dtype in OP_STORED.items()})
