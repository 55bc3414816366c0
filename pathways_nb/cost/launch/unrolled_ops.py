"""The operations of a launch one by one, at their times: a schedule with its loops unrolled.

Compute, collectives, copies, transfers to the host and between slices are ops on queues of their own. While the queue
of instructions stands still, for something that was started or for a collective that is not started apart, there is a
wait, which ends when it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pathways_nb.cost.hlo.hlo_schedule import LaunchAction, LaunchSchedule, Queue
from pathways_nb.cost.launch.launch_timing import Price, body_of
from pathways_nb.timing.loops import Loop
from pathways_nb.trace.launch_ops import OpKind, OpLabel, Ops

MOST_OPS = 100_000
"""Ops beyond which only the first and the last passes of loops are listed."""
KIND_OF_QUEUE: dict[Queue, OpKind] = {
    "compute": "compute", "network": "collective", "copy": "prefetch", "host": "host", "dcn": "dcn",
}  # fmt: skip
"""The kind of the ops that a queue runs."""
WAIT = "wait for "
"""Beginning of the name of a wait, in front of the name of what is waited for."""
_NEAR = 1e-10
"""Seconds by which times that are sums of the same numbers may differ."""


def _said(loop: LaunchAction) -> str:
    """Return the name of a loop, and the user's line that it is from where that is known."""
    return f"{loop.name} ({loop.line})" if loop.line else loop.name


class TimedRows(NamedTuple):
    """Rows of ops; times in seconds since what they are in began."""

    label: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def later(self, seconds: float) -> TimedRows:
        """Return the same rows at later times."""
        return TimedRows(self.label, self.start + seconds, self.end + seconds)


def ops_of(schedule: LaunchSchedule, price: Price, most: int = MOST_OPS) -> tuple[Ops, tuple[str, ...]]:
    """Return the ops of a launch on one device, by their begin, and which passes of loops are left out.

    Args:
        schedule: of the launch.
        price: seconds of each action.
        most: ops beyond which passes are left out.
    """
    passes = 1
    while passes < 1 << 30 and _count(schedule, 2 * passes) <= most:
        passes *= 2
    unrolled = _Unrolled(price, passes)
    rows = unrolled.rows(schedule, Loop(body_of(schedule, price), 1))
    order = np.argsort(rows.start, kind="stable")
    zeros = np.zeros(len(order), np.int32)
    stored = {"label": rows.label[order], "run": zeros, "island": zeros, "device": zeros}
    stored |= {"start": rows.start[order], "end": rows.end[order]}
    return Ops(list(unrolled.labels), stored), tuple(unrolled.left_out)


def _count(schedule: LaunchSchedule, passes: int) -> int:
    """Return how many actions are listed if so many passes of each loop are, at most."""
    count = 0
    for action in schedule.actions:
        count += 1 if action.body is None else min(action.trips, passes) * _count(action.body, passes)
    return count


@dataclass
class _Unrolled:
    """The ops of one launch.

    Args:
        price: seconds of each action.
        passes: of each loop that are listed, at most.
    """

    price: Price
    passes: int
    labels: dict[OpLabel, int] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)

    def rows(self, schedule: LaunchSchedule, loop: Loop, name: str = "") -> TimedRows:
        """Return the ops of a loop.

        Args:
            schedule: of a pass.
            loop: its timing.
            name: of the loop and its line, for what is left out.
        """
        shown = min(loop.trips, self.passes)
        first = -(-shown // 2)
        if shown < loop.trips:
            what = f"passes {first} to {loop.trips - (shown - first) - 1} of {loop.trips} of {name}"
            self.left_out[f"{what} are not listed: there are too many operations"] = None
        numbers = [*range(first), *range(loop.trips - (shown - first), loop.trips)]
        shift = {at: self.rows(one.body, loop.body.loops[at], _said(one)) for at, one in enumerate(schedule.actions)
                 if one.body is not None and at in loop.body.loops}  # fmt: skip
        lines = _Lines.of(self, schedule, loop)
        parts = [part for number in numbers for part in self._pass(lines, loop, number, shift)]
        return TimedRows(*map(np.concatenate, zip(*parts, strict=True))) if parts else _NOTHING

    def _pass(self, lines: _Lines, loop: Loop, number: int, inner: dict[int, TimedRows]) -> Iterator[TimedRows]:
        """Yield the ops of one pass, and of the loops in it."""
        starts = loop.starts(number)
        ends = starts + loop.body.seconds
        yield TimedRows(lines.labels, starts[lines.runs], ends[lines.runs])
        if not len(lines.queued):
            return
        before = np.empty(len(lines.queued))
        before[1:] = ends[lines.queued[:-1]]
        before[0] = (loop.starts(number - 1) + loop.body.seconds)[lines.queued[-1]] if number else 0.0
        until = np.where(lines.blocks, ends[lines.queued], starts[lines.queued])
        waits = np.flatnonzero(until - before > _NEAR)
        blamed = [self._wait(lines.blamed(at, starts, ends)) for at in waits.tolist()]
        yield TimedRows(np.array(blamed, np.int32), before[waits], until[waits])
        for at, rows in inner.items():
            yield rows.later(starts[at])

    def label(self, action: LaunchAction) -> int:
        """Return the number of the label of an action's op."""
        return self.labels.setdefault(self._op(action), len(self.labels))

    def _wait(self, action: LaunchAction) -> int:
        """Return the number of the label of a wait for an action."""
        if id(action) not in self.waits:
            op = self._op(action)
            label = op._replace(name=f"{WAIT}{op.name}", kind="wait")
            self.waits[id(action)] = self.labels.setdefault(label, len(self.labels))
        return self.waits[id(action)]

    def _op(self, action: LaunchAction) -> OpLabel:
        """Return the label of an action's op."""
        said = action.line, action.phase, action.words
        return OpLabel(action.name, action.source, KIND_OF_QUEUE[action.queue], "", "", 0, *said)


_NOTHING = TimedRows(np.zeros(0, np.int32), np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class _Lines:
    """What is the same in each pass of a schedule.

    Args:
        actions: of a pass.
        runs: positions of those that take time themselves.
        labels: of those.
        queued: positions of those that the queue of instructions runs or waits for.
        blocks: of ``queued``, whether they hold up the instructions until their end.
    """

    actions: Sequence[LaunchAction]
    runs: np.ndarray
    labels: np.ndarray
    queued: np.ndarray
    blocks: np.ndarray

    @classmethod
    def of(cls, unrolled: _Unrolled, schedule: LaunchSchedule, loop: Loop) -> _Lines:
        """Return what is the same in each pass."""
        actions, seconds = schedule.actions, loop.body.seconds
        runs = [n for n, one in enumerate(actions) if one.role in ("run", "start") and seconds[n] > 0]
        queued = [n for n, lanes in enumerate(loop.body.lanes) if 0 in lanes]
        blocks = [actions[n].role in ("run", "start") and actions[n].queue != "compute" for n in queued]
        labels = [unrolled.label(actions[n]) for n in runs]
        return cls(actions, np.array(runs, np.intp), np.array(labels, np.int32), np.array(queued, np.intp),
                   np.array(blocks, bool))  # fmt: skip

    def blamed(self, at: int, starts: np.ndarray, ends: np.ndarray) -> LaunchAction:
        """Return the action that the queue of instructions waited for, at a position in ``queued``."""
        task = int(self.queued[at])
        action = self.actions[task]
        if action.role == "done" and action.of >= 0:
            return self.actions[action.of]
        if self.blocks[at] or not task:
            return action
        # A loop waits for all that is under way: what ends last before it holds it up.
        under_way = [n for n in range(task) if self.actions[n].role == "start"]
        return self.actions[max(under_way, key=lambda n: ends[n])] if under_way else action
