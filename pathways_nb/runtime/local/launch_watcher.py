"""The launches of an island that are under way, and when each ended.

The island's dispatcher looks between two launches: in its own thread a look costs less than a microsecond, where
another thread would take Python's lock from it. When it has nothing to launch, the watcher's thread looks instead. Ends
are recorded some at a time, and at once where somebody may wait for one.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pathways_nb.runtime.local.launch_ends import Launched, LaunchEnds
from pathways_nb.runtime.local.look_budget import LookBudget
from pathways_nb.runtime.local.watcher import PATIENCE, Clock, LaunchRange, wait_for
from pathways_nb.runtime.lowering.compiled_steps import ResolvedLaunch
from pathways_nb.runtime.run_state import is_computed
from pathways_nb.timing.waits import WINDOW
from pathways_nb.trace.rows import Cause

IN_FLIGHT = 24
"""The most launches under way per island: at 32 per device XLA's CPU client blocks, and may starve a collective."""
_TOGETHER = 64
"""Ends that are recorded together, unless somebody waits for one."""
_LOOK = 1e-3
"""Seconds between two looks at whether the launch came that took an output over."""


class LaunchWatcher(threading.Thread):
    """Watches the launches on one island.

    Args:
        name: of the thread.
        clock: the controller's clock, in seconds.
        devices: number of devices of the island.
    """

    def __init__(self, name: str, clock: Clock, devices: int):
        super().__init__(name=name, daemon=True)
        self.clock, self.budget = clock, LookBudget()
        self.flight: list[Launched] = []
        """Launches that have not been seen to have ended, in their order; only the dispatcher adds to it."""
        self.window = IN_FLIGHT
        """The most launches under way."""
        self.ends = LaunchEnds(devices)
        self._ended: list[Launched] = []
        self._seen_at: list[float] = []
        """Launches that were found to have ended, and when, and are not recorded yet. Only the dispatcher adds to them
        without a lock; the watcher's thread takes them while the dispatcher does not look."""
        self._unasked = 0
        """Launches still to go out before the dispatcher looks again, where a look at each would cost too much."""
        self._is_awaited = False
        """Whether somebody may wait for one of the launches under way: then the dispatcher looks at each."""
        self._looking = threading.Lock()
        self._launching = False
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()

    # ---- for the dispatcher

    @property
    def room(self) -> Cause:
        """The launch that ended last, as the cause of what waited for room."""
        return Cause(WINDOW, *self.ends.last)

    def begin(self) -> None:
        """From now on the dispatcher looks."""
        self._launching = True

    def end(self) -> None:
        """From now on, until ``begin``, the watcher's thread looks, if there is anything under way."""
        self._launching = False
        self.look(records=True)  # also if others are under way, which may take long
        if self.flight or self._ended:
            self._calls.put(True)

    def add(self, launch_range: LaunchRange, launch: ResolvedLaunch, witness: Any, dispatched: float) -> None:
        """Watch a launch that was dispatched after all others, and look which have ended."""
        launched = launch_range, launch, witness, dispatched
        if self.flight or self._looking.locked() or not self.budget.share or not is_computed(witness):
            self.flight.append(launched)
            self._is_awaited = self._is_awaited or launch.is_urgent
            self._unasked -= 1
            if (self._unasked <= 0 or self._is_awaited) and self.budget.share:
                self._unasked = math.ceil(self.budget.at_once)
                self.look()
            return
        # The common case of small work, which is over when its call returns. It takes no lock: without launches under
        # way, and while the dispatcher looks, the watcher's thread changes nothing.
        self._ended.append(launched)
        self._seen_at.append(self.clock())
        if launch.is_urgent or len(self._ended) >= _TOGETHER:
            self.look(records=True)

    def look(self, records: bool = False) -> None:
        """Note which launches have ended, without waiting, unless the thread of the watcher is about it.

        Args:
            records: whether to record those that were seen before at once, too.
        """
        if self._looking.acquire(blocking=False):
            try:
                self._take(self._look())
                if records:
                    self._record_ends()
            finally:
                self._looking.release()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Leave the looking to the watcher's thread while the dispatcher does something that may take long."""
        self.end()
        try:
            yield
        finally:
            self.begin()

    @property
    def is_full(self) -> bool:
        """Whether as many launches are under way as may be."""
        return len(self.flight) >= self.window

    def wait_for_room(self) -> None:
        """Wait until fewer launches are under way than may be."""
        while self.is_full:
            if not all(one.run.compiled_plan.was_short(launch.step) for one, launch, *_ in self.flight[:]):
                with self._looking:
                    self._record_ends()  # the wait may be long
            self._wait()
        self._unasked = math.ceil(self.budget.at_once)  # the wait was a look, too

    def stop(self) -> None:
        """End when what is under way has ended."""
        self._launching = False
        self._calls.put(False)

    # ---- ends

    def run(self) -> None:
        """Look whenever the dispatcher does not, until stopped."""
        goes_on = True
        while goes_on:
            goes_on = self._calls.get()
            while True:
                with self._looking:
                    if not self._launching:
                        self._record_ends()
                if not self.flight or (self._launching and goes_on):
                    break
                self._wait()

    def _wait(self) -> None:
        """Wait until some launch has ended: the first, or a later one where a look at each would cost too much.

        None that takes long is waited for together with those before it: somebody may wait for them.
        """
        flight, cpu = self.flight[:], time.thread_time()
        most = max(1, math.ceil(self.budget.at_once))
        if self.budget.share:
            long = (
                at for at, one in enumerate(flight[1:most], 1) if not one[0].run.compiled_plan.was_short(one[1].step)
            )
            most = next(long, most)
        # Up to the first whose output is still there, from that one on.
        left = (count for count, one in enumerate(flight[most - 1 :], most) if not _is_taken(one[2]))
        most = next(left, len(flight))
        if not most:
            return time.sleep(_LOOK)
        last = flight[most - 1]
        if _is_taken(last[2]):
            self._wait_for_taker(last)
        for one in reversed(flight[:most]):
            elsewhere = one is last or one[1].devices is not last[1].devices  # where those before it may take longer
            if elsewhere and not _is_taken(one[2]):
                wait_for(one[2])  # tells the end also if the output is taken over meanwhile
        with self._looking:
            found = self.flight.index(last) + 1 if last in self.flight else self._look()
            self._take(found)
        if found:
            self.budget.looked(found, self.clock(), time.thread_time() - cpu)

    def _wait_for_taker(self, taken: Launched) -> None:
        """Wait for the launch that took the last output over, which is sure to come and tells the end."""
        until = time.monotonic() + PATIENCE
        while taken in self.flight and time.monotonic() < until:
            self.look()
            time.sleep(_LOOK)

    def _look(self) -> int:
        """Return how many of the launches under way have ended: those up to the first that still runs."""
        ended, lost = 0, list[slice]()
        for count, (_, launch, witness, _) in enumerate(self.flight, 1):
            taken = _is_taken(witness)
            if not taken and not is_computed(witness):
                break
            if taken or lost:
                lost = _without_end(lost, launch.devices, taken)
            if not lost:
                ended = count
        return ended

    def _take(self, ended: int) -> None:
        """Take the first launches from those under way, since they have ended."""
        if ended:
            found = self.flight[:ended]
            self._ended += found
            self._seen_at += [self.clock()] * ended
            is_urgent = any([launch.is_urgent for _, launch, *_ in found])
            if is_urgent or not self._launching or len(self._ended) >= _TOGETHER:
                self._record_ends()
            if is_urgent:
                self._is_awaited = any([launch.is_urgent for _, launch, *_ in self.flight[ended:]])
            del self.flight[:ended]  # last: from now on the dispatcher may note ends

    def _record_ends(self) -> None:
        """Record what was found to have ended."""
        if self._ended:
            ended, seen_at = self._ended, self._seen_at
            self._ended, self._seen_at = [], []
            self.ends.record(ended, seen_at)


def _is_taken(witness: Any) -> bool:
    """Return whether a later launch has taken the memory of the witness over, which then tells nothing."""
    return bool(getattr(witness, "is_deleted", bool)())


def _without_end(lost: Sequence[slice], mine: slice, taken: bool) -> list[slice]:
    """Return the devices of launches whose output was taken over, and after which no other ran there.

    Args:
        lost: those before this launch.
        mine: those of the next one.
        taken: whether its output was taken over; the launch that did so is sure to come.
    """
    apart = [one for one in lost if one.stop <= mine.start or mine.stop <= one.start]
    return [*apart, mine] if taken else apart
