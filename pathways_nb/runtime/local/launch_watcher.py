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
from typing import Any, NamedTuple

from pathways_nb.runtime.local.look_budget import LookBudget
from pathways_nb.runtime.local.watcher import (
    PATIENCE,
    Clock,
    LaunchRange,
    failures_of,
    interpolated,
    record_end,
    stamp,
    wait_for,
)
from pathways_nb.runtime.lowering.compiled_plan import ResolvedLaunch
from pathways_nb.timing.waits import DATA, LANE, MESSAGE, WINDOW
from pathways_nb.trace.rows import Cause, Label

IN_FLIGHT = 24
"""The most launches under way per island: at 32 per device XLA's CPU client blocks, and may starve a collective."""
_TOGETHER = 16
"""Ends that are recorded together, unless somebody waits for one."""
_LOOK = 1e-3
"""Seconds between two looks at whether the launch came that took an output over."""


class Launched(NamedTuple):
    """A launch under way.

    Args:
        launch_range: what it is part of.
        launch: it.
        witness: the output that tells its end.
        dispatched: when it was.
    """

    launch_range: LaunchRange
    launch: ResolvedLaunch
    witness: Any
    dispatched: float

    @property
    def step(self) -> int:
        """Its number in the plan."""
        return self.launch.step


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
        self.watched = self.seen = 0
        self.free_at = [0.0] * devices
        """When the last launch on each device ended."""
        self._ended: list[Launched] = []
        self._seen_at: list[float] = []
        """Launches that were seen to have ended, each by a look of its own, and when; not recorded yet."""
        self._is_free_known = False
        """Whether the end of the launch before was seen, so that the start of the next is known."""
        self._last: tuple[Label | None, int] = None, -1
        """The label of the launch that ended last, and its run."""
        self._looking = threading.Lock()
        self._launching = False
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()

    # ---- for the dispatcher

    @property
    def room(self) -> Cause:
        """The launch that ended last, as the cause of what waited for room."""
        return Cause(WINDOW, *self._last)

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
        launched = Launched(launch_range, launch, witness, dispatched)
        if not self.budget.share or not self._looking.acquire(blocking=False):
            self.flight.append(launched)
            return
        try:
            if self.flight or not _is_ready(witness):
                self.flight.append(launched)
                self._look()
            else:  # the common case of small work, which is over when its call returns
                self._see(launched, self.clock())
        finally:
            self._looking.release()

    def look(self, records: bool = False) -> None:
        """Note which launches have ended, without waiting, unless the thread of the watcher is about it.

        Args:
            records: whether to record those that were seen before at once, too.
        """
        if self._looking.acquire(blocking=False):
            try:
                self._look()
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
            with self._looking:
                self._record_ends()  # the wait may be long
            self._wait()

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
                if not self._launching:
                    with self._looking:
                        self._record_ends()
                if not self.flight or (self._launching and goes_on):
                    break
                self._wait()

    def _wait(self) -> None:
        """Wait until some launch has ended: the first, or a later one where a look at each would cost too much."""
        flight, cpu = self.flight[:], time.thread_time()
        most = max(1, math.ceil(self.budget.at_once))
        # Up to the first whose output is still there, from that one on.
        left = (count for count, one in enumerate(flight[most - 1 :], most) if not _is_taken(one.witness))
        most = next(left, len(flight))
        if not most:
            return time.sleep(_LOOK)
        last = flight[most - 1]
        if _is_taken(last.witness):
            self._wait_for_taker(last)
        for one in reversed(flight[:most]):  # those before it on other devices may take longer
            if not (_is_taken(one.witness) or _is_ready(one.witness)):
                wait_for(one.witness)  # tells the end also if the output is taken over meanwhile
        with self._looking:
            known = self.flight.index(last) + 1 if last in self.flight else 0
            found = self._look(known)
        if found:
            self.budget.looked(found, self.clock(), time.thread_time() - cpu)

    def _wait_for_taker(self, taken: Launched) -> None:
        """Wait for the launch that took the last output over, which is sure to come and tells the end."""
        until = time.monotonic() + PATIENCE
        while taken in self.flight and time.monotonic() < until:
            self.look()
            time.sleep(_LOOK)

    def _look(self, known: int = 0) -> int:
        """Take launches that have ended from those under way.

        Args:
            known: the number of the first ones that are known to have ended.

        Returns:
            How many have.
        """
        flight, ended, lost = self.flight, 0, list[slice]()
        for count, launched in enumerate(flight, 1):
            taken = _is_taken(launched.witness)
            if count > known and not taken and not _is_ready(launched.witness):
                break
            if taken or lost:
                lost = _without_end(lost, launched, taken)
            if not lost or count <= known:
                ended = count
        if ended:
            now, found = self.clock(), flight[:ended]
            del flight[:ended]
            if ended == 1:
                self._see(found[0], now)
            else:
                self._record_ends()
                self._record(found, self._interpolated(found, now), is_seen=False)
        return ended

    def _see(self, launched: Launched, now: float) -> None:
        """Note that a launch has ended just now; it is recorded with others, unless somebody may wait for it."""
        launch = launched.launch
        self._ended.append(launched)
        self._seen_at.append(now)
        # A transfer that it has read ended before it did, and may be seen to have ended just after this.
        if len(self._ended) >= _TOGETHER or launch.is_urgent or launch.waits_for or not self._launching:
            self._record_ends()

    def _record_ends(self) -> None:
        """Record what was seen to have ended, each by a look of its own."""
        found, ends = self._ended, self._seen_at
        if found:
            self._ended, self._seen_at = [], []
            self._record(found, ends, is_seen=True)

    def _record(self, found: Sequence[Launched], ends: list[float], is_seen: bool) -> None:
        """Record the ends of launches; unless each was seen, of those only that ended last."""
        failures = failures_of(found)
        self.watched += len(found) if is_seen else ends.count(ends[-1])
        self.seen += len(found)
        self._is_free_known = self._is_free_known and is_seen
        with found[-1].launch_range.run.ended.once():
            ended, count = found[0].launch_range, 0
            for launched, end, failure in zip(found, ends, failures, strict=True):
                if launched.launch_range is not ended:
                    ended.step_done(count)
                    ended, count = launched.launch_range, 0
                count += 1
                self._end(launched, end, failure, "estimated" if is_seen or end == ends[-1] else "interpolated")
            self._is_free_known = is_seen
            ended.step_done(count)

    def _interpolated(self, found: Sequence[Launched], now: float) -> list[float]:
        """Return the ends of launches that one look found to have ended: the last on some devices ended just now."""
        ends, weights = [now] * len(found), self._weights(found)
        ready = [max(self._released(launched)[0], launched.dispatched) for launched in found]
        for group in _sharing_devices(found):
            guesses = interpolated([ready[at] for at in group], [weights[at] for at in group], now)
            for at, guess in zip(group[:-1], guesses, strict=False):
                ends[at] = guess
        return ends

    def _end(self, launched: Launched, end: float, failure: BaseException | None, quality: str) -> None:
        launch_range, launch, _, start = launched
        run, step, devices = launch_range.run, launch.step, launch.devices
        ready, why = self._released(launched)
        start, why = (start, MESSAGE) if start > ready else (ready, why)
        if launch.waits_for or launch.reader in run.ends:
            end = stamp(run, step, max(end, launched.dispatched))
        # What it waited for may have been seen to end after it was: launches of a lane stay in their order.
        run.ends[step] = end = max(end, start)
        self.free_at[devices] = [end] * launch.width
        launch_range.device_seconds += (end - start) * launch.width if end > start else 0.0
        if self._is_free_known:
            run.compiled_plan.lasts[step] = max(end - start, 0.0)
        self._last = record_end(run, step, launch.label, start, end, quality, failure, why), run.serial

    def _weights(self, batch: Sequence[Launched]) -> Sequence[float]:
        """Return the seconds that each took when it was last watched; for one never watched, the mean of the others."""
        known = [launched.launch_range.run.compiled_plan.lasts.get(launched.step) for launched in batch]
        seen = [seconds for seconds in known if seconds is not None]
        usual = sum(seen) / len(seen) if seen else 1.0
        return [max(usual if seconds is None else seconds, 1e-7) for seconds in known]

    def _released(self, launched: Launched) -> tuple[float, int]:
        """Return when it could begin, its devices free and its inputs from elsewhere there, and which came last."""
        launch, free = launched.launch, self.free_at
        ready, why = free[launch.devices.start] if launch.width == 1 else max(free[launch.devices]), LANE
        if launch.waits_for:
            ends = launched.launch_range.run.ends
            for step in launch.waits_for:
                if (end := ends.get(step, 0.0)) >= ready:
                    ready, why = end, DATA
        return ready, why


def _is_taken(witness: Any) -> bool:
    """Return whether a later launch has taken the memory of the witness over, which then tells nothing."""
    return bool(getattr(witness, "is_deleted", bool)())


def _is_ready(witness: Any) -> bool:
    try:
        return bool(getattr(witness, "is_ready", bool)())  # typed keys do not tell
    except Exception:  # it was taken over just now, which JAX tells by an error of its compiler's
        return False


def _sharing_devices(batch: Sequence[Launched]) -> Sequence[Sequence[int]]:
    """Return the positions of launches, those together that share devices, with each other or with others of them."""
    groups = list[tuple[slice, list[int]]]()
    for at, launched in enumerate(batch):
        mine, positions = launched.launch.devices, [at]
        for group in groups[:]:
            devices, others = group
            if devices.start < mine.stop and mine.start < devices.stop:
                groups.remove(group)
                mine = slice(min(mine.start, devices.start), max(mine.stop, devices.stop))
                positions += others
        groups.append((mine, positions))
    return [sorted(positions) for _, positions in groups]


def _without_end(lost: Sequence[slice], launched: Launched, taken: bool) -> list[slice]:
    """Return the devices of launches whose output was taken over, and after which no other ran there.

    Args:
        lost: those before this launch.
        launched: the next one.
        taken: whether its output was taken over; the launch that did so is sure to come.
    """
    mine = launched.launch.devices
    apart = [one for one in lost if one.stop <= mine.start or mine.stop <= one.start]
    return [*apart, mine] if taken else apart
