"""A driver on a virtual clock: how long a plan would take, decided by the controller's own core.

No devices and no second scheduler: the machine that orders real gangs is fed the events that devices would report. An
island carries out its order one step at a time, each when its producers are done. Only nodes and messages of the
controller take time here; bringing and moving values takes none.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pathways_nb.controller.machine import Dispatch, Machine
from pathways_nb.controller.messages import Completed, Event, Launch, Submitted
from pathways_nb.program.plan import Plan, Step


@dataclass(frozen=True, slots=True)
class _Task:
    """A step of a run told to an island; the last one of its launch completes that."""

    run: int
    index: int
    launch: Launch
    is_last: bool


class VirtualDriver:
    """Carries out a machine's instructions in virtual time.

    Args:
        machine: the controller's pure core.
        seconds: how long each node lasts, by its id.
        dcn_latency: seconds that a launch takes to its island.
    """

    def __init__(self, machine: Machine, seconds: Mapping[int, float], dcn_latency: float = 0.0):
        self.machine, self.seconds, self.dcn_latency = machine, seconds, dcn_latency
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        """What happens when; the serial in the middle decides between equal times."""
        self._serials = itertools.count()
        self._plans: dict[int, Plan] = {}
        self._orders: dict[int, deque[_Task]] = {}
        """By island: what it has been told and has not begun."""
        self._busy: set[int] = set()
        self._done: set[tuple[int, int]] = set()

    def submit(self, plan: Plan) -> None:
        """A client calls a program now."""
        serial = len(self._plans)
        self._plans[serial] = plan
        self._tell(Submitted(serial, "", plan, (), (), ()))

    def run(self) -> float:
        """Let time pass until nothing is under way; returns it, in seconds since the beginning."""
        while self._agenda:
            self.now, _, happen = heapq.heappop(self._agenda)
            happen()
        return self.now

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._serials), happen))

    def _tell(self, event: Event) -> None:
        for instruction in self.machine.handle(event, self.now):
            if isinstance(instruction, Launch):
                self._after(self.dcn_latency, partial(self._arrive, instruction))

    def _arrive(self, launch: Launch) -> None:
        steps = self._plans[launch.run].orders[launch.island][launch.start : launch.stop]
        tasks = (_Task(launch.run, index, launch, index == steps[-1]) for index in steps)
        self._orders.setdefault(launch.island, deque()).extend(tasks)
        self._begin(launch.island)

    def _begin(self, island: int) -> None:
        """Begin what is next on an island, if it is free and what that needs is there."""
        order = self._orders.get(island)
        if not order or island in self._busy:
            return
        task = order[0]
        step = self._step(task)
        if all((task.run, producer) in self._done for producer in step.producers):
            self._busy.add(island)
            self._after(self._lasts(step), partial(self._end, island, order.popleft()))

    def _end(self, island: int, task: _Task) -> None:
        self._busy.remove(island)
        self._done.add((task.run, task.index))
        if task.is_last:
            self._tell(self._completed(task.launch))
        for other in self._orders:
            self._begin(other)

    def _completed(self, launch: Launch) -> Completed:
        plan = self._plans[launch.run]
        steps = [plan.steps[i] for i in plan.orders[launch.island][launch.start : launch.stop]]
        spent = sum(self._lasts(step) * plan.placements[step.place].count for step in steps)
        return Completed(launch.run, launch.island, launch.start, launch.stop, spent)

    def _step(self, task: _Task) -> Step:
        return self._plans[task.run].steps[task.index]

    def _lasts(self, step: Step) -> float:
        return self.seconds[step.node] if step.kind == "launch" else 0.0


def makespan(plan: Plan, seconds: Mapping[int, float], dispatch: Dispatch, dcn_latency: float = 0.0) -> float:
    """Seconds from the call of a program to the end of its last node.

    Args:
        plan: the program with its placements.
        seconds: how long each node lasts, by its id.
        dispatch: ``"parallel"`` or ``"sequential"`` (Pathways, section 4.5).
        dcn_latency: seconds that a message of the controller takes to an island.
    """
    sizes: dict[int, int] = {}
    for placement in plan.placements.values():
        sizes[placement.island] = max(sizes.get(placement.island, 1), placement.first + placement.count)
    devices = tuple(sizes.get(island, 1) for island in range(max(plan.islands, default=0) + 1))
    driver = VirtualDriver(Machine(dispatch, devices=devices), seconds, dcn_latency)
    driver.submit(plan)
    return driver.run()
