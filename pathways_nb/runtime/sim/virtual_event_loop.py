"""The engine of a controller in virtual time, which passes only while every client thread waits (see ``turns``).

Whoever calls programs and never waits, calls them at one time, each client one after another by what a call costs its
thread.
"""

from __future__ import annotations

import contextlib
import math
import queue
from collections.abc import Callable, Sequence
from typing import TypeVar

from pathways_nb.controller.messages import Closed, Event, Opened, PutRequested, Released, Stored, Submitted, Woke
from pathways_nb.runtime.event_loop import EventLoop, Item
from pathways_nb.runtime.sim.simulated_islands import EventQueue, Rank
from pathways_nb.runtime.sim.thread_turns import Turns

_LAST = 1e18
"""In a rank, after all calls."""

T = TypeVar("T")


class VirtualEventLoop(EventLoop):
    """Hands the core its events in virtual time. ``pace`` says what a call costs a client's thread, in seconds."""

    agenda: EventQueue
    turns: Turns
    pace: float = 0.0

    def begin(self, agenda: EventQueue, turns: Turns, pace: float) -> None:
        """Before anything is handed over."""
        self.agenda, self.turns, self.pace = agenda, turns, pace
        self._busy_until: dict[str, float] = {}
        """By client: when its thread is through with what it has called."""
        self._era = 0
        """How often something else than a call was asked for."""
        self._called: dict[str, tuple[float, int]] = {}
        """By client: the time of its last call, and how many of its calls have come at that time."""
        self._made: dict[int, float] = {}
        self._used: dict[int, float] = {}
        """By logical buffer: when the last call on its way comes that makes it, and that makes or reads it."""
        self._alarm: float | None = None
        """The first of the times at which the core wants to be woken."""
        self.thread.start()

    def report(self, event: Event) -> None:
        """Put an event down for the time at which the client's thread gets to it, if that is not now."""
        self._guarded(lambda: self._put_down(event))

    def _put_down(self, event: Event) -> None:
        if isinstance(event, Stored):  # a value is there before any call that needs it
            self._happen(event)
            return
        if isinstance(event, Released):
            self._put_down_releases(event.buffers)
            return
        due = self._due(event)
        upcoming, rank = self.agenda.next, self._rank(event, due)
        at_once = due <= self.agenda.now and (upcoming is None or upcoming > due)
        if at_once and not isinstance(event, PutRequested):  # of several clients that ask for room at one time, by rank
            self._happen(event)
        else:
            self.agenda.at(due, self._happen, event, rank=rank)

    def submit(self, event: Submitted) -> None:
        """Hand on a call; everything goes through one inbox, in the order in which threads have their turns."""
        self.post(event)

    def store(self, event: Stored | Opened | PutRequested) -> None:
        """Hand on what nobody waits for."""
        self.post(event)

    def safely(self, work: Callable[[], T]) -> T:
        """All state belongs to the engine's thread here."""
        return self.in_turn(work)

    def now(self, work: Callable[[], T]) -> T:
        """Have something looked at after all that was handed over; no time passes for that."""
        return super().ask(work)()

    def _put_down_releases(self, buffers: Sequence[int]) -> None:
        """Each comes after what was called before, in the order of their numbers: when a finalizer runs is not ours."""
        for buffer in buffers:
            due = max(self.agenda.now, self._used.get(buffer, 0.0))
            self.agenda.at(due, self._happen, Released((buffer,)), rank=(0, self._era, _LAST, buffer))

    def ask(self, work: Callable[[], T]) -> Callable[[], T]:
        """Have something done once the clients' threads are through with what they have called."""
        answer: list[T] = []

        def put_down() -> None:
            self.agenda.at(self._all_called(), answered, rank=self._after_calls())

        def answered() -> None:
            answer.append(work())
            self.turns.notify_all()

        def wait() -> T:
            self.turns.wait_for_loop(lambda: bool(answer))
            self.check()
            if not answer and not self.thread.is_alive():
                answered()
            return answer[0]

        self.inbox.put(put_down)
        self._batch = None  # ``work`` may make a buffer
        return wait

    def _happen(self, event: Event) -> None:
        for known in (self._made, self._used):
            for buffer in _used_by(event):
                if known.get(buffer, math.inf) <= self.agenda.now:
                    del known[buffer]
        self.obey(event)

    def _due(self, event: Event) -> float:
        """When an event comes: a call when its client's thread gets to it, other things after all that was called."""
        now, busy = self.agenda.now, self._busy_until
        if isinstance(event, Opened | PutRequested):
            return max(now, busy.get(event.client, 0.0))
        if not isinstance(event, Submitted):
            return self._all_called()
        # Another client's thread may be ahead, but not of a call that makes what this one reads or reads what it takes.
        before = [self._made.get(buffer, 0.0) for buffer in event.arguments]
        before += [self._used.get(event.arguments[position], 0.0) for position in event.footprint.taken]
        due = max(now, busy.get(event.client, 0.0), *before) + self.pace
        self._busy_until = {client: time for client, time in busy.items() if time > now} | {event.client: due}
        self._made.update(dict.fromkeys(event.results, due))
        self._used.update(dict.fromkeys(_used_by(event), due))
        return due

    def _all_called(self) -> float:
        """When all clients' threads are through with what they have called."""
        return max(self.agenda.now, *self._busy_until.values(), 0.0)

    def _rank(self, event: Event, due: float) -> Rank:
        """Calls come first, and clients that call at one time take turns, by name: no thread is quicker than another.

        What else a thread asks for stands between the calls before it and those after it.
        """
        if not isinstance(event, Opened | PutRequested | Submitted):
            if isinstance(event, Closed):
                self._called.pop(event.client, None)
            return self._after_calls()
        time, count = self._called.get(event.client, (due, 0))
        count = count if time == due else 0
        self._called[event.client] = due, count + isinstance(event, PutRequested | Submitted)
        return 0, self._era, count, event.client

    def _after_calls(self) -> Rank:
        """The rank of what stands between the calls before it and those after it."""
        self._era += 1
        return 0, self._era - 1, math.inf

    def standing(self, client: str) -> tuple[float, int]:
        """When a client's thread gets to its next call, and how many of its calls come at that time."""
        time, (called, count) = self.gets_there(client), self._called.get(client, (0.0, 0))
        return time, count if called == time + self.pace else 0

    def gets_there(self, client: str) -> float:
        """When a client's thread is through with what it has called."""
        return max(self.agenda.now, self._busy_until.get(client, 0.0))

    def _take(self) -> Item:
        """The next thing posted; when all is done that was, threads get their turns."""
        while True:
            if self.inbox.empty():
                self._guarded(self.turns.proceed)
            with contextlib.suppress(queue.Empty):
                return self.inbox.get(timeout=self.turns.look_again)

    def _wake_at(self, time: float) -> None:
        if self._alarm is None or time < self._alarm:
            self._alarm = time
            self.agenda.at(time, self._wake_up, time)

    def _wake_up(self, time: float) -> None:
        if time == self._alarm:  # else an earlier one has done
            self._alarm = None
            self.obey(Woke())


def _used_by(event: Event) -> tuple[int, ...]:
    return (*event.arguments, *event.results) if isinstance(event, Submitted) else ()
