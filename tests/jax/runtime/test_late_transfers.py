"""Transfers whose source does not exist yet: the launches behind them go on, and only what needs the value waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.local.watcher import stamp
from pathways_nb.runtime.run_state import RunState
from pathways_nb.util.waiting import Condition
from tests.conftest import settled
from tests.support.computations import on
from tests.support.waiting import dispatchers, held_back, until

v = np.arange(8, dtype=np.float32)


def exchanging(left: pw.VirtualSlice, right: pw.VirtualSlice) -> pw.Program:
    """Two nodes on each island, whose results the other adds: the program returns left's nodes and both sums."""
    nodes = {place: [on(place, lambda x: x + 1), on(place, lambda x: x * 2)] for place in (left, right)}

    def step(x: Any) -> Any:
        trees = []
        for place in (left, right):
            first, second = nodes[place]
            made = first(x)
            trees.append([made, second(made)])
        return trees[0], *pw.all_reduce(trees, across=[left, right])

    return pw.program(step, name="step")


@pytest.fixture
def step(left: pw.VirtualSlice, right: pw.VirtualSlice) -> pw.Program:
    """Compiled, so that calling it only submits."""
    step = exchanging(left, right)
    pw.wait(step(v))
    return step


def late(controller: pw.Controller) -> int:
    """How many transfers to island 0 wait for their source."""
    return len(dispatchers(controller)[0].late._waiting)


def test_launches_do_not_wait_for_a_transfer_that_they_do_not_need(controller, step) -> None:
    with held_back(dispatchers(controller)[1]):
        own, sums, _ = step(v)
        np.testing.assert_array_equal(own[1].result(), (v + 1) * 2)  # behind the transfer of the other island's first
        assert not sums[0].done()
        until(lambda: late(controller) == 2)
    np.testing.assert_array_equal(sums[0].result(), (v + 1) * 2)
    np.testing.assert_array_equal(sums[1].result(), (v + 1) * 4)
    assert late(controller) == 0


def test_the_record_has_each_late_transfer_once_and_no_sum_before_its_parts(controller, step) -> None:
    with pw.record() as run:
        with held_back(dispatchers(controller)[1]):
            made = step(v)
            until(lambda: late(controller) == 2)
        pw.wait(made)
    events = run.events
    moves = events.select(events.is_("kind", "transfer") & events.is_("route", "DCN"))
    assert len(moves) == 4
    for island in (0, 1):
        arrived = moves.select(moves["island"] == island)["end"].max()
        sums = events.select(events.is_("name", "all_reduce") & (events["island"] == island))
        assert len(sums) == 1
        assert sums["end"].min() >= arrived


def test_a_transfer_ends_before_the_launch_that_reads_it_in_whatever_order_threads_wake(controller, step) -> None:
    with held_back(dispatchers(controller)[1]):
        made = step(v)
        run = list(controller.driver.runs.values())[-1]  # the one before may not have been forgotten yet
        actions = run.compiled_plan.actions
    pw.wait(made)
    sums = {at: action for at, action in enumerate(actions) if action.label.name == "all_reduce"}
    moved = [(at, one) for at, action in sums.items() for one in action.waits_for]
    assert len(moved) == 4
    for at, one in moved:
        ends = SimpleNamespace(ends={at: 1.0}, compiled_plan=run.compiled_plan)
        assert stamp(ends, one, 2.0) == 1.0, "its thread woke last"


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        ([(0, 1.0), (1, 3.0), (2, 2.0)], [1.0, 3.0, 3.0]),  # the sum's end is seen before the transfer's clock was read
        ([(0, 1.0), (2, 2.0), (1, 3.0)], [1.0, 2.0, 2.0]),  # the transfer's thread wakes last
        ([(2, 2.0), (1, 3.0), (0, 4.0)], [4.0, 2.0, 2.0]),
        ([(0, 1.0), (1, 2.0), (2, 3.0)], [1.0, 2.0, 3.0]),
    ],
)
def test_no_end_is_noted_before_that_of_an_input_in_whatever_order_threads_see_them(seen, ends) -> None:
    """A node, the transfer of its value, and a sum."""
    waits, readers = [(), (0,), (1,)], [-1, 2, -1]
    actions = [SimpleNamespace(waits_for=w, reader=r) for w, r in zip(waits, readers, strict=True)]
    run: Any = SimpleNamespace(ends={}, compiled_plan=SimpleNamespace(actions=actions))
    for step, at in seen:
        stamp(run, step, at)
    assert [run.ends[step] for step in range(3)] == ends


def test_a_node_that_fails_while_its_transfer_is_late_fails_what_reads_it_alone(controller, step, right) -> None:
    with pw.inject_fault(place=right.label, after=1):  # the first is held back
        with held_back(dispatchers(controller)[1]):
            own, sums, others = step(v)
            until(lambda: late(controller) == 2)
        np.testing.assert_array_equal(own[1].result(), (v + 1) * 2)
        for tree in (sums, others):
            with pytest.raises(pw.NodeError, match="InjectedFault"):
                tree[0].result()
    settled(controller)
    np.testing.assert_array_equal(step(v)[1][0].result(), (v + 1) * 2)


def test_a_cancel_ends_late_transfers(controller, step) -> None:
    ann = pw.client("ann")
    with held_back(dispatchers(controller)[1]):
        with ann.acting():
            _, sums, others = step(v)
        until(lambda: late(controller) == 2)
        ann.cancel()
        with pytest.raises(pw.CancelledError):
            sums[0].result()
        until(lambda: late(controller) == 0)
    with pytest.raises(pw.CancelledError):
        others[0].result()
    ann.close()


def test_an_argument_that_does_not_exist_yet_does_not_hold_up_other_programs(controller, left, right) -> None:
    """The other island makes it; what only waits for its turn behind its transfer is a launch that reads it."""
    slow, reads, other = on(right, lambda x: x + 1), on(left, lambda x: x * 2), on(left, lambda x: x * 3)

    @pw.program
    def two(x: Any, y: Any) -> Any:
        return other(y), reads(x)

    pw.wait(two(slow(v), v))
    with held_back(dispatchers(controller)[1]):
        x = slow(v)
        first, second = two(x, v)
        np.testing.assert_array_equal(first.result(), v * 3)
        until(lambda: late(controller) == 1)
    np.testing.assert_array_equal(second.result(), (v + 1) * 2)


def test_many_steps_in_flight_have_the_same_values_as_one_after_another(controller, left, right) -> None:
    step = exchanging(left, right)
    made = [step(v + k) for k in range(40)]
    for k, (_, sums, others) in enumerate(made):
        for tree in (sums, others):
            np.testing.assert_array_equal(tree[1].result(), (v + k + 1) * 4)


def run_of(steps: list[tuple[tuple[int, ...], tuple[int, ...]]], readers: dict[int, frozenset[int]]) -> RunState:
    """A run of steps with these inputs and last reads, every slot of which is filled."""
    made = [SimpleNamespace(inputs=inputs, last=last, outputs=(), argument=-1) for inputs, last in steps]
    plan = SimpleNamespace(steps=made, slots=(None,) * 2, readers=readers)
    run = RunState(0, SimpleNamespace(plan=plan, brings=()), (), {}, None, Condition(), Condition())  # type: ignore[arg-type]
    run.begin()
    run.slots = ["a", "b"]
    return run


@pytest.mark.parametrize("late_first", [True, False])
def test_what_a_late_step_reads_stays_until_it_and_the_last_reader_have_read_it(late_first: bool) -> None:
    run = run_of([((0,), ()), ((0,), (0,))], {})
    run.hold_inputs(0, island=1)
    for step in (0, 1) if late_first else (1, 0):
        assert run.slots[0] == "a"
        run.let_go(step, island=1)
    assert run.slots == [None, "b"]


def test_a_late_step_that_is_the_last_reader_on_its_island_drops_nothing_that_another_island_reads() -> None:
    run = run_of([((0,), (0,)), ((0,), (0,))], {0: frozenset({0, 1})})
    run.hold_inputs(0, island=1)
    run.let_go(0, island=1)
    assert run.slots[0] == "a"
    run.let_go(1, island=0)
    assert run.slots[0] is None


def test_a_result_is_never_dropped() -> None:
    run = run_of([((0,), ())], {})
    run.hold_inputs(0, island=1)
    run.let_go(0, island=1)
    assert run.slots[0] == "a"
