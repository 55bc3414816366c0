"""The event loop of a simulated controller: hands events to the core in simulated time.

A real event loop hands events over as threads produce them. Here the time of an event is computed: a call reaches the
controller when its client's thread has finished its earlier calls, each of which takes ``pace`` seconds of that thread
(``HostCosts.call`` of the cost model). So a client that calls many programs and never waits submits them one after
another, although simulated time stands still in the meantime.

Invariant: the order in which the core receives events depends on simulated times, counts, client names and buffer
numbers, and never on which thread was faster. ``thread_turns`` decides when the threads run and when time advances.
"""

from __future__ import annotations

import contextlib
import math
import queue
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pathways_nb.controller.events_and_instructions import (
    Closed,
    Event,
    Opened,
    PutRequested,
    Released,
    Stored,
    Submitted,
    Woke,
)
from pathways_nb.runtime.event_loop import EventLoop, Item
from pathways_nb.runtime.sim.thread_turns import Turns
from pathways_nb.timing.event_queue import EventQueue, Rank

_LAST = 1e18
"""Position of releases in a rank: after the calls of an era, before the request that ends it."""

T = TypeVar("T")


class VirtualEventLoop(EventLoop):
    """The event loop in simulated time. ``pace`` is the seconds that a call takes of its client's thread."""

    agenda: EventQueue
    turns: Turns
    pace: float = 0.0

    def begin(self, agenda: EventQueue, turns: Turns, pace: float) -> None:
        """Set what the base class does not know and start the thread, before the first event."""
        self.agenda, self.turns, self.pace = agenda, turns, pace
        self._busy_until: dict[str, float] = {}
        """By client: when its thread has finished the calls that it has made."""
        self._era = 0
        """Number of requests so far that are not calls; it separates the calls before each from those after it."""
        self._called: dict[str, tuple[float, int]] = {}
        """By client: the time of its last call, and how many of its calls come at that time."""
        self._made: dict[int, float] = {}
        """By logical buffer: when the scheduled call that makes it reaches the core."""
        self._used: dict[int, float] = {}
        """By logical buffer: when the last scheduled call that makes or reads it reaches the core."""
        self._alarm: float | None = None
        """The earliest time at which the core asked to be woken."""
        self.thread.start()

    def report(self, event: Event) -> None:
        """Schedule an event for the time at which its client's thread reaches it, or handle it if that is now."""
        self._guarded(lambda: self._put_down(event))

    def _put_down(self, event: Event) -> None:
        """Schedule or handle one event in the event loop's thread."""
        if isinstance(event, Stored):  # at once: a value must exist before any call that needs it
            self._happen(event)
            return
        if isinstance(event, Released):
            self._put_down_releases(event.buffers)
            return
        due = self._due(event)
        upcoming, rank = self.agenda.next, self._rank(event, due)
        at_once = due <= self.agenda.now and (upcoming is None or upcoming > due)
        # Requests for memory are always scheduled: several clients may ask at one time, and rank must order them.
        if at_once and not isinstance(event, PutRequested):
            self._happen(event)
        else:
            self.agenda.at(due, self._happen, event, rank=rank)

    def submit(self, run: int, begin: Callable[[], Submitted], changes: Iterable[object] = ()) -> None:
        """Post a call. All events go through one inbox, so that they keep the order in which threads were released."""
        self.post(lambda: self._put_down(begin()), changes)

    def store(self, event: Stored | Opened | PutRequested, changes: Iterable[object] = ()) -> None:
        """Post an event that nobody waits for."""
        self.post(event, changes)

    def safely(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the event loop's thread, which alone uses the core's state, and return its result."""
        return self.in_turn(work)

    def now(self, work: Callable[[], T]) -> T:
        """Run ``work`` after everything posted before, without advancing time, and return its result."""
        return super().ask(work)()

    def _put_down_releases(self, buffers: Sequence[int]) -> None:
        """Schedule releases after the last call that uses each buffer, in the order of buffer numbers.

        The order in which finalizers run must not matter, so it does not enter the rank.
        """
        for buffer in buffers:
            due = max(self.agenda.now, self._used.get(buffer, 0.0))
            self.agenda.at(due, self._happen, Released((buffer,)), rank=(0, self._era, _LAST, buffer))

    def ask(self, work: Callable[[], T]) -> Callable[[], T]:
        """Schedule ``work`` for the time at which all client threads have finished their calls.

        Returns:
            A function that waits in simulated time for the result of ``work``.
        """
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
        return wait

    def _happen(self, event: Event) -> None:
        """Let the core handle an event now, and forget buffer times that have passed."""
        for known in (self._made, self._used):
            for buffer in _used_by(event):
                if known.get(buffer, math.inf) <= self.agenda.now:
                    del known[buffer]
        self.obey(event)

    def _due(self, event: Event) -> float:
        """Return when an event reaches the core, and count the time that a call takes of its client's thread.

        A call comes when its client's thread reaches it, as do the client's opening and its requests for memory. Other
        events come after all calls made so far.
        """
        now, busy = self.agenda.now, self._busy_until
        if isinstance(event, Opened | PutRequested):
            return max(now, busy.get(event.client, 0.0))
        if not isinstance(event, Submitted):
            return self._all_called()
        # Clients' threads may be at different times. A call must still come after those that make what it reads, and
        # after those that read what it overwrites.
        before = [self._made.get(buffer, 0.0) for buffer in event.arguments]
        before += [self._used.get(event.arguments[position], 0.0) for position in event.footprint.taken]
        due = max(now, busy.get(event.client, 0.0), *before) + self.pace
        self._busy_until = {client: time for client, time in busy.items() if time > now} | {event.client: due}
        self._made.update(dict.fromkeys(event.results, due))
        self._used.update(dict.fromkeys(_used_by(event), due))
        return due

    def _all_called(self) -> float:
        """Return when all client threads have finished the calls that they have made."""
        return max(self.agenda.now, *self._busy_until.values(), 0.0)

    def _rank(self, event: Event, due: float) -> Rank:
        """Return the rank of an event among those of the same time, and count it.

        Clients that call at one time take turns: by number of calls at that time, then by name. An event that is not a
        call comes between the calls made before it and those made after it.
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
        """Return a rank after all calls made so far and before all later ones."""
        self._era += 1
        return 0, self._era - 1, math.inf

    def standing(self, client: str) -> tuple[float, int]:
        """Return when a client's thread reaches its next call, and how many of its calls come at that time."""
        time, (called, count) = self.gets_there(client), self._called.get(client, (0.0, 0))
        return time, count if called == time + self.pace else 0

    def gets_there(self, client: str) -> float:
        """Return when a client's thread has finished the calls that it has made."""
        return max(self.agenda.now, self._busy_until.get(client, 0.0))

    def _take(self) -> Item:
        """Return the next posted item; while there is none, release client threads and advance time."""
        while True:
            if self.inbox.empty():
                self._guarded(self.turns.proceed)
            with contextlib.suppress(queue.Empty):
                return self.inbox.get(timeout=self.turns.look_again)

    def _wake_at(self, time: float) -> None:
        """Schedule a ``Woke`` event in simulated time, where the base class uses a timeout of its thread."""
        if self._alarm is None or time < self._alarm:
            self._alarm = time
            self.agenda.at(time, self._wake_up, time)

    def _wake_up(self, time: float) -> None:
        if time == self._alarm:  # otherwise an earlier wake-up has replaced this one
            self._alarm = None
            self.obey(Woke())


def _used_by(event: Event) -> tuple[int, ...]:
    """Return the logical buffers that a call reads or makes; none for another event."""
    return (*event.arguments, *event.results) if isinstance(event, Submitted) else ()
