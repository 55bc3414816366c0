"""Who hands the controller's pure core its events: one thread at a time, and none that could stop midway.

Watchers and clients' threads hand over what they know themselves, which saves a change of threads for every event. The
main thread, which an interrupt may break off anywhere, and finalizers, which must not take a lock, post to a thread of
the engine's own instead.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from pathways_nb.controller.messages import (
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
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError

Clock = Callable[[], float]
T = TypeVar("T")
Item = Event | deque[int] | Callable[[], None] | None
"""What comes to the engine's thread: an event, buffers that were released, an errand, or the end."""


class EventLoop:
    """The door to one controller's pure core.

    Args:
        machine: the core.
        clock: seconds; what the core is told the time by.
        carry_out: does what an instruction says, except ``Wake``.
        on_failure: told when the core has broken, so that nobody waits for ever.
    """

    def __init__(
        self,
        machine: StateMachine,
        clock: Clock,
        carry_out: Callable[[Instruction], None],
        on_failure: Callable[[], None],
    ):
        self.machine, self.clock, self._carry_out, self._on_failure = machine, clock, carry_out, on_failure
        self.deciding = threading.Lock()
        """Held by the thread in which the controller decides something."""
        self.failure: BaseException | None = None
        self.inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="pathways-event-loop", daemon=True)
        self._decider = 0
        self._posted = self._taken = -1
        """The last run that was posted, and the last posted one that the controller knows of."""
        self._batch: deque[int] | None = None
        """Released buffers, posted already; closed by whatever makes a buffer, which must come before its release."""
        self._wake: float | None = None

    def submit(self, event: Submitted) -> None:
        """Hand on a call: none may overtake another that was posted before, whose results it may need."""
        if _may_be_stopped() or self._taken < self._posted:
            self._posted = event.run
            self.post(event)
        else:
            self.report(event)

    def store(self, event: Stored | Opened | PutRequested) -> None:
        """Hand on what need not be handled at once: a value that needs no room, who calls, who asks for room."""
        if _may_be_stopped():
            self.post(event)
        else:
            self.report(event)

    def release(self, buffer: int) -> None:
        """A buffer has lost its handle. Safe in finalizers: it takes no lock.

        A row of them is one event: a training step drops hundreds of parameters, and each event wakes the thread.
        """
        batch = self._batch
        if batch is None:
            self._batch = batch = deque((buffer,))
            self.inbox.put(batch)
            return
        batch.append(buffer)
        if self._batch is not batch:  # it may have been read just before
            self.inbox.put(batch)

    def post(self, event: Event) -> None:
        """Hand on an event in its turn."""
        self.inbox.put(event)
        self._batch = None  # not before: another thread's new batch might come before the event, and get its buffers

    def report(self, event: Event) -> None:
        """Hand the controller an event, in a thread that nothing interrupts."""
        self._guarded(lambda: self.obey(event))

    def safely(self, work: Callable[[], T]) -> T:
        """Have the core's state looked at or changed by a thread that no interrupt breaks off in the midst of it."""
        if _may_be_stopped():
            return self.in_turn(work)
        with self.deciding:
            return work()

    def tell(self, event: Event) -> None:
        """Have the core handle an event in such a thread, and wait for that."""
        self.safely(lambda: self.obey(event))

    def in_turn(self, work: Callable[[], T]) -> T:
        """The same, after all that was posted before.

        Raises:
            RuntimeError: the core has broken.
        """
        return self.ask(work)()

    def ask(self, work: Callable[[], T]) -> Callable[[], T]:
        """The same, for who need not wait: only calling what this returns does. Safe in finalizers."""
        answer: queue.SimpleQueue[T] = queue.SimpleQueue()
        self.inbox.put(lambda: answer.put(work()))
        self._batch = None  # ``work`` may make a buffer

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
        """Let the core decide, and carry out what it says; only for who may (see ``safely``)."""
        self._decider = threading.get_ident()
        try:
            instructions = self.machine.handle(event, self.clock())
        finally:
            self._decider = 0
        for instruction in instructions:
            if isinstance(instruction, Wake):
                self._wake_at(instruction.at)
            else:
                self._carry_out(instruction)

    def _wake_at(self, time: float) -> None:
        self._wake = time if self._wake is None else min(time, self._wake)
        self.inbox.put(lambda: None)  # its thread may sleep without end

    def refuse_policies(self) -> None:
        """A policy is asked in the midst of a decision: whatever it called would wait for that for ever.

        Raises:
            UsageError: this thread is in one.
        """
        if self._decider == threading.get_ident():
            raise UsageError("a policy chooses one of the gangs in ready and returns it: it can neither call nor wait")

    def check(self) -> None:
        """Raise what broke the core, if anything did."""
        if self.failure is not None:
            raise RuntimeError("the controller's engine has stopped; pw.reset() starts it anew") from self.failure

    def stop(self, patience: float) -> None:
        """End after what was posted before; wait so many seconds for it."""
        self.inbox.put(None)
        self.thread.join(patience)

    def _serve(self) -> None:
        for event in self._events():
            self.report(event)
            if isinstance(event, Submitted):
                self._taken = event.run

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            if self.failure is None:
                with self.deciding:
                    work()
        except BaseException as error:  # a broken core must not leave a user waiting for ever
            self.failure = error
            self._on_failure()

    def _take(self) -> Item:
        """The next thing posted, or the news that it is time to wake."""
        if self._wake is None:
            return self.inbox.get()
        try:
            return self.inbox.get(timeout=max(self._wake - self.clock(), 0.0))
        except queue.Empty:
            self._wake = None
            return Woke()

    def _events(self) -> Iterator[Event]:
        """What was posted, in order; a row of released buffers is one event."""
        while (item := self._take()) is not None:
            if callable(item):
                self._guarded(item)
            elif isinstance(item, deque):
                if self._batch is item:
                    self._batch = None
                yield Released(tuple(_drained(item)))
            else:
                yield item
            del item  # an errand may hold what its caller lets go of, long before the next item comes


def _may_be_stopped() -> bool:
    """Whether an interrupt may break this thread off anywhere."""
    return threading.current_thread() is threading.main_thread()


def _drained(batch: deque[int]) -> Iterator[int]:
    while batch:
        yield batch.popleft()
