"""Predicted makespans: closed forms of chains and pipelines in both modes of dispatch, by the controller's own core."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.plan import Placement, Plan, Step
from pathways_nb.runtime.sim.makespan import MakespanSimulator, makespan
from tests.support.computations import v

times = st.floats(1e-4, 1e-1)


def plan_of(steps: list[tuple[int, list[int]]]) -> Plan:
    """Step ``i`` runs on island ``steps[i][0]`` and reads the steps ``steps[i][1]``; islands are places."""
    made = tuple(
        Step("launch", i, island, island, tuple(reads), (i,), producers=tuple(reads))
        for i, (island, reads) in enumerate(steps)
    )
    islands = sorted({island for island, _ in steps})
    orders = {k: tuple(i for i, (island, _) in enumerate(steps) if island == k) for k in islands}
    return Plan(Graph("plan", (), ()), {k: Placement(k, 0, 1) for k in islands}, (), made, orders, (), {})


def chain(stages: int, islands: int = 2) -> Plan:
    return plan_of([(i % islands, [i - 1] if i else []) for i in range(stages)])


def two_stages(microbatches: int) -> Plan:
    """For each microbatch a step on island 0 and then one on island 1, in the order in which a loop calls them."""
    return plan_of([step for m in range(microbatches) for step in ((0, []), (1, [2 * m]))])


def test_eight_stages_of_a_millisecond_with_messages_of_a_millisecond() -> None:
    lasts = dict.fromkeys(range(8), 1e-3)
    assert makespan(chain(8), lasts, "sequential", 1e-3) == pytest.approx(8 * (1e-3 + 1e-3))
    assert makespan(chain(8), lasts, "parallel", 1e-3) == pytest.approx(1e-3 + 8 * 1e-3)


@given(st.integers(1, 12), st.integers(1, 4), times, st.just(0.0) | times)
def test_a_chain(stages: int, islands: int, lasts: float, latency: float) -> None:
    plan, seconds = chain(stages, islands), dict.fromkeys(range(stages), lasts)
    assert makespan(plan, seconds, "sequential", latency) == pytest.approx(stages * (latency + lasts))
    assert makespan(plan, seconds, "parallel", latency) == pytest.approx(latency + stages * lasts)


@given(st.integers(1, 12), times, times, st.just(0.0) | times)
def test_a_pipeline_of_two_stages(microbatches: int, first: float, second: float, latency: float) -> None:
    plan = two_stages(microbatches)
    seconds = {i: (first, second)[i % 2] for i in range(2 * microbatches)}
    together = first + second + (microbatches - 1) * max(first, second)
    assert makespan(plan, seconds, "parallel", latency) == pytest.approx(latency + together)
    assert makespan(plan, seconds, "sequential", latency) == pytest.approx(
        microbatches * (2 * latency + first + second)
    )


@given(st.integers(1, 4), st.sampled_from(["parallel", "sequential"]), times)
def test_several_programs_leave_the_machine_whole(count: int, dispatch, latency: float) -> None:
    machine = StateMachine(dispatch, devices=(1, 1))
    driver = MakespanSimulator(machine, dict.fromkeys(range(4), 1e-3), latency)
    for _ in range(count):
        driver.submit(chain(4))
    ended = driver.run()
    check_invariants(machine)
    assert not machine.calls
    # In parallel dispatch a program's first stage runs beside the last one of the program before.
    closed = count * 4 * (latency + 1e-3) if dispatch == "sequential" else latency + (3 * count + 1) * 1e-3
    assert ended == pytest.approx(closed)


def test_nothing_to_do_takes_no_time() -> None:
    assert makespan(plan_of([]), {}, "parallel", 1.0) == 0.0


@pytest.fixture
def works(controller):
    """A program of eight works that take turns on two islands, to be placed where asked."""
    left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    stages = [pw.work(1e-3, on=(left, right)[i % 2], name=f"stage{i}") for i in range(8)]

    @pw.program
    def eight(x):
        for stage in stages:
            x = stage(x)
        return x

    return eight


@pytest.mark.parametrize(("dispatch", "expected"), [("sequential", 16e-3), ("parallel", 9e-3)])
def test_works_last_what_they_declare_on_the_current_controller(works, dispatch, expected) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2, dispatch=dispatch, dcn_latency=1e-3) as controller:
        assert pw.predict(works, v) == pytest.approx(expected)
        assert controller.driver.runs == {}, "nothing runs"
    assert pw.predict(works, v) == pytest.approx(8e-3)


def test_named_times_go_before_declared_ones_and_others_must_be_named(works, a) -> None:
    assert pw.predict(works, v, seconds={"stage0": 1.0, "stage7": 2.0}) == pytest.approx(3.006)
    mixed = pw.program(lambda x: a(works(x)) + 1, name="mixed")
    with pytest.raises(pw.UsageError) as error:
        pw.predict(mixed, v)
    assert str(error.value) == (
        "predict(mixed): the duration of 'double', 'add' is unknown. "
        "Add seconds={'double': 1e-3, 'add': 1e-3}, with your own times, or use pw.work."
    )
    assert pw.predict(mixed, v, seconds={"double": 1e-3, "add": 2e-3}) == pytest.approx(11e-3)


def test_a_gradient_takes_twice_the_time(works) -> None:
    gradient = pw.program(jax.grad(lambda x: works(x).sum()))
    rest = {node.name for node in gradient.graph(v).nodes if node.place and node.seconds is None}
    assert pw.predict(gradient, v, seconds=dict.fromkeys(rest, 0.0)) == pytest.approx(16e-3)


def test_only_programs_are_predicted(a) -> None:
    with pytest.raises(pw.UsageError, match=r"a Computation is not a program; wrap it in pw\.program"):
        pw.predict(a, v)


def test_times_of_unknown_nodes_and_what_is_no_time_are_refused(a) -> None:
    program = pw.program(lambda x: a(x), name="one")
    with pytest.raises(pw.UsageError) as error:
        pw.predict(program, v, seconds={"stage": 1.0})
    assert str(error.value) == (
        "predict(one): seconds names 'stage', which is no node that runs on devices. There are: 'double'."
    )
    no_times: tuple[Any, ...] = (-1.0, float("nan"), float("inf"), "1", None, True)
    for wrong in no_times:
        with pytest.raises(pw.UsageError, match=r"predict\(one\): seconds\['double'\] is .*; write a number of sec"):
            pw.predict(program, v, seconds={"double": wrong})
