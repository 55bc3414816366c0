"""Turns of client threads: one program with one seed gives one trace, whatever the operating system schedules.

Problem: the operating system decides which of several client threads calls first, differently in each run. If calls
took effect in that order, or if simulated time followed real time, two runs of the same program would differ.

Rule: a client thread runs up to its next stopping point, which is a call, a wait, a poll, or the start of an item of a
thread pool (see ``pool_items``). No thread is released while
another one runs. Once each is stopped, or blocked until another thread wakes it, one thread is released: the first that
may continue, in an order of simulated times and names (``stopping_points.in_order``). Simulated time advances only when
none may continue, and only until one may, as with Trio's autojump clock and SimPy's environment.

Waits that are seen: the controller's own (``y.wait()``, ``y.done()``, ``await y``), which are stopping points, and
those of Python's standard library that ``blocked_threads`` recognises. A thread that waits in another way (a raw lock,
``time.sleep``) seems to run, so that the others stay stopped. ``held_up`` reads a real clock for this case alone: after
``NAMED_AFTER`` seconds a thread that is no client is ignored, and a client is named in a line on the screen; after
``REFUSED_AFTER`` seconds the stopped threads fail with an error, unless the line is shown beside a picture.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from weakref import WeakKeyDictionary, WeakSet

from pathways_nb.errors import UsageError
from pathways_nb.runtime.sim import held_up, pool_items
from pathways_nb.runtime.sim.blocked_threads import is_asleep, is_napping, look
from pathways_nb.runtime.sim.held_up import HeldUp, Say
from pathways_nb.runtime.sim.stopping_points import Point, TurnGiver, in_order, pass_time
from pathways_nb.timing.event_queue import EventQueue
from pathways_nb.util import forks
from pathways_nb.util.waiting import Condition, interruptible

OURS = "pathways-"
"""Prefix of the names of the controller's own threads, which are never clients."""


class Turns(Condition):
    """Releases the client threads of one controller one after another, and advances simulated time between them.

    A thread takes part from its first call on, while it is in a ``with`` block of a client or a recording, and while it
    waits. Two more kinds of threads are waited for until they block or end: those started since the controller was
    attached, because they may be about to call, and those that have left their last block, because they may still
    release values. If such a thread neither blocks nor ends for ``NAMED_AFTER`` real seconds, it is ignored from then
    on; one that has never called is named.

    It is a ``Condition`` so that a driver waits in simulated time by the same methods as in real time.

    Args:
        agenda: simulated time.
        loop_of: returns the event loop in whose thread client threads are released.
        notice: simulated seconds until a thread learns that what it waits for has happened.
        say: shows a line about a thread that keeps the others stopped.
    """

    def __init__(self, agenda: EventQueue, loop_of: Callable[[], TurnGiver], notice: float, say: Say):
        super().__init__()
        self._agenda, self._loop_of, self._notice = agenda, loop_of, notice
        self._held_up = HeldUp(say)
        self._lock = threading.RLock()  # reentrant: a finalizer that runs while it is held may leave a block
        self._points: dict[threading.Thread, Point] = {}
        """Threads that are stopped."""
        self._blocks: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()
        """Threads that take part, with the number of blocks that each is in."""
        self._apart = WeakSet(threading.enumerate())
        """Threads that are ignored until they call: older than the controller, or found to be no client."""
        self._left: WeakSet[threading.Thread] = WeakSet()
        """Threads that have left their last block."""
        self._calling: dict[threading.Thread, str] = {}
        """Threads inside a call, with the name of what they call. Each counts as running, also while it waits for a
        thread that compiles for it."""
        self._dissolved = False
        pool_items.follow(self)

    # ---- in client threads

    def enter(self) -> None:
        """Count one more block that the current thread is in; it takes part until it has left all of them."""
        with self._lock:
            mine = threading.current_thread()
            self._blocks[mine] = self._blocks.get(mine, 0) + 1
            self._apart.discard(mine)
        self._held_up.is_back(mine)

    def leave(self) -> None:
        """Count one block less; after the last the current thread is waited for only until it blocks or ends."""
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
        """Stop until it is the current thread's turn to call, then run the block as its call.

        A call inside the block is part of it and does not stop again.

        Args:
            client: name of the client for which it calls.
            name: of what it calls, which orders the threads of one client.

        Yields:
            Nothing.
        """
        mine = threading.current_thread()
        if mine in self._calling:
            yield
            return
        with self._lock:
            self._blocks.setdefault(mine, 1)
        self._held_up.is_back(mine)
        if not self._is_alone(mine):  # a single client thread is spared two changes of threads for each call
            self._stand(Point("call", client, name))
        try:  # an interrupt may come anywhere
            self._calling[mine] = name
            yield
        finally:
            self._calling.pop(mine, None)

    def admits_item(self) -> bool:
        """Return whether an item that the current thread hands to a pool now takes turns; the thread takes part.

        What a call submits is part of it, as is what this package's own threads submit.
        """
        mine = threading.current_thread()
        if mine in self._calling or mine.name.startswith(OURS) or forks.is_child():
            return False
        self._apart.discard(mine)
        return True

    def begin_item(self) -> None:
        """Stop until it is the turn of the item that the current thread has begun."""
        mine = threading.current_thread()
        if not mine.name.startswith(OURS) and not self._dissolved:
            self._apart.discard(mine)
            if not self._is_alone(mine):
                self._stand(Point("item"))

    def poll(self) -> None:
        """Stop until no other thread may continue and one more event has happened."""
        self._stand(Point("poll"))

    def wait(self, ready: Callable[[], bool], timeout: float = -1) -> bool:
        """Stop until ``ready()`` holds and the thread has learned of it, or until a timeout.

        Args:
            ready: the predicate; the event loop's thread calls it, so it must be quick and take no lock.
            timeout: simulated seconds to wait at most; negative for no limit.

        Returns:
            Whether ``ready()`` holds. It may not hold, even without a timeout, if nothing can happen any more.
        """
        if ready():
            return True
        until = self._agenda.now + timeout if timeout >= 0 else None
        self._stand(Point("wait", ready=ready, notice=self._notice, until=until))
        return ready()

    def wait_for_loop(self, ready: Callable[[], bool]) -> None:
        """Stop until ``ready()`` holds, without ``notice``: what the event loop's thread does is known at once."""
        self._stand(Point("wait", ready=ready))

    def notify_all(self) -> None:
        """Interrupt the advance of simulated time so that all predicates are checked again."""
        self._agenda.paused = True

    def dissolve(self) -> None:
        """Stop waiting for running threads: the controller closes."""
        self._dissolved = True
        pool_items.leave(self)
        self._look()

    @interruptible
    def _stand(self, point: Point) -> None:
        """Stop the current thread at ``point`` until the event loop's thread releases it."""
        event_loop, mine = self._loop_of(), threading.current_thread()
        try:  # an interrupt may come anywhere
            with self._lock:  # both at once: between them ``proceed`` could release a thread and be woken for nothing
                self._points[mine] = point
                self._look()
            while not point.gate.acquire(timeout=1.0):  # a failed event loop releases no thread
                if event_loop.failure is not None or not event_loop.thread.is_alive():
                    break
        finally:
            with self._lock:
                if self._points.pop(mine, None) is not None:  # interrupted, perhaps while time advances for it
                    self.notify_all()
        if point.error is not None:
            raise point.error

    def _is_alone(self, mine: threading.Thread) -> bool:
        """Return whether no other thread runs or is stopped; one may stop meanwhile, so points are checked twice."""
        return not self._points and self._running(mine) is None and not self._points

    def _look(self) -> None:
        self._loop_of().inbox.put(lambda: None)  # wakes the event loop's thread, which calls ``proceed`` next

    # ---- in the event loop's thread

    @property
    def look_again(self) -> float | None:
        """Real seconds until the running thread is inspected again; ``None`` if none runs.

        A thread that blocks or ends notifies nobody, so it must be polled.
        """
        thread, (first, later) = self._held_up.thread, held_up.LOOKS
        if thread is None:
            return None
        return later if thread in self._calling else min(first + self._held_up.seconds / 8, later)

    def proceed(self) -> None:
        """Release threads and advance time until a thread runs, the inbox has an item, or no thread is stopped."""
        event_loop, agenda = self._loop_of(), self._agenda
        while self._points and self._is_idle(event_loop):
            agenda.paused = False  # reset before looking: a change during the look must pause time again
            if (running := self._running()) is not None:
                self._hold(running)
                return
            if self._is_idle(event_loop):  # again: a look at frames may have made a finalizer post a release
                self._go_on()
        self._hold(None)

    def _is_idle(self, event_loop: TurnGiver) -> bool:
        """Return whether the inbox is empty and no thread is between adding its point and posting to the inbox."""
        with self._lock:
            return event_loop.inbox.empty()

    def _go_on(self) -> None:
        """Release the first thread that may continue; if none may, advance time until one may.

        Only one is released: two would race for the next call. ``proceed`` waits until it stops or blocks.
        """
        points = self._in_order()
        chosen = next((each for each in points if each[1].is_over(self._agenda, self.notify_all)), None)
        if chosen is None and points and not pass_time(self._agenda, [point for _, point in points]):
            chosen = points[0]  # nothing will happen any more: its wait ends although its predicate does not hold
        if chosen is not None:
            self._let_go(*chosen)

    def _running(self, mine: threading.Thread | None = None) -> threading.Thread | None:
        """Return a thread other than ``mine`` that may still call before time advances, if there is one.

        All threads are inspected twice, because they run meanwhile: a thread may wake one that was inspected before it,
        or start one that did not exist yet, and block just before it is inspected itself.
        """
        return None if self._dissolved else self._seen_running(mine) or self._seen_running(mine)

    def _seen_running(self, mine: threading.Thread | None) -> threading.Thread | None:
        # Identifiers are read before frames: a thread that has one by now has a frame, too, unless it has ended.
        threads = {each: each.ident for each in threading.enumerate() if each is not mine and self._takes_part(each)}
        return look(lambda at: self._first_awake(threads, at)) if threads else None

    def _first_awake(
        self, threads: Mapping[threading.Thread, int | None], at: Mapping[int, FrameType]
    ) -> threading.Thread | None:
        awake = (thread for thread, ident in threads.items() if self._is_awake(thread, ident, at))
        return next((thread for thread in awake if thread not in self._points), None)  # it may just have stopped

    def _is_awake(self, thread: threading.Thread, ident: int | None, at: Mapping[int, FrameType]) -> bool:
        """Return whether a thread may continue by itself.

        A daemon thread that has never called, runs no pool's item and is in ``sleep`` is a monitor, not a client, and
        counts as blocked.
        """
        if ident is None or thread in self._calling:  # it is starting, or its call may wait for a thread that compiles
            return True
        frame = at.get(ident)
        if frame is None or is_asleep(frame, at):
            return False
        is_client = thread in self._blocks or pool_items.serial_of(thread) > 0
        return is_client or not (thread.daemon and is_napping(frame))

    def _takes_part(self, thread: threading.Thread) -> bool:
        """Return whether a thread must stop or block before another one is released."""
        if thread in self._points or thread.name.startswith(OURS):
            return False
        return thread in self._blocks or thread not in self._apart

    def _in_order(self) -> list[tuple[threading.Thread, Point]]:
        """Return all stopped threads with their points, first the thread that continues first."""
        with self._lock:
            points = list(self._points.items())
        return in_order(points, self._agenda.now, self._loop_of().standing)

    def _let_go(self, thread: threading.Thread, point: Point) -> None:
        """Release a stopped thread."""
        self._hold(None)  # a thread that reaches stopping points makes progress: its real time counts from zero
        with self._lock:
            if self._points.get(thread) is point:
                del self._points[thread]
                point.gate.release()

    # ---- a thread that keeps the others stopped

    def _hold(self, thread: threading.Thread | None) -> None:
        """Note that ``thread`` runs while others are stopped, and act if it has run for too long.

        Args:
            thread: the running thread; ``None`` if there is none.
        """
        seconds = self._held_up.by(thread)
        if thread is None:
            return
        if thread in self._calling and held_up.is_making(thread):
            self._held_up.begin_again()
        elif seconds <= held_up.NAMED_AFTER:
            return
        elif (item := next((each for each in self._in_order() if each[1].kind == "item"), None)) is not None:
            self._let_go(*item)  # the running thread may wait for it in a way that is not recognised
            self._held_up.by(thread)
        elif self._is_set_apart(thread):
            if thread not in self._left:
                self._held_up.go_on_without(thread)
            if thread in self._blocks:  # it has called since it was set apart
                self._held_up.is_back(thread)
        else:
            self._held_up.name(thread, self._calling.get(thread, ""), self._stopped())
            if seconds > held_up.REFUSED_AFTER and not self._held_up.is_shown:
                self._refuse(thread)

    def _is_set_apart(self, thread: threading.Thread) -> bool:
        """Ignore a thread from now on if it is in no block, and return whether it is ignored."""
        with self._lock:
            if thread in self._blocks:
                return False
            self._apart.add(thread)
            return True

    def _stopped(self) -> held_up.Stopped:
        """Return the stopped threads, each with what it waits for if that says so."""
        return [(thread, point.what) for thread, point in self._in_order()]

    def _refuse(self, holder: threading.Thread) -> None:
        """Raise an error that explains ``holder`` in every stopped thread."""
        text = held_up.explained(holder, self._calling.get(holder, ""), self._stopped())
        for thread, point in self._in_order():
            point.error = UsageError(text)
            self._let_go(thread, point)
