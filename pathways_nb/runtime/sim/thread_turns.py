"""Turns of client threads in virtual time: one thread runs at a time, and time passes only when none can run.

A client thread runs until it comes to a *point*: a call, a wait, or a poll. Once every client thread stands at a point,
or sleeps until another thread wakes it, the first in order goes on; if none can, time passes until one can (as with
Trio's autojump clock and SimPy's environment). Which thread the operating system happens to run first changes nothing,
and no real clock is read but to name a thread for which the others have stood still for long.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from queue import SimpleQueue
from types import FrameType
from typing import Literal, Protocol
from weakref import WeakKeyDictionary, WeakSet

from pathways_nb.errors import UsageError
from pathways_nb.runtime.event_loop import Item
from pathways_nb.runtime.run_state import Condition
from pathways_nb.runtime.sim import held_up
from pathways_nb.runtime.sim.blocked_threads import is_asleep, is_napping, look
from pathways_nb.runtime.sim.held_up import HeldUp, Say
from pathways_nb.runtime.sim.simulated_islands import EventQueue

OURS = "pathways-"
"""How the names of the controller's own threads begin."""


class TurnGiver(Protocol):
    """What turns ask of the engine in whose thread they are given."""

    thread: threading.Thread
    inbox: SimpleQueue[Item]
    """What that thread is to do: while anything is there, nobody gets a turn."""
    failure: BaseException | None

    def standing(self, client: str) -> tuple[float, int]:
        """When a client's thread gets to its next call, and how many of its calls come at that time."""


@dataclass(eq=False)
class _Point:
    """A thread that stands at a call, a wait or a poll.

    Args:
        kind: what it does there. client: for whom it calls. name: of what it calls.
        ready: whether a wait is over. notice: virtual seconds until its thread knows that.
        until: when a wait gives up, in virtual seconds.
    """

    kind: Literal["call", "wait", "poll"]
    client: str = ""
    name: str = ""
    ready: Callable[[], bool] = lambda: True
    notice: float = 0.0
    until: float | None = None
    learns: float | None = None
    """When its thread knows that what it waits for is so."""
    over: bool = False
    error: UsageError | None = None
    gate: threading.Lock = field(default_factory=threading.Lock)
    """Held until the thread may go on."""

    def __post_init__(self) -> None:
        self.gate.acquire()
        self.over = self.kind == "call"


class Turns(Condition):
    """Who runs next, of the threads that call programs of one controller.

    A thread takes part from its first call on, or for as long as it is in a block of a client or a recording, or while
    it waits. One that was started since is about to take part, and one that has left its last block may still let go
    of values: both are waited for until they sleep or end. If one does neither for ``NAMED_AFTER`` real seconds, it is
    not waited for any more; one that never called is named.

    Args:
        agenda: the virtual time that passes.
        engine_of: the engine in whose thread turns are given.
        notice: virtual seconds until a thread knows that what it waits for is so.
        say: tells a person which thread holds the others up.
    """

    def __init__(self, agenda: EventQueue, loop_of: Callable[[], TurnGiver], notice: float, say: Say):
        super().__init__()
        self._agenda, self._loop_of, self._notice = agenda, loop_of, notice
        self._held_up = HeldUp(say)
        self._lock = threading.RLock()  # a finalizer that runs inside it may leave a block
        self._points: dict[threading.Thread, _Point] = {}
        self._blocks: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()
        """Threads that take part, and in how many blocks each is."""
        self._apart = WeakSet(threading.enumerate())
        """Threads that need not take part: they were there before, or went on with something else."""
        self._left: WeakSet[threading.Thread] = WeakSet()
        """Threads that have left all their blocks."""
        self._calling: set[threading.Thread] = set()
        self._dissolved = False

    # ---- for clients' threads

    def enter(self) -> None:
        """This thread takes part from now on."""
        with self._lock:
            mine = threading.current_thread()
            self._blocks[mine] = self._blocks.get(mine, 0) + 1
            self._apart.discard(mine)
        self._held_up.is_back(mine)

    def leave(self) -> None:
        """It has left one of the blocks that it entered; after the last it is only waited for until it sleeps."""
        with self._lock:
            mine = threading.current_thread()
            left = self._blocks.pop(mine, 1) - 1
            if left:
                self._blocks[mine] = left
            else:
                self._left.add(mine)
        self._look()

    @contextlib.contextmanager
    def calling(self, client: str, name: str = "") -> Iterator[None]:
        """Call something once it is this thread's turn; what the call calls itself belongs to it."""
        mine = threading.current_thread()
        if mine in self._calling:
            yield
            return
        with self._lock:
            self._blocks.setdefault(mine, 1)
        self._held_up.is_back(mine)
        if not self._is_alone(mine):
            self._stand(_Point("call", client, name))
        try:  # an interrupt may come anywhere
            self._calling.add(mine)
            yield
        finally:
            self._calling.discard(mine)

    def poll(self) -> None:
        """Let the next thing happen, once no other thread can run before it."""
        self._stand(_Point("poll"))

    def wait(self, ready: Callable[[], bool], timeout: float = -1) -> bool:
        """Let time pass until ``ready()``, or for ``timeout`` virtual seconds if not negative; whether it is."""
        if ready():
            return True
        until = self._agenda.now + timeout if timeout >= 0 else None
        self._stand(_Point("wait", ready=ready, notice=self._notice, until=until))
        return ready()

    def wait_for_loop(self, ready: Callable[[], bool]) -> None:
        """The same, for what the controller's thread does; a client's thread need not notice that."""
        self._stand(_Point("wait", ready=ready))

    def notify_all(self) -> None:
        """Have the points looked at again: something has happened that a thread may wait for."""
        self._agenda.paused = True

    def dissolve(self) -> None:
        """From now on no thread waits for another: the controller ends."""
        self._dissolved = True
        self._look()

    def _stand(self, point: _Point) -> None:
        event_loop, mine = self._loop_of(), threading.current_thread()
        try:  # an interrupt may come anywhere
            with self._lock:  # the engine sees both or none: it would give turns, and be woken again for nothing
                self._points[mine] = point
                self._look()
            while not point.gate.acquire(timeout=1.0):
                if event_loop.failure is not None or not event_loop.thread.is_alive():
                    break
        finally:
            with self._lock:
                if self._points.pop(mine, None) is not None:  # interrupted, perhaps while time passed for it
                    self.notify_all()
        if point.error is not None:
            raise point.error

    def _is_alone(self, mine: threading.Thread) -> bool:
        """Whether no other thread can run, nor stands at a point; asked last again, for one may just have come."""
        return not self._points and self._running(mine) is None and not self._points

    def _look(self) -> None:
        self._loop_of().inbox.put(lambda: None)  # who takes it gives turns then

    # ---- in the engine's thread

    @property
    def look_again(self) -> float | None:
        """Real seconds after which to look again at a thread that may sleep or end without a word, if any runs."""
        thread, (first, later) = self._held_up.thread, held_up.LOOKS
        if thread is None:
            return None
        return later if thread in self._calling else min(first + self._held_up.seconds / 8, later)

    def proceed(self) -> None:
        """Give turns, and let time pass, until a thread runs, has handed something over, or none stands at a point."""
        event_loop, agenda = self._loop_of(), self._agenda
        while self._points and self._is_idle(event_loop):
            agenda.paused = False  # first: what changes while we look pauses it again
            if (running := self._running()) is not None:
                self._hold(running)
                return
            if self._is_idle(event_loop):  # frames that were looked at may have let something go
                self._go_on()
        self._hold(None)

    def _is_idle(self, event_loop: TurnGiver) -> bool:
        """Whether the engine's thread has nothing to do, and no thread is about to give it something at a point."""
        with self._lock:
            return event_loop.inbox.empty()

    def _go_on(self) -> None:
        """Let the first thread that may go on, or time pass until one may."""
        points = self._in_order()
        chosen = next((each for each in points if self._is_over(each[1])), None)
        if chosen is None and points and not self._pass([point for _, point in points]):
            chosen = points[0]  # in vain: nothing happens any more
        if chosen is not None:
            self._let_go(*chosen)

    def _running(self, mine: threading.Thread | None = None) -> threading.Thread | None:
        """A thread that may yet call something before time passes, other than ``mine``.

        Looked for twice, for threads go on meanwhile: one may wake another that was looked at before it, or begin one
        that was not there yet, and fall asleep just before it is looked at itself.
        """
        return None if self._dissolved else self._seen_running(mine) or self._seen_running(mine)

    def _seen_running(self, mine: threading.Thread | None) -> threading.Thread | None:
        # Identifiers first: a thread that has one by now has a frame, too, unless it has ended.
        threads = {each: each.ident for each in threading.enumerate() if each is not mine and self._takes_part(each)}
        return look(lambda at: self._first_awake(threads, at)) if threads else None

    def _first_awake(
        self, threads: Mapping[threading.Thread, int | None], at: Mapping[int, FrameType]
    ) -> threading.Thread | None:
        awake = (thread for thread, ident in threads.items() if self._is_awake(thread, ident, at))
        return next((thread for thread in awake if thread not in self._points), None)  # it may just have come to one

    def _is_awake(self, thread: threading.Thread, ident: int | None, at: Mapping[int, FrameType]) -> bool:
        """Whether it may go on by itself; a daemon that never called and sleeps for a while is no client."""
        if ident is None or thread in self._calling:  # it begins; who calls may wait for a compiler's thread
            return True
        frame = at.get(ident)
        if frame is None or is_asleep(frame, at):
            return False
        return not (thread.daemon and thread not in self._blocks and is_napping(frame))

    def _takes_part(self, thread: threading.Thread) -> bool:
        if thread in self._points or thread.name.startswith(OURS):
            return False
        return thread in self._blocks or thread not in self._apart

    def _in_order(self) -> list[tuple[threading.Thread, _Point]]:
        """All points, first who goes on first: by time, then clients take turns by name.

        Of one client's threads the first is told by what it calls, for which worker of a pool takes which item is
        chance; only then by which thread began first.
        """
        event_loop = self._loop_of()
        with self._lock:
            points = list(self._points.items())
        began = {thread: number for number, thread in enumerate(threading.enumerate())}

        def order(at: tuple[threading.Thread, _Point]) -> tuple[float, int, str, str, int]:
            thread, point = at
            time, count = event_loop.standing(point.client) if point.kind == "call" else (self._agenda.now, 0)
            return time, count, point.client, point.name, began.get(thread, -1)

        return sorted(points, key=order)

    def _is_over(self, point: _Point) -> bool:
        agenda = self._agenda
        if point.kind == "wait":
            if point.learns is None and point.ready():
                point.learns = agenda.now + point.notice
                if point.notice:
                    agenda.at(point.learns, self.notify_all)
            ends = [end for end in (point.learns, point.until) if end is not None]
            point.over |= any(agenda.now >= end for end in ends)
        return point.over

    def _pass(self, points: list[_Point]) -> bool:
        """Let time pass until a thread may go on; whether anything has happened."""
        agenda = self._agenda
        until = min((point.until for point in points if point.until is not None), default=inf)
        polls = [point for point in points if point.kind == "poll"]
        for poll in polls:
            poll.over = True
        if agenda.next is not None and agenda.next <= until:
            if polls:  # one event, after which each of them asks again
                return agenda.step()
            agenda.run(until)
            return True
        if until < inf:
            agenda.now = max(agenda.now, until)
        return until < inf or bool(polls)

    def _let_go(self, thread: threading.Thread, point: _Point) -> None:
        self._hold(None)  # nobody stands still for one that comes to points
        with self._lock:
            if self._points.get(thread) is point:
                del self._points[thread]
                point.gate.release()

    # ---- who holds the others up

    def _hold(self, thread: threading.Thread | None) -> None:
        """The others stand still for ``thread``; for long, it is named."""
        seconds = self._held_up.by(thread)
        if thread is None:
            return
        if thread in self._calling and held_up.is_making(thread):
            self._held_up.begin_again()
        elif seconds <= held_up.NAMED_AFTER:
            return
        elif self._is_set_apart(thread):
            if thread not in self._left:
                self._held_up.go_on_without(thread)
            if thread in self._blocks:  # it has just begun to call
                self._held_up.is_back(thread)
        else:
            self._held_up.name(thread)
            if seconds > held_up.REFUSED_AFTER and not self._held_up.is_shown:
                self._refuse(thread)

    def _is_set_apart(self, thread: threading.Thread) -> bool:
        """Wait no longer for a thread that is in no block: no client, it seems."""
        with self._lock:
            if thread in self._blocks:
                return False
            self._apart.add(thread)
            return True

    def _refuse(self, holder: threading.Thread) -> None:
        text = held_up.explained(holder)
        for thread, point in self._in_order():
            point.error = UsageError(text)
            self._let_go(thread, point)
