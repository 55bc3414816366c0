"""Stopping points of client threads: which thread continues first, and how far simulated time advances.

A client thread stops at each call, wait and poll until ``thread_turns`` releases it. This module has the rules:

- ``in_order``: the order of threads is made of simulated times, counts and names. The order in which threads reach
  their stopping points is left out, because the operating system decides it.
- ``Point.is_over``: a call, or an item of a thread pool, may continue at once. A wait may continue ``notice`` seconds
  after its predicate holds, or at its timeout. A poll may continue after one more event.
- ``pass_time``: simulated time advances event by event until one reports a change (``Turns.notify_all``), and at most
  to the first timeout.

Nothing here releases a thread or looks at one that runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from queue import SimpleQueue
from typing import Literal, Protocol

from pathways_nb.errors import UsageError
from pathways_nb.runtime.event_loop import Item
from pathways_nb.runtime.sim.pool_items import serial_of
from pathways_nb.timing.event_queue import EventQueue


class TurnGiver(Protocol):
    """What ``Turns`` needs of the event loop in whose thread it releases client threads."""

    thread: threading.Thread
    inbox: SimpleQueue[Item]
    """Items for that thread; while it has any, no client thread is released."""
    failure: BaseException | None
    """The error that stopped the event loop, if any."""

    def standing(self, client: str) -> tuple[float, int]:
        """Return when a client's thread reaches its next call, and how many of its calls come at that time."""


@dataclass(eq=False)
class Point:
    """The stopping point at which one thread is held.

    Args:
        kind: what the thread does next.
        client: name of the client for which it calls; empty for a wait or a poll.
        name: of the program or computation that it calls, if known.
        ready: predicate of a wait.
        notice: simulated seconds from the time at which ``ready()`` holds until the thread learns of it.
        until: simulated time at which a wait times out; ``None`` for no limit.
    """

    kind: Literal["call", "wait", "poll", "item"]
    client: str = ""
    name: str = ""
    ready: Callable[[], bool] = lambda: True
    notice: float = 0.0
    until: float | None = None
    learns: float | None = None
    """Simulated time at which the thread learns that ``ready()`` holds; ``None`` before it holds."""
    over: bool = False
    """Whether the thread may continue."""
    error: UsageError | None = None
    """Raised in the thread when it is released."""
    gate: threading.Lock = field(default_factory=threading.Lock)
    """Held until the thread is released."""

    def __post_init__(self) -> None:
        self.gate.acquire()
        self.over = self.kind in ("call", "item")

    @property
    def what(self) -> str:
        """What the thread waits for, in words; empty if its predicate does not say."""
        if self.kind == "call":
            return f"its turn to call {self.name!r}" if self.name else "its turn to call"
        return getattr(self.ready, "what", "")

    def is_over(self, agenda: EventQueue, notify: Callable[[], None]) -> bool:
        """Return whether the thread may continue now.

        Args:
            agenda: simulated time.
            notify: called at the time at which the thread learns that ``ready()`` holds.
        """
        if self.kind == "wait":
            if self.learns is None and self.ready():
                self.learns = agenda.now + self.notice
                if self.notice:
                    agenda.at(self.learns, notify)
            ends = [end for end in (self.learns, self.until) if end is not None]
            self.over |= any(agenda.now >= end for end in ends)
        return self.over


def in_order(
    points: Iterable[tuple[threading.Thread, Point]], now: float, standing: Callable[[str], tuple[float, int]]
) -> list[tuple[threading.Thread, Point]]:
    """Return stopped threads with their points, sorted so that the first that may continue is released first.

    By simulated time; at equal times clients take turns, because the count of calls that a client has made at that time
    comes next, then its name. Threads of one client are sorted by the name of what they call, then workers of pools by
    the order in which their items were submitted, because chance decides which worker takes which item. The order in
    which threads were started only breaks the remaining ties.

    Args:
        points: stopped threads.
        now: simulated time, of waits and polls.
        standing: returns when a client's thread reaches its next call, and how many of its calls come at that time.
    """
    began = {thread: number for number, thread in enumerate(threading.enumerate())}

    def order(at: tuple[threading.Thread, Point]) -> tuple[float, int, str, str, int, int]:
        thread, point = at
        time, count = standing(point.client) if point.kind == "call" else (now, 0)
        return time, count, point.client, point.name, serial_of(thread), began.get(thread, -1)

    return sorted(points, key=order)


def pass_time(agenda: EventQueue, points: Sequence[Point]) -> bool:
    """Advance simulated time until a thread may continue, where none may now.

    Returns:
        Whether anything can still happen: ``False`` if no event is left, no wait has a timeout and no thread polls.
    """
    until = min((point.until for point in points if point.until is not None), default=inf)
    polls = [point for point in points if point.kind == "poll"]
    for poll in polls:
        poll.over = True
    if agenda.next is not None and agenda.next <= until:
        if polls:  # a poll must see the state after each event, as it would if it were repeated without pause
            return agenda.step()
        agenda.run(until)
        return True
    if until < inf:
        agenda.now = max(agenda.now, until)
    return until < inf or bool(polls)
