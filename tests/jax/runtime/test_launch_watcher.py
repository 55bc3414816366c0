"""When launches end: sampled to a budget, never dropped, and a failure is still named by the node that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.local import enqueue_lane
from pathways_nb.runtime.local.launch_ends import LaunchEnds, failures_of
from pathways_nb.runtime.local.launch_watcher import IN_FLIGHT, LaunchWatcher
from pathways_nb.runtime.local.look_budget import MOST_AT_ONCE, LookBudget
from pathways_nb.runtime.local.watcher import interpolated
from pathways_nb.timing.waits import WHY
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import WINDOW_FULL, Label
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.waiting import Condition
from tests.support.waiting import Unseen, launched, until

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


def test_what_was_not_seen_to_end_is_told_and_is_in_order(controller, left) -> None:
    step = chain(left, 40)
    step(matrix).wait()
    controller.driver.spend(0.0)
    with Unseen(controller) as unseen, pw.record() as run:
        step(matrix)
        until(lambda: launched(controller) == IN_FLIGHT)
        unseen.see()
    summary = run.summary()
    assert summary.launches == 40
    assert summary.interpolated > 0
    assert "of launches had their end measured, those of the rest are interpolated" in str(summary)
    events = run.events.of_kind("compute")
    assert (np.diff(events["end"]) >= 0).all()
    assert (events["end"][:-1] <= events["start"][1:] + 1e-9).all(), "one at a time on the same devices"


def test_the_wait_for_the_window_is_recorded_and_is_no_dispatch(controller, left, monkeypatch) -> None:
    monkeypatch.setattr(enqueue_lane, "_NOTABLE", 0.0)
    step = chain(left, IN_FLIGHT + 1)
    step(matrix).wait()
    with uncollected(), Unseen(controller) as unseen, pw.record() as run:  # a collection is a stall, too
        step(matrix)
        until(lambda: launched(controller) == IN_FLIGHT)
        unseen.see()
    stalls, enqueues = run.events.of_kind("stall"), run.events.of_kind("enqueue")
    assert list(stalls["name"]) == [WINDOW_FULL]
    assert list(stalls["program"]) == ["chain"]
    assert (enqueues["end"][0], enqueues["start"][1]) == (stalls["start"][0], stalls["end"][0])
    assert "waited" not in run.summary_line()


class Witness:
    """An output that is ready or not, or has failed, and remembers whether anybody waited for it."""

    def __init__(self, error: Exception | None = None, ready: bool = True):
        self.error, self.ready, self.asked = error, ready, False

    def is_ready(self) -> bool:
        return self.ready

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
        ((3, -1, 3, -1), 1, [0, 1, 2, 3]),
    ],
)
def test_only_what_nobody_in_the_group_has_read_is_asked_for(readers, failing, asked) -> None:
    error = ValueError("bad")
    witnesses = [Witness(error if step == failing else None) for step in range(len(readers))]
    batch: Any = [
        (None, node(step, reader=reader), witness, 0.0)
        for step, (reader, witness) in enumerate(zip(readers, witnesses, strict=True))
    ]
    found = [error if step == failing else None for step in range(len(readers))]
    assert failures_of(batch) == (found if failing is not None else [])
    assert [step for step, witness in enumerate(witnesses) if witness.asked] == asked


class Taken(Witness):
    """An output whose memory a later launch has taken over."""

    def is_deleted(self) -> bool:
        return True


def node(step: int, device: int = 0, devices: int = 2, **differs: Any) -> Any:
    """A launch of a plan."""
    label = Label("compute", "n", island=0, device=device, devices=devices)
    usual = {"label": label, "waits_for": (), "reader": -1, "is_urgent": False, "tells": False}
    return SimpleNamespace(step=step, devices=slice(device, device + devices), width=devices, **usual | differs)


READY, RUNS = Witness(), Witness(ready=False)


@pytest.mark.parametrize(
    ("launches", "ended"),
    [
        ([], 0),
        ([(0, READY), (0, RUNS)], 1),
        ([(0, READY), (0, READY)], 2),
        ([(0, Taken()), (0, RUNS), (0, READY)], 0),
        ([(0, Taken()), (0, READY), (0, RUNS)], 2),
        ([(0, Taken()), (0, Taken()), (0, READY)], 3),
        ([(0, READY), (0, Taken()), (2, READY)], 1),
        ([(0, Taken()), (2, READY), (0, READY), (2, RUNS)], 3),
    ],
)
def test_a_launch_whose_output_was_taken_over_has_ended_when_a_later_one_there_has(launches, ended) -> None:
    watcher, found = LaunchWatcher("watcher", lambda: 0.0, 4), list[int]()
    watcher.ends.record = lambda ended, seen_at: found.extend(one.step for _, one, *_ in ended)  # type: ignore[method-assign]
    portion: Any = SimpleNamespace()
    watcher.flight += [(portion, node(step, device), witness, 0.0) for step, (device, witness) in enumerate(launches)]
    assert watcher._look() == ended
    watcher.look(records=True)
    assert found == list(range(ended))
    assert [launch.step for _, launch, *_ in watcher.flight] == list(range(ended, len(launches)))


def test_ends_that_are_seen_are_recorded_together_unless_somebody_waits_for_one() -> None:
    watcher, batches, now = LaunchWatcher("watcher", lambda: now[0], 4), [], [0.0]
    watcher.ends.record = lambda ended, seen_at: batches.append((len(ended), seen_at[-1]))  # type: ignore[method-assign]
    watcher.begin()
    portion: Any = SimpleNamespace()
    for step in range(68):
        now[0] += 1.0
        watcher.add(portion, node(step, is_urgent=step == 66), READY, now[0])
    assert batches == [(64, 64.0), (3, 67.0)]
    watcher.end()
    assert batches[2:] == [(1, 68.0)]
    watcher.budget.share = 0.0
    watcher.add(portion, node(20), READY, 20.0)
    assert watcher.flight, "without a budget nobody looks before somebody must wait"


@pytest.mark.parametrize(("cost", "looks"), [(0.0, 20), (2e-5, 5)])
def test_the_dispatcher_looks_as_often_as_the_budget_allows(monkeypatch, cost, looks) -> None:
    watcher, looked = LaunchWatcher("watcher", lambda: 0.0, 4), list[int]()
    monkeypatch.setattr(watcher, "look", lambda: looked.append(len(watcher.flight)))
    watcher.begin()
    watcher.budget._interval, watcher.budget._cost = cost / (4 * watcher.budget.share) or 1.0, cost
    portion: Any = SimpleNamespace()
    for step in range(20):
        watcher.add(portion, node(step), RUNS, 0.0)
    assert looked == [1 + at * 20 // looks for at in range(looks)]
    looked.clear()
    for step in range(20, 24):
        watcher.add(portion, node(step, is_urgent=step == 20), RUNS, 0.0)
    assert looked == [21, 22, 23, 24], "somebody waits for one"


def test_two_short_launches_among_long_ones_do_not_make_it_look_less_often() -> None:
    budget, now = LookBudget(), 0.0
    for seconds in [0.01] * 20 + [1e-5, 1e-5]:
        now += seconds
        budget.looked(1, now, 0.0)
    budget._cost = 5e-5
    assert budget.at_once < 1
    for _ in range(50):
        now += 1e-5
        budget.looked(1, now, 0.0)
    budget._cost = 5e-5
    assert budget.at_once == MOST_AT_ONCE


@pytest.mark.parametrize(("apart", "most"), [(1.0, 1), (3e-3, 1), (1e-3, 2), (1e-5, MOST_AT_ONCE)])
def test_no_end_goes_unseen_for_long_however_dear_a_look_is(apart, most) -> None:
    budget, now = LookBudget(), 0.0
    for _ in range(100):
        now += apart
        budget.looked(1, now, 1e-2)
    assert budget.at_once == pytest.approx(most)
    budget.looked(1, now + 1.0, 1e-2)
    assert budget.at_once == 1, "what was before a pause says nothing of what is after it"


@pytest.mark.parametrize(("seconds", "found"), [(1e-4, 3), (1.0, 1)])
def test_a_launch_that_takes_long_is_not_waited_for_with_those_before_it(seconds, found) -> None:
    watcher, ends = LaunchWatcher("watcher", lambda: 0.0, 4), list[int]()
    watcher.ends.record = lambda ended, seen_at: ends.extend(one.step for _, one, *_ in ended)  # type: ignore[method-assign]
    plan = SimpleNamespace(was_short=lambda step: (1e-4, seconds, 1e-4)[step] < 1e-3)
    portion: Any = SimpleNamespace(run=SimpleNamespace(compiled_plan=plan))
    watcher.budget._interval, watcher.budget._cost = 1e-5, 1e-2
    watcher.flight += [(portion, node(step), READY, 0.0) for step in range(3)]
    watcher._wait()
    assert ends == list(range(found))


def test_interpolated_ends_follow_the_weights_and_no_input_comes_later() -> None:
    assert interpolated([0.0, 0.0, 0.0], [1.0, 2.0, 1.0], 8.0) == pytest.approx([2.0, 6.0, 8.0])
    assert interpolated([0.0, 7.0], [1.0, 1.0], 8.0) == pytest.approx([1.0, 8.0])
    assert interpolated([0.0, 3.0, 3.0], [1.0, 1.0, 1.0], 8.0) == pytest.approx([2.5, 5.5, 8.0])
    assert interpolated([9.0], [1.0], 8.0) == [8.0]


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


class Portion(SimpleNamespace):
    """A range of a run that is not there."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}
        compiled_plan = SimpleNamespace(
            lasts={}, actions=[SimpleNamespace(waits_for=waits, reader=-1) for waits in ((), (0,), ())]
        )
        run = SimpleNamespace(
            own=lambda label: label, compiled_plan=compiled_plan, record=Record(), ended=Condition(), ends=self.ends,
            stopped=False, client="", serial=0, done=bytearray(3),
        )  # fmt: skip
        super().__init__(run=run, device_seconds=0.0, step_done=lambda count: None, ends=self.ends)


def test_launches_on_several_devices_that_are_recorded_together_keep_apart() -> None:
    """The second reads what the first makes on other devices; the third runs where the first did."""
    portion: Any = Portion()
    ends, launches = LaunchEnds(4), (node(0, 0), node(1, 2, waits_for=(0,)), node(2, 0))
    ends.record([(portion, launch, READY, 0.1) for launch in launches], [1.0, 3.0, 4.0])
    events = portion.run.record.events()
    assert events["start"].tolist() == [0.1, 1.0, 1.0]
    assert events["end"].tolist() == [1.0, 3.0, 4.0]
    assert [WHY[why] for why in events.stored("why")] == ["message", "data", "lane"]
    assert ends.free_at == [4.0, 4.0, 3.0, 3.0]
    assert portion.run.ends == {0: 1.0, 1: 3.0, 2: 4.0}
    assert portion.device_seconds == pytest.approx(2 * (0.9 + 2.0 + 3.0))


@pytest.mark.parametrize(
    ("dispatched", "seen_at"),
    [
        ([0.1, 1.1, 2.1, 3.1], [1.0, 2.0, 3.0, 4.0]),
        ([0.1, 0.2, 2.1, 2.2], [1.0, 2.0, 3.0, 4.0]),
        ([0.1, 0.2, 0.3, 3.5], [3.0, 3.0, 3.0, 4.0]),
        ([0.1, 0.2, 0.3, 0.4], [1.0, 4.0, 4.0, 4.0]),
    ],
)
@pytest.mark.parametrize("free", [0.0, 0.5])
def test_launches_of_one_lane_are_stamped_as_any_others(dispatched, seen_at, free) -> None:
    found = list[Any]()
    for apart in (False, True):
        portion: Any = Portion()
        ends, devices = LaunchEnds(4), [slice(0, 2)] * 4
        ends.free_at = [free] * 4
        if apart:  # equal, but not known to be the same
            devices = [slice(0, 2) for _ in range(4)]
        launches = [node(step) for step in range(4)]
        for launch, where in zip(launches, devices, strict=True):
            launch.devices = where
        portion.run.done = bytearray(4)
        columns = zip(launches, dispatched, strict=True)
        ends.record([(portion, launch, READY, begun) for launch, begun in columns], seen_at)
        events = portion.run.record.events()
        names = ("start", "end", "why", "quality")
        found.append([*(events[name].tolist() for name in names), ends.free_at, portion.run.compiled_plan.lasts])
    assert found[0] == found[1]


def test_the_time_of_a_batch_is_shared_out_by_what_each_took_before() -> None:
    """Of a long and a short launch seen together, the short one does not get half."""
    compiled_plan = SimpleNamespace(lasts={0: 0.04, 1: 0.01})
    record = Record()
    run: Any = SimpleNamespace(own=lambda label: label,
        compiled_plan=compiled_plan, record=record, ended=Condition(), ends={}, stopped=False, client="", serial=0,
        done=bytearray(2),
    )  # fmt: skip
    portion: Any = SimpleNamespace(run=run, device_seconds=0.0, step_done=lambda count: None)
    watcher = LaunchWatcher("watcher", lambda: 1.1, devices=4)
    for step, name in enumerate(("long", "short")):
        launch = node(step, devices=4, label=Label("compute", name, island=0, devices=4))
        watcher.flight.append((portion, launch, Witness(), 0.1))
    compiled_plan.actions = [SimpleNamespace(reader=-1)] * 2
    watcher.look(records=True)
    events = record.events()
    assert events["name"].tolist() == ["long", "short"]
    assert events["start"].tolist() == pytest.approx([0.1, 0.9])
    assert events["end"].tolist() == pytest.approx([0.9, 1.1])
    assert events["quality"].tolist() == ["interpolated", "estimated"]
