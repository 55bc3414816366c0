"""Islands of devices that carry out launches in simulated time, a queue of events.

Islands follow the rules of real ones: a host enqueues launches in the controller's order, a device runs its launches in
the order of enqueues, a launch begins when all its devices are free and its inputs exist, and transfers over the same
link take turns. A host runs its host work one piece after another, beside its devices.

A launch over many devices is one event, not one per shard, and devices that all launches treat alike share one queue.
So the cost of a simulated step does not grow with the number of devices. Launches that follow one another on the same
devices and wait for nothing else are one task (``timed_plan``); while nothing else happens, many of them pass at once,
as arrays. Nothing here knows JAX, threads or the controller's core: ``SimDriver`` and ``MakespanSimulator`` own the
islands and answer their questions (``IslandsOwner``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import Any, Protocol

import numpy as np

from pathways_nb.controller.events_and_instructions import Launch
from pathways_nb.runtime.sim.timed_plan import HOST, Stretches, TimedPlan
from pathways_nb.timing.event_queue import EventQueue
from pathways_nb.timing.waits import DATA, LANE, LINK, MESSAGE
from pathways_nb.util.intervals import Intervals

_FEW = 8
"""Steps of a stretch that pass one by one rather than as arrays, which would take longer."""


@dataclass(eq=False)
class VirtualRun:
    """One run of a timed plan; ``state`` is the owner's own object for the run."""

    serial: int
    timed: TimedPlan
    state: Any = None
    done: bytearray = field(init=False)
    """By step: whether it has ended."""
    tasks: dict[int, Task] = field(default_factory=dict)
    """By first step: tasks that were enqueued, of which that step has not ended."""

    def __post_init__(self) -> None:
        self.done = bytearray(len(self.timed.plan.steps))


@dataclass(slots=True, eq=False)
class OngoingLaunch:
    """A launch of the controller that is under way.

    Args:
        run: the run that it belongs to.
        launch: the controller's instruction.
        left: number of its steps that have not ended.
        device_seconds: seconds times devices used so far.
    """

    run: VirtualRun
    launch: Launch
    left: int
    device_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Task:
    """A stretch of steps that was enqueued and has not ended; of most kinds of steps, one.

    Args:
        ongoing: its launch.
        index: of the step that is due or under way, in its plan.
        at: the same, in its island's order.
        stop: behind its last step, in its island's order.
        enqueued: when its host has enqueued each of its steps, in seconds; rises.
        lacks: number of conditions it still waits for: producers, the head of each queue, those its owner counts.
        queues: those of its devices, or of its host; empty for a transfer.
        start: when it began, in seconds; -1 before.
    """

    ongoing: OngoingLaunch
    index: int
    at: int
    stop: int
    enqueued: Sequence[float]
    lacks: int = 0
    queues: Sequence[deque[Task]] = ()
    start: float = -1.0
    label: Any = None
    """Its label in the record, set by the owner; ``None`` for a step that is not recorded."""
    why: int = MESSAGE
    """What it waited for last, a position in ``timing.waits.WHY``."""


class IslandsOwner(Protocol):
    """What ``Islands`` asks of its owner, and what it reports."""

    def prepared(self, task: Task) -> int:
        """Return how many conditions an enqueued transfer waits for that its plan does not contain."""

    def lasts(self, task: Task) -> float:
        """Return the seconds of a step that is about to begin; 0 for a step that is not carried out."""

    def link(self, task: Task) -> tuple[Sequence[Hashable], float]:
        """Return the links of a transfer and its latency.

        Latency is the part of its seconds in which it does not occupy the links, so that the next transfer may begin.
        """

    def step_ended(self, task: Task) -> None:
        """Note that a step ends now."""

    def may_pass(self, task: Task) -> bool:
        """Return whether steps may pass at once: no step of the task's run needs a look when it begins or ends."""

    def passed(self, task: Task, steps: np.ndarray, times: np.ndarray) -> None:
        """Note that launches of a task's stretch pass, each from one of (steps + 1,) times to the next."""

    def launch_ended(self, ongoing: OngoingLaunch) -> None:
        """Note that the last step of a launch ends now."""


class _Island:
    """A host and its devices: one queue for each interval of devices that all launches so far treat alike.

    Intervals are cut only where a launch begins or ends inside one. An island of thousands of devices that are always
    used together has a single queue.
    """

    def __init__(self) -> None:
        self.host_free = 0.0
        """When the host has enqueued all launches that have arrived, in seconds."""
        self.queues: Intervals[deque[Task]] = Intervals(deque(), self._split)
        self._host: Sequence[deque[Task]] = (deque(),)
        self._known: dict[tuple[int, int], Sequence[deque[Task]]] = {}

    def queues_of(self, devices: tuple[int, int]) -> Sequence[deque[Task]]:
        """Return the queues of the devices in a half-open interval, and cut intervals at its ends; or the host's."""
        if devices == HOST:
            return self._host
        found = self._known.get(devices)
        if found is None:
            where = self.queues.between(*devices)
            found = self._known[devices] = self.queues.values[where]
        return found

    def _split(self, queue: deque[Task]) -> deque[Task]:
        """Return a second queue with the same tasks, for devices that are cut off from those of ``queue``.

        A task that is not at the head must now reach the head of one more queue.
        """
        self._known.clear()
        other = deque(queue)
        for task in queue:
            task.queues = (*task.queues, other)
            task.lacks += task is not queue[0]
        return other


class Islands:
    """The hosts and devices of all islands.

    Args:
        agenda: simulated time.
        owner: answers questions about steps and is notified of their ends.
        launch: seconds that a host takes to enqueue one launch.
    """

    def __init__(self, agenda: EventQueue, owner: IslandsOwner, launch: float = 0.0):
        self.agenda, self.owner, self.launch = agenda, owner, launch
        self._islands: defaultdict[int, _Island] = defaultdict(_Island)
        self._links: dict[Hashable, float] = {}
        """By link: when it is free, in seconds."""

    def arrive(self, run: VirtualRun, launch: Launch) -> float:
        """Enqueue a launch that has reached its island's host, and return when the host has enqueued all of it."""
        ongoing, island = OngoingLaunch(run, launch, launch.stop - launch.start), self._islands[launch.island]
        island.host_free = max(island.host_free, self.agenda.now)
        order, stops = run.timed.plan.orders[launch.island], run.timed.stretches[launch.island].stops
        at, tasks = launch.start, []
        while at < launch.stop:
            stop = stops[at] if stops[at] < launch.stop else launch.stop
            tasks.append(self._enqueue(ongoing, island, order[at], at, stop))
            at = stop
        run.tasks.update((task.index, task) for task in tasks)
        for task in tasks:
            if not task.lacks:
                self._begin(task)
        return island.host_free

    def _enqueue(self, ongoing: OngoingLaunch, island: _Island, index: int, at: int, stop: int) -> Task:
        """Put a stretch into its devices' queues, and count what it waits for; a transfer has no queue."""
        run = ongoing.run
        producers, devices = run.timed.wants[index]
        task = Task(ongoing, index, at, stop, (self.agenda.now,))
        for producer in producers:
            if not run.done[producer]:
                task.lacks += 1
        if devices is None:
            task.lacks += self.owner.prepared(task)
        else:
            if devices != HOST:  # nothing is enqueued on devices for host work
                island.host_free += self.launch
                # Each one after the one before it; most stretches of other programs are one step.
                more = repeat(self.launch, stop - at - 1)
                task.enqueued = [*accumulate(more, initial=island.host_free)] if stop - at > 1 else (island.host_free,)
                island.host_free = task.enqueued[-1]
            task.queues = island.queues_of(devices)
            for queue in task.queues:
                if queue:
                    task.lacks += 1
                queue.append(task)
        return task

    def supply(self, task: Task, why: int = DATA) -> None:
        """Count one condition less that a step waits for; begin it after the last."""
        task.lacks -= 1
        task.why = why
        if not task.lacks:
            self._begin(task)

    def _begin(self, task: Task) -> None:
        """Begin a step whose conditions hold, after its host has enqueued it; a transfer also waits for its links."""
        start, earliest = self.agenda.now, task.enqueued[task.at - task.stop]
        if earliest > start:
            task.why = MESSAGE
            self.agenda.at(earliest, self._begin, task)
            return
        lasts = self.owner.lasts(task)
        if lasts and not task.queues:
            links, left = self.owner.link(task)
            free = max((self._links.get(link, 0.0) for link in links), default=0.0)
            if free > start:
                start, task.why = free, LINK
            self._links.update(dict.fromkeys(links, start + max(lasts - left, 0.0)))
        task.start = start
        self.agenda.at(start + lasts, self._end, task)

    def _end(self, task: Task) -> None:
        """End a step: start the next one of its stretch or of each queue, and consumers that waited for it only."""
        ongoing, index = task.ongoing, task.index
        run = ongoing.run
        run.done[index] = 1
        run.tasks.pop(index, None)
        self.owner.step_ended(task)
        consumers = run.timed.consumers[index]
        ongoing.left -= 1
        task.at += 1
        if task.at < task.stop:
            if not consumers:
                self._pass(task, run.timed.stretches[ongoing.launch.island])
            task.index, task.why = run.timed.plan.orders[ongoing.launch.island][task.at], LANE
            self._begin(task)
        else:
            for queue in task.queues:
                queue.popleft()
                if queue:
                    self.supply(queue[0], LANE)
        for consumer in consumers:
            waiting = run.tasks.get(consumer)
            if waiting is not None:
                self.supply(waiting)
        if not ongoing.left:
            self.owner.launch_ended(ongoing)

    def _pass(self, task: Task, stretches: Stretches) -> None:
        """Let steps of a stretch begin and end that nothing else can come between, and advance the clock to their end.

        This is the last that is done at a time. The stretch's last step is left, which ends as every other does.
        """
        at, stop = task.at, min(stretches.quiet[task.at], task.stop - 1)
        if stop - at < _FEW:
            return
        now, free_until = self.agenda.now, self.agenda.free_until
        if now + _FEW * task.ongoing.run.timed.seconds[task.index] >= free_until or not self.owner.may_pass(task):
            return
        # Of the stretch's steps, so many have ended; the host has enqueued those up to the one at ``ready`` by now.
        ended = len(task.enqueued) - (task.stop - at)
        ready = bisect_right(task.enqueued, now, lo=ended)
        # One after another, as single steps are added: the same sums to the last bit.
        times = np.add.accumulate(np.concatenate(([now], stretches.seconds[at : min(stop, at + ready - ended)])))
        count = int(np.searchsorted(times[1:], free_until))
        if count:
            self.owner.passed(task, stretches.steps[at : at + count], times[: count + 1])
            np.frombuffer(task.ongoing.run.done, np.uint8)[stretches.steps[at : at + count]] = 1
            task.ongoing.left -= count
            task.at += count
            self.agenda.now = float(times[count])
