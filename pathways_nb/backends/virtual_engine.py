"""The engine of a controller in virtual time, and how waiting lets that time pass.

Time passes only while somebody waits for something, so nothing here runs beside the user's code: who calls programs
and never waits, calls them at one time, each client one after another by what a call costs its thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from pathways_nb.backends.engine import Engine
from pathways_nb.backends.execution import Bell
from pathways_nb.backends.virtual import Agenda, Rank
from pathways_nb.controller.messages import Closed, Event, Opened, Released, Reserve, Stored, Submitted, Woke

GRACE, LOWERING, LOOK = 0.2, 10.0, 0.01
"""Real seconds for which time stands still for a thread that has called a program and does nothing else here, or that
is lowering one; and after which one looks whether it has ended."""


class VirtualEngine(Engine):
    """Hands the core its events in virtual time. ``pace`` says what a call costs a client's thread, in seconds."""

    agenda: Agenda
    pace: float = 0.0

    def begin(self, agenda: Agenda, pace: float) -> None:
        """Before anything is handed over."""
        self.agenda, self.pace = agenda, pace
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
        self._guarded(lambda: self._put_down(event, self._due(event)))

    def _put_down(self, event: Event, due: float) -> None:
        if isinstance(event, Stored):  # a value is there before any call that needs it
            self._happen(event)
            return
        upcoming, rank = self.agenda.next, self._rank(event, due)
        at_once = due <= self.agenda.now and (upcoming is None or upcoming > due)
        if at_once and not isinstance(event, Reserve):  # of several clients that ask for room at one time, by rank
            self._happen(event)
        else:
            self.agenda.at(due, self._happen, event, rank=rank)

    def safely(self, work: Callable[[], Any]) -> Any:
        """All state belongs to the engine's thread here."""
        return self.in_turn(work)

    def now(self, work: Callable[[], Any]) -> Any:
        """Have something done in the engine's thread, and let no time pass for that."""
        return super().ask(work)()

    def ask(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """As ever, once the clients' threads have got there."""

        def then() -> Any:
            self.catch_up()
            return work()

        return super().ask(then)

    def catch_up(self) -> None:
        """Let time pass until the clients' threads are through with what they have called."""
        self.advance(lambda: False, max(self.agenda.now, *self._busy_until.values(), 0.0))

    def advance(
        self, ready: Callable[[], bool], until: float | None = None, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Let time pass until ``ready()``, until a time, or until nothing happens any more. In the engine's thread."""
        agenda, upto = self.agenda, math.inf if until is None else until
        goes_on = True
        while goes_on:
            agenda.paused = False  # first: what changes while we look pauses it again
            if ready() or given_up():
                return
            goes_on = agenda.run(upto)
        if until is not None:
            agenda.now = max(agenda.now, until)

    def _happen(self, event: Event) -> None:
        for known in (self._made, self._used):
            for buffer in _used_by(event):
                if known.get(buffer, math.inf) <= self.agenda.now:
                    del known[buffer]
        self.obey(event)

    def _due(self, event: Event) -> float:
        """When an event comes: a call when its client's thread gets to it, other things after all that was called."""
        now, busy = self.agenda.now, self._busy_until
        if isinstance(event, Opened | Reserve):
            return max(now, busy.get(event.client, 0.0))
        if isinstance(event, Released):
            return max([now, *(self._used.get(buffer, 0.0) for buffer in event.buffers)])
        if not isinstance(event, Submitted):
            return max(now, *busy.values()) if busy else now
        # Another client's thread may be ahead, but not of a call that makes what this one reads or reads what it takes.
        before = [self._made.get(buffer, 0.0) for buffer in event.arguments]
        before += [self._used.get(event.arguments[position], 0.0) for position in event.needs.taken]
        due = max(now, busy.get(event.client, 0.0), *before) + self.pace
        self._busy_until = {client: time for client, time in busy.items() if time > now} | {event.client: due}
        self._made.update(dict.fromkeys(event.results, due))
        self._used.update(dict.fromkeys(_used_by(event), due))
        return due

    def _rank(self, event: Event, due: float) -> Rank:
        """Calls come first, and clients that call at one time take turns, by name: no thread is quicker than another.

        What else a thread asks for stands between the calls before it and those after it.
        """
        if isinstance(event, Released):
            return (2,)
        if not isinstance(event, Opened | Reserve | Submitted):
            self._era += 1
            if isinstance(event, Closed):
                self._called.pop(event.client, None)
            return 0, self._era - 1, math.inf
        time, count = self._called.get(event.client, (due, 0))
        count = count if time == due else 0
        self._called[event.client] = due, count + isinstance(event, Reserve | Submitted)
        return 0, self._era, count, event.client

    def gets_there(self, client: str) -> float:
        """When a client's thread is through with what it has called."""
        return max(self.agenda.now, self._busy_until.get(client, 0.0))

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


@dataclass(eq=False)
class _Wait:
    """A thread that waits until ``ready()``, or until a time."""

    ready: Callable[[], bool]
    until: float | None
    learns: float | None = None
    """When it will know, once it is so."""
    over: bool = False


class Passing(Bell):
    """Waiting for something lets virtual time pass until it is so.

    Time stands still while any thread that calls programs does not wait: who waits first must not run ahead of what
    others are about to call. A thread that neither calls nor waits for ``GRACE`` is not waited for any more.

    Args:
        engine_of: the engine whose time passes. notice: seconds until a thread knows that what it waits for is so.
    """

    def __init__(self, engine_of: Callable[[], VirtualEngine], notice: float):
        super().__init__()
        self._engine_of, self._notice = engine_of, notice
        self._waits: dict[int, _Wait] = {}
        self._acting: dict[threading.Thread, float] = {}
        """Threads that call programs and do not wait, and until when, in real seconds, one waits for them."""
        self._changed = threading.Condition()

    def acts(self, patience: float) -> None:
        """This thread calls something: in so many real seconds it calls again, waits, or is about something else."""
        with self._changed:
            self._acting[threading.current_thread()] = monotonic() + patience

    def called(self) -> None:
        """This thread's call has returned; the others had less of the processor meanwhile, and get their grace anew."""
        with self._changed:
            until = monotonic() + GRACE
            self._acting = {thread: max(until, known) for thread, known in self._acting.items()}
            self._acting[threading.current_thread()] = until

    def ring(self) -> None:
        """Who makes the time pass looks whether that was what it waits for."""
        self._engine_of().agenda.paused = True

    def wait(self, ready: Callable[[], bool], timeout: float = -1) -> bool:
        """Let time pass until ``ready()``, or for ``timeout`` virtual seconds if not negative; whether it is."""
        if ready():
            return True
        engine = self._engine_of()
        mine = _Wait(ready, engine.agenda.now + timeout if timeout >= 0 else None)
        with self._changed:
            was_acting = self._acting.pop(threading.current_thread(), None) is not None
            self._waits[threading.get_ident()] = mine
            self._changed.notify_all()
        try:
            while not mine.over and (self._stand_still() or engine.now(lambda: self._pass(engine, mine))):
                pass
        except BaseException:
            mine.over = True  # who makes the time pass for it stops
            self.ring()
            raise
        finally:
            with self._changed:
                del self._waits[threading.get_ident()]
                if was_acting:
                    self._acting[threading.current_thread()] = monotonic() + GRACE
                self._changed.notify_all()
        return ready()

    def _stand_still(self) -> bool:
        """Wait for others to wait; whether any had to be waited for."""
        with self._changed:
            now, acting = monotonic(), self._acting.items()
            self._acting = {thread: until for thread, until in acting if until > now and thread.is_alive()}
            if self._acting:
                self._changed.wait(LOOK)
            return bool(self._acting)

    def _pass(self, engine: VirtualEngine, mine: _Wait) -> bool:
        """Let time pass until any wait is over; whether anything happened. In the engine's thread."""
        # Its own among them: the thread may have been interrupted, and have left, before we came here.
        waits = tuple(dict.fromkeys((*self._waits.values(), mine)))
        ends = [wait.until for wait in waits if wait.until is not None]
        engine.advance(lambda: any(self._is_over(engine.agenda, wait) for wait in waits), min(ends, default=None))
        for wait in waits:
            wait.over |= wait.until is not None and engine.agenda.now >= wait.until
        return mine.over or engine.agenda.next is not None or any(wait.over for wait in waits)

    def _is_over(self, agenda: Agenda, wait: _Wait) -> bool:
        if wait.learns is None and wait.ready():
            wait.learns = agenda.now + self._notice
            agenda.at(wait.learns, self.ring)
        wait.over |= wait.learns is not None and agenda.now >= wait.learns
        return wait.over
