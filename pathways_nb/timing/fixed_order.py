"""The duration of a schedule of fixed order: the longest path through its tasks, without an event loop.

If every device takes its tasks in a given order, a task begins when the last of those that it waits for has ended: its
producers (and what they send has arrived), and the task before it on each of its devices. An event loop finds the same
times (``runtime.sim.simulated_islands``); here it is a few NumPy operations for each level of the graph, so that a
million tasks take a fraction of a second. A task that several devices carry out together, a gang, is in the order of
each. Where the order depends on time (policies, links that are shared, arrivals), the event loop is needed.

Levels depend on the graph alone and are computed once; an evaluation with other durations reuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from pathways_nb.errors import UsageError
from pathways_nb.timing.waits import DATA, LANE, Waits

_NARROW = 8
"""Average tasks of a level below which a loop over tasks is faster than operations on whole levels."""

_SHOWN = 6
"""Most tasks named in an error."""


class Evaluated(NamedTuple):
    """Seconds at which each task starts and ends, both (tasks,), and at which the last one ends."""

    start: np.ndarray
    end: np.ndarray
    makespan: float


class OrderEdges(NamedTuple):
    """Dependencies: ``target`` starts no sooner than ``seconds`` after the end of ``source``.

    Positions of tasks, one of each for every edge; ``seconds`` is one number for all, or one for each.
    """

    source: ArrayLike
    target: ArrayLike
    seconds: ArrayLike = 0.0


@dataclass(frozen=True, eq=False)
class FixedOrder:
    """Tasks and their dependencies, ready to be evaluated again and again with other durations.

    Args:
        tasks: their positions (tasks,), level by level: all that a task waits for is on levels before its own.
        levels: where each level begins in ``tasks``, and where the last one ends: (levels + 1,).
        first: where the edges into each of ``tasks`` begin, and where the last ones end: (tasks + 1,).
        source: of these edges, (edges,), the place of their source in ``tasks``.
        part: of these edges, after how much of the source's seconds it lets the target start; None where all end first.
        seconds: of these edges, from then to the earliest start of the target.
        why: of these edges, positions in ``waits.WHY``.
    """

    tasks: np.ndarray
    levels: np.ndarray
    first: np.ndarray
    source: np.ndarray
    part: np.ndarray | None
    seconds: np.ndarray
    why: np.ndarray

    @classmethod
    def of(
        cls,
        count: int,
        edges: OrderEdges,
        orders: Sequence[ArrayLike] | np.ndarray,
        name: Callable[[int], str] = "task {}".format,
    ) -> FixedOrder:
        """Return tasks sorted into levels.

        Args:
            count: number of tasks.
            edges: between tasks.
            orders: for each device its tasks, in order.
            name: of a task, for errors.

        Raises:
            UsageError: no such task, or orders that cannot all be kept: the error says which tasks, on which devices.
        """
        # (edges,) columns: those between tasks first, then device by device those of its order.
        waits = _Edges.of(count, edges, orders)
        level = _levels(count, waits)
        if (level < 0).any():
            raise UsageError(_deadlock(waits, level, name))
        # Behind ``first[0]`` come the edges of devices' orders.
        why = np.full(len(waits.source), DATA, np.int8)
        why[waits.first[0] :] = LANE
        tasks, levels = _group_by_key(level, int(level.max(initial=-1)) + 1)
        # (tasks,): the place of each task in ``tasks``. Edges refer to places, so that a level is a slice.
        place = np.empty(count, np.intp)
        place[tasks] = np.arange(count)
        by_target, first = _group_by_key(place[waits.target], count)
        source, seconds, why = (column[by_target] for column in (place[waits.source], waits.seconds, why))
        return cls(tasks, levels, first, source, None, seconds, why)

    @classmethod
    def of_waits(cls, count: int, waits: Waits) -> FixedOrder:
        """Return tasks of which each stands behind all that it waits for, lanes included: a level for each.

        Args:
            count: number of tasks.
            waits: all that they wait for, those of each task together and in its turn.
        """
        first = np.searchsorted(waits.target, np.arange(count + 1))
        return cls(np.arange(count), np.arange(count + 1), first, waits.source, waits.part, waits.lag, waits.why)

    @property
    def waits(self) -> Waits:
        """The edges by positions of tasks."""
        target = np.repeat(self.tasks, np.diff(self.first))
        part = np.ones(len(target)) if self.part is None else self.part
        return Waits(self.tasks[self.source], target, self.why, part, self.seconds)

    def evaluate(self, durations: ArrayLike, gaps: ArrayLike = 0.0) -> Evaluated:
        """Return when each task starts and ends for these durations.

        Args:
            durations: of each task, in seconds.
            gaps: seconds that each task waits longer than its edges make it wait.

        Raises:
            UsageError: not one duration for each task.
        """
        if np.shape(durations) != self.tasks.shape:
            raise UsageError(f"durations of shape {np.shape(durations)}: there are {len(self.tasks)} tasks, one each.")
        # (tasks,) seconds, sorted by level; the results go back to the tasks' own positions.
        lengths, gap = (
            np.broadcast_to(np.asarray(each, float), self.tasks.shape)[self.tasks] for each in (durations, gaps)
        )
        fill = self._by_task if len(lengths) < _NARROW * len(self.levels) else self._by_level
        start, end = np.empty_like(lengths), np.empty_like(lengths)
        start[self.tasks], end[self.tasks] = fill(lengths, gap)
        return Evaluated(start, end, float(end.max(initial=0.0)))

    def _by_level(self, durations: np.ndarray, gap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return start and end of tasks, a level at a time."""
        # (tasks,) seconds, by level. The first level waits for nothing but its gaps.
        start, end = gap.copy(), gap + durations
        bounds, edges = self.levels.tolist(), self.first[self.levels].tolist()
        for level in range(1, len(bounds) - 1):
            now, waits = slice(bounds[level], bounds[level + 1]), slice(edges[level], edges[level + 1])
            source = self.source[waits]
            # ``part`` is None where all edges leave at the ends of their sources, as in most schedules: ends are
            # enough.
            let = end[source] if self.part is None else start[source] + self.part[waits] * durations[source]
            # Each task behind the first level has an edge, so no segment is empty, which reduceat would misread.
            start[now] += np.maximum.reduceat(let + self.seconds[waits], self.first[now] - edges[level])
            end[now] = start[now] + durations[now]
        return start, end

    def _by_task(self, durations: np.ndarray, gap: np.ndarray) -> tuple[list[float], list[float]]:
        """Return start and end of tasks, one at a time; faster where levels are narrow."""
        source, seconds, first = self.source.tolist(), self.seconds.tolist(), self.first.tolist()
        takes, more = durations.tolist(), gap.tolist()
        part = None if self.part is None else self.part.tolist()
        start: list[float] = []
        end: list[float] = []
        for task, lasting in enumerate(takes):
            waits = range(first[task], first[task + 1])
            if part is None:
                let = [end[source[edge]] + seconds[edge] for edge in waits]
            else:
                let = [start[source[edge]] + part[edge] * takes[source[edge]] + seconds[edge] for edge in waits]
            start.append(more[task] + max(let, default=0.0))
            end.append(start[-1] + lasting)
        return start, end


def evaluate(durations: ArrayLike, edges: OrderEdges, orders: Sequence[ArrayLike] | np.ndarray) -> Evaluated:
    """Return when the tasks of a schedule start and end, if every device takes them in its order.

    Args:
        durations: of each task, in seconds.
        edges: between tasks.
        orders: for each device its tasks, in order.

    Raises:
        UsageError: no such task, or orders that cannot all be kept.
    """
    return FixedOrder.of(np.size(durations), edges, orders).evaluate(durations)


class _Edges(NamedTuple):
    """All edges, as columns (edges,): those between tasks, then device by device one from each task to its next."""

    source: np.ndarray
    target: np.ndarray
    seconds: np.ndarray
    first: np.ndarray
    """Where the edges of each device begin, and where the last ones end: (devices + 1,)."""

    @classmethod
    def of(cls, count: int, edges: OrderEdges, orders: Sequence[ArrayLike] | np.ndarray) -> _Edges:
        """Return all edges of tasks, edges and orders.

        Raises:
            UsageError: no such task.
        """
        rows = [_tasks(order, count, f"orders[{device}]") for device, order in enumerate(orders)]
        # (edges,) positions of tasks; of ``n`` tasks of a device, ``n - 1`` edges.
        source, target = _tasks(edges.source, count, "edges"), _tasks(edges.target, count, "edges")
        first = len(source) + np.cumsum([0, *(max(len(row) - 1, 0) for row in rows)])
        seconds = np.zeros(first[-1])
        seconds[: len(source)] = edges.seconds
        source = np.concatenate([source, *(row[:-1] for row in rows)])
        return cls(source, np.concatenate([target, *(row[1:] for row in rows)]), seconds, first)


def _tasks(tasks: ArrayLike, count: int, what: str) -> np.ndarray:
    """Return tasks as an array of positions.

    Raises:
        UsageError: a position that no task has.
    """
    found = np.asarray(tasks, np.intp).ravel()
    if len(found) and (found.min() < 0 or found.max() >= count):
        wrong = found[(found < 0) | (found >= count)][0]
        raise UsageError(f"{what} speak of task {wrong}, but there are {count} tasks, which count from 0.")
    return found


def _group_by_key(keys: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of ``keys`` by key, and where each key's begin, and the last one's end.

    A matrix with a one in each row, read by columns: SciPy counts, which for millions is quicker than to sort.

    Args:
        keys: each at least 0 and below ``count``.
        count: number of keys that are possible.
    """
    rows = len(keys)
    ones = csr_array((np.ones(rows, np.int8), keys.astype(np.int32), np.arange(rows + 1)), shape=(rows, count)).tocsc()
    return ones.indices, ones.indptr


def _levels(count: int, waits: _Edges) -> np.ndarray:
    """Return the level of each task, one above all that it waits for; -1 for tasks in a circle or behind one."""
    # Kahn's order: ``lacks`` has for each task, (tasks,), how many edges into it are not settled yet.
    by_source, first = _group_by_key(waits.source, count)
    target, lacks = waits.target[by_source], np.bincount(waits.target, minlength=count)
    # A device's tasks are all on different levels, so the longest order is a lower bound of the number of levels.
    longest = np.diff(waits.first).max(initial=0)
    fill = _levels_by_task if count < _NARROW * longest else _levels_by_level
    return np.asarray(fill(target, first, lacks))


def _levels_by_level(target: np.ndarray, first: np.ndarray, lacks: np.ndarray) -> np.ndarray:
    """Return the level of each task, a level at a time."""
    level, seen = np.full(len(lacks), -1), np.empty(len(lacks), np.intp)
    now, number = np.flatnonzero(lacks == 0), 0
    while len(now):
        level[now] = number
        reached = target[_ranges(first[now], first[now + 1])]
        # ``lacks[reached] -= 1`` would count a task once that several tasks of this level release.
        np.subtract.at(lacks, reached, 1)
        free = reached[lacks[reached] == 0]
        numbers = np.arange(len(free))
        # A task that several tasks of the level release last is in ``free`` several times.
        seen[free] = numbers
        now, number = free[seen[free] == numbers], number + 1  # duplicates removed: the last one wrote its number
    return level


def _levels_by_task(target: np.ndarray, first: np.ndarray, lacks: np.ndarray) -> list[int]:
    """Return the level of each task, one task at a time; faster where levels are narrow."""
    targets, bounds, left = target.tolist(), first.tolist(), lacks.tolist()
    level = [-1 if lack else 0 for lack in left]
    free = [task for task, lack in enumerate(left) if not lack]
    for task in free:  # the list grows in the loop, level by level
        for reached in targets[bounds[task] : bounds[task + 1]]:
            left[reached] -= 1
            if not left[reached]:
                level[reached] = level[task] + 1
                free.append(reached)
    return level


def _ranges(first: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return all of ``first[0]`` to ``after[0]``, then all of ``first[1]`` to ``after[1]``, and so on."""
    counts = after - first
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(first - ends + counts, counts)


def _deadlock(waits: _Edges, level: np.ndarray, name: Callable[[int], str]) -> str:
    """Return the text of an error that names some tasks that wait for each other.

    Args:
        waits: all edges.
        level: of each task, -1 for those that cannot start.
        name: of a task.
    """
    # Every task without a level waits for one without a level, so going back along such edges must meet a task again.
    stuck = np.flatnonzero((level[waits.source] < 0) & (level[waits.target] < 0))
    before = dict(zip(waits.target[stuck].tolist(), stuck.tolist(), strict=True))
    task, path = next(iter(before)), dict[int, int]()
    while task not in path:
        path[task] = len(path)
        task = int(waits.source[before[task]])
    circle = list(path)[path[task] :]
    lines = [f"{name(task)} waits for {_why(waits, before[task], name)}" for task in circle[:_SHOWN]]
    more = f"; and so on, {len(circle)} tasks in all" if len(circle) > _SHOWN else ""
    return (
        f"The orders cannot all be kept, tasks would wait for each other for ever: {'; '.join(lines)}{more}. "
        f"Change the order on one of these devices."
    )


def _why(waits: _Edges, edge: int, name: Callable[[int], str]) -> str:
    """Return the source of an edge in words, with the reason why its target waits for it."""
    device = int(np.searchsorted(waits.first, edge, side="right")) - 1
    why = f"before it on device {device}" if device >= 0 else "whose output it needs"
    return f"{name(int(waits.source[edge]))} ({why})"
