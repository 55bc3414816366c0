"""Schedules of fixed order: equal to the event loop and to closed forms; orders that cannot be kept are found."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb.timing.fixed_order as fixed
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.plan import Placement, Plan, Step
from pathways_nb.runtime.sim.makespan import MakespanSimulator
from pathways_nb.runtime.sim.simulated_islands import Task
from pathways_nb.timing.fixed_order import FixedOrder, OrderEdges, evaluate

DEVICES = 4
"""Of each of two islands."""
times = st.floats(0.0, 10.0)


@dataclass
class Drawn:
    """Tasks in program order: the island and devices of each, what it needs, how long it lasts."""

    where: list[Placement] = field(default_factory=list)
    needs: list[list[int]] = field(default_factory=list)
    lasts: list[float] = field(default_factory=list)

    @property
    def edges(self) -> OrderEdges:
        pairs = [(source, target) for target, sources in enumerate(self.needs) for source in sources]
        return OrderEdges([s for s, _ in pairs], [t for _, t in pairs])

    @property
    def orders(self) -> list[list[int]]:
        """For each device: the gangs that it is part of."""
        return [
            [
                task
                for task, at in enumerate(self.where)
                if at.island == island and device in range(at.first, at.first + at.count)
            ]
            for island in (0, 1)
            for device in range(DEVICES)
        ]

    @property
    def plan(self) -> Plan:
        steps = tuple(
            Step("launch", task, task, at.island, tuple(needs), (task,), producers=tuple(needs))
            for task, (at, needs) in enumerate(zip(self.where, self.needs, strict=True))
        )
        islands = sorted({at.island for at in self.where})
        orders = {i: tuple(task for task, at in enumerate(self.where) if at.island == i) for i in islands}
        return Plan(Graph("drawn", (), ()), dict(enumerate(self.where)), (), steps, orders, (), {})


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    made = Drawn()
    for task in range(draw(st.integers(1, 25))):
        first = draw(st.integers(0, DEVICES - 1))
        made.where.append(Placement(draw(st.integers(0, 1)), first, draw(st.integers(1, DEVICES - first))))
        made.needs.append(sorted(draw(st.sets(st.integers(0, task - 1), max_size=3))) if task else [])
        made.lasts.append(draw(times))
    return made


class Watched(MakespanSimulator):
    """The event loop, asked when each step began and ended."""

    spans: dict[int, tuple[float, float]]

    def step_ended(self, task: Task) -> None:
        self.spans[task.index] = task.start, self.agenda.now

    def passed(self, task: Task, steps: np.ndarray, times: np.ndarray) -> None:
        self.spans |= dict(zip(steps.tolist(), pairwise(times.tolist()), strict=True))
        super().step_ended(task)


@given(drawn(), st.booleans())
def test_exactly_what_the_event_loop_finds(tasks: Drawn, narrow: bool) -> None:
    loop = Watched(StateMachine(devices=(DEVICES, DEVICES)), dict(enumerate(tasks.lasts)))
    loop.spans = {}
    loop.submit(tasks.plan)
    makespan = loop.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed, "_NARROW", 1000 if narrow else 0)  # both ways, whatever the size
        found = evaluate(tasks.lasts, tasks.edges, tasks.orders)
    assert [*zip(found.start, found.end, strict=True)] == [loop.spans[task] for task in range(len(tasks.lasts))]
    assert found.makespan == makespan


@given(drawn(), st.lists(times, min_size=75, max_size=75))
def test_no_task_begins_before_what_it_waits_for_and_each_as_soon_as_it_can(tasks: Drawn, takes: list[float]) -> None:
    pairs = [(source, target) for target, sources in enumerate(tasks.needs) for source in sources]
    edges = tasks.edges._replace(seconds=takes[: len(pairs)])
    start, end, _ = evaluate(tasks.lasts, edges, tasks.orders)
    let = [[0.0] for _ in tasks.lasts]
    for (source, target), seconds in zip(pairs, takes, strict=False):
        let[target].append(end[source] + seconds)
    for order in tasks.orders:
        for before, task in zip(order, order[1:], strict=False):
            let[task].append(end[before])
    assert start.tolist() == [max(times) for times in let]
    assert end.tolist() == [s + lasts for s, lasts in zip(start, tasks.lasts, strict=True)]


@given(st.integers(1, 7), st.integers(1, 12), st.integers(1, 9), st.integers(0, 5))
def test_the_forward_wave_of_gpipe(stages: int, microbatches: int, lasts: int, transfer: int) -> None:
    task = np.arange(stages * microbatches).reshape(stages, microbatches)
    found = evaluate(np.full(task.size, lasts), OrderEdges(task[:-1], task[1:], transfer), task)
    stage, microbatch = np.indices(task.shape)
    assert (found.start.reshape(task.shape) == (stage + microbatch) * lasts + stage * transfer).all()
    assert found.makespan == (microbatches + stages - 1) * lasts + (stages - 1) * transfer


def one_f_one_b(stages: int, microbatches: int) -> tuple[OrderEdges, np.ndarray]:
    """Forward tasks, then backward ones, by stage and microbatch; each stage warms up with those that lie below it."""
    task = np.arange(2 * stages * microbatches).reshape(2, stages, microbatches)
    forward, backward = task
    source = [forward[:-1].ravel(), backward[1:].ravel(), forward[-1]]
    target = [forward[1:].ravel(), backward[:-1].ravel(), backward[-1]]
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, microbatches)
        order = [*forward[stage, :ahead]]
        for m in range(microbatches):
            order += [backward[stage, m], *forward[stage, m + ahead : m + ahead + 1]]
        orders.append(order)
    return OrderEdges(np.concatenate(source), np.concatenate(target)), np.array(orders)


@given(st.integers(1, 6), st.integers(0, 10), st.integers(1, 5), st.integers(1, 5))
def test_1f1b_has_the_bubble_of_its_closed_form(stages: int, more: int, forward: int, backward: int) -> None:
    microbatches = stages + more
    edges, orders = one_f_one_b(stages, microbatches)
    lasts = np.repeat([forward, backward], stages * microbatches)
    found = FixedOrder.of(len(lasts), edges, orders).evaluate(lasts)
    assert found.makespan == (microbatches + stages - 1) * (forward + backward)


def test_an_order_is_evaluated_again_with_other_durations() -> None:
    order = FixedOrder.of(3, OrderEdges([0], [2], 0.5), [[0, 1], [2]])
    start, end, makespan = order.evaluate([1, 2, 3])
    assert (start.tolist(), end.tolist(), makespan) == ([0, 1, 1.5], [1, 3, 4.5], 4.5)
    assert order.evaluate([4, 0, 0]).makespan == 4.5
    assert evaluate([], OrderEdges([], []), []).makespan == 0.0


@pytest.mark.parametrize("narrow", [0, 1000])
def test_two_devices_that_enqueue_two_gangs_in_opposite_orders_are_found(monkeypatch, narrow: int) -> None:
    monkeypatch.setattr(fixed, "_NARROW", narrow)
    with pytest.raises(UsageError) as error:
        FixedOrder.of(3, OrderEdges([], []), [[0, 1], [2, 1, 0]], ["all-reduce", "all-gather", "add"].__getitem__)
    assert "all-gather waits for all-reduce (before it on device 0)" in str(error.value)
    assert "all-reduce waits for all-gather (before it on device 1)" in str(error.value)
    assert "add" not in str(error.value)


def test_an_order_against_the_data_is_found_behind_what_can_go_on() -> None:
    with pytest.raises(
        UsageError, match=r"task 2 waits for task 1 \(whose output it needs\); task 1 waits for task 2 "
    ):
        evaluate(np.ones(4), OrderEdges([0, 1, 2], [1, 2, 3]), [[0, 3], [2, 1]])


def test_of_a_long_circle_six_tasks_are_named() -> None:
    with pytest.raises(UsageError, match="and so on, 9 tasks in all. Change the order"):
        evaluate(np.ones(9), OrderEdges(range(9), [*range(1, 9), 0]), [])


def test_tasks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="edges speak of task 2, but there are 2 tasks"):
        evaluate([1, 1], OrderEdges([0], [2]), [])
    with pytest.raises(UsageError, match=r"orders\[1\] speak of task -1, but"):
        evaluate([1, 1], OrderEdges([], []), [[0], [-1]])
    with pytest.raises(UsageError, match=r"durations of shape \(3,\): there are 2 tasks"):
        FixedOrder.of(2, OrderEdges([], []), []).evaluate([1, 1, 1])
