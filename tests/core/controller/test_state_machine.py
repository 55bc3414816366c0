"""The controller's pure core: random events, invariants after each, no JAX and no device."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pathways_nb.controller.events_and_instructions import (
    Cancelled,
    Completed,
    Finish,
    Free,
    Launch,
    PutRequested,
    Released,
    Skip,
    Stored,
    Submitted,
)
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.requests import PutRequest
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.footprint import Allocation
from pathways_nb.plan.plan import Placement, Plan
from tests.core.controller.imagined_devices import plan_of
from tests.core.controller.random_world import SequentialWorld, World, plans
from tests.support.examples import examples

quick = settings(examples(40), stateful_step_count=30, suppress_health_check=list(HealthCheck))
TestParallel = World.TestCase
TestParallel.settings = quick
TestSequential = SequentialWorld.TestCase
TestSequential.settings = quick


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8))
@examples(50)
def test_sequential_dispatch_follows_the_programs_order_across_islands(islands: list[int]) -> None:
    machine, plan = StateMachine(dispatch="sequential"), plan_of(islands)
    out, seen = machine.handle(Submitted(0, "me", plan, (), (0,), (8,))), []
    while out and isinstance(out[0], Launch):
        (launch,) = out
        seen += plan.orders[launch.island][launch.start : launch.stop]
        out = machine.handle(Completed(0, launch.island, launch.start, launch.stop))
    assert seen == list(range(len(islands)))
    assert out == [Finish(0)]


@given(st.lists(plans, min_size=1, max_size=5), st.sampled_from(["parallel", "sequential"]))
@examples(50)
def test_the_same_events_give_the_same_instructions(many: list[Plan], dispatch: Any) -> None:
    def story() -> list[Any]:
        machine, told = StateMachine(dispatch=dispatch), []
        for run, plan in enumerate(many):
            results = tuple(range(10 * run, 10 * run + len(plan.results)))
            told += machine.handle(Submitted(run, "me", plan, (), results, (8,) * len(results)))
        pending = [i for i in told if isinstance(i, Launch)]
        while pending:
            launch = pending.pop(0)
            fresh = machine.handle(Completed(launch.run, launch.island, launch.start, launch.stop))
            told += fresh
            pending += [i for i in fresh if isinstance(i, Launch)]
        assert not machine.calls
        return told

    assert story() == story()


def test_parallel_dispatch_tells_a_whole_program_at_once_in_one_range_per_island() -> None:
    out = StateMachine().handle(Submitted(0, "me", plan_of([0, 1, 0, 0, 1]), (), (0,), (8,)))
    assert out == [Launch(0, 0, 0, 3), Launch(0, 1, 0, 2)]


def test_a_second_program_waits_for_the_first_only_with_sequential_dispatch() -> None:
    for dispatch, expected in (("parallel", [Launch(1, 1, 0, 1)]), ("sequential", [])):
        machine = StateMachine(dispatch=dispatch)  # type: ignore[arg-type]
        machine.handle(Submitted(0, "me", plan_of([0]), (), (0,), (8,)))
        assert machine.handle(Submitted(1, "me", plan_of([1]), (), (1,), (8,))) == expected


def test_an_argument_that_nobody_holds_any_more_is_freed_when_its_last_run_ends() -> None:
    machine = StateMachine()
    machine.handle(Stored(7, "me", 80))
    machine.handle(Submitted(0, "me", plan_of([0]), (7,), (8,), (8,)))
    assert machine.handle(Released((7,))) == []
    assert [(entry.owner, entry.bytes) for entry in machine.store.buffers.values()] == [("me", 80), ("me", 8)]
    assert machine.handle(Completed(0, 0, 0, 1)) == [Finish(0), Free((7,))]
    assert machine.handle(Released((8,))) == [Free((8,))]


def test_a_cancelled_sequential_program_is_told_whole_so_that_it_ends() -> None:
    machine = StateMachine(dispatch="sequential")
    assert machine.handle(Submitted(0, "me", plan_of([0, 1, 0, 1]), (), (0,), (8,))) == [Launch(0, 0, 0, 1)]
    assert machine.handle(Cancelled((0,))) == [Skip(0), Launch(0, 0, 1, 2), Launch(0, 1, 0, 2)]
    assert machine.handle(Completed(0, 0, 0, 1)) == []
    assert machine.handle(Completed(0, 1, 0, 2)) == []
    assert machine.handle(Completed(0, 0, 1, 2)) == [Finish(0)]
    assert machine.handle(Cancelled((0, 99))) == []


def test_the_invariant_checker_sees_each_kind_of_contradiction() -> None:
    """A checker that never complains would prove nothing."""

    def broken(**change: Any) -> StateMachine:
        machine = StateMachine()
        machine.handle(Stored(5, "me", 8))
        for run in (0, 1):
            machine.handle(Submitted(run, "me", plan_of([0, 1]), (5,), (run + 10,), (8,)))
        for name, value in change.items():
            {"freed": lambda: machine.store.groups.pop(value),
             "few": lambda: machine.store.calls.update({5: value - 2}),
             "waits": lambda: machine.admission.blocked.update({value: None}),
             "gone": lambda: machine.calls.pop(value),
             "done": lambda: machine.calls[0].done.update({0: value})}[name]()  # fmt: skip
        return machine

    room = PutRequested(9, "me", 8, "put", Allocation(Placement(0, 0, 1), 8))
    check_invariants(broken())
    for change, text in (
        ({"freed": 5}, "freed while a run needs it"), ({"few": 1}, "1 references, held by 2"),
        ({"waits": PutRequest(room, since=0.0)}, "a request that is gone waits for memory"), ({"gone": 1}, None), ({"done": 9}, None),
    ):  # fmt: skip
        with pytest.raises(AssertionError, match=text):
            check_invariants(broken(**change))


@given(st.data())
@examples(25)
def test_a_plan_without_steps_finishes_at_once(data: st.DataObject) -> None:
    dispatch: Any = data.draw(st.sampled_from(["parallel", "sequential"]))
    busy = data.draw(st.booleans())
    machine = StateMachine(dispatch=dispatch)
    if busy:
        machine.handle(Submitted(0, "me", plan_of([0]), (), (0,), (8,)))
    assume(not (busy and dispatch == "sequential"))
    assert machine.handle(Submitted(1, "me", plan_of([], 0), (), (), ())) == [Finish(1)]
