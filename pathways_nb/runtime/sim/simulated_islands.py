"""Virtual time: an agenda of what happens when, and islands of devices that live by it.

They carry out the controller's launches as real islands do: a host enqueues what it is told in that order, each device
runs its launches one after another in the order of enqueues, a launch begins when all its devices are free and all it
needs is there, and what travels takes turns on its link. One event per gang, never one per shard: the cost of a step
does not grow with devices. Nothing here knows JAX, threads or the machine that decides.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from pathways_nb.controller.messages import Launch
from pathways_nb.plan.footprint import overlap
from pathways_nb.plan.plan import Plan, Step
from pathways_nb.util.intervals import Intervals

Rank = tuple[float | str, ...]
"""Of what happens at one time the lowest comes first."""


class EventQueue:
    """A virtual clock, in seconds, and what is to happen when; at one time by rank, then what was put down first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.paused = False
        self._entries: list[tuple[float, Rank, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serials = itertools.count()

    def clock(self) -> float:
        """The time."""
        return self.now

    def at(self, time: float, happen: Callable[..., object], *args: Any, rank: Rank = (1,)) -> None:
        """Put something down."""
        heapq.heappush(self._entries, (time, rank, next(self._serials), happen, args))

    @property
    def next(self) -> float | None:
        """When something happens next, if anything does."""
        return self._entries[0][0] if self._entries else None

    def step(self) -> bool:
        """Let time pass until the next thing has happened; whether there was any."""
        if not self._entries:
            return False
        time, _, _, happen, args = heapq.heappop(self._entries)
        if time > self.now:
            self.now = time
        happen(*args)
        return True

    def clear(self) -> None:
        """Begin anew: nothing is to happen, and it is time 0."""
        self._entries.clear()
        self.now = 0.0

    def run(self, until: float = math.inf) -> bool:
        """Let time pass until what happens sets ``paused``, or nothing more does until then; whether it was paused."""
        entries = self._entries
        while entries and entries[0][0] <= until:
            self.step()
            if self.paused:
                return True
        return False


@dataclass(frozen=True, eq=False)
class TimedPlan:
    """A plan, and how many seconds each of its steps lasts."""

    plan: Plan
    seconds: Sequence[float]

    @cached_property
    def wants(self) -> tuple[tuple[tuple[int, ...], tuple[int, int] | None], ...]:
        """By step: producers it must wait for, and the first of its devices and the one after the last, if it runs."""
        where = {serial: (p.first, p.first + p.count) for serial, p in self.plan.placements.items()}
        return tuple(
            (self._awaited(step), where[step.place] if step.kind == "launch" else None) for step in self.plan.steps
        )

    def _awaited(self, step: Step) -> tuple[int, ...]:
        """Its producers, but for those on devices of its own: they are over when its turn comes there."""
        steps, where = self.plan.steps, self.plan.placements
        if step.kind != "launch":
            return step.producers
        return tuple(
            p for p in step.producers
            if steps[p].kind != "launch" or not overlap(where[steps[p].place], where[step.place])
        )  # fmt: skip

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """By step: those that must wait for it."""
        found: list[list[int]] = [[] for _ in self.plan.steps]
        for index, (producers, _) in enumerate(self.wants):
            for producer in producers:
                found[producer].append(index)
        return tuple(map(tuple, found))


@dataclass(eq=False)
class VirtualRun:
    """One run of a timed plan; ``execution`` is whatever its owner knows it by."""

    serial: int
    timed: TimedPlan
    execution: Any = None
    done: bytearray = field(init=False)
    tasks: dict[int, Task] = field(default_factory=dict)
    """By step: what has been enqueued and has not ended."""

    def __post_init__(self) -> None:
        self.done = bytearray(len(self.timed.plan.steps))


@dataclass(slots=True, eq=False)
class OngoingLaunch:
    """A launch of the controller under way."""

    run: VirtualRun
    launch: Launch
    left: int
    device_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Task:
    """A step on its way.

    Args:
        lacks: what it waits for: producers, turns on its devices, and whatever else its owner counts.
        earliest: when its host has enqueued it. queues: of its devices.
        start: when it began, -1 before. label: see below.
    """

    ongoing: OngoingLaunch
    index: int
    lacks: int
    earliest: float
    queues: Sequence[deque[Task]] = ()
    start: float = -1.0
    label: Any = None
    """What its owner will call it in the record; ``None``: nothing."""


class Owner(Protocol):
    """Who wants to know what the islands do."""

    def prepared(self, task: Task) -> int:
        """What travels was enqueued: how many things it must wait for that no plan tells of (arguments to be made)."""

    def lasts(self, task: Task) -> float:
        """Seconds of a step that is about to begin; 0 for what is not carried out at all."""

    def link(self, task: Task) -> tuple[Sequence[Hashable], float]:
        """All that a transfer takes turns on, and for how many of its seconds it leaves that to the next."""

    def step_ended(self, task: Task) -> None:
        """A step has ended, now."""

    def launch_ended(self, ongoing: OngoingLaunch) -> None:
        """All steps of a launch have."""


class _Island:
    """A host and its devices, cut into runs of devices that all launches so far treat alike: one queue each."""

    def __init__(self) -> None:
        self.host_free = 0.0
        self.queues: Intervals[deque[Task]] = Intervals(deque(), self._split)
        self._known: dict[tuple[int, int], Sequence[deque[Task]]] = {}

    def queues_of(self, devices: tuple[int, int]) -> Sequence[deque[Task]]:
        """Of the devices from the first on, up to the second."""
        found = self._known.get(devices)
        if found is None:
            where = self.queues.between(*devices)
            found = self._known[devices] = self.queues.values[where]
        return found

    def _split(self, queue: deque[Task]) -> deque[Task]:
        """Another one for devices that no longer go with the rest; what is enqueued on both sides is in both."""
        self._known.clear()
        other = deque(queue)
        for task in queue:
            task.queues = (*task.queues, other)
            task.lacks += task is not queue[0]
        return other


class Islands:
    """The hosts and devices of all islands.

    Args:
        agenda: their time. owner: told of all. launch: seconds of a host for each launch that it enqueues.
    """

    def __init__(self, agenda: EventQueue, owner: Owner, launch: float = 0.0):
        self.agenda, self.owner, self.launch = agenda, owner, launch
        self._islands: defaultdict[int, _Island] = defaultdict(_Island)
        self._links: dict[Hashable, float] = {}
        """By link: when it is free."""

    def arrive(self, run: VirtualRun, launch: Launch) -> float:
        """A launch has come to its island's host; returns when the host will have enqueued all of it."""
        ongoing, island = OngoingLaunch(run, launch, launch.stop - launch.start), self._islands[launch.island]
        island.host_free = max(island.host_free, self.agenda.now)
        order = run.timed.plan.orders[launch.island][launch.start : launch.stop]
        tasks = [self._enqueue(ongoing, island, index) for index in order]
        run.tasks.update(zip(order, tasks, strict=True))
        for task in tasks:
            if not task.lacks:
                self._begin(task)
        return island.host_free

    def _enqueue(self, ongoing: OngoingLaunch, island: _Island, index: int) -> Task:
        run = ongoing.run
        producers, devices = run.timed.wants[index]
        task = Task(ongoing, index, 0, self.agenda.now)
        for producer in producers:
            if not run.done[producer]:
                task.lacks += 1
        if devices is None:
            task.lacks += self.owner.prepared(task)
        else:
            task.earliest = island.host_free = island.host_free + self.launch
            task.queues = island.queues_of(devices)
            for queue in task.queues:
                if queue:
                    task.lacks += 1
                queue.append(task)
        return task

    def supply(self, task: Task) -> None:
        """One thing less that a step waits for."""
        task.lacks -= 1
        if not task.lacks:
            self._begin(task)

    def _begin(self, task: Task) -> None:
        """All it waits for is there, but perhaps its host; what travels waits for its turn on the link, too."""
        start = self.agenda.now
        if task.earliest > start:
            self.agenda.at(task.earliest, self._begin, task)
            return
        lasts = self.owner.lasts(task)
        if lasts and not task.queues:
            links, left = self.owner.link(task)
            start = max(start, *(self._links.get(link, 0.0) for link in links))
            self._links.update(dict.fromkeys(links, start + max(lasts - left, 0.0)))
        task.start = start
        self.agenda.at(start + lasts, self._end, task)

    def _end(self, task: Task) -> None:
        ongoing, index = task.ongoing, task.index
        run = ongoing.run
        run.done[index] = 1
        del run.tasks[index]
        self.owner.step_ended(task)
        for queue in task.queues:
            queue.popleft()
            if queue:
                self.supply(queue[0])
        for consumer in run.timed.consumers[index]:
            waiting = run.tasks.get(consumer)
            if waiting is not None:
                self.supply(waiting)
        ongoing.left -= 1
        if not ongoing.left:
            self.owner.launch_ended(ongoing)
