"""Ends of launches are told when they happen, and as they were, whatever the island's dispatcher is doing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.local.launch_watcher import LaunchWatcher
from pathways_nb.runtime.run_state import RunState, is_computed
from tests.jax.runtime.test_launch_watcher import READY, RUNS, Taken, Witness, node
from tests.support.waiting import LIMIT

vector = np.ones(8, np.float32)


class Kept(LaunchWatcher):
    """A watcher that keeps what it would record: step, end, and whether its end was seen by a look of its own."""

    def __init__(self, clock: Any = lambda: 8.0) -> None:
        super().__init__("kept", clock, 4)
        self.told: list[tuple[int, float, bool]] = []
        compiled_plan = SimpleNamespace(lasts={}, was_short=lambda step: False)
        self.portion: Any = SimpleNamespace(run=SimpleNamespace(compiled_plan=compiled_plan, ends={}))
        self.ends._record = self._keep  # type: ignore[assignment,method-assign]

    def _keep(self, launch_range: Any, ended: Any, stamps: Any, known: bool) -> None:
        qualities = stamps.qualities
        qualities = [qualities] * len(ended) if isinstance(qualities, str) else qualities
        for (_, launch, *_), end, quality in zip(ended, stamps.ends, qualities, strict=True):
            self.told.append((launch.step, end, quality == "estimated"))

    def fly(self, step: int, device: int, witness: Any, dispatched: float = 0.0) -> None:
        self.flight.append((self.portion, node(step, device, 1), witness, dispatched))


@pytest.fixture
def watcher() -> Kept:
    return Kept()


class Running(Witness):
    """An output that is ready once somebody has waited for it; meanwhile it may be taken over."""

    def __init__(self, is_taken_over: bool = False) -> None:
        super().__init__(ready=False)
        self.is_taken_over = is_taken_over

    def block_until_ready(self) -> None:
        super().block_until_ready()
        self.ready = True

    def is_deleted(self) -> bool:
        return self.asked and self.is_taken_over


def test_what_runs_before_it_on_another_device_is_waited_for(watcher) -> None:
    watcher.budget._cost, watcher.budget._interval = 1.0, 1e-4  # so that it does not look at each
    watcher.portion.run.compiled_plan.was_short = lambda step: True
    before = Running()
    watcher.fly(0, 0, before)
    watcher.fly(1, 1, READY)
    watcher._wait()
    assert before.asked
    assert [step for step, *_ in watcher.told] == [0, 1]


def test_the_last_on_each_device_has_ended_just_now(watcher) -> None:
    for step, device in enumerate((0, 1, 0, 2)):
        watcher.fly(step, device, READY)
    watcher.look()
    assert [end for _, end, _ in watcher.told] == [4.0, 8.0, 8.0, 8.0]


def test_an_output_taken_over_while_it_is_waited_for_tells_its_end(watcher, monkeypatch) -> None:
    monkeypatch.setattr(watcher, "_wait_for_taker", lambda taken: pytest.fail("its end is known"))
    watcher.fly(0, 0, Running(is_taken_over=True))
    watcher.fly(1, 0, RUNS)
    watcher._wait()
    assert [step for step, *_ in watcher.told] == [0]


class TakenJustNow(Taken):
    """An output that a launch takes over between two questions."""

    def is_ready(self) -> bool:
        raise RuntimeError("INVALID_ARGUMENT: Array has been deleted.")


def test_an_output_taken_over_between_two_questions_is_not_ready() -> None:
    assert not is_computed(TakenJustNow())


@pytest.mark.parametrize("how", ["at the end", "elsewhere", "for room"])
def test_ends_that_were_seen_are_recorded_before_the_dispatcher_waits(watcher, how) -> None:
    watcher.begin()
    watcher.add(watcher.portion, node(0), READY, 0.0)
    running = Running()
    watcher.add(watcher.portion, node(1), running, 0.0)
    assert not watcher.told, "ends are recorded together"
    if how == "at the end":
        watcher.end()
    elif how == "elsewhere":
        with watcher.elsewhere():
            assert watcher.told == [(0, 8.0, True)]
    else:
        watcher.window = 1
        running.block_until_ready = lambda: setattr(running, "ready", bool(watcher.told))  # type: ignore[method-assign]
        watcher.wait_for_room()
    assert watcher.told[0] == (0, 8.0, True)


def test_a_copy_of_a_plan_looks_its_own_launches_up(controller, left) -> None:
    double = pw.program(pw.jit(lambda x: x * 2, on=left), name="double")
    double(vector).wait()
    (plan,) = {id(one): one for one in _plans(controller, double)}.values()
    assert plan.resolved(0).launches
    action = replace(plan.actions[-1], call=len)
    copy = replace(plan, actions=(*plan.actions[:-1], action))
    assert [launch.call for launch in copy.resolved(0).launches.values()] == [len]


def _plans(controller: pw.Controller, program: pw.Program, argument: np.ndarray = vector) -> list[Any]:
    """The compiled plans of a call."""
    found, dispatcher = list[Any](), controller.driver._dispatchers[0]  # type: ignore[attr-defined]
    before = dispatcher._launch_range

    def look(launch_range: Any) -> None:
        found.append(launch_range.run.compiled_plan)
        before(launch_range)

    dispatcher._launch_range = look
    program(argument).wait()
    dispatcher._launch_range = before
    return found


def test_a_launch_that_raises_does_not_wait_for_ends_that_nobody_records(controller, monkeypatch) -> None:
    """An error is the input's if that has failed, too, so the input's end must be recorded; else this waits for ever."""
    monkeypatch.setattr(RunState.inherited_error, "__defaults__", (2 * LIMIT,))
    place = pw.virtual_slice(1, island=0)
    add = pw.jit(lambda x: x + 1, on=place)

    @pw.jit(on=place)
    def bad(x):
        return jnp.log(x - 1e3)

    @pw.program
    def step(x):
        for _ in range(5):
            x = add(x)
        return add(bad(x))

    step(vector).wait()
    with jax.debug_nans(True):
        step(np.full(8, 1e4, np.float32)).wait()
        with pytest.raises(pw.NodeError, match=r"^bad of step.*nan"):
            step(vector).result()


@pytest.mark.parametrize("width", [1, 2])
def test_a_result_is_told_while_a_later_launch_is_computed_in_its_call(controller, width) -> None:
    """XLA's CPU client computes a loop of few operations in the call, however long it goes on."""
    first, second = (pw.virtual_slice(width, island=0) for _ in range(2))

    def work(m):
        return jax.lax.fori_loop(0, 30, lambda i, x: jnp.tanh(x @ x), m)

    quick = pw.jit(work, on=first)
    slow = pw.jit(lambda x: jax.lax.while_loop(lambda c: c[1] < x, lambda c: (c[0] ^ c[1], c[1] + 1), (x, 0))[0],
                  on=second)  # fmt: skip
    m, few, many = (pw.put(one, on=place) for one, place in
                    ((np.full((256, 256), 0.01, np.float32), first), (np.int32(10), second),
                     (np.int32(1_000_000_000), second)))  # fmt: skip
    both = pw.program(lambda m, x: (quick(m), slow(x)), name="both")
    pw.wait(both(m, few))
    told, late = both(m, many)
    told.wait()
    assert not late.done()
    late.wait()


@pytest.mark.parametrize(("rows", "is_urgent"), [(8, False), (512, True)])
def test_ends_of_large_launches_are_recorded_at_once_since_their_memory_is_held_until_then(
    controller, rows, is_urgent
) -> None:
    double = pw.jit(lambda x: x * 2, on=pw.virtual_slice(1, island=0))
    often = pw.program(lambda x: double(double(double(x))), name="often")
    (plan,) = {id(one): one for one in _plans(controller, often, np.ones((rows, 1024), np.float32))}.values()
    assert [launch.is_urgent for launch in plan.resolved(0).launches.values()] == [True, is_urgent, True]
