"""How the ends of an island's launches are recorded: when each started, why then, and when it ended.

What a look of its own found to have ended, ended just then. Of several that one look found, the ends of all but the
last on some devices are interpolated. Ends are recorded some at a time, as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import gt, mul, sub
from typing import Any, NamedTuple

from pathways_nb.runtime.local.watcher import LaunchRange, end_step, interpolated, stamp, wait_for
from pathways_nb.runtime.lowering.compiled_steps import ResolvedLaunch
from pathways_nb.runtime.run_state import RunState
from pathways_nb.timing.waits import DATA, LANE, MESSAGE
from pathways_nb.trace.rows import Label, RowRange

Launched = tuple[LaunchRange, ResolvedLaunch, Any, float]
"""A launch that went out: its range, the launch, the output whose readiness tells its end, and when it was dispatched.
It is a bare tuple, since one is made for every node."""


class LaunchStamps(NamedTuple):
    """Columns (launches,): when they started and ended, why they started then, and how their ends are known."""

    starts: Sequence[float]
    ends: Sequence[float]
    whys: Sequence[int] | int
    qualities: Sequence[str] | str

    def part(self, which: slice) -> LaunchStamps:
        """Return some rows of the columns."""
        whys = self.whys if isinstance(self.whys, int) else self.whys[which]
        qualities = self.qualities if isinstance(self.qualities, str) else self.qualities[which]
        return LaunchStamps(self.starts[which], self.ends[which], whys, qualities)


class LaunchEnds:
    """Records the ends of the launches on an island, in the order in which they are known.

    Args:
        devices: number of devices of the island.
    """

    def __init__(self, devices: int):
        self.seen = self.watched = 0
        """Launches that have ended, and those whose end was seen and is not interpolated."""
        self.free_at = [0.0] * devices
        """When the last launch on each device ended."""
        self.last: tuple[Label | None, int] = None, -1
        """The label of the launch that ended last, and its run."""
        self._is_free_known = False
        """Whether the end of the launch before was seen, so that the start of the next is known."""

    def record(self, ended: Sequence[Launched], seen_at: Sequence[float]) -> None:
        """Record launches that have ended.

        Args:
            ended: the launches, in their order.
            seen_at: for each, the time of the look that found it to have ended; of one look, all have the same.
        """
        if len(ended) == 1:  # somebody waits for it
            start, end, why = self._stamp(ended[0], seen_at[0])
            known, self._is_free_known = self._is_free_known or why == MESSAGE, True
            self._record(ended[0][0], ended, LaunchStamps((start,), (end,), why, "estimated"), known)
            return
        ranges, launches, _, dispatched = zip(*ended, strict=True)
        devices, known = launches[0].devices, False
        if [launch for launch in launches if launch.devices is not devices or launch.waits_for]:
            stamps = self._stamps(ended, seen_at)
        elif dispatched[0] > max(self.free_at[devices]) and all(map(gt, dispatched[1:], seen_at)):
            # The common case of small work: each was dispatched when what was before it had ended.
            stamps, known, self._is_free_known = LaunchStamps(dispatched, seen_at, MESSAGE, "estimated"), True, True
            self.free_at[devices] = [seen_at[-1]] * launches[0].width
        else:
            stamps = self._stamps_of_one_lane(ended, dispatched, seen_at)
            self.free_at[devices] = [stamps.ends[-1]] * launches[0].width
        if ranges[0] is ranges[-1]:
            self._record(ranges[0], ended, stamps, known)
            return
        at = 0
        for launch_range, group in groupby(ranges):
            mine = slice(at, at + len(list(group)))
            self._record(launch_range, ended[mine], stamps.part(mine), known)
            at = mine.stop

    def _stamps(self, ended: Sequence[Launched], seen_at: Sequence[float]) -> LaunchStamps:
        """Return the stamps of launches, and take note of how long they took where that is known."""
        rows, at = list[tuple[float, float, int, str]](), 0
        for now, group in groupby(seen_at):
            found = ended[at : at + len(list(group))]
            at += len(found)
            alone = len(found) == 1
            for one, guess in zip(found, [now] if alone else self._interpolated(found, now), strict=True):
                start, end, why = self._stamp(one, guess)
                if alone and (self._is_free_known or why == MESSAGE):
                    one[0].run.compiled_plan.lasts[one[1].step] = end - start
                rows.append((start, end, why, "estimated" if guess == now else "interpolated"))
            self._is_free_known = alone
        return LaunchStamps(*zip(*rows, strict=True))

    def _stamps_of_one_lane(
        self, ended: Sequence[Launched], dispatched: Sequence[float], seen_at: Sequence[float]
    ) -> LaunchStamps:
        """Return the same for launches on the same devices that waited for nothing else."""
        free, at, ends = max(self.free_at[ended[0][1].devices]), 0, list[float]()
        before, alone = [free], list[int]()
        for now, group in groupby(seen_at):
            found = ended[at : at + len(list(group))]
            if len(found) > 1:
                ready = [max(before[-1], one) for _, _, _, one in found]
                ends += interpolated(ready, _weights(found), now)[:-1]
            elif self._is_free_known or dispatched[at] > before[-1]:
                alone.append(at)
            ends.append(max(now, before[-1]))
            before += ends[at:]
            at, self._is_free_known = len(ends), len(found) == 1
        starts = list(map(max, dispatched, before))
        ends = list(map(max, ends, starts))
        for at in alone:
            ended[at][0].run.compiled_plan.lasts[ended[at][1].step] = ends[at] - starts[at]
        whys = [MESSAGE if mine > other else LANE for mine, other in zip(dispatched, before, strict=False)]
        qualities = ["estimated" if end == now else "interpolated" for end, now in zip(ends, seen_at, strict=True)]
        return LaunchStamps(starts, ends, whys, qualities)

    def _stamp(self, ended: Launched, end: float) -> tuple[float, float, int]:
        """Return when a launch started and ended, and why it started then; take note of when its devices were free."""
        launch_range, launch, _, dispatched = ended
        start, why = self._released(launch_range.run, launch)
        if dispatched > start:
            start, why = dispatched, MESSAGE
        if launch.waits_for:
            end = stamp(launch_range.run, launch.step, max(end, dispatched))
        # What it waited for may have been seen to end after it was: launches of a lane stay in their order.
        end = max(end, start)
        self.free_at[launch.devices] = [end] * launch.width
        launch_range.run.ends[launch.step] = end  # one of those behind it may have waited for it
        return start, end, why

    def _record(self, launch_range: LaunchRange, ended: Sequence[Launched], stamps: LaunchStamps, known: bool) -> None:
        """Record launches of one range.

        Args:
            launch_range: the range.
            ended: they.
            stamps: of them.
            known: whether it is to be noted how long they took.
        """
        run, launches, failures = launch_range.run, [launch for _, launch, *_ in ended], failures_of(ended)
        seconds, steps = list(map(sub, stamps.ends, stamps.starts)), [launch.step for launch in launches]
        launch_range.device_seconds += sum(map(mul, seconds, [launch.width for launch in launches]))
        lasts = run.compiled_plan.lasts
        took = zip(steps, seconds, strict=True)
        lasts.update(took if known else [(step, guess) for step, guess in took if step not in lasts])
        run.ends.update(zip(steps, stamps.ends, strict=True))
        labels = [launch.label for launch in launches]
        labels = list(map(run.own, labels)) if run.client else labels
        self.last = labels[-1], run.serial
        self.seen += len(steps)
        self.watched += len(steps) if isinstance(stamps.qualities, str) else stamps.qualities.count("estimated")
        status = "draining" if run.stopped else "ok"
        rows = RowRange(labels, stamps.starts, stamps.ends, run.serial, stamps.qualities, status, stamps.whys)
        told = [launch.step for launch in launches if launch.tells]
        with run.ended.once() if len(told) > 1 or failures else nullcontext():
            if failures:
                for row, step, failure in zip(rows, steps, failures, strict=True):
                    end_step(run, step, row, failure)
            else:
                run.record.add_range(rows)
                for step in steps:
                    run.done[step] = 1
                for step in told:
                    run.mark_done(step)
        launch_range.step_done(len(steps))

    def _interpolated(self, found: Sequence[Launched], now: float) -> list[float]:
        """Return the ends of launches that one look found to have ended: the last on some devices ended just now."""
        ends, weights = [now] * len(found), _weights(found)
        ready = [max(self._released(one.run, launch)[0], dispatched) for one, launch, _, dispatched in found]
        for group in _sharing_devices(found):
            guesses = interpolated([ready[at] for at in group], [weights[at] for at in group], now)
            for at, guess in zip(group[:-1], guesses, strict=False):
                ends[at] = guess
        return ends

    def _released(self, run: RunState, launch: ResolvedLaunch) -> tuple[float, int]:
        """Return when it could begin, its devices free and its inputs from elsewhere there, and which came last."""
        ready, why = max(self.free_at[launch.devices]), LANE
        for step in launch.waits_for:
            if (end := run.ends.get(step, 0.0)) >= ready:
                ready, why = end, DATA
        return ready, why


def failures_of(ended: Sequence[Launched]) -> list[BaseException | None]:
    """Wait for launches of one range.

    An output that a later one has read needs no look of its own unless that one failed: each look releases and takes
    Python's lock, which costs more than the launch's whole record.

    Returns:
        The error of each, or ``None``; nothing if none failed.
    """
    steps = {launch.step for _, launch, *_ in ended}
    unread = [witness for _, launch, witness, _ in ended if launch.reader not in steps]
    if any(wait_for(witness) is not None for witness in reversed(unread)):
        return [wait_for(witness) for _, _, witness, _ in ended]
    return []


def _weights(found: Sequence[Launched]) -> Sequence[float]:
    """Return the seconds that each took when it was last watched; for one never watched, the mean of the others."""
    known = [one.run.compiled_plan.lasts.get(launch.step) for one, launch, *_ in found]
    seen = [seconds for seconds in known if seconds is not None]
    usual = sum(seen) / len(seen) if seen else 1.0
    return [max(usual if seconds is None else seconds, 1e-7) for seconds in known]


def _sharing_devices(found: Sequence[Launched]) -> Sequence[Sequence[int]]:
    """Return the positions of launches, those together that share devices, with each other or with others of them."""
    groups = list[tuple[slice, list[int]]]()
    for at, (_, launch, *_) in enumerate(found):
        mine, positions = launch.devices, [at]
        for group in groups[:]:
            devices, others = group
            if devices.start < mine.stop and mine.start < devices.stop:
                groups.remove(group)
                mine = slice(min(mine.start, devices.start), max(mine.stop, devices.stop))
                positions += others
        groups.append((mine, positions))
    return [sorted(positions) for _, positions in groups]
