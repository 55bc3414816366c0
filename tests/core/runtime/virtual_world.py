"""Random launches on islands in virtual time, and what must come of them: worked out step by step, without an agenda."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from pathways_nb.controller.events_and_instructions import Launch
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.plan import Placement, Plan, Slot, Step, host_of
from pathways_nb.runtime.sim.simulated_islands import Islands, OngoingLaunch, Task, VirtualRun
from pathways_nb.runtime.sim.timed_plan import TimedPlan
from pathways_nb.timing.event_queue import EventQueue

ISLANDS, DEVICES = 3, 4
Key = tuple[int, int]
"""A run and one of its steps."""


@dataclass
class World:
    """What arrives when at which island, and how long everything lasts.

    Args:
        plans, seconds: of each run. arrivals: in order of time. launch: seconds of a host for each launch.
        late: arguments that are made elsewhere, and when. leaves: of a link's seconds, how many it gives to the next.
    """

    plans: Sequence[Plan]
    seconds: Sequence[Sequence[float]]
    arrivals: Sequence[tuple[float, Launch]]
    launch: float
    late: Mapping[Key, float]
    leaves: float = 0.0


def plan_of(steps: Sequence[tuple[str, int, Sequence[int]]], places: Mapping[int, Placement]) -> Plan:
    """Steps as (kind, place, the steps it reads)."""
    made = tuple(
        Step(kind, at, place, places[place].island, tuple(reads), (at,), producers=tuple(reads),  # type: ignore[arg-type]
             argument=0 if kind == "bring" else -1)
        for at, (kind, place, reads) in enumerate(steps)
    )  # fmt: skip
    islands = sorted({step.island for step in made})
    orders = {island: tuple(at for at, step in enumerate(made) if step.island == island) for island in islands}
    slots = tuple(Slot(at, step.place) for at, step in enumerate(made))
    return Plan(Graph("plan", (), ()), dict(places), slots, made, orders, (), {})


def random_world(seed: int, many: int = 0) -> World:
    """Runs whose places overlap; their launches take turns, in orders that all islands agree on.

    Args:
        seed: of the world.
        many: how often most launches follow on the same places.
    """
    rng = random.Random(seed)
    places = {number: _random_place(rng) for number in range(6)}
    places |= {host_of(island): Placement(island, 0, 0) for island in range(ISLANDS)}
    plans = [_random_plan(rng, places, many) for _ in range(rng.randint(1, 4))]
    seconds = [[_random_seconds(rng, step) for step in plan.steps] for plan in plans]
    late = {
        (run, at): 5 * rng.random()
        for run, plan in enumerate(plans)
        for at, step in enumerate(plan.steps)
        if step.kind == "bring" and rng.random() < 0.5
    }
    return World(
        plans, seconds, _random_arrivals(rng, plans, many), rng.choice((0.0, 0.1)), late, rng.choice((0.0, 0.2))
    )


def _random_seconds(rng: random.Random, step: Step) -> float:
    """Only what is there already takes no time: so that no two transfers are ready at one time by chance."""
    return 0.0 if step.kind == "bring" and rng.random() < 0.4 else rng.random()


def _random_place(rng: random.Random) -> Placement:
    count = rng.randint(1, DEVICES)
    return Placement(rng.randrange(ISLANDS), rng.randint(0, DEVICES - count), count)


def _random_plan(rng: random.Random, places: Mapping[int, Placement], many: int) -> Plan:
    steps: list[tuple[str, int, Sequence[int]]] = []
    for at in range(rng.randint(1, 9)):
        launched = [other for other, (kind, *_) in enumerate(steps) if kind in ("launch", "host")]
        kind = rng.choice(("launch", "launch", "host", "bring", "move") if launched else ("launch", "host", "bring"))
        reads: Sequence[int] = ()
        if kind != "bring":
            reads = (
                [rng.choice(launched)] if kind == "move" else sorted(rng.sample(range(at), rng.randint(0, min(at, 3))))
            )
        place = host_of(rng.randrange(ISLANDS)) if kind == "host" else rng.randrange(6)
        steps.append((kind, place, reads))
        if kind == "launch":
            steps += [("launch", place, ())] * rng.randint(0, many)
    return plan_of(steps, places)


def _random_arrivals(rng: random.Random, plans: Sequence[Plan], many: int) -> list[tuple[float, Launch]]:
    """Runs take turns: a few steps of one at once, a launch for each island that they are on."""
    told, sent = [0] * len(plans), defaultdict[Key, int](int)
    clocks = [0.0] * ISLANDS
    found = []
    while able := [run for run, plan in enumerate(plans) if told[run] < len(plan.steps)]:
        run = rng.choice(able)
        steps = plans[run].steps[told[run] : told[run] + rng.randint(1, 4 + many)]
        told[run] += len(steps)
        for island, count in Counter(step.island for step in steps).items():
            clocks[island] += rng.choice((0.0, rng.random()))
            start = sent[run, island]
            sent[run, island] += count
            found.append((clocks[island], Launch(run, island, start, start + count)))
    return sorted(found, key=lambda arrival: arrival[0])


@dataclass
class Played:
    """An owner that remembers what islands tell it."""

    world: World
    agenda: EventQueue = field(default_factory=EventQueue)
    spans: dict[Key, tuple[float, float]] = field(default_factory=dict)
    ended: list[Launch] = field(default_factory=list)
    judged: dict[Key, float] = field(default_factory=dict)
    """When islands asked what becomes of a step."""
    entries: int = 0
    """How many things happened."""
    at_once: bool = False
    """Whether steps may pass at once."""
    together: int = 0
    """How many did."""

    def play(self) -> Played:
        """Let everything happen."""
        self.islands = Islands(self.agenda, self, self.world.launch)
        runs = [
            VirtualRun(number, TimedPlan(plan, self.world.seconds[number]))
            for number, plan in enumerate(self.world.plans)
        ]
        for time, launch in self.world.arrivals:
            self.agenda.at(time, self.islands.arrive, runs[launch.run], launch)
        if self.at_once:
            self.agenda.run()
        while self.agenda.step():
            self.entries += 1
        assert not any(run.tasks for run in runs)
        assert all(all(run.done) for run in runs)
        return self

    def prepared(self, task: Task) -> int:
        key = task.ongoing.run.serial, task.index
        when = self.world.late.get(key, 0.0)
        if when <= self.agenda.now:
            return 0
        self.agenda.at(when, self.islands.supply, task)
        return 1

    def lasts(self, task: Task) -> float:
        self.judged[task.ongoing.run.serial, task.index] = self.agenda.now
        return task.ongoing.run.timed.seconds[task.index]

    def link(self, task: Task) -> tuple[Sequence[Hashable], float]:
        return (task.ongoing.run.timed.plan.steps[task.index].place,), self.world.leaves

    def step_ended(self, task: Task) -> None:
        key = task.ongoing.run.serial, task.index
        assert key not in self.spans, "each step ends once"
        self.spans[key] = task.start, self.agenda.now

    def may_pass(self, task: Task) -> bool:
        return True

    def passed(self, task: Task, steps: np.ndarray, times: np.ndarray) -> None:
        for step, span in zip(steps.tolist(), pairwise(times.tolist()), strict=True):
            key = task.ongoing.run.serial, step
            assert key not in self.spans, "each step ends once"
            self.spans[key], self.judged[key] = span, span[0]
            self.together += 1

    def launch_ended(self, portion: OngoingLaunch) -> None:
        assert not portion.left
        self.ended.append(portion.launch)


def worked_out(world: World) -> dict[Key, tuple[float, float]]:
    """Start and end of every step, from nothing but the rules.

    A host takes launches one by one. A step starts when its host has come to it, its producers have ended, and all that
    was enqueued before it on any of its devices; host work, when all host work of its island before it has ended. Among
    transfers that are ready, the first takes the link: of equals, the one that came first.
    """
    enqueued, before = _enqueued(world)
    spans: dict[Key, tuple[float, float]] = {}
    links: dict[Hashable, float] = defaultdict(float)
    left = list(enqueued)
    while left:
        able = [key for key in left if all(other in spans for other in before[key])]
        ready = {k: max([enqueued[k], world.late.get(k, 0.0), *(spans[b][1] for b in before[k])]) for k in able}
        key = min(able, key=ready.__getitem__)
        start, lasts = ready[key], world.seconds[key[0]][key[1]]
        step = world.plans[key[0]].steps[key[1]]
        if step.kind in ("bring", "move") and lasts:
            start = max(start, links[step.place])
            links[step.place] = start + max(lasts - world.leaves, 0.0)
        spans[key] = start, start + lasts
        left.remove(key)
    return spans


def _enqueued(world: World) -> tuple[dict[Key, float], dict[Key, list[Key]]]:
    """When each step's host has come to it, and what must have ended before it starts."""
    host, queues = defaultdict[int, float](float), defaultdict[Key, list[Key]](list)
    when: dict[Key, float] = {}
    before: dict[Key, list[Key]] = {}
    for time, launch in world.arrivals:
        plan = world.plans[launch.run]
        host[launch.island] = max(host[launch.island], time)
        for at in plan.orders[launch.island][launch.start : launch.stop]:
            key, step = (launch.run, at), plan.steps[at]
            before[key] = [(launch.run, producer) for producer in step.producers]
            when[key] = time
            if step.kind == "launch":
                when[key] = host[launch.island] = host[launch.island] + world.launch
            place = plan.placements[step.place]
            devices = range(place.first, place.first + place.count) if step.kind == "launch" else ()
            for device in (-1,) if step.kind == "host" else devices:
                queue = queues[step.island, device]
                before[key] += queue[-1:]
                queue.append(key)
    return when, before
