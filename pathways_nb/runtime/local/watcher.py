"""Watchers find out when each launch ended: one thread waits on outputs in order and writes the record.

A launch ends when its witness output is ready (error about 0.05 ms at the median, measured). It starts at the later of
its dispatch and the end of what ran before on its devices. Waking for every launch of a few microseconds would cost
more than the launch. Therefore a watcher measures what a look costs; where looks would take more than ``BUDGET`` of the
time, it looks at every n-th launch and interpolates the stamps in between.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from time import thread_time
from typing import Any

import numpy as np

from pathways_nb.runtime.run_state import Entry, Execution
from pathways_nb.trace.record import Label, Row

Clock = Callable[[], float]
BUDGET = 0.02
"""The share of time for which a watcher may keep one core busy, as far as looking less often can help."""
MOST_AT_ONCE = 16
"""The most launches per look: more could fill the dispatcher's window."""
_RETRY = 2e-3
"""Seconds between two checks whether a source has been stamped."""
_PATIENCE = 0.05
"""Seconds to wait for the stamp of a transfer's source before recording without it."""


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
        self._rate = self._cost = self._looked = self._cpu = 0.0
        """Launches per second; processor seconds of a look; time of the last look, and this thread's time then."""

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
        batch = [first]
        while len(batch) < min(MOST_AT_ONCE, self._rate * self._cost / max(self.budget, 1e-9)):
            try:
                following = self.inbox.get_nowait()
            except queue.Empty:
                break
            if following is None:
                self.inbox.put(None)
                break
            batch.append(following)
        self._watch(batch)
        return True

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
        first = max(self._ready_at(batch[0]) or 0.0, batch[0].dispatched)
        parts = np.cumsum(self._weights(batch))
        for position, (launched, failure) in enumerate(zip(batch, failures, strict=True), 1):
            watched = position == len(batch)
            guess = first + (now - first) * float(parts[position - 1] / parts[-1])
            end = launched.ended or max(now if watched else guess, launched.dispatched)
            launched.launch_range.run.ends[launched.step] = end
            self._end(launched, end, failure, "estimated" if watched or launched.ended else "interpolated")

    def _weights(self, batch: Sequence[Launched]) -> Sequence[float]:
        """Return the shares of a batch's time for its launches."""
        return [1.0] * len(batch)

    def _next(self) -> Launched | None:
        return self.inbox.get()

    def _account(self, count: int, now: float) -> None:
        """Update the cost of a look and the rate of launches."""
        cpu = thread_time()
        self._rate += 0.2 * (count / max(now - self._looked, 1e-4) - self._rate)
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
        launched: Launched, label: Label, start: float, end: float, quality: str, failure: BaseException | None
    ) -> None:
        run, step = launched.launch_range.run, launched.step
        status = "failed" if failure is not None else "draining" if run.stopped else "ok"
        label = owned(label, run.client) if run.client else label
        run.record.add(Row(label, min(start, end), end, run.serial, quality, status))
        if failure is not None:
            run.fail(step, run.inherited_error(step) or run.node_error(step, failure))
        else:
            run.mark_done(step)
        launched.launch_range.step_done()


class LaunchWatcher(Watcher):
    """Watches the launches on one island.

    Args:
        name: of the thread.
        clock: the controller's clock, in seconds.
        on_ended: called with the number of launches that have ended.
        devices: number of devices of the island.
    """

    def __init__(self, name: str, clock: Clock, on_ended: Callable[[int], None], devices: int):
        super().__init__(name, clock, on_ended)
        self.free_at = [0.0] * devices
        """When the last launch on each device ended."""

    def _end(self, launched: Launched, end: float, failure: BaseException | None, quality: str) -> None:
        label = launched.launch_range.run.compiled_plan.actions[launched.step].label
        start = max(self._ready_at(launched), launched.dispatched)
        self.free_at[label.device : label.device + label.devices] = [end] * label.devices
        launched.launch_range.device_seconds += max(end - start, 0.0) * label.devices
        if self._row > 1:
            launched.launch_range.run.compiled_plan.lasts[launched.step] = max(end - start, 0.0)
        self._record(launched, label, start, end, quality, failure)

    def _weights(self, batch: Sequence[Launched]) -> Sequence[float]:
        """Return the seconds that each took when it was last watched; for one never watched, the mean of the others."""
        known = [launched.launch_range.run.compiled_plan.lasts.get(launched.step) for launched in batch]
        seen = [seconds for seconds in known if seconds is not None]
        usual = sum(seen) / len(seen) if seen else 1.0
        return [max(usual if seconds is None else seconds, 1e-7) for seconds in known]

    def _ready_at(self, launched: Launched) -> float:
        """Return when it could begin: its devices are free and its inputs from elsewhere have arrived."""
        run = launched.launch_range.run
        action = run.compiled_plan.actions[launched.step]
        ready = max(self.free_at[action.label.device : action.label.device + action.label.devices])
        for step in action.waits_for:
            ready = max(ready, run.ends.get(step, 0.0))
        return ready


class TransferWatcher(Watcher):
    """Watches transfers to one island; a transfer begins when its source has ended, which may be stamped later."""

    def __init__(self, name: str, clock: Clock):
        super().__init__(name, clock, lambda count: None)
        self._late: list[Callable[[], bool]] = []
        """Transfers that have ended, to be recorded when the end of their source is stamped."""

    def note_now(self, launched: Launched) -> None:
        """Record a transfer that had ended when it was dispatched; the dispatcher calls this."""
        failure = _wait(launched.witness)
        launched.ended = launched.launch_range.run.ends[launched.step] = self.clock()
        if not self._note(launched, launched.ended, failure, "estimated", launched.ended + _PATIENCE):
            self.inbox.put(launched)

    def _next(self) -> Launched | None:
        """Return the next transfer; meanwhile record those whose source has been stamped."""
        while self._late:
            self._late = [note for note in self._late if not note()]
            try:
                return self.inbox.get(timeout=_RETRY)
            except queue.Empty:
                continue
        return self.inbox.get()

    def _end(self, launched: Launched, end: float, failure: BaseException | None, quality: str) -> None:
        note = partial(self._note, launched, end, failure, quality, self.clock() + _PATIENCE)
        if not note():
            self._late.append(note)

    def _note(
        self, launched: Launched, end: float, failure: BaseException | None, quality: str, deadline: float
    ) -> bool:
        """Record a transfer unless its source has ended without a stamp so far; return whether it was recorded."""
        ready = self._ready_at(launched)
        if ready is None and failure is None and self.clock() < deadline:
            return False
        label = launched.launch_range.run.compiled_plan.actions[launched.step].label
        label = routed(label, launched.route, launched.size) if launched.route else label
        self._record(launched, label, max(ready or 0.0, launched.dispatched), end, quality, failure)
        return True

    def _ready_at(self, launched: Launched) -> float | None:
        run, source = launched.launch_range.run, launched.source
        if source is not None:
            return 0.0 if source.run is None else source.run.ends.get(source.step)
        producers = run.compiled_plan.actions[launched.step].step.producers
        return max(run.ends[p] for p in producers) if _all_in(producers, run.ends) else None


@lru_cache(maxsize=4096)
def routed(label: Label, route: str, size: int) -> Label:
    """Return the label of an argument of which ``size`` bytes travelled on this route."""
    return replace(label, route=route, bytes=size)


@lru_cache(maxsize=4096)
def owned(label: Label, client: str) -> Label:
    """Return the label with a client."""
    return replace(label, client=client)


def _all_in(steps: Sequence[int], ends: Mapping[int, float]) -> bool:
    return all(step in ends for step in steps)


def _failures(batch: Sequence[Launched]) -> list[BaseException | None]:
    """Wait for all launches of ``batch``.

    An output that a later launch of the batch has read needs no look of its own unless that launch failed: each look
    releases and takes Python's lock, which costs more than the launch's whole record.

    Returns:
        The error of each, or ``None``.
    """
    run = batch[-1].launch_range.run
    steps = {launched.step for launched in batch if launched.launch_range.run is run}
    found = [_wait(batch[-1].witness)]
    for launched in batch[-2::-1]:
        was_read = launched.launch_range.run is run and run.compiled_plan.actions[launched.step].reader in steps
        found.append(None if was_read and not any(found) else _wait(launched.witness))
    return found[::-1]


def _wait(witness: Any) -> BaseException | None:
    """Wait until an array is computed and return the error if it never will be."""
    try:
        witness.block_until_ready()
    except Exception as error:  # whatever the computation raised is the user's to see
        # A later program of the same island took its memory over: it is done when that one is.
        return None if "deleted or donated" in str(error) else error
    return None
