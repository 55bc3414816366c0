"""When steps ended: what is under way, how a watcher waits for it, and how ends are recorded.

A step ends when its witness output is ready (error about 0.05 ms at the median, measured). A launch starts at the later
of its dispatch and the end of what ran before on its devices. Ends that were found by one look are interpolated, but
for the last.
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

from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.local.look_budget import LookBudget
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.rows import Row

Clock = Callable[[], float]
PATIENCE = 0.05
"""Seconds to wait for what is sure to come: the launch that took an output over, the stamp of a transfer's source."""


@dataclass(slots=True, eq=False)
class LaunchRange:
    """A range of an island's order under way; calls ``on_done`` when its last step has ended."""

    run: RunState
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
class Sent:
    """A transfer under way: what to wait on, and when it was dispatched.

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
    """

    def __init__(self, name: str, clock: Clock):
        super().__init__(name=name, daemon=True)
        self.inbox: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        self.clock, self.budget = clock, LookBudget()

    def run(self) -> None:
        """Watch until stopped."""
        while self._next_batch():
            pass

    def _next_batch(self) -> bool:
        """Watch some steps.

        It is a function of its own so that no array stays referenced while the thread waits for more.

        Returns:
            Whether there were any.
        """
        first = self._next()
        if first is None:
            return False
        batch = [first]
        while len(batch) < self.budget.at_once and (following := self._following()) is not None:
            batch.append(following)
        self._watch(batch)
        return True

    def _following(self) -> Sent | None:
        """Return the next step, or ``None`` if there is none now."""
        try:
            following = self.inbox.get_nowait()
        except queue.Empty:
            return None
        if following is None:
            self.inbox.put(None)
        return following

    def _watch(self, batch: Sequence[Sent]) -> None:
        """Wait for the last of ``batch``; the ends of the others are interpolated."""
        cpu, failures = thread_time(), [wait_for(launched.witness) for launched in reversed(batch)][::-1]
        now = self.clock()
        with batch[-1].launch_range.run.ended.once():
            ready = [max(self._ready_at(launched) or 0.0, launched.dispatched) for launched in batch]
            guesses = [*interpolated(ready, [1.0] * len(batch), now)[:-1], now]
            for launched, guess, failure in zip(batch, guesses, failures, strict=True):
                end = launched.ended or stamp(launched.launch_range.run, launched.step, max(guess, launched.dispatched))
                watched = launched is batch[-1] or launched.ended
                self._end(launched, end, failure, "estimated" if watched else "interpolated")
        self.budget.looked(len(batch), now, thread_time() - cpu)

    def _next(self) -> Sent | None:
        return self.inbox.get()

    @abstractmethod
    def _ready_at(self, launched: Sent) -> float | None:
        """Return when it could begin; ``None`` if that is not known yet."""

    @abstractmethod
    def _end(self, launched: Sent, end: float, failure: BaseException | None, quality: str) -> None:
        """Record that it ended."""


def end_step(run: RunState, step: int, row: Row, failure: BaseException | None) -> None:
    """Record the end of a step and pass it on; its range still counts it as under way (``LaunchRange.step_done``).

    Args:
        run: that it belongs to.
        step: the step.
        row: its event, as of a step that ended well.
        failure: what it failed with, if it did.
    """
    run.record.add(row._replace(status="failed" if failure is not None else "draining" if run.stopped else "ok"))
    if failure is None:
        run.mark_done(step)
    else:
        run.fail(step, run.inherited_error(step) or run.node_error(step, failure))


def stamp(run: RunState, step: int, seen: float) -> float:
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


def interpolated(ready: Sequence[float], weights: Sequence[float], now: float) -> list[float]:
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


def wait_for(witness: Any) -> BaseException | None:
    """Wait until an array is computed and return the error if it never will be."""
    try:
        witness.block_until_ready()
    except Exception as error:  # whatever the computation raised is the user's to see
        # A later program of the same island took its memory over: ``_lost`` waits for one that tells its end.
        return None if "deleted or donated" in str(error) else error
    return None
