"""Hands events to the controller's pure core: one thread at a time, and none that could stop midway.

Watchers and clients' threads hand over their events themselves, which saves a change of threads for every event. Two
kinds of callers post to the event loop's own thread instead: the main thread, which an interrupt may stop anywhere, and
finalizers, which must not take a lock.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from pathways_nb.controller.events_and_instructions import (
    Event,
    Instruction,
    Opened,
    PutRequested,
    Released,
    Stored,
    Submitted,
    Wake,
    Woke,
)
from pathways_nb.controller.log import Logbook
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from pathways_nb.runtime.entries import Entry, at_once

Clock = Callable[[], float]
T = TypeVar("T")
Item = Event | Entry | Callable[[], None] | None
"""What the thread takes from its queue: an event, a token that is gone, a function to call, or ``None`` for the end."""


class EventLoop:
    """The only access to one controller's pure core.

    Args:
        machine: the core.
        clock: returns seconds; the core's time.
        carry_out: carries out an instruction other than ``Wake``.
        on_failure: called when the core has failed, so that nobody waits for ever.
        released: returns which of these buffers, whose tokens are gone, were ever made known and are to be released.
    """

    def __init__(
        self,
        machine: StateMachine,
        clock: Clock,
        carry_out: Callable[[Instruction], None],
        on_failure: Callable[[], None],
        released: Callable[[list[int]], list[int]] = lambda buffers: buffers,
    ):
        self.machine, self.clock, self._carry_out, self._on_failure = machine, clock, carry_out, on_failure
        self._released = released
        self.deciding = threading.Lock()
        """Held by the thread in which the core handles an event."""
        self.failure: BaseException | None = None
        self.inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="pathways-event-loop", daemon=True)
        self.logbook = Logbook(machine) if isinstance(machine, StateMachine) else None
        """What the core was told and answered; ``None`` if the core is another process's."""
        self._handler = self.logbook or machine
        self.event: Event | None = None
        """What the core handles, while its instructions are carried out; else what it handled last."""
        self._decider = 0
        self._posted = self._taken = -1
        """The last run that was posted, and the last run that the core has handled."""
        self._wake: float | None = None

    def submit(self, run: int, begin: Callable[[], Submitted], changes: Iterable[object] = ()) -> None:
        """Hand over a call; it must not overtake a posted one, whose results it may need.

        Args:
            run: its number.
            begin: returns the call, in the core's turn.
            changes: made together with the hand-over (see ``at_once``).
        """
        take = partial(self._take_call, run, begin)
        if _may_be_stopped() or self._taken < self._posted:
            self._posted = run
            self.post(take, changes)
        else:
            at_once(changes)
            self._guarded(take)

    def _take_call(self, run: int, begin: Callable[[], Submitted]) -> None:
        self.obey(begin())
        self._taken = run

    def store(self, event: Stored | Opened | PutRequested, changes: Iterable[object] = ()) -> None:
        """Hand over an event that need not be handled before this returns, and make changes together with that."""
        if _may_be_stopped():
            self.post(event, changes)
        else:
            at_once(changes)
            self.report(event)

    def post(self, event: Event | Callable[[], None], changes: Iterable[object] = ()) -> None:
        """Queue an event, or an errand, for the event loop's thread, after changes that belong to it."""
        if changes:
            at_once(chain(changes, map(self.inbox.put, (event,))))
        else:
            self.inbox.put(event)

    def report(self, event: Event) -> None:
        """Hand over an event in a thread that nothing interrupts."""
        self._guarded(lambda: self.obey(event))

    def safely(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the core's state in a thread that no interrupt can stop midway, and return its result."""
        if _may_be_stopped():
            return self.in_turn(work)
        with self.deciding:
            return work()

    def tell(self, event: Event) -> None:
        """Have the core handle an event in such a thread, and wait for it."""
        self.safely(lambda: self.obey(event))

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run ``work`` after everything posted before, and wait for it.

        Returns:
            What ``work`` returns.

        Raises:
            RuntimeError: the core has failed.
        """
        return self.ask(work)()

    def ask(self, work: Callable[[], T]) -> Callable[[], T]:
        """Queue ``work`` and return a function that waits for its result. Safe in finalizers."""
        answer: queue.SimpleQueue[T] = queue.SimpleQueue()
        self.inbox.put(lambda: answer.put(work()))

        def wait() -> T:
            while True:
                try:
                    return answer.get(timeout=1.0)
                except queue.Empty:
                    self.check()
                if not self.thread.is_alive():
                    with self.deciding:
                        return work()

        return wait

    def obey(self, event: Event) -> None:
        """Let the core handle an event, and carry out its instructions; the caller must satisfy ``safely``."""
        self._decider, self.event = threading.get_ident(), event
        try:
            instructions = self._handler.handle(event, self.clock())
        finally:
            self._decider = 0
        for instruction in instructions:
            if isinstance(instruction, Wake):
                self._wake_at(instruction.at)
            else:
                self._carry_out(instruction)

    def _wake_at(self, time: float) -> None:
        self._wake = time if self._wake is None else min(time, self._wake)
        self.inbox.put(_nothing)  # its thread may sleep without end

    def refuse_policies(self) -> None:
        """Refuse calls from within a policy: the core is deciding, and they would wait for that for ever.

        Raises:
            UsageError: this thread runs a policy.
        """
        if self._decider == threading.get_ident():
            raise UsageError("a policy chooses one of the gangs in ready and returns it: it can neither call nor wait")

    def check(self) -> None:
        """Raise what made the core fail, if anything did."""
        if self.failure is not None:
            raise RuntimeError("the controller's event loop has stopped; pw.reset() starts it anew") from self.failure

    def fail(self, error: BaseException) -> None:
        """Handle nothing more, and have everybody who waits told why."""
        self.failure = error
        self._on_failure()

    def stop(self, patience: float) -> None:
        """End after what was posted before, and wait up to ``patience`` seconds for that."""
        self.inbox.put(None)
        self.thread.join(patience)

    def _serve(self) -> None:
        for event in self._events():
            self.report(event)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            if self.failure is None:
                with self.deciding:
                    work()
        except BaseException as error:  # a broken core must not leave a user waiting for ever
            self.fail(error)

    def _take(self) -> Item:
        """Return the next item, or ``Woke`` if the time to wake comes first."""
        if self._wake is None:
            return self.inbox.get()
        try:
            return self.inbox.get(timeout=max(self._wake - self.clock(), 0.0))
        except queue.Empty:
            self._wake = None
            return Woke()

    def _events(self) -> Iterator[Event]:
        """Yield posted events in order; buffers released in a row are one event: a training step drops hundreds."""
        while (item := self._take()) is not None:
            if isinstance(item, Entry):
                gone = [item.buffer]
                while isinstance(item := self._take_now(), Entry):
                    gone.append(item.buffer)
                if known := self._released(gone):
                    yield Released(tuple(known))
            if item is None:
                return
            if callable(item):
                self._guarded(item)
            else:
                yield item
            del item  # an errand may hold what its caller lets go of, long before the next item comes

    def _take_now(self) -> Item:
        """Return the next item if there is one, else a function that does nothing."""
        try:
            return self.inbox.get_nowait()
        except queue.Empty:
            return _nothing


def _nothing() -> None:
    """Do nothing."""


def _may_be_stopped() -> bool:
    """Return whether an interrupt may stop this thread anywhere."""
    return threading.get_ident() == threading.main_thread().ident


def drained(batch: deque[Any]) -> Iterator[Any]:
    """Take what a queue holds, one item after the other, until it is empty.

    Yields:
        Each item.
    """
    while batch:
        yield batch.popleft()
