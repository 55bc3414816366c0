"""A fixed order of many tasks, level by level: all tasks of a level are found, and start, in a few operations.

What a task waits for stands in a row: the task before it on a device, then its first producers. So a level reads the
rows of its tasks, however many edges each has; what a task with many producers waits for besides is in a list.

Levels are found from the end: a level holds the tasks that only tasks of later levels wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.sparse import csr_array

_IN_ROW = 3
"""Most producers of a task that stand in its row."""


class LaggedEdges(NamedTuple):
    """What tasks wait for, as columns (edges,): ``target`` starts ``seconds`` after the end of ``source``, or later."""

    source: np.ndarray
    target: np.ndarray
    seconds: np.ndarray

    def select(self, which: np.ndarray) -> Self:
        """Return the edges at these positions, or those for which a mask is true."""
        return type(self)(*(column[which] for column in self))


class Level(NamedTuple):
    """The tasks of a level, and (1 + producers, tasks) tasks that these wait for, one below the other."""

    tasks: np.ndarray
    before: np.ndarray


@dataclass(frozen=True, eq=False)
class WideOrder:
    """Tasks by level, and what they wait for.

    Behind the tasks are two that stand for nothing in rows: one never ends, for a place that is not needed; the other
    has ended at 0, for tasks that wait for nothing.

    Args:
        count: number of tasks.
        levels: in order.
        seconds: from the ends of what stands in rows to the earliest start: (1 + producers, tasks), level by level; or
            (1 + producers, 1), if they are the same for all tasks.
        rest: edges that are in no row, by target.
        first: where those of each task begin in ``rest``, and where the last ones end: (tasks + 1,).
    """

    count: int
    levels: Sequence[Level]
    seconds: np.ndarray
    rest: LaggedEdges
    first: np.ndarray

    @classmethod
    def of(cls, count: int, edges: LaggedEdges, lanes: LaggedEdges) -> Self:
        """Return tasks with their edges; tasks in a circle or before one are on no level.

        Args:
            count: number of tasks.
            edges: between tasks.
            lanes: from each task of a device to its next one; a gang's target is there once for each of its devices.
        """
        lacks = np.bincount(edges.source, minlength=count + 2) + np.bincount(lanes.source, minlength=count + 2)
        most = int(np.bincount(edges.target, minlength=1).max())
        rows = np.full((count, 1 + min(most, _IN_ROW)), count, np.int32)
        found, left = _fill(rows, 0, lanes)
        seconds = [found]
        if len(left.target):  # a gang has the task before it on another device among its producers
            edges = LaggedEdges(*(np.concatenate(both) for both in zip(edges, left, strict=True)))
        for place in range(1, rows.shape[1]):
            found, edges = _fill(rows, place, edges)
            seconds.append(found)
        idle = rows[:, 0] == count
        for place in range(1, rows.shape[1]):
            idle &= rows[:, place] == count
        rows[idle, 0] = count + 1  # a row is filled before anything is left
        by_target, first = group_by_key(edges.target, count)
        rest = edges.select(by_target)
        levels = _levels(rows, lacks.astype(np.int32), rest, first)
        if any(len(one) > 1 for one in seconds):
            tasks = _tasks(levels)
            together = np.stack(
                [one.take(tasks) if len(one) > 1 else np.broadcast_to(one, tasks.shape) for one in seconds]
            )
        else:
            together = np.array(seconds)
        return cls(count, levels, together, rest, first)

    @cached_property
    def tasks(self) -> np.ndarray:
        """All tasks that are on levels, in order."""
        return _tasks(self.levels)

    def evaluate(self, durations: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return when each task starts and ends.

        Args:
            durations: of each task, in seconds.
            gaps: seconds that each task waits longer than its edges make it wait, or one number for all.
        """
        # By level: (tasks,) seconds. Of ends, which other levels read, by task.
        takes, starts, end = durations.take(self.tasks), np.empty(self.count), np.empty(self.count + 2)
        more = gaps.take(self.tasks) if gaps.ndim else None
        end[self.count :] = -np.inf, 0.0
        same, has_rest, stop = self.seconds.shape[1] == 1, len(self.rest.source) > 0, 0
        for tasks, before in self.levels:
            at = slice(stop, stop := stop + len(tasks))
            lets = end.take(before)
            lets += self.seconds if same else self.seconds[:, at]
            let = np.maximum.reduce(lets)
            if has_rest:
                first, after = self.first.take(tasks), self.first.take(tasks + 1)
                places = ranges(first, after)
                lets = end.take(self.rest.source.take(places)) + self.rest.seconds.take(places)
                np.maximum.at(let, np.repeat(np.arange(len(tasks)), after - first), lets)
            let += gaps if more is None else more[at]
            starts[at] = let
            let += takes[at]
            end[tasks] = let
        start = np.empty(self.count)
        start[self.tasks] = starts
        return start, end[: self.count]


def _tasks(levels: Sequence[Level]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.intp), *(level.tasks for level in levels)])


def _levels(rows: np.ndarray, lacks: np.ndarray, rest: LaggedEdges, first: np.ndarray) -> list[Level]:
    """Return the levels, found from the last one on.

    Args:
        rows: of each task, (tasks, 1 + producers) tasks that it waits for; see ``WideOrder``.
        lacks: how many edges from each task, and from each of the two that stand for nothing, are not settled yet.
        rest: see ``WideOrder``.
        first: see ``WideOrder``.
    """
    lacks[len(rows) :] = -1  # what stands for nothing is never settled
    now, found, one = np.flatnonzero(lacks == 0), list[Level](), np.int32(1)
    numbers = np.arange(-2, -2 - rows.size - len(rest.source), -1, dtype=np.int32)
    has_rest = len(rest.source) > 0
    while len(now):  # Kahn's order
        before = rows.take(now, axis=0).T.astype(np.intp, order="C")
        found.append(Level(now, before))
        reached = before.ravel()
        if has_rest:
            reached = np.concatenate([reached, rest.source[ranges(first.take(now), first.take(now + 1))]])
        # ``lacks[reached] -= 1`` would count a task once that several tasks of this level wait for.
        np.subtract.at(lacks, reached, one)
        free = reached.compress(lacks.take(reached) == 0)
        # A task that several tasks of this level wait for is in ``free`` several times: the last one counts.
        lacks[free] = number = numbers[: len(free)]
        now = free.compress(lacks.take(free) == number)
    return found[::-1]


def _fill(rows: np.ndarray, place: int, edges: LaggedEdges) -> tuple[np.ndarray, LaggedEdges]:
    """Put an edge of each target into a place of its row.

    Returns:
        The seconds of these edges by target, or one number if they are the same for all; and the edges that are left.
    """
    source, target, seconds = edges
    rows[target, place] = source
    put, left = np.s_[:], edges.select(np.empty(0, np.intp))
    if np.count_nonzero(rows[:, place] < len(rows)) < len(target):
        # Of several edges into a target the last one was put down. All that is known of it is its number.
        number = np.empty(len(rows), np.intp)
        number[target] = np.arange(len(target))
        last = number.take(target) == np.arange(len(target))
        put, left = last, edges.select(~last)
    if len(seconds) == 0 or (seconds == seconds[0]).all():
        return seconds[:1] if len(seconds) else np.zeros(1), left
    found = np.zeros(len(rows))
    found[target[put]] = seconds[put]
    return found, left


def group_by_key(keys: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of ``keys`` by key, and where each key's begin, and the last one's end.

    A matrix with a one in each row, read by columns: SciPy counts, which for millions is quicker than to sort.

    Args:
        keys: each at least 0 and below ``count``.
        count: number of keys that are possible.
    """
    rows = len(keys)
    ones = csr_array((np.ones(rows, np.int8), keys.astype(np.int32), np.arange(rows + 1)), shape=(rows, count)).tocsc()
    return ones.indices, ones.indptr


def ranges(first: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return all of ``first[0]`` to ``after[0]``, then all of ``first[1]`` to ``after[1]``, and so on."""
    counts = after - first
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(first - ends + counts, counts)
