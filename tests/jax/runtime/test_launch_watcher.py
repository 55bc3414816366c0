"""When launches end: sampled to a budget, never dropped, and a failure is still named by the node that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.local import dispatcher
from pathways_nb.runtime.local.dispatcher import IN_FLIGHT
from pathways_nb.runtime.local.launch_watcher import LaunchWatcher
from pathways_nb.runtime.local.watcher import Launched, _failures, _interpolated
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import WINDOW_FULL, Label
from pathways_nb.util.waiting import Condition
from tests.support.waiting import Unseen, dispatchers, launched, until

matrix = np.full((128, 128), 0.01, np.float32)


def chain(place: pw.VirtualSlice, length: int) -> pw.Program:
    """``length`` computations, one after another."""

    @pw.jit(on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    def add(x):
        return jnp.tanh(x @ x)

    def body(x):
        for _ in range(length):
            x = add(x)
        return x

    return pw.program(body, name="chain")


@pytest.mark.parametrize(("budget", "all_watched"), [(float("inf"), True), (0.0, False)])
def test_the_share_of_ends_watched_follows_the_budget(controller, left, budget, all_watched) -> None:
    step = chain(left, 40)
    step(matrix).wait()
    controller.driver.spend(budget)
    with Unseen(controller) as unseen, pw.record() as run:
        step(matrix)
        until(lambda: launched(controller) == IN_FLIGHT)
        unseen.see()
    summary = run.summary()
    assert summary.launches == 40
    assert (summary.interpolated == 0) is all_watched
    assert ("of ends watched" in str(summary)) is not all_watched
    events = run.events.of_kind("compute")
    assert (np.diff(events["end"]) >= 0).all()
    assert (events["end"][:-1] <= events["start"][1:] + 1e-9).all(), "one at a time on the same devices"


def test_the_wait_for_the_window_is_recorded_and_is_no_dispatch(controller, left, monkeypatch) -> None:
    monkeypatch.setattr(dispatcher, "_NOTABLE", 0.0)
    step = chain(left, IN_FLIGHT + 1)
    step(matrix).wait()
    with Unseen(controller) as unseen, pw.record() as run:
        step(matrix)
        until(lambda: dispatchers(controller)[0].window._cond._waiters)
        unseen.see()
    stalls, enqueues = run.events.of_kind("stall"), run.events.of_kind("enqueue")
    assert list(stalls["name"]) == [WINDOW_FULL]
    assert list(stalls["program"]) == ["chain"]
    assert (enqueues["end"][0], enqueues["start"][1]) == (stalls["start"][0], stalls["end"][0])
    assert "waited" not in run.summary_line()


class Witness:
    """An output that is ready, or has failed, and remembers whether anybody asked."""

    def __init__(self, error: Exception | None = None):
        self.error, self.asked = error, False

    def block_until_ready(self) -> None:
        self.asked = True
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("readers", "failing", "asked"),
    [
        ((1, 2, 3, -1), None, [3]),
        ((1, -1, 3, -1), None, [1, 3]),
        ((1, 2, 9, -1), None, [2, 3]),
        ((1, 2, 3, -1), 3, [0, 1, 2, 3]),
        ((3, -1, 3, -1), 1, [0, 1, 3]),
    ],
)
def test_only_what_nobody_in_the_group_has_read_is_asked_for(readers, failing, asked) -> None:
    actions = [SimpleNamespace(reader=reader) for reader in readers]
    portion: Any = SimpleNamespace(run=SimpleNamespace(compiled_plan=SimpleNamespace(actions=actions)))
    error = ValueError("bad")
    witnesses = [Witness(error if step == failing else None) for step in range(len(readers))]
    batch = [Launched(portion, step, witness, 0.0) for step, witness in enumerate(witnesses)]
    assert _failures(batch) == [error if step == failing else None for step in range(len(readers))]
    assert [step for step, witness in enumerate(witnesses) if witness.asked] == asked


class Taken(Witness):
    """An output whose memory a later launch has taken over."""

    def is_deleted(self) -> bool:
        return True


class Batches(LaunchWatcher):
    """A watcher that only keeps its batches, as steps."""

    def __init__(self) -> None:
        super().__init__("batches", lambda: 0.0, lambda count: None, 4)
        self.found: list[list[int]] = []

    def _watch(self, batch: Any) -> None:
        self.found.append([one.step for one in batch])


@pytest.mark.parametrize(
    ("steps", "batches"),
    [
        ([(0, Witness), (0, Witness)], [[0], [1]]),
        ([(0, Taken), (0, Witness), (0, Witness)], [[0, 1], [2]]),
        ([(0, Taken), (0, Taken), (0, Witness)], [[0, 1, 2]]),
        ([(0, Taken), (2, Witness), (0, Witness), (2, Witness)], [[0, 1, 2], [3]]),
    ],
)
def test_a_launch_whose_output_was_taken_over_is_watched_with_a_later_one_there(steps, batches) -> None:
    labels = [Label("compute", "n", device=device, devices=2) for device, _ in steps]
    actions = [SimpleNamespace(label=label) for label in labels]
    portion: Any = SimpleNamespace(run=SimpleNamespace(compiled_plan=SimpleNamespace(actions=actions)))
    watcher = Batches()
    for step, (_, witness) in enumerate(steps):
        watcher.inbox.put(Launched(portion, step, witness(), 0.0))
    while not watcher.inbox.empty():
        assert watcher._next_batch()
    assert watcher.found == batches


def test_two_short_launches_among_long_ones_do_not_make_it_look_less_often() -> None:
    watcher, now, quick = Batches(), 0.0, Launched(SimpleNamespace(), 0, Witness(), 0.0)  # type: ignore[arg-type]
    for seconds in [0.01] * 20 + [1e-5, 1e-5]:
        now += seconds
        watcher._account(1, now)
    watcher._cost = 5e-5
    assert not watcher._saves([quick])
    for _ in range(50):
        now += 1e-5
        watcher._account(1, now)
    watcher._cost = 5e-5
    assert watcher._saves([quick])


def test_interpolated_ends_follow_the_weights_and_no_input_comes_later() -> None:
    assert _interpolated([0.0, 0.0, 0.0], [1.0, 2.0, 1.0], 8.0) == pytest.approx([2.0, 6.0, 8.0])
    assert _interpolated([0.0, 7.0], [1.0, 1.0], 8.0) == pytest.approx([1.0, 8.0])
    assert _interpolated([0.0, 3.0, 3.0], [1.0, 1.0, 1.0], 8.0) == pytest.approx([2.5, 5.5, 8.0])
    assert _interpolated([9.0], [1.0], 8.0) == [8.0]


def test_a_failure_within_a_group_is_told_of_its_own_node(controller) -> None:
    def fails(x):
        if float(x) == 3:
            raise ZeroDivisionError("three")
        return np.asarray(x)

    single = pw.virtual_slice(1, island=0)

    @pw.jit(on=single)
    def add(x):
        return jax.lax.fori_loop(0, 100_000, lambda i, y: y + 1e-5, x)

    @pw.jit(on=single)
    def check(x):
        return jax.pure_callback(fails, jax.ShapeDtypeStruct((), np.float32), x)

    @pw.program
    def step(a, b):
        for _ in range(6):
            a = add(a)
        bad = check(b)
        for _ in range(6):
            a = add(a)
        return a, add(bad)

    pw.wait(step(np.float32(0), np.float32(1)))
    controller.driver.spend(0.0)
    good, bad = step(np.float32(0), np.float32(3))
    assert float(good) == pytest.approx(12, rel=0.1)
    with pytest.raises(pw.NodeError, match=r"^check of step.*ZeroDivisionError: three"):
        bad.result()


def test_what_a_skipped_reader_did_not_read_is_waited_for(controller) -> None:
    """Its reader never ran, so that later launches of the group have ended says nothing of it."""

    def fails(x):
        raise ZeroDivisionError("always")

    first, second = (pw.virtual_slice(1, island=0) for _ in range(2))

    @pw.jit(on=first)
    def slow(m):
        return jax.lax.fori_loop(0, 60, lambda i, x: jnp.tanh(x @ x), m)

    @pw.jit(on=first)
    def broken(x):
        return jax.pure_callback(fails, jax.ShapeDtypeStruct((), np.float32), x)

    both = pw.jit(lambda m, x: m.sum() + x, on=first)
    quick = pw.jit(lambda x: x + 1, on=second)

    @pw.program
    def step(m, x):
        bad = broken(x)
        made = slow(m)
        return made, both(made, bad), quick(x)

    large = np.full((256, 256), 0.01, np.float32)
    with pw.record():
        slow(large).wait()
        quick(1.0).wait()
    controller.driver.spend(0.0)
    with pw.record() as run:
        made, bad, _ = step(large, np.float32(1))
    assert made.array().is_ready(), "the block waits for it"
    with pytest.raises(pw.NodeError):
        bad.result()
    (event,) = (event for event in run.events.of_kind("compute") if event["name"] == "slow")
    assert event["status"] == "ok"


def test_the_time_of_a_batch_is_shared_out_by_what_each_took_before() -> None:
    """Of a long and a short launch seen together, the short one does not get half."""
    labels = [Label("compute", name, island=0, devices=4) for name in ("long", "short")]
    actions = [SimpleNamespace(label=label, reader=-1, waits_for=()) for label in labels]
    compiled_plan = SimpleNamespace(actions=actions, lasts={0: 0.04, 1: 0.01})
    record = Record()
    run: Any = SimpleNamespace(own=lambda label: label,
        compiled_plan=compiled_plan, record=record, ended=Condition(), ends={}, stopped=False, client="", serial=0,
        mark_done=lambda step: None,
    )  # fmt: skip
    portion: Any = SimpleNamespace(run=run, device_seconds=0.0, step_done=lambda: None)
    watcher = LaunchWatcher("watcher", lambda: 1.1, lambda count: None, devices=4)
    watcher._watch([Launched(portion, step, Witness(), 0.1) for step in (0, 1)])
    events = record.events()
    assert events["name"].tolist() == ["long", "short"]
    assert events["start"].tolist() == pytest.approx([0.1, 0.9])
    assert events["end"].tolist() == pytest.approx([0.9, 1.1])
    assert events["quality"].tolist() == ["interpolated", "estimated"]
