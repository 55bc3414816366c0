"""The controller's pure core: random events, invariants after each, no JAX and no device.

The tests know only plans, events and instructions; ``World`` plays the driver.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pathways_nb.controller.machine import Machine, check_invariants
from pathways_nb.controller.messages import (
    Cancelled,
    Completed,
    Finish,
    Free,
    Launch,
    Opened,
    Released,
    Stop,
    Stored,
    Submitted,
)
from pathways_nb.controller.policies import POLICIES
from pathways_nb.program.graph import Graph
from pathways_nb.program.plan import Plan, Step


def plan_of(islands: list[int], results: int = 1) -> Plan:
    """A plan whose step ``i`` runs on ``islands[i]`` and reads the step before it."""
    steps = tuple(
        Step("launch", i, island, island, (i - 1,) if i else (), (i,), producers=(i - 1,) if i else ())
        for i, island in enumerate(islands)
    )
    orders = {k: tuple(i for i, island in enumerate(islands) if island == k) for k in sorted(set(islands))}
    return Plan(Graph("plan", (), ()), {}, (), steps, orders, tuple(range(results)), {})


plans = st.builds(plan_of, st.lists(st.integers(0, 2), min_size=0, max_size=6), st.integers(0, 3))


CLIENTS = ("ann", "bob", "eve")


def contrary(ready: Any, state: Any) -> Any:
    """A user's policy that nobody would want."""
    return max(ready, key=lambda gang: (hash((gang.serial, gang.client, len(ready))), gang.serial))


class World(RuleBasedStateMachine):
    """Devices that carry out each island's order step by step, a step as soon as what it reads is done."""

    dispatch: Any = "parallel"

    @initialize(policy=st.sampled_from([*POLICIES.values(), contrary]))
    def begin(self, policy: Any) -> None:
        self.policy, self.now = policy, 0.0
        self.machine = self.fresh()
        self.buffers, self.serials = itertools.count(), itertools.count()
        self.handles: list[int] = []
        self.order: dict[int, list[tuple[Launch, int]]] = {}
        """By island: steps not done yet, in the order they were told, with the launch that told them."""
        self.told: dict[tuple[int, int], int] = {}
        self.done: set[tuple[int, int]] = set()
        self.freed: set[int] = set()
        self.finished: set[int] = set()
        self.submitted: dict[int, Submitted] = {}
        self.log: list[Any] = []

    def fresh(self) -> Machine:
        return Machine(self.dispatch, self.policy, devices=(1, 1, 1))

    def send(self, event: Any) -> None:
        self.now += 1.0
        twin = copy.deepcopy(self.machine)
        out = self.machine.handle(event, self.now)
        assert twin.handle(event, self.now) == out, "the same state and event gave other instructions"
        self.log.append((event, self.now))
        for instruction in out:
            self.obey(instruction)
        for queue in self.order.values():
            for launch, step in queue:
                for producer in self.submitted[launch.run].plan.steps[step].producers:
                    assert self.is_told(launch.run, producer), "enqueued before what it needs"

    def is_told(self, run: int, step: int) -> bool:
        plan = self.submitted[run].plan
        island = plan.steps[step].island
        return plan.orders[island].index(step) < self.told.get((run, island), 0)

    def obey(self, instruction: Any) -> None:
        match instruction:
            case Launch(run, island, start, stop):
                order = self.submitted[run].plan.orders[island]
                assert start < stop <= len(order)
                assert self.told.get((run, island), 0) == start, "steps are told once, in order"
                self.told[run, island] = stop
                self.order.setdefault(island, []).extend((instruction, step) for step in order[start:stop])
            case Free(buffers):
                assert not self.freed & set(buffers)
                assert len(set(buffers)) == len(buffers)
                self.freed |= set(buffers)
            case Finish(run):
                assert run not in self.finished
                assert all((run, step) in self.done for step in range(len(self.submitted[run].plan.steps)))
                self.finished.add(run)
            case Stop(run):
                assert run not in self.finished
            case _:
                raise AssertionError(instruction)

    def runnable(self) -> list[int]:
        """Islands whose next step has all that it reads."""
        heads = {island: queue[0] for island, queue in self.order.items() if queue}
        return [
            island
            for island, (launch, step) in heads.items()
            if all((launch.run, p) in self.done for p in self.submitted[launch.run].plan.steps[step].producers)
        ]

    def carry_out(self, island: int, seconds: float) -> None:
        launch, step = self.order[island].pop(0)
        self.done.add((launch.run, step))
        if not any(other is launch for other, _ in self.order[island]):
            self.send(Completed(launch.run, island, launch.start, launch.stop, seconds))

    @rule(count=st.integers(1, 3), client=st.sampled_from(CLIENTS))
    def store(self, count: int, client: str) -> None:
        for _ in range(count):
            buffer = next(self.buffers)
            self.send(Stored(buffer, client, 8))
            self.handles.append(buffer)

    @rule(client=st.sampled_from(CLIENTS), share=st.sampled_from([1.0, 2.0, 8.0]), priority=st.integers(0, 2))
    def open(self, client: str, share: float, priority: int) -> None:
        self.send(Opened(client, share, priority))

    @rule(plan=plans, client=st.sampled_from(CLIENTS), data=st.data())
    def submit(self, plan: Plan, client: str, data: st.DataObject) -> None:
        known = st.sampled_from(self.handles) if self.handles else st.nothing()
        arguments = tuple(data.draw(st.lists(known, max_size=3))) if self.handles else ()
        results = tuple(next(self.buffers) for _ in plan.results)
        run = next(self.serials)
        event = Submitted(run, client, plan, arguments, results, (8,) * len(results))
        self.submitted[run] = event
        self.handles += results
        self.send(event)

    @precondition(lambda self: self.runnable())
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 1e-4, 1e-3, 1.0]))
    def complete(self, data: st.DataObject, seconds: float) -> None:
        self.carry_out(data.draw(st.sampled_from(self.runnable())), seconds)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        buffer = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1)))
        self.send(Released((buffer,)))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Also runs that have finished: the news may come late."""
        self.send(Cancelled(tuple(data.draw(st.lists(st.sampled_from(sorted(self.submitted)), max_size=3)))))

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "machine"):
            check_invariants(self.machine)

    @invariant()
    def nothing_in_use_is_freed(self) -> None:
        if hasattr(self, "machine"):
            used = {b for r in self.machine.runs.values() for b in (*r.submitted.arguments, *r.submitted.results)}
            assert not self.freed & (used | set(self.handles))
            assert set(self.machine.ledger.buffers) == used | set(self.handles)

    @invariant()
    def never_a_deadlock(self) -> None:
        if hasattr(self, "machine"):
            assert self.runnable() or not any(self.order.values()), "every island waits for another"

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        if hasattr(self, "machine") and not any(self.order.values()):
            assert self.finished == set(self.submitted)

    @invariant()
    def sequential_means_one_gang_at_a_time(self) -> None:
        if hasattr(self, "machine") and self.dispatch == "sequential":
            under_way = {(launch.run, launch.start) for queue in self.order.values() for launch, _ in queue}
            if not any(self.machine.runs[run].cancelled for run, _ in under_way):
                assert len(under_way) <= 1

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        while any(self.order.values()):
            self.carry_out(self.runnable()[0], 1e-3)
        assert self.finished == set(self.submitted)
        for buffer in self.handles:
            self.send(Released((buffer,)))
        check_invariants(self.machine)
        assert not self.machine.runs
        assert not self.machine.ledger.buffers
        assert not any(self.machine.orders.values())
        again = self.fresh()
        for event, now in self.log:
            again.handle(event, now)
        assert again.ledger.buffers == self.machine.ledger.buffers
        assert again.clients == self.machine.clients


class SequentialWorld(World):
    dispatch = "sequential"


quick = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
TestParallel = World.TestCase
TestParallel.settings = quick
TestSequential = SequentialWorld.TestCase
TestSequential.settings = quick


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_sequential_dispatch_follows_the_programs_order_across_islands(islands: list[int]) -> None:
    machine, plan = Machine(dispatch="sequential"), plan_of(islands)
    out, seen = machine.handle(Submitted(0, "me", plan, (), (0,), (8,))), []
    while out and isinstance(out[0], Launch):
        (launch,) = out
        seen += plan.orders[launch.island][launch.start : launch.stop]
        out = machine.handle(Completed(0, launch.island, launch.start, launch.stop))
    assert seen == list(range(len(islands)))
    assert out == [Finish(0)]


@given(st.lists(plans, min_size=1, max_size=5), st.sampled_from(["parallel", "sequential"]))
@settings(max_examples=50, deadline=None)
def test_the_same_events_give_the_same_instructions(many: list[Plan], dispatch: Any) -> None:
    def story() -> list[Any]:
        machine, told = Machine(dispatch=dispatch), []
        for run, plan in enumerate(many):
            results = tuple(range(10 * run, 10 * run + len(plan.results)))
            told += machine.handle(Submitted(run, "me", plan, (), results, (8,) * len(results)))
        pending = [i for i in told if isinstance(i, Launch)]
        while pending:
            launch = pending.pop(0)
            fresh = machine.handle(Completed(launch.run, launch.island, launch.start, launch.stop))
            told += fresh
            pending += [i for i in fresh if isinstance(i, Launch)]
        assert not machine.runs
        return told

    assert story() == story()


def test_parallel_dispatch_tells_a_whole_program_at_once_in_one_range_per_island() -> None:
    out = Machine().handle(Submitted(0, "me", plan_of([0, 1, 0, 0, 1]), (), (0,), (8,)))
    assert out == [Launch(0, 0, 0, 3), Launch(0, 1, 0, 2)]


def test_a_second_program_waits_for_the_first_only_with_sequential_dispatch() -> None:
    for dispatch, expected in (("parallel", [Launch(1, 1, 0, 1)]), ("sequential", [])):
        machine = Machine(dispatch=dispatch)  # type: ignore[arg-type]
        machine.handle(Submitted(0, "me", plan_of([0]), (), (0,), (8,)))
        assert machine.handle(Submitted(1, "me", plan_of([1]), (), (1,), (8,))) == expected


def test_an_argument_that_nobody_holds_any_more_is_freed_when_its_last_run_ends() -> None:
    machine = Machine()
    machine.handle(Stored(7, "me", 80))
    machine.handle(Submitted(0, "me", plan_of([0]), (7,), (8,), (8,)))
    assert machine.handle(Released((7,))) == []
    assert [(entry.owner, entry.bytes) for entry in machine.ledger.buffers.values()] == [("me", 80), ("me", 8)]
    assert machine.handle(Completed(0, 0, 0, 1)) == [Finish(0), Free((7,))]
    assert machine.handle(Released((8,))) == [Free((8,))]


def test_a_cancelled_sequential_program_is_told_whole_so_that_it_ends() -> None:
    machine = Machine(dispatch="sequential")
    assert machine.handle(Submitted(0, "me", plan_of([0, 1, 0, 1]), (), (0,), (8,))) == [Launch(0, 0, 0, 1)]
    assert machine.handle(Cancelled((0,))) == [Stop(0), Launch(0, 0, 1, 2), Launch(0, 1, 0, 2)]
    assert machine.handle(Completed(0, 0, 0, 1)) == []
    assert machine.handle(Completed(0, 1, 0, 2)) == []
    assert machine.handle(Completed(0, 0, 1, 2)) == [Finish(0)]
    assert machine.handle(Cancelled((0, 99))) == []


def test_the_invariant_checker_sees_each_kind_of_contradiction() -> None:
    """A checker that never complains would prove nothing."""

    def broken(**change: Any) -> Machine:
        machine = Machine()
        machine.handle(Stored(5, "me", 8))
        for run in (0, 1):
            machine.handle(Submitted(run, "me", plan_of([0, 1]), (5,), (run + 10,), (8,)))
        for name, value in change.items():
            {"freed": lambda: machine.ledger.buffers.pop(value),
             "few": lambda: setattr(machine.ledger.buffers[5], "references", value),
             "swap": lambda: machine.orders[0].reverse(),
             "gone": lambda: machine.runs.pop(value),
             "done": lambda: machine.runs[0].done.update({0: value})}[name]()  # fmt: skip
        return machine

    check_invariants(broken())
    for change, text in (
        ({"freed": 5}, "freed while a run needs it"), ({"few": 1}, "too few references"),
        ({"swap": 0}, "orders contradict"), ({"gone": 1}, None), ({"done": 9}, None),
    ):  # fmt: skip
        with pytest.raises(AssertionError, match=text):
            check_invariants(broken(**change))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_plan_without_steps_finishes_at_once(data: st.DataObject) -> None:
    dispatch: Any = data.draw(st.sampled_from(["parallel", "sequential"]))
    busy = data.draw(st.booleans())
    machine = Machine(dispatch=dispatch)
    if busy:
        machine.handle(Submitted(0, "me", plan_of([0]), (), (0,), (8,)))
    assume(not (busy and dispatch == "sequential"))
    assert machine.handle(Submitted(1, "me", plan_of([], 0), (), (), ())) == [Finish(1)]
