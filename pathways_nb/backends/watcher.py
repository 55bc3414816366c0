"""Watchers: when did each launch end? One thread waits on outputs, in order, and writes the record.

A launch's end is when its witness output is ready (error about 0.05 ms at the median, measured); its start is the
later of its dispatch and the end of what ran before on its devices. Waking for every launch of a few microseconds
would cost more than the launch, so short ones are watched in groups and the stamps between are interpolated.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from pathways_nb.backends.execution import Entry, Execution
from pathways_nb.trace.record import Label, Row

Clock = Callable[[], float]
_WAKE_EVERY = 2e-3
_MOST_AT_ONCE = 16
_PATIENCE = 0.05
"""Seconds to wait for the stamp of a transfer's source before doing without."""


@dataclass(slots=True, eq=False)
class Portion:
    """A range of an island's order under way; tells the controller when its last step is done."""

    run: Execution
    stop: int
    remaining: int
    on_done: Callable[[Portion], None]
    lock: Any

    def step_done(self, count: int = 1) -> None:
        """``count`` more of its steps have ended."""
        with self.lock:
            self.remaining -= count
            over = self.remaining == 0
        if over:
            self.on_done(self)


@dataclass(slots=True, eq=False)
class Launched:
    """A step on its way: what to wait on, and when it was dispatched.

    For an argument, ``route`` says how it travelled and ``source`` where it came from.
    """

    portion: Portion
    step: int
    witness: Any
    dispatched: float
    route: str = ""
    source: Entry | None = None
    ended: float = 0.0
    """When it was seen to have ended, if it was before its turn."""


class Watcher(threading.Thread):
    """Waits for launches in the order of their dispatch.

    Args:
        name: of the thread.
        clock: the controller's.
        on_ended: told how many launches have ended, for flow control.
    """

    def __init__(self, name: str, clock: Clock, on_ended: Callable[[int], None]):
        super().__init__(name=name, daemon=True)
        self.inbox: queue.SimpleQueue[Launched | None] = queue.SimpleQueue()
        self.clock, self.on_ended = clock, on_ended
        self.free_at: dict[int, float] = {}
        self.mean = 1.0
        self._late: list[Callable[[], bool]] = []
        """Transfers that have ended, to be recorded when the end of their source is stamped."""
        self.watched = self.seen = 0

    def run(self) -> None:
        """Watch launches until told to stop."""
        while self._next_batch():
            pass

    def _next_batch(self) -> bool:
        """Watch some; a function of its own, so that no array is held while the thread waits for more."""
        first = self._next()
        if first is None:
            return False
        batch = [first]
        while len(batch) < min(_MOST_AT_ONCE, _WAKE_EVERY / max(self.mean, 1e-9)):
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

    def note_now(self, launched: Launched) -> None:
        """A transfer that had ended when it was dispatched; called by the dispatcher."""
        failure = _wait(launched.witness)
        launched.ended = launched.portion.run.ends[launched.step] = self.clock()
        if not self._note(launched, launched.ended, failure, watched=True, deadline=launched.ended + _PATIENCE):
            self.inbox.put(launched)

    def _next(self) -> Launched | None:
        """The next launch to watch; meanwhile transfers whose source has been stamped by now are recorded."""
        while self._late:
            self._late = [note for note in self._late if not note()]
            try:
                return self.inbox.get(timeout=_WAKE_EVERY)
            except queue.Empty:
                continue
        return self.inbox.get()

    def _watch(self, batch: list[Launched]) -> None:
        began = self.clock()
        failures = [_wait(launched.witness) for launched in reversed(batch)][::-1]
        now = self.clock()
        self.mean += 0.2 * ((now - began) / len(batch) - self.mean)
        self.watched, self.seen = self.watched + 1, self.seen + len(batch)
        first = max([*self.free_at.values(), batch[0].dispatched])
        for position, (launched, failure) in enumerate(zip(batch, failures, strict=True), 1):
            end = now if position == len(batch) else first + (now - first) * position / len(batch)
            self._end(launched, launched.ended or max(end, launched.dispatched), failure, position == len(batch))
        self.on_ended(len(batch))

    def _end(self, launched: Launched, end: float, failure: BaseException | None, watched: bool) -> None:
        run, step = launched.portion.run, launched.step
        run.ends[step] = end
        note = partial(self._note, launched, end, failure, watched, self.clock() + _PATIENCE)
        if not note():
            self._late.append(note)

    def _note(
        self, launched: Launched, end: float, failure: BaseException | None, watched: bool, deadline: float
    ) -> bool:
        """Record a launch, unless its source has ended but is not stamped yet."""
        run, step = launched.portion.run, launched.step
        action = run.lowered.actions[step]
        ready = self._ready_at(launched)
        if ready is None and failure is None and self.clock() < deadline:
            return False
        start = max(ready or 0.0, launched.dispatched)
        if action.call is not None:
            self.free_at.update(dict.fromkeys(action.devices, end))
        status = "failed" if failure else "draining" if run.stopped else "ok"
        quality = "estimated" if watched else "interpolated"
        label = _routed(action.label, launched.route) if launched.route else action.label
        run.record.add(Row(label, min(start, end), end, run.serial, quality, status))
        if failure is not None:
            run.fail(step, run.inherited_error(step) or run.node_error(step, failure))
        else:
            run.mark_done(step)
        launched.portion.step_done()
        return True

    def _ready_at(self, launched: Launched) -> float | None:
        """When the step could begin: its devices are free and what it needs has arrived. ``None``: not known yet."""
        run = launched.portion.run
        action = run.lowered.actions[launched.step]
        if action.call is not None:  # what was made on this island ended before the devices were free
            free = max((self.free_at.get(device, 0.0) for device in action.devices), default=0.0)
            return max([free, *(run.ends.get(producer, 0.0) for producer in action.step.producers)])
        if launched.source is None:
            return max(run.ends[p] for p in action.step.producers) if _all_in(action.step.producers, run.ends) else None
        source = launched.source
        return 0.0 if source.run is None else source.run.ends.get(source.step)


@lru_cache(maxsize=4096)
def _routed(label: Label, route: str) -> Label:
    return replace(label, route=route)


def _all_in(steps: Sequence[int], ends: Mapping[int, float]) -> bool:
    return all(step in ends for step in steps)


def _wait(witness: Any) -> BaseException | None:
    """Wait until an array is computed; the error if it never will be."""
    try:
        witness.block_until_ready()
    except Exception as error:  # whatever the computation raised is the user's to see
        # A later program of the same island took its memory over: it is done when that one is.
        return None if "deleted or donated" in str(error) else error
    return None
