"""Why an event began when it did, and not before: in words, and back step by step to the beginning.

A *wait* is the time between the moment at which an event's devices were free and its start. What ended the wait is what
released the event in the happened-before graph (see ``happened_before``), so a chain of waits agrees with the critical
path. A value that came from another island is told as a wait for what made it, with its transfer as a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pathways_nb.errors import UsageError, is_number
from pathways_nb.timing.waits import CALL, DATA, LANE, LINK, MEMORY, TURN, WHY, WINDOW
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.metrics import BUSY, duration
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label
from pathways_nb.util.text_table import Printed, Table

_NONE = 1e-9
"""Seconds below which a wait counts as none."""
_MOST_STEPS = 1000
"""Number of steps that a chain goes back at most."""
_WAYS = {"host": " from the host", "ICI": " over ICI", "DCN": " over DCN", "local": " within its island"}
"""By route of a transfer, how a sentence tells it."""


class EventCause(NamedTuple):
    """Why one event began when it did.

    Args:
        event: id of the event.
        seconds: how long its devices were free before it began; 0 for what is on no device.
        why: one of ``timing.waits.WHY``; empty if nothing released it.
        source: id of the event that it waited for; -1 for none.
        transfer: seconds of the wait in which the value was on its way.
        inferred: whether the cause follows from stamps; ``False`` if it was recorded.
        text: all of it as a sentence.
    """

    event: int
    seconds: float
    why: str
    source: int
    transfer: float
    inferred: bool
    text: str


@dataclass(frozen=True, repr=False)
class Why(Printed):
    """Why a device waited, or why an event began when it did: a chain of waits, the one that was asked for first.

    Args:
        asked: what was asked, in words.
        steps: the waits. Each is of the event that the one before it waited for.
    """

    asked: str
    steps: tuple[EventCause, ...]

    def _table(self) -> Table:
        return Table(f"why {self.asked}:", ("what was waited for, the latest first",), [(s.text,) for s in self.steps])


def why(events: Events, at: float, island: int, device: int = 0) -> Why:
    """Return why nothing ran on a device at a time, or why what ran there began when it did.

    Args:
        events: of a run.
        at: in seconds since the run began.
        island: index of the island.
        device: number of the device within the island.

    Raises:
        UsageError: ``at`` is no number, nothing ran on that device, or nothing runs there any more.
    """
    asked = f"why(at={at!r}, island={island!r}, device={device!r})"
    if not is_number(at):
        raise UsageError(f"{asked}: write a time in seconds since the run began, such as at=0.012.")
    dag = Dag.of(events)
    columns = {name: dag.events[name] for name in ("island", "device", "devices")}
    on_it = dag.events.is_("kind", *BUSY) & (columns["island"] == island)
    covers = (columns["device"] <= device) & (device < columns["device"] + columns["devices"])
    on_it &= covers | (columns["devices"] == 0)  # 0 means all devices of the island
    if not on_it.any():
        known = sorted({*columns["island"][dag.events.is_("kind", *BUSY)].tolist()})
        where = f"on that device. Something ran on islands {known}" if known else "on any device"
        raise UsageError(f"{asked}: nothing ran {where}.")
    rows = np.flatnonzero(on_it & (dag.start + dag.durations > at))
    if not len(rows):
        last = float((dag.start + dag.durations)[on_it].max())
        raise UsageError(f"{asked}: the last event on that device ended at {last:.9g}. Ask for an earlier time.")
    row = int(rows[0])  # rows are in the order of their starts
    where = f"{_name(dag, row)} began at {duration(float(dag.start[row]))}"
    if at < dag.start[row]:
        where = f"island {island}, dev {device} waits at {duration(float(at))}"
    return Why(where, Reasons(dag).chain(row))


@dataclass(frozen=True, eq=False)
class Reasons:
    """Why the events of a graph began: one ``EventCause`` for each.

    Args:
        dag: the graph.
    """

    dag: Dag

    @cached_property
    def free(self) -> np.ndarray:
        """When what runs on devices could have begun as far as these are concerned, in seconds; else its own start."""
        dag, waits = self.dag, self.dag.timed.waits
        # Nothing before it on its devices: they were free from the beginning.
        found = np.full(len(dag.start), dag.span[0])
        lane = waits.why == LANE
        np.maximum.at(found, waits.target[lane], (dag.start + dag.durations)[waits.source[lane]])
        return np.where(dag.events.is_("kind", *BUSY), np.minimum(found, dag.start), dag.start)

    def source(self, row: int) -> int:
        """Return the position of what an event waited for, behind the transfer of its value; -1 for nothing."""
        return self._behind_transfer(row)[0]

    def chain(self, row: int) -> tuple[EventCause, ...]:
        """Return the wait of an event, that of what it waited for, and so on, at most ``_MOST_STEPS`` of them."""
        found: list[EventCause] = []
        while row >= 0 and len(found) < _MOST_STEPS:
            found.append(self.cause(row))
            row = self.source(row)
        return tuple(found)

    def cause(self, row: int) -> EventCause:
        """Return why the event at a position of the graph began when it did."""
        timed, ids = self.dag.timed, self.dag.events["id"]
        source, moved = self._behind_transfer(row)
        reason = self._reason(row)
        seconds = float(timed.start[row] - self.free[row])
        transfer = 0.0
        if moved >= 0:
            transfer = float(min(timed.end[moved], timed.start[row]) - max(timed.start[moved], self.free[row]))
        inferred = reason >= 0 and not (self._told(row) and (moved < 0 or self._told(moved)))
        text = self._sentence(row, source, moved >= 0, reason, seconds, max(transfer, 0.0), inferred)
        of = -1 if source < 0 else int(ids[source])
        word = WHY[reason] if reason >= 0 else ""
        return EventCause(int(ids[row]), seconds, word, of, max(transfer, 0.0), inferred, text)

    def _behind_transfer(self, row: int) -> tuple[int, int]:
        """Return what an event waited for, and the transfer between both; -1 for none."""
        source = int(self.dag.timed.source[row])
        # What is moved is told with what made it, unless the transfer itself had to wait for its link or a message.
        if source < 0 or not self._moves(source) or self._moves(row) or self._reason(row) != DATA:
            return source, -1
        maker = int(self.dag.timed.source[source])
        return (maker, source) if maker >= 0 and self._reason(source) == DATA else (source, -1)

    def _moves(self, row: int) -> bool:
        return self._label(row).kind == "transfer"

    def _label(self, row: int) -> Label:
        return self.dag.events.labels[self.dag.events.label[row]]

    def _told(self, row: int) -> bool:
        return self._told_why[row] == CALL or bool(self.dag.timed.has_recorded_why[row])

    @cached_property
    def _told_why(self) -> np.ndarray:
        return self.dag.events.stored("why")

    def _reason(self, row: int) -> int:
        """Return the reason as a position in ``WHY``: the one that was recorded, else that of the edge; -1 for none."""
        if self._told(row):
            return int(self._told_why[row])
        edge = int(self.dag.timed.edge[row])
        return int(self.dag.timed.waits.why[edge]) if edge >= 0 else -1

    def _sentence(
        self, row: int, source: int, has_moved: bool, reason: int, seconds: float, transfer: float, inferred: bool
    ) -> str:
        begun, waited = _name(self.dag, row), seconds > _NONE
        if reason < 0:
            what = f" waited {duration(seconds)}, and nothing in the record says for what" if waited else " came first"
            return begun + what
        cause = f"({WHY[reason]}{', inferred' if inferred else ''})"
        after = f" {_name(self.dag, source)}" if source >= 0 else " an event that is not in the record"
        if not waited and reason != CALL:
            if reason in (TURN, MEMORY, WINDOW, LINK):
                return f"{begun} waited for {self._waited_for(source, reason)} {cause}"
            late = float(self.dag.timed.start[row] - self.dag.timed.released[row])
            when = "right" if late <= _NONE else duration(late)
            arrived = f" what {_name(self.dag, source)} had made arrived" if has_moved else ""
            return f"{begun} began {when} after{arrived or after} {cause}"
        # Released before its devices were free, or by them: then nothing accounts for the wait.
        rest = float(self.dag.timed.start[row] - max(self.dag.timed.released[row], self.free[row]))
        if reason == CALL:
            said = (
                f"waited {duration(seconds)} until its program was called"
                if waited
                else "began when its program was called"
            )
            return f"{begun} {said}{f', after{after}' if source >= 0 else ''} {cause}"
        if rest >= seconds - _NONE:
            return f"{begun} waited {duration(seconds)} after{after} {cause}; nothing in the record says for what"
        found = f"{begun} waited {duration(seconds)} for {self._waited_for(source, reason)} {cause}"
        found += f", of which {duration(transfer)} was its transfer" if transfer > _NONE else ""
        return found + (f"; it began {duration(rest)} after that" if rest > max(_NONE, 0.01 * seconds) else "")

    def _waited_for(self, source: int, reason: int) -> str:
        name = _name(self.dag, source) if source >= 0 else "an event that is not in the record"
        words = {
            TURN: f"its turn among programs, behind {name}",
            MEMORY: f"memory that came free with {name}",
            WINDOW: f"{name}, because as many launches were under way as may be",
            LINK: f"its link, which {name} occupied",
        }
        return words.get(reason, name)


def _name(dag: Dag, row: int) -> str:
    """Return an event in words: its name, what it is unless it ran on devices, and where."""
    label = dag.events.labels[dag.events.label[row]]
    where = f" on island {label.island}" if label.island >= 0 else ""
    if label.kind in BUSY:
        return f"`{label.name}`{where}"
    if label.kind == "transfer":
        return f"the transfer `{label.name}`{_WAYS.get(label.route, '')}"
    if label.kind == "stall" and label.route == "DCN":  # its name says where it goes, in the controller's words
        return f"the controller's message to island {label.island}" if label.island >= 0 else "a controller's message"
    if label.kind == "enqueue":
        return f"the enqueue of `{label.name}`{where.replace(' on ', ' for ')}"
    return f"the {label.kind} `{label.name}`{where}"
