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
from itertools import groupby
from operator import gt, mul, sub
from typing import Any, NamedTuple

from pathways_nb.runtime.local.look_budget import LookBudget
from pathways_nb.runtime.local.watcher import (
    PATIENCE,
    Clock,
    LaunchRange,
    end_step,
    interpolated,
    stamp,
    wait_for,
)
from pathways_nb.runtime.lowering.compiled_steps import ResolvedLaunch
from pathways_nb.runtime.run_state import Execution
from pathways_nb.timing.waits import DATA, LANE, MESSAGE, WINDOW
from pathways_nb.trace.rows import Cause, Label, RowRange

IN_FLIGHT = 24
"""The most launches under way per island: at 32 per device XLA's CPU client blocks, and may starve a collective."""
_TOGETHER = 64
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


Ended = tuple[ResolvedLaunch, Any, float, float]
"""A launch that has ended, the output that tells it, when it was dispatched, and when it had ended; a bare tuple, since
one is made for every node."""


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
        self._of: LaunchRange | None = None
        self._ended: list[Ended] = []
        """Launches of one range whose ends were seen, each by a look of its own, and are not recorded yet. Only the
        dispatcher adds to it without a lock; the watcher's thread takes them while the dispatcher does not look."""
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
        looks = self.budget.share and launch_range is self._of and not self._looking.locked()
        if self.flight or not looks or not _is_ready(witness):
            self.flight.append(Launched(launch_range, launch, witness, dispatched))
            if self.budget.share:
                self.look()
            return
        # The common case of small work, which is over when its call returns. It takes no lock: without launches under
        # way, and while the dispatcher looks, the watcher's thread changes nothing.
        self._ended.append((launch, witness, dispatched, self.clock()))
        if launch.is_urgent or len(self._ended) >= _TOGETHER:
            self.look(records=True)

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
                with self._looking:
                    if not self._launching:
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
            launch_range, launch, witness, dispatched = found[0]
            if ended > 1 or launch_range is not self._of:
                self._record_ends()
            del flight[:ended]
            if ended > 1:
                self._record_together(found, now)
            else:
                self._of = launch_range
                self._ended.append((launch, witness, dispatched, now))
                if launch.is_urgent or len(self._ended) >= _TOGETHER or not self._launching:
                    self._record_ends()
        return ended

    def _record_ends(self) -> None:
        """Record the ends that were seen."""
        if self._ended:
            assert self._of is not None
            ended, self._ended = self._ended, []
            self._record(self._of, ended)
            self._is_free_known = True

    def _record_together(self, found: Sequence[Launched], now: float) -> None:
        """Record launches that one look found to have ended: of those, the last on some devices ended just now."""
        ends = self._interpolated(found, now)
        self._is_free_known = False
        with found[-1].launch_range.run.ended.once():
            for launch_range, group in groupby(zip(found, ends, strict=True), lambda one: one[0].launch_range):
                ended = [(one.launch, one.witness, one.dispatched, end) for one, end in group]
                self._record(launch_range, ended, ["estimated" if end == now else "interpolated" for *_, end in ended])

    def _record(self, launch_range: LaunchRange, ended: Sequence[Ended], qualities: Sequence[str] = ()) -> None:
        """Record launches of a range that have ended.

        Args:
            launch_range: the range.
            ended: they, in their order.
            qualities: how the end of each is known; none for ``"estimated"``.
        """
        run, launches, failures = launch_range.run, [launch for launch, *_ in ended], failures_of(ended)
        starts, ends, whys = self._stamps(run, ended)
        seconds, steps = list(map(sub, ends, starts)), [launch.step for launch in launches]
        launch_range.device_seconds += sum(map(mul, seconds, [launch.width for launch in launches]))
        if self._is_free_known or whys == MESSAGE:  # else they may have begun at another time
            run.compiled_plan.lasts.update(zip(steps, seconds, strict=True))
        run.ends.update(zip(steps, ends, strict=True))
        labels = [launch.label for launch in launches]
        labels = list(map(run.own, labels)) if run.client else labels
        status = "draining" if run.stopped else "ok"
        rows = RowRange(labels, starts, ends, run.serial, qualities or "estimated", status, whys)
        self._last = labels[-1], run.serial
        self.watched += qualities.count("estimated") if qualities else len(steps)
        self.seen += len(steps)
        if failures:
            for row, step, failure in zip(rows, steps, failures, strict=True):
                end_step(run, step, row, failure)
        else:
            run.record.add_range(rows)
            for launch in launches:
                if launch.tells:
                    run.mark_done(launch.step)
                else:
                    run.done[launch.step] = 1
        launch_range.step_done(len(steps))

    def _stamps(
        self, run: Execution, ended: Sequence[Ended]
    ) -> tuple[Sequence[float], Sequence[float], Sequence[int] | int]:
        """Return when launches started and ended, and why each started then; take note of when devices were free."""
        launches, _, dispatched, ends = zip(*ended, strict=True)
        devices, free_at = launches[0].devices, self.free_at
        others = [launch for launch in launches if launch.devices is not devices or launch.waits_for]
        if not others and dispatched[0] > max(free_at[devices]) and all(map(gt, dispatched[1:], ends)):
            free_at[devices] = [ends[-1]] * launches[0].width
            return dispatched, ends, MESSAGE  # small work is dispatched when what was before it has ended
        starts, stamps, whys = list[float](), list[float](), list[int]()
        for launch, begun, end in zip(launches, dispatched, ends, strict=True):
            ready, why = self._released(run, launch)
            starts.append(max(ready, begun))
            whys.append(MESSAGE if begun > ready else why)
            seen = stamp(run, launch.step, max(end, begun)) if launch.waits_for else end
            # What it waited for may have been seen to end after it was: launches of a lane stay in their order.
            stamps.append(max(seen, starts[-1]))
            run.ends[launch.step] = stamps[-1]
            free_at[launch.devices] = [stamps[-1]] * launch.width
        return starts, stamps, whys

    def _interpolated(self, found: Sequence[Launched], now: float) -> list[float]:
        """Return the ends of launches that one look found to have ended: the last on some devices ended just now."""
        ends, weights = [now] * len(found), self._weights(found)
        ready = [max(self._released(one.launch_range.run, one.launch)[0], one.dispatched) for one in found]
        for group in _sharing_devices(found):
            guesses = interpolated([ready[at] for at in group], [weights[at] for at in group], now)
            for at, guess in zip(group[:-1], guesses, strict=False):
                ends[at] = guess
        return ends

    def _weights(self, batch: Sequence[Launched]) -> Sequence[float]:
        """Return the seconds that each took when it was last watched; for one never watched, the mean of the others."""
        known = [launched.launch_range.run.compiled_plan.lasts.get(launched.step) for launched in batch]
        seen = [seconds for seconds in known if seconds is not None]
        usual = sum(seen) / len(seen) if seen else 1.0
        return [max(usual if seconds is None else seconds, 1e-7) for seconds in known]

    def _released(self, run: Execution, launch: ResolvedLaunch) -> tuple[float, int]:
        """Return when it could begin, its devices free and its inputs from elsewhere there, and which came last."""
        ready, why = max(self.free_at[launch.devices]), LANE
        for step in launch.waits_for:
            if (end := run.ends.get(step, 0.0)) >= ready:
                ready, why = end, DATA
        return ready, why


def failures_of(ended: Sequence[Ended]) -> list[BaseException | None]:
    """Wait for launches of one range.

    An output that a later one has read needs no look of its own unless that one failed: each look releases and takes
    Python's lock, which costs more than the launch's whole record.

    Returns:
        The error of each, or ``None``; nothing if none failed.
    """
    steps = {launch.step for launch, *_ in ended}
    unread = [witness for launch, witness, *_ in ended if launch.reader not in steps]
    if any(wait_for(witness) is not None for witness in reversed(unread)):
        return [wait_for(witness) for _, witness, *_ in ended]
    return []


def _is_taken(witness: Any) -> bool:
    """Return whether a later launch has taken the memory of the witness over, which then tells nothing."""
    return bool(getattr(witness, "is_deleted", bool)())


def _is_ready(witness: Any) -> bool:
    try:
        return bool(witness.is_ready())
    except Exception:  # typed keys do not tell; or it was taken over just now, of which JAX's compiler tells
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
