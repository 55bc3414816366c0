"""Watchers find out when each launch ended: one thread waits on outputs in order and writes the record.

A launch ends when its witness output is ready (error about 0.05 ms at the median, measured). It starts at the later of
its dispatch and the end of what ran before on its devices. Waking for every launch of a few microseconds would cost
more than the launch. Therefore a watcher measures what a look costs; where looks would take more than ``BUDGET`` of the
time, it looks at every n-th launch and interpolates the stamps in between.
"""

from __future__ import annotations

import math
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any

from pathways_nb.runtime.run_state import Entry, Execution
from pathways_nb.trace.rows import BY, Label, Row

Clock = Callable[[], float]
BUDGET = 0.02
"""The share of time for which a watcher may keep one core busy, as far as looking less often can help."""
MOST_AT_ONCE = 16
"""The most launches per look: more could fill the dispatcher's window."""
_PAUSE = 0.02
"""Seconds between two launches that count at most: a pause says nothing of the launches after it."""
PATIENCE = 0.05
"""Seconds to wait for what is sure to come: the launch that took an output over, the stamp of a transfer's source."""


@dataclass(slots=True, eq=False)
class LaunchRange:
    """A range of an island's order under way; calls ``on_done`` when its last step has ended."""

    run: Execution
    start: int
    stop: int
    remaining: int
    on_done: Callable[[LaunchRange], None]
    lock: Any
    device_seconds: float = 0.0
    """Device-seconds that its launches have taken."""

    def step_done(self, count: int = 1) -> None:
        """Count ``count`` more steps as ended."""
        with self.lock:
            self.remaining -= count
            over = self.remaining == 0
        if over:
            self.on_done(self)


@dataclass(slots=True, eq=False)
class Launched:
    """A step under way: what to wait on, and when it was dispatched.

    For an argument, ``route`` says how it travelled, ``size`` how many bytes did, and ``source`` where it came from.
    """

    launch_range: LaunchRange
    step: int
    witness: Any
    dispatched: float
    route: str = ""
    size: int = 0
    source: Entry | None = None
    ended: float = 0.0
    """When it was seen to have ended, if that was before its turn."""


class Watcher(threading.Thread, ABC):
    """Waits for what was dispatched, in that order.

    Args:
        name: of the thread.
        clock: the controller's clock, in seconds.
        on_ended: called with the number of steps that have ended, for flow control.
    """

    def __init__(self, name: str, clock: Clock, on_ended: Callable[[int], None]):
        super().__init__(name=name, daemon=True)
        self.inbox: queue.SimpleQueue[Launched | None] = queue.SimpleQueue()
        self.clock, self.on_ended = clock, on_ended
        self.budget = BUDGET
        self.watched = self.seen = 0
        self._row = 0
        """The number of looks in a row at one launch each: from the second on, the launch's start is known."""
        self._interval = _PAUSE
        """Seconds from one launch's end to the next, at the mean."""
        self._cost = self._looked = self._cpu = 0.0
        """Processor seconds of a look; time of the last look, and this thread's time then."""

    def run(self) -> None:
        """Watch until stopped."""
        while self._next_batch():
            pass

    def _next_batch(self) -> bool:
        """Watch some launches.

        It is a function of its own so that no array stays referenced while the thread waits for more.

        Returns:
            Whether there were any.
        """
        first = self._next()
        if first is None:
            return False
        batch, lost = [first], self._lost([], first)
        while lost or self._saves(batch):
            following = self._following(PATIENCE if lost else 0.0)
            if following is None:
                break
            batch.append(following)
            lost = self._lost(lost, following)
        self._watch(batch)
        return True

    def _saves(self, batch: Sequence[Launched]) -> bool:
        """Return whether a batch should have one more launch, because looks would take too much of the time."""
        return len(batch) < min(MOST_AT_ONCE, self._cost / max(self.budget * self._interval, 1e-9))

    def _following(self, patience: float) -> Launched | None:
        """Return the next launch, or ``None`` if there is none within some seconds."""
        try:
            following = self.inbox.get(timeout=patience) if patience else self.inbox.get_nowait()
        except queue.Empty:
            return None
        if following is None:
            self.inbox.put(None)
        return following

    def _lost(self, lost: list[range], launched: Launched) -> list[range]:
        """Return the devices of launches whose end no output of the batch tells, with one launch more."""
        return lost

    def _watch(self, batch: Sequence[Launched]) -> None:
        """Wait for the last of ``batch``; the ends of the others are interpolated."""
        failures = _failures(batch)
        now = self.clock()
        self._row = self._row + 1 if len(batch) == 1 else 0
        with batch[-1].launch_range.run.ended.once():
            self._stamp(batch, failures, now)
        self.on_ended(len(batch))
        self.watched, self.seen = self.watched + 1, self.seen + len(batch)
        self._account(len(batch), now)

    def _stamp(self, batch: Sequence[Launched], failures: Sequence[BaseException | None], now: float) -> None:
        ready = [max(self._ready_at(launched) or 0.0, launched.dispatched) for launched in batch]
        guesses = [*_interpolated(ready, self._weights(batch), now)[:-1], now]
        for launched, guess, failure in zip(batch, guesses, failures, strict=True):
            end = launched.ended or stamp(launched.launch_range.run, launched.step, max(guess, launched.dispatched))
            watched = launched is batch[-1] or launched.ended
            self._end(launched, end, failure, "estimated" if watched else "interpolated")

    def _weights(self, batch: Sequence[Launched]) -> Sequence[float]:
        """Return the shares of a batch's time for its launches."""
        return [1.0] * len(batch)

    def _next(self) -> Launched | None:
        return self.inbox.get()

    def _account(self, count: int, now: float) -> None:
        """Update the cost of a look and the interval between launches.

        Intervals are averaged, not rates: two short launches among long ones must not make it look at every tenth.
        """
        cpu = thread_time()
        self._interval += 0.2 * (min((now - self._looked) / count, _PAUSE) - self._interval)
        self._cost += 0.2 * (cpu - self._cpu - self._cost)
        self._looked, self._cpu = now, cpu

    @abstractmethod
    def _ready_at(self, launched: Launched) -> float | None:
        """Return when it could begin; ``None`` if that is not known yet."""

    @abstractmethod
    def _end(self, launched: Launched, end: float, failure: BaseException | None, quality: str) -> None:
        """Record that it ended."""

    @staticmethod
    def _record(
        launched: Launched,
        label: Label,
        start: float,
        end: float,
        quality: str,
        failure: BaseException | None,
        why: int,
    ) -> Label:
        """Record the end of a step, pass it on, and return the label under which it is recorded."""
        run, step = launched.launch_range.run, launched.step
        status = "failed" if failure is not None else "draining" if run.stopped else "ok"
        label = run.own(label)
        run.record.add(Row(label, min(start, end), end, run.serial, quality, status, BY[why]))
        if failure is not None:
            run.fail(step, run.inherited_error(step) or run.node_error(step, failure))
        else:
            run.mark_done(step)
        launched.launch_range.step_done()
        return label


def stamp(run: Execution, step: int, seen: float) -> float:
    """Note when a step ended: not before what it waited for, and not after its reader.

    Several threads see the ends of a run's steps, each a little late.

    Args:
        run: that it belongs to.
        step: the step.
        seen: when its end was seen, in seconds.

    Returns:
        The end, in seconds.
    """
    action = run.compiled_plan.actions[step]
    with _stamping:
        earliest = max((run.ends.get(other, 0.0) for other in action.waits_for), default=0.0)
        run.ends[step] = end = min(max(seen, earliest), run.ends.get(action.reader, math.inf))
    return end


_stamping = threading.Lock()


def _interpolated(ready: Sequence[float], weights: Sequence[float], now: float) -> list[float]:
    """Return the ends of launches of which the last ended just now, one after another, none before its inputs came.

    Args:
        ready: when the inputs of each had come, and it had been dispatched.
        weights: what each takes beside the others.
        now: the end of the last one.
    """
    scale, left = float("inf"), 0.0
    for at, weight in zip(reversed(ready), reversed(weights), strict=True):
        left += weight
        scale = min(scale, max(0.0, now - at) / left)
    ends, end = [], 0.0
    for at, weight in zip(ready, weights, strict=True):
        ends.append(end := min(now, max(end, at) + scale * weight))
    return ends


def _failures(batch: Sequence[Launched]) -> list[BaseException | None]:
    """Wait for all launches of ``batch``.

    An output that a later launch of the batch has read needs no look of its own unless that launch failed: each look
    releases and takes Python's lock, which costs more than the launch's whole record.

    Returns:
        The error of each, or ``None``.
    """
    run = batch[-1].launch_range.run
    steps = {launched.step for launched in batch if launched.launch_range.run is run}
    found = [wait_for(batch[-1].witness)]
    for launched in batch[-2::-1]:
        was_read = launched.launch_range.run is run and run.compiled_plan.actions[launched.step].reader in steps
        found.append(None if was_read and not any(found) else wait_for(launched.witness))
    return found[::-1]


def wait_for(witness: Any) -> BaseException | None:
    """Wait until an array is computed and return the error if it never will be."""
    try:
        witness.block_until_ready()
    except Exception as error:  # whatever the computation raised is the user's to see
        # A later program of the same island took its memory over: ``_lost`` waits for one that tells its end.
        return None if "deleted or donated" in str(error) else error
    return None
