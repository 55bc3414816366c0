"""Loops of timed tasks: a body, how often it runs, and what one pass waits for of the pass before.

A loop of thousands of passes is not unrolled. A task starts at the latest of what it waits for, so once each task has
been shifted by the same seconds twice, and by no less than all that it waits for, the next pass is shifted so again:
what released the task goes on to release it, and nothing overtakes it. Mostly three passes tell, and the rest is exact
without being evaluated. A task of a body may be a loop itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pathways_nb.errors import UsageError, is_index
from pathways_nb.timing.waits import LANE, WHY, Waits

_NEAR = 1e-12
"""Up to which share of the times so far two shifts count as equal: times are sums of many floats."""
_PERIODS = 16
"""The most passes after which passes are looked for that repeat."""


@dataclass(frozen=True, eq=False)
class Body:
    """The tasks of one pass of a loop, each behind all that it waits for.

    Args:
        durations: seconds of each, 0 or more; any such number for a task that is a loop, whose seconds follow from it.
        lanes: of each, the lanes that it takes (a device, a stream, a link), which run one task after another, also
            from pass to pass; several for a gang, at least one.
        waits: within the pass.
        carried: from tasks of the pass before (``source``) to tasks of this one (``target``).
        loops: tasks that are loops, by position. A loop takes its lanes from its begin to its end.

    Raises:
        UsageError: naming the task whose seconds, lanes or waits are wrong.
    """

    durations: np.ndarray
    lanes: Sequence[Sequence[int]]
    waits: Waits
    carried: Waits = field(default_factory=lambda: Waits.of([], [], []))
    loops: Mapping[int, Loop] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.durations)
        if len(self.lanes) != count:
            raise UsageError(f"a body of {count} tasks has lanes for {len(self.lanes)}; give each task its lanes.")
        durations = np.asarray(self.durations, float)
        if len(wrong := np.flatnonzero(~(np.isfinite(durations) & (durations >= 0)))):
            raise UsageError(f"task {wrong[0]} takes {durations[wrong[0]]} s; give seconds of 0 or more.")
        for task, lanes in enumerate(self.lanes):
            if len(set(lanes)) < len(lanes):
                raise UsageError(f"task {task} is on lanes {list(lanes)}, one of them twice; name each once.")
        if bare := [task for task, lanes in enumerate(self.lanes) if not lanes]:
            raise UsageError(f"task {bare[0]} is on no lane; give it one of its own if it may run beside all others.")
        for name, edges in (("waits", self.waits), ("carried", self.carried), ("loops", None)):
            ends = np.array([*self.loops]) if edges is None else np.concatenate([edges.source, edges.target])
            if len(wrong := ends[(ends < 0) | (ends >= count)]):
                raise UsageError(f"{name} speak of task {wrong[0]}, but there are {count} tasks, which count from 0.")
        behind = np.flatnonzero(self.waits.source >= self.waits.target)
        if len(behind):
            source, target = self.waits.source[behind[0]], self.waits.target[behind[0]]
            raise UsageError(f"task {target} waits for task {source}, which does not stand before it; sort the tasks.")

    @cached_property
    def seconds(self) -> np.ndarray:
        """Seconds of each task, those of loops included."""
        found = np.array(self.durations, float)
        for task, loop in self.loops.items():
            found[task] = loop.seconds
        return found

    @cached_property
    def lasting(self) -> list[float]:
        """``seconds`` as a list, of which single ones are read faster."""
        return self.seconds.tolist()

    @cached_property
    def edges(self) -> tuple[list[list[Wait]], list[list[Wait]]]:
        """Of each task, what it waits for in its pass, and in the pass before: lanes included."""
        within: list[list[Wait]] = [[] for _ in self.durations]
        before: list[list[Wait]] = [[] for _ in self.durations]
        for edges, found in ((self.waits, within), (self.carried, before)):
            part = np.ones(len(edges.source)) if edges.part is None else edges.part
            for source, target, *rest in zip(edges.source, edges.target, edges.why, part, edges.lag, strict=True):
                found[target].append(Wait(int(source), int(rest[0]), float(rest[1]), float(rest[2])))
        # By lane, the last task so far. After the loop it is the last one of the pass, which the next pass waits for.
        last = dict[int, int]()
        for task, lanes in enumerate(self.lanes):
            for lane in lanes:
                if lane in last:
                    within[task].append(Wait(last[lane], LANE))
                last[lane] = task
        first = set[int]()
        for task, lanes in enumerate(self.lanes):
            before[task] += [Wait(last[lane], LANE) for lane in lanes if lane not in first]
            first.update(lanes)
        return within, before

    @cached_property
    def columns(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Source and target of all waits in a pass, and of those for the pass before."""
        sides = ([(one.source, task) for task, some in enumerate(side) for one in some] for side in self.edges)
        within, carried = (np.array(pairs, np.intp).reshape(-1, 2).T for pairs in sides)
        return (within[0], within[1]), (carried[0], carried[1])


class Wait(NamedTuple):
    """What one task waits for; fields as the columns of ``Waits``."""

    source: int
    why: int
    part: float = 1.0
    lag: float = 0.0


@dataclass(frozen=True, eq=False)
class Loop:
    """A body that runs several times.

    Args:
        body: the tasks of each pass.
        trips: number of passes.

    Raises:
        UsageError: a negative number of passes.
    """

    body: Body
    trips: int

    def __post_init__(self) -> None:
        if not is_index(self.trips) or self.trips < 0:
            raise UsageError(f"a loop of {self.trips!r} passes; give a whole number, 0 or more.")

    @cached_property
    def seconds(self) -> float:
        """From the begin of the first pass to the end of the last task, which is in the last pass: lanes keep order."""
        if not self.trips or not len(self.body.durations):
            return 0.0
        return float((self.starts(self.trips - 1) + self.body.seconds).max())

    def starts(self, number: int) -> np.ndarray:
        """Return when each task of a pass starts, in seconds since the loop began.

        Args:
            number: of the pass, from 0.

        Raises:
            UsageError: there is no such pass.
        """
        if not is_index(number) or not 0 <= number < self.trips:
            raise UsageError(f"pass {number} of a loop of {self.trips} passes, which count from 0.")
        passes, period = self._evaluated
        if number < len(passes):
            return passes[number]
        # The evaluated pass that is a whole number of periods earlier, shifted by its last shift as many times.
        rounds = -(-(number - len(passes) + 1) // period)
        like = number - rounds * period
        return passes[like] + rounds * (passes[like] - passes[like - period])

    @property
    def evaluated(self) -> int:
        """Number of passes that were evaluated, task by task."""
        return len(self._evaluated[0])

    @cached_property
    def _evaluated(self) -> tuple[list[np.ndarray], int]:
        """The starts of the passes that were evaluated, and after how many they repeat; 0 if all were evaluated."""
        found = list[np.ndarray]()
        while len(found) < self.trips:
            found.append(self._pass(found[-1] if found else None))
            # The shortest period first; more than one where circles over several passes take turns in deciding.
            for period in range(1, min(_PERIODS, (len(found) - 1) // 2) + 1):
                if self._repeats(found, period):
                    return found, period
        return found, 0

    def _repeats(self, passes: Sequence[np.ndarray], period: int) -> bool:
        """Return whether every later pass is shifted against the one ``period`` before as the last ones are."""
        near, last = _NEAR * np.abs(passes[-1]), len(passes) - 1  # of each task: a late one must not hide the drift
        if last < 3 * period - 1:
            return False
        # By pass: (tasks,) seconds by which it starts later than the one a period before.
        shifts = {at: passes[at] - passes[at - period] for at in range(last - 2 * period + 1, last + 1)}
        within, carried = self.body.columns
        for at in range(last - period + 1, last + 1):
            if (np.abs(shifts[at] - shifts[at - period]) > near).any():
                return False
            for (source, target), before in ((within, at), (carried, at - 1)):
                # A source that shifts faster than its target would overtake what releases the target now, sooner or
                # later.
                if (shifts[before][source] > shifts[at][target] + near[target]).any():
                    return False
        return True

    def _pass(self, before: np.ndarray | None) -> np.ndarray:
        """Return when the tasks of a pass start, after those of the pass before."""
        start = list[float]()
        earlier = None if before is None else before.tolist()
        for task in range(len(self.body.durations)):
            start.append(max(self._releases(task, start, earlier), default=(0.0, 0))[0])
        return np.array(start)

    def _releases(self, task: int, start: Sequence[float], earlier: Sequence[float] | None) -> list[tuple[float, int]]:
        """Return when each wait lets a task start, with the reason; of equal times the last reason counts.

        Args:
            task: the task.
            start: of the tasks of its pass in front of it, when they start.
            earlier: the same of all tasks in the pass before; ``None`` in the first one.
        """
        within, carried = self.body.edges
        durations, sides = self.body.lasting, [(start, within[task])]
        if earlier is not None:
            sides.append((earlier, carried[task]))
        return [(one_start[one.source] + one.part * durations[one.source] + one.lag, one.why)
                for one_start, waits in sides for one in waits]  # fmt: skip

    def why(self, number: int, task: int) -> str:
        """Return why a task of a pass starts when it does: a word of ``WHY``, or ``""`` for what waits for nothing.

        Raises:
            UsageError: there is no such pass or task.
        """
        if not is_index(task) or not 0 <= task < len(self.body.durations):
            raise UsageError(f"task {task} of a body of {len(self.body.durations)} tasks, which count from 0.")
        earlier = self.starts(number - 1).tolist() if number else None
        releases = self._releases(task, self.starts(number).tolist(), earlier)
        return WHY[max(releases)[1]] if releases else ""
