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
    Released,
    Stop,
    Stored,
    Submitted,
)
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


class World(RuleBasedStateMachine):
    """A driver that completes launches in any order the hardware could."""

    dispatch: Any = "parallel"

    @initialize()
    def begin(self) -> None:
        self.machine = Machine(dispatch=self.dispatch)
        self.buffers, self.serials = itertools.count(), itertools.count()
        self.handles: list[int] = []
        self.order: dict[int, list[Launch]] = {}
        """By island: launches not completed yet, in the order they were told."""
        self.enqueued: dict[int, list[int]] = {}
        self.started: dict[tuple[int, int], int] = {}
        self.live: set[int] = set()
        self.freed: set[int] = set()
        self.finished: set[int] = set()
        self.submitted: dict[int, Submitted] = {}
        self.log: list[Any] = []

    def send(self, event: Any) -> None:
        before = copy.deepcopy((self.machine.ledger, self.machine.runs, self.machine.orders))
        twin = Machine(dispatch=self.dispatch, ledger=before[0], runs=before[1], orders=before[2])
        out = self.machine.handle(event)
        assert twin.handle(event) == out, "the same state and event gave other instructions"
        self.log.append(event)
        for instruction in out:
            self.obey(instruction)

    def obey(self, instruction: Any) -> None:
        match instruction:
            case Launch(run, island, start, stop):
                assert start < stop <= len(self.submitted[run].plan.orders[island])
                assert self.started.get((run, island), 0) == start, "steps are told once, in order"
                self.started[run, island] = stop
                self.order.setdefault(island, []).append(instruction)
                if start == 0:
                    self.enqueued.setdefault(island, []).append(run)
            case Free(buffers):
                assert not self.freed & set(buffers)
                assert len(set(buffers)) == len(buffers)
                self.freed |= set(buffers)
            case Finish(run):
                assert run not in self.finished
                plan = self.submitted[run].plan
                assert all(self.started.get((run, i), 0) == len(o) for i, o in plan.orders.items())
                assert not any(launch.run == run for queue in self.order.values() for launch in queue)
                self.finished.add(run)
            case Stop(run):
                assert run not in self.finished
            case _:
                raise AssertionError(instruction)

    @rule(count=st.integers(1, 3))
    def store(self, count: int) -> None:
        for _ in range(count):
            buffer = next(self.buffers)
            self.send(Stored(buffer, "me", 8))
            self.handles.append(buffer)

    @rule(plan=plans, data=st.data())
    def submit(self, plan: Plan, data: st.DataObject) -> None:
        known = st.sampled_from(self.handles) if self.handles else st.nothing()
        arguments = tuple(data.draw(st.lists(known, max_size=3))) if self.handles else ()
        results = tuple(next(self.buffers) for _ in plan.results)
        run = next(self.serials)
        event = Submitted(run, "me", plan, arguments, results, (8,) * len(results))
        self.submitted[run] = event
        self.handles += results
        self.send(event)

    @precondition(lambda self: any(self.order.values()))
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        island = data.draw(st.sampled_from(sorted(i for i, queue in self.order.items() if queue)))
        launch = self.order[island].pop(0)
        self.send(Completed(launch.run, island, launch.stop))

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
    def islands_take_runs_in_compatible_orders(self) -> None:
        if hasattr(self, "machine"):
            for one, other in itertools.combinations(self.enqueued.values(), 2):
                common = set(one) & set(other)
                assert [r for r in one if r in common] == [r for r in other if r in common]
            assert all(runs == sorted(runs) for runs in self.enqueued.values()), "first in, first out"

    @invariant()
    def sequential_means_one_step_at_a_time(self) -> None:
        if hasattr(self, "machine") and self.dispatch == "sequential":
            under_way = [launch for queue in self.order.values() for launch in queue]
            if not any(self.machine.runs[launch.run].cancelled for launch in under_way):
                assert sum(launch.stop - launch.start for launch in under_way) <= 1

    @invariant()
    def parallel_holds_nothing_back(self) -> None:
        if hasattr(self, "machine") and self.dispatch == "parallel":
            for run, event in self.submitted.items():
                assert all(self.started.get((run, i), 0) == len(o) for i, o in event.plan.orders.items())

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        while any(self.order.values()):
            island = next(i for i, queue in self.order.items() if queue)
            launch = self.order[island].pop(0)
            self.send(Completed(launch.run, island, launch.stop))
        assert self.finished == set(self.submitted)
        for buffer in self.handles:
            self.send(Released((buffer,)))
        check_invariants(self.machine)
        assert not self.machine.runs
        assert not self.machine.ledger.buffers
        assert not any(self.machine.orders.values())
        again = Machine(dispatch=self.dispatch)
        for event in self.log:
            again.handle(event)
        assert again.ledger.buffers == self.machine.ledger.buffers


class SequentialWorld(World):
    dispatch = "sequential"


quick = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
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
        out = machine.handle(Completed(0, launch.island, launch.stop))
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
            fresh = machine.handle(Completed(launch.run, launch.island, launch.stop))
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
    assert machine.handle(Completed(0, 0, 1)) == [Finish(0), Free((7,))]
    assert machine.handle(Released((8,))) == [Free((8,))]


def test_a_cancelled_sequential_program_is_told_whole_so_that_it_ends() -> None:
    machine = Machine(dispatch="sequential")
    assert machine.handle(Submitted(0, "me", plan_of([0, 1, 0, 1]), (), (0,), (8,))) == [Launch(0, 0, 0, 1)]
    assert machine.handle(Cancelled((0,))) == [Stop(0)]
    assert machine.handle(Completed(0, 0, 1)) == [Launch(0, 0, 1, 2), Launch(0, 1, 0, 2)]
    assert machine.handle(Completed(0, 1, 2)) == []
    assert machine.handle(Completed(0, 0, 2)) == [Finish(0)]
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
