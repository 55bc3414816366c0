"""The local driver: carries out instructions on JAX devices of this process and reports events.

It decides nothing about order, placement or memory. One engine thread hands events to the controller's pure core and
carries out what it says, so user threads, watchers and finalizers only ever post.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pathways_nb.backends.dispatcher import Dispatcher
from pathways_nb.backends.executables import Executables
from pathways_nb.backends.execution import Bell, Entry, Execution, will_read
from pathways_nb.backends.islands import Attachment
from pathways_nb.backends.lowering import Lowered
from pathways_nb.backends.watcher import Portion
from pathways_nb.controller.machine import Machine
from pathways_nb.controller.messages import (
    Cancelled,
    Completed,
    Event,
    Fail,
    Finish,
    Free,
    Instruction,
    Launch,
    Opened,
    Released,
    Stop,
    Stored,
    Submitted,
)
from pathways_nb.trace.record import Record

Clock = Callable[[], float]
QUEUED = 64
"""Programs that a client has queued before its submitting waits: client back-pressure."""


_open: weakref.WeakSet[LocalDriver] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Threads that the interpreter stops inside JAX's C++ code would abort the process at exit."""
    for driver in list(_open):
        driver.close(patience=10.0)


class LocalDriver:
    """The engine of one controller on the devices of this process.

    Args:
        attachment: its islands.
        machine: the controller's pure core.
        clock: seconds; everything recorded is on it.
        executables: the cache to compile with.
    """

    def __init__(self, attachment: Attachment, machine: Machine, clock: Clock, executables: Executables):
        self.attachment, self.machine, self.clock, self.executables = attachment, machine, clock, executables
        self.launched, self.ended = Bell(), Bell()
        self.entries: dict[int, Entry] = {}
        self.runs: dict[int, Execution] = {}
        self.closed = False
        self._numbers = itertools.count()
        self._buffers = itertools.count()
        self._submitting = threading.Lock()
        self._inbox: queue.SimpleQueue[Event | deque[int] | None] = queue.SimpleQueue()
        self._batch: deque[int] | None = None
        """Released buffers, posted already; closed by whatever makes a buffer, which must come before its release."""
        self._dispatchers = [Dispatcher(i.index, len(i.devices), clock, self._portion_done) for i in attachment.islands]
        self._engine = threading.Thread(target=self._serve, name="pathways-engine", daemon=True)
        self._failure: BaseException | None = None
        for thread in (self._engine, *self._dispatchers):
            thread.start()
        _open.add(self)

    # ---- for the client

    def store(self, value: Any, size: int, client: str) -> int:
        """Put a value into the store; the caller holds it until it releases it."""
        buffer = next(self._buffers)
        self.entries[buffer] = Entry(value)
        self._post(Stored(buffer, client, size))
        return buffer

    def release(self, buffer: int) -> None:
        """The caller no longer holds a buffer. Safe in finalizers: it takes no lock.

        A row of them is one event: a training step drops hundreds of parameters, and each event wakes the engine.
        """
        batch = self._batch
        if batch is None:
            self._batch = batch = deque((buffer,))
            self._inbox.put(batch)
        else:
            batch.append(buffer)

    def submit(
        self, lowered: Lowered, arguments: Sequence[int], record: Record, client: str
    ) -> tuple[Execution, list[int]]:
        """Queue a run; returns it and the buffers of its results, which the caller holds."""
        plan = lowered.plan
        with self._submitting:
            buffers = [next(self._buffers) for _ in plan.results]
            run = Execution(
                next(self._numbers),
                lowered,
                [self.entries[a] for a in arguments],
                {},
                record,
                self.launched,
                self.ended,
                client,
            )
            self._bind_results(run, buffers)
            will_read(run.arguments[argument] for argument in lowered.brought)
            self.runs[run.serial] = run
            self._post(Submitted(run.serial, client, plan, tuple(arguments), tuple(buffers), lowered.result_bytes))
        return run, buffers

    def cancel(self, runs: Sequence[int]) -> None:
        """Give up runs: nothing more of them is dispatched."""
        for serial in runs:
            if (run := self.runs.get(serial)) is not None:
                run.stop()  # at once; the controller learns of it in its own time
        self.launched.ring()
        self._inbox.put(Cancelled(tuple(runs)))

    def open(self, client: str, share: float, priority: float) -> None:
        """A client is there, or has changed."""
        self._inbox.put(Opened(client, share, priority))

    def runs_of(self, client: str) -> list[int]:
        """A client's programs that are queued or under way."""
        runs = self.runs.copy()  # in one go: the engine and other clients' threads change it meanwhile
        return [serial for serial, run in runs.items() if run.client == client]

    def wait_for_room(self, client: str) -> float:
        """Wait until fewer than ``QUEUED`` programs of ``client`` are queued; returns the seconds waited."""
        began = self.clock()
        self.ended.wait(lambda: len(self.runs) < QUEUED or len(self.runs_of(client)) < QUEUED or self.broken)
        self.check()
        return self.clock() - began

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way; whether that is so."""
        return self.ended.wait(lambda: not self.runs or self._failure is not None, timeout)

    def check(self) -> None:
        """Raise what broke the engine, if anything did."""
        if self._failure is not None:
            raise RuntimeError("the controller's engine has stopped; pw.reset() starts it anew") from self._failure

    def close(self, patience: float = 60.0) -> None:
        """Cancel what is queued, end all threads, let the devices go. Results held here are lost.

        Args:
            patience: seconds to wait for what is already on the devices.
        """
        if self.closed:
            return
        self.cancel(list(self.runs))
        self.wait_idle(patience)
        self.closed = True
        self.ended.ring()
        self._inbox.put(None)
        for dispatcher in self._dispatchers:
            dispatcher.stop()
        for thread in (self._engine, *(t for d in self._dispatchers for t in d.threads)):
            thread.join(patience)
        for entry in self.entries.values():
            entry.array = None
        self.entries.clear()
        self.attachment.release()

    @property
    def broken(self) -> bool:
        """Whether waiting is in vain."""
        return self._failure is not None or self.closed

    @property
    def sampled(self) -> float:
        """Share of launches whose end was watched; the others' stamps are interpolated."""
        seen = sum(d.computing.seen for d in self._dispatchers)
        return sum(d.computing.watched for d in self._dispatchers) / seen if seen else 1.0

    def spend(self, budget: float) -> None:
        """Let each watcher keep a core busy for this share of the time; 0: look no oftener than flow control needs."""
        for dispatcher in self._dispatchers:
            dispatcher.computing.budget = dispatcher.moving.budget = budget

    # ---- the engine thread

    def _serve(self) -> None:
        try:
            for event in self._events():
                for instruction in self.machine.handle(event, self.clock()):
                    self._carry_out(instruction)
        except BaseException as error:  # a broken core must not leave a user waiting for ever
            self._failure = error
            self.ended.ring()
            raise

    def _events(self) -> Iterator[Event]:
        """What was posted, in order; a row of released buffers is one event."""
        late: deque[int] = deque()
        while (item := self._inbox.get()) is not None:
            if not isinstance(item, deque):
                yield item
                continue
            if self._batch is item:
                self._batch = None
            released = [*_drained(late), *_drained(item)]
            late = item  # a thread that had just read ``_batch`` may still add to it
            yield Released(tuple(released))

    def _post(self, event: Stored | Submitted) -> None:
        self._batch = None
        self._inbox.put(event)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Launch(run, island, start, stop):
                self._dispatchers[island].inbox.put((self.runs[run], start, stop))
            case Free(buffers):
                for buffer in buffers:
                    del self.entries[buffer]
            case Stop(run):
                self.runs[run].stop()
                self.launched.ring()
            case Fail(run, error):
                self.runs[run].stop(error)
                self.launched.ring()
            case Finish(run):
                self.runs.pop(run).finish()

    def _portion_done(self, portion: Portion, island: int) -> None:
        self._inbox.put(Completed(portion.run.serial, island, portion.start, portion.stop, portion.device_seconds))

    def _bind_results(self, run: Execution, buffers: list[int]) -> None:
        lowered = run.lowered
        for buffer, slot, step in zip(buffers, lowered.plan.results, lowered.result_steps, strict=True):
            entry = self.entries[buffer] = Entry(run=run, step=step)
            run.results.setdefault(slot, []).append(entry)


def _drained(batch: deque[int]) -> Iterator[int]:
    while batch:
        yield batch.popleft()
