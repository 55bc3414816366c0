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
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pathways_nb.errors import UsageError
from pathways_nb.timing.waits import DATA, LANE, Waits
from pathways_nb.timing.wide_order import LaggedEdges, WideOrder, group_by_key

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
        edges: all that they wait for, lanes included.
        count: number of tasks.
        order: their positions, each behind all that it waits for.
        wide: levels of them instead, where these are wide.
    """

    edges: _Edges | Waits
    count: int
    order: Sequence[int] = ()
    wide: WideOrder | None = None

    @classmethod
    def of(
        cls,
        count: int,
        edges: OrderEdges,
        orders: Sequence[ArrayLike] | np.ndarray,
        name: Callable[[int], str] = "task {}".format,
    ) -> FixedOrder:
        """Return tasks in an order in which each is behind all that it waits for.

        Args:
            count: number of tasks.
            edges: between tasks.
            orders: for each device its tasks, in order.
            name: of a task, for errors.

        Raises:
            UsageError: no such task, or orders that cannot all be kept: the error says which tasks, on which devices.
        """
        found = _Edges.of(count, edges, orders)
        # A device's tasks are all on different levels, so the longest order is a lower bound of the number of levels.
        if count < _NARROW * np.diff(found.first).max(initial=0):
            order = cls(found, count, _one_by_one(found))
        else:
            wide = found.wide()
            narrow = count < _NARROW * len(wide.levels)
            order = cls(found, count, wide.tasks.tolist()) if narrow else cls(found, count, (), wide)
        if (len(order.order) if order.wide is None else sum(len(level.tasks) for level in order.wide.levels)) < count:
            raise UsageError(_deadlock(found, name))
        return order

    @classmethod
    def of_waits(cls, count: int, waits: Waits) -> FixedOrder:
        """Return tasks of which each stands behind all that it waits for, lanes included.

        Args:
            count: number of tasks.
            waits: all that they wait for, those of each task together and in its turn.
        """
        return cls(waits, count, range(count))

    @cached_property
    def waits(self) -> Waits:
        """The edges, those of each task together: those between tasks first, then those of devices' orders."""
        return self.edges if isinstance(self.edges, Waits) else self.edges.waits()

    @cached_property
    def _first(self) -> list[int]:
        """Where the edges of each task begin in ``waits``, and where the last ones end: (tasks + 1,)."""
        return np.searchsorted(self.waits.target, np.arange(self.count + 1)).tolist()

    def evaluate(self, durations: ArrayLike, gaps: ArrayLike = 0.0) -> Evaluated:
        """Return when each task starts and ends for these durations.

        Args:
            durations: of each task, in seconds.
            gaps: seconds that each task waits longer than its edges make it wait.

        Raises:
            UsageError: not one duration for each task.
        """
        if np.shape(durations) != (self.count,):
            raise UsageError(f"durations of shape {np.shape(durations)}: there are {self.count} tasks, one each.")
        # (tasks,) seconds; of gaps also one number for all
        takes, more = np.asarray(durations, float), np.asarray(gaps, float)
        more = np.broadcast_to(more, takes.shape) if more.ndim else more
        if self.wide is not None:
            start, end = self.wide.evaluate(takes, more)
        else:
            start, end = map(np.array, self._by_task(takes.tolist(), np.broadcast_to(more, takes.shape).tolist()))
        return Evaluated(start, end, float(end.max(initial=0.0)))

    def _by_task(self, takes: Sequence[float], more: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return start and end of tasks, one at a time; faster where levels are narrow."""
        waits, first = self.waits, self._first
        source, seconds = waits.source.tolist(), waits.lag.tolist()
        # ``part`` is None where all edges leave at the ends of their sources, as in most schedules: ends are enough.
        part = None if waits.part is None else waits.part.tolist()
        start, end = [0.0] * len(takes), [0.0] * len(takes)
        for task in self.order:
            edges = range(first[task], first[task + 1])
            if part is None:
                let = [end[source[edge]] + seconds[edge] for edge in edges]
            else:
                let = [start[source[edge]] + part[edge] * takes[source[edge]] + seconds[edge] for edge in edges]
            start[task] = more[task] + max(let, default=0.0)
            end[task] = start[task] + takes[task]
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
    """All edges: those between tasks, as columns (edges,), and the orders of devices, one behind the other."""

    tasks: int
    """Number of tasks."""
    source: np.ndarray
    target: np.ndarray
    seconds: np.ndarray
    order: np.ndarray
    """Tasks of each device, in its order."""
    first: np.ndarray
    """Where the tasks of each device begin in ``order``, and where the last ones end: (devices + 1,)."""

    @classmethod
    def of(cls, count: int, edges: OrderEdges, orders: Sequence[ArrayLike] | np.ndarray) -> _Edges:
        """Return all edges of tasks, edges and orders.

        Raises:
            UsageError: no such task.
        """
        if isinstance(orders, np.ndarray) and orders.ndim == 2:
            order, first = _tasks(orders, count, "orders"), np.arange(len(orders) + 1) * orders.shape[1]
        else:
            rows = [_tasks(each, count, f"orders[{device}]") for device, each in enumerate(orders)]
            order, first = np.concatenate([np.empty(0, np.intp), *rows]), np.cumsum([0, *map(len, rows)])
        source, target = _tasks(edges.source, count, "edges"), _tasks(edges.target, count, "edges")
        seconds = np.broadcast_to(np.asarray(edges.seconds, float).ravel(), source.shape)
        return cls(count, source, target, seconds, order, first)

    @property
    def lanes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """From each task of a device to its next: source and target, (lane edges,), and where each device's begin."""
        inner = np.ones(max(len(self.order) - 1, 0), bool)
        inner[self.first[(self.first > 0) & (self.first < len(self.order))] - 1] = False
        first = np.concatenate([[0], np.cumsum(np.maximum(np.diff(self.first) - 1, 0))])
        return self.order[:-1][inner], self.order[1:][inner], first

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """Return source and target of all edges, those of devices' orders last."""
        source, target, _ = self.lanes
        return np.concatenate([self.source, source]), np.concatenate([self.target, target])

    def waits(self) -> Waits:
        """Return all edges by target; of one target, those of devices' orders last."""
        source, target = self.whole()
        why, seconds = np.full(len(source), DATA, np.int8), np.zeros(len(source))
        why[len(self.source) :], seconds[: len(self.source)] = LANE, self.seconds
        by_target, _ = group_by_key(target, self.tasks)
        return Waits(source[by_target], target[by_target], why[by_target], None, seconds[by_target])

    def wide(self) -> WideOrder:
        """Return the edges as rows of the tasks."""
        source, target, _ = self.lanes
        lanes = LaggedEdges(source, target, np.broadcast_to(0.0, source.shape))
        return WideOrder.of(self.tasks, LaggedEdges(self.source, self.target, self.seconds), lanes)


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


def _one_by_one(edges: _Edges) -> list[int]:
    """Return tasks behind all that they wait for, one at a time; faster where levels are narrow.

    Those in a circle or behind one are left out.
    """
    # Kahn's order: ``left`` has for each task how many edges into it are not settled yet.
    source, target = edges.whole()
    by_source, first = group_by_key(source, edges.tasks)
    targets, bounds = target[by_source].tolist(), first.tolist()
    left = np.bincount(target, minlength=edges.tasks).tolist()
    free = [task for task, lack in enumerate(left) if not lack]
    for task in free:  # the list grows in the loop, level by level
        for reached in targets[bounds[task] : bounds[task + 1]]:
            left[reached] -= 1
            if not left[reached]:
                free.append(reached)
    return free


def _deadlock(edges: _Edges, name: Callable[[int], str]) -> str:
    """Return the text of an error that names some tasks that wait for each other.

    Args:
        edges: all edges.
        name: of a task.
    """
    source, target = edges.whole()
    waits = np.ones(edges.tasks, bool)
    waits[_one_by_one(edges)] = False
    # Every task that cannot start waits for one that cannot, so going back along such edges must meet a task again.
    stuck = np.flatnonzero(waits[source] & waits[target])
    before = dict(zip(target[stuck].tolist(), stuck.tolist(), strict=True))
    task, path = next(iter(before)), dict[int, int]()
    while task not in path:
        path[task] = len(path)
        task = int(source[before[task]])
    circle = list(path)[path[task] :]
    lines = [
        f"{name(task)} waits for {name(int(source[before[task]]))} ({_why(edges, before[task])})"
        for task in circle[:_SHOWN]
    ]
    more = f"; and so on, {len(circle)} tasks in all" if len(circle) > _SHOWN else ""
    return (
        f"The orders cannot all be kept, tasks would wait for each other for ever: {'; '.join(lines)}{more}. "
        f"Change the order on one of these devices."
    )


def _why(edges: _Edges, edge: int) -> str:
    """Return why the target of an edge waits for its source, in words."""
    if edge < len(edges.source):
        return "whose output it needs"
    device = int(np.searchsorted(edges.lanes[2], edge - len(edges.source), side="right")) - 1
    return f"before it on device {device}"
