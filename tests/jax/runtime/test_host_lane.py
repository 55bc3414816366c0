"""The host lane: beside the devices and ahead of them, in program order, and alone with its failures.

A host function that waits for an event stands for a slow one, so that no test depends on the machine's speed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.program import jax_contexts
from pathways_nb.runtime.local.host_lane import HostLane
from pathways_nb.runtime.local.inputs import LocalInputs
from pathways_nb.util.waiting import Condition
from tests.support.closeness import close
from tests.support.computations import v
from tests.support.waiting import LIMIT, held_back, until

F8 = jax.ShapeDtypeStruct((8,), np.float32)


class Gate:
    """A host function that waits until the test opens it, and counts its calls."""

    def __init__(self) -> None:
        self.begun, self.ended, self._open = 0, 0, threading.Semaphore(0)

    def load(self) -> np.ndarray:
        self.begun += 1
        assert self._open.acquire(timeout=LIMIT)
        self.ended += 1
        return np.full(8, self.ended, np.float32)

    def open(self, times: int = 1) -> None:
        self._open.release(times)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open(1000)


def test_earlier_programs_and_launches_that_do_not_need_it_go_on_meanwhile(left, a, b, gate) -> None:
    load = pw.host(gate.load, on=left, out=F8)
    after = pw.jit(lambda x, y: x + y, on=left)

    @pw.program
    def step(x):
        loaded = load()  # called first, needed last
        early = a(x)
        return early, b(early), after(early, loaded)

    before = a(v)
    early, elsewhere, late = step(v)
    close(before, v * 2)
    close(early, v * 2)
    close(elsewhere, v * 2 + 1)
    until(lambda: gate.begun == 1)
    assert not late.done()
    independent = b(v)
    close(independent, v + 1)
    gate.open()
    close(late, v * 2 + 1)


def test_work_of_later_calls_is_done_while_the_devices_are_busy_with_the_first(controller, left, a) -> None:
    calls = itertools.count(1)
    made: list[int] = []

    @pw.host(on=left, out=F8)
    def load():
        made.append(next(calls))
        return np.full(8, made[-1], np.float32)

    step = pw.program(lambda: a(load()))
    step().result()
    with held_back(controller.driver._dispatchers[0]):  # type: ignore[attr-defined]
        results = [step() for _ in range(5)]
        until(lambda: len(made) == 6)
        assert not any(result.done() for result in results)
    for number, result in enumerate(results):
        close(result, np.full(8, 2.0 * (number + 2)))


def test_a_host_runs_one_thing_at_a_time_in_program_order_and_islands_side_by_side(left, right, a, b, gate) -> None:
    order: list[str] = []

    def noting(name: str, place: pw.VirtualSlice) -> pw.HostFunction:
        def note(*_: Any) -> None:
            order.append(name)

        return pw.host(note, on=place)

    blocked = pw.host(gate.load, on=left, out=F8)
    first, second, third = noting("first", left), noting("second", left), noting("third", right)

    @pw.program
    def step():
        loaded = blocked()
        first()
        second()
        third()
        return a(loaded)

    results = [step(), step()]
    until(lambda: order == ["third", "third"])
    gate.open(2)
    pw.get(results)
    assert [name for name in order if name != "third"] == ["first", "second"] * 2
    assert {thread.name for thread in threading.enumerate()} >= {"pathways-host-0", "pathways-host-1"}


def test_the_thread_stays_and_only_islands_with_host_work_have_one(fresh_python) -> None:
    done = fresh_python(
        """
        import threading, numpy as np, jax, pathways_nb as pw
        controller = pw.attach("cpu", islands=2, devices_per_island=1)
        place = pw.virtual_slice(1, island=1)
        names = lambda: sorted(t.name for t in threading.enumerate() if "pathways-host" in t.name)
        print(names())
        seen = []
        note = pw.host(lambda: seen.append(threading.current_thread()), on=place)
        for _ in range(3):
            note()
        controller.wait_all()
        print(len(set(seen)), len(seen), names())
        controller.close()
        print(names())
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "1 3 ['pathways-host-1']", "[]"]


def test_an_exception_fails_what_depends_on_it_and_nothing_else(left, a, b) -> None:
    batches = iter([np.zeros(8, np.float32)])
    load = pw.host(lambda: next(batches), on=left, out=F8)

    @pw.program(name="epoch")
    def step(x):
        return a(load()), b(x)

    close(step(v), (np.zeros(8), v + 1))
    failed, fine = step(v)
    close(fine, v + 1)
    with pytest.raises(pw.NodeError) as caught:
        failed.result()
    said = str(caught.value)
    assert "load of epoch, run 1, failed on left (island 0, its host)" in said
    assert "test_host_lane.py:" in said
    assert "StopIteration: the iterator that it reads has no more items" in said
    assert isinstance(caught.value.__cause__, StopIteration)
    close(a(v), v * 2)


def test_the_line_that_raised_is_in_the_cause(left) -> None:
    def load():
        raise ValueError("no such file")

    with pytest.raises(pw.NodeError, match="ValueError: no such file") as caught:
        pw.host(load, on=left, out=F8)().result()
    assert "raised at" in caught.value.__cause__.__notes__[0]
    assert "test_host_lane.py" in caught.value.__cause__.__notes__[0]


def test_what_ends_a_thread_does_not_end_the_lane(left) -> None:
    def leave():
        raise SystemExit(3)

    with pytest.raises(pw.NodeError, match="SystemExit: 3"):
        pw.host(leave, on=left, out=F8)().result()
    close(pw.host(lambda: v, on=left, out=F8)(), v)


def test_it_inherits_the_error_of_its_arguments_and_is_not_called(controller, left, a) -> None:
    seen: list[Any] = []
    note = pw.host(seen.append, on=left)
    double = pw.host(lambda x: x * 2, on=left, out=F8)

    @pw.program
    def step(x):
        y = a(x)
        note(y)
        return double(y)

    with pw.inject_fault("double"):
        failed = step(v)
        with pytest.raises(pw.NodeError, match="injected fault"):
            failed.result()
    controller.wait_all()
    assert seen == []
    close(step(v), v * 4)


def test_a_fault_can_be_injected_into_it(left) -> None:
    load = pw.host(lambda: v, on=left, out=F8)
    with pw.inject_fault("load"), pytest.raises(pw.NodeError, match="injected fault 1"):
        load().result()
    close(load(), v)


def test_a_cancelled_program_calls_nothing_that_has_not_begun(controller, left, a, gate) -> None:
    load = pw.host(gate.load, on=left, out=F8)
    step = pw.program(lambda: a(load()))
    results = [step() for _ in range(4)]
    until(lambda: gate.begun == 1)
    controller.driver.cancel(list(controller.driver.runs))
    gate.open(4)
    for result in results:
        with pytest.raises(pw.CancelledError):
            result.result()
    controller.wait_all()
    assert gate.begun == 1


def test_a_range_that_is_due_while_it_is_looked_at_is_not_waited_for() -> None:
    """Seen once under load: the time left was negative, and the lane's thread ended."""
    clock = iter([1.0, 2.5])
    lane, done = HostLane(0, lambda: next(clock), LocalInputs(0)), list[int]()
    lane._step = lambda launch_range, step: done.append(step)  # type: ignore[method-assign]
    plan = SimpleNamespace(orders=[[0]], steps=[SimpleNamespace(on_host=True)])
    compiled = SimpleNamespace(plan=plan, contexts=jax_contexts.current())
    run = SimpleNamespace(compiled_plan=compiled, launched=Condition(), stopped=False)
    thread = threading.Thread(target=lane._range, args=(SimpleNamespace(run=run, start=0, stop=1), 2.0))
    thread.start()
    thread.join()
    assert done == [0]


def test_sequential_dispatch_and_a_late_network_change_no_value(fresh_python) -> None:
    done = fresh_python(
        """
        import itertools, numpy as np, jax, pathways_nb as pw
        out = jax.ShapeDtypeStruct((8,), np.float32)
        for options in ({"dispatch": "sequential"}, {"dcn_latency": 2e-3}):
            pw.attach("cpu", islands=2, devices_per_island=2, **options)
            left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
            numbers = itertools.count()
            load = pw.host(lambda: np.full(8, next(numbers), np.float32), on=left, out=out)
            half = pw.host(lambda x: x / 2, on=right, out=out)
            f, g = pw.jit(lambda x: x * 4, on=left), pw.jit(lambda x: x + 1, on=right)
            step = pw.program(lambda: g(half(f(load()))))
            print([float(y.result()[0]) for y in [step() for _ in range(4)]])
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1.0, 3.0, 5.0, 7.0]"] * 2


def test_a_wait_for_its_value_is_marked_at_its_node(left) -> None:
    load = pw.host(lambda: v, on=left, out=F8)
    with pw.record() as run:
        load().result()
    (program,) = run.programs
    (node,) = [node for node in program.graph.nodes if node.kind == "host"]
    assert list(program.needed) == [node.id]


def test_its_events_have_a_kind_of_their_own(controller, left, a) -> None:
    load = pw.host(lambda: v, on=left, out=F8)
    step = pw.program(lambda: a(load()), name="epoch")
    step().result()
    with pw.record() as run:
        for _ in range(3):
            step()
    events = run.events.of_kind("host")
    assert len(events) == 3
    assert set(zip(events["name"], events["program"], events["island"], events["devices"], strict=True)) == {
        ("load", "epoch", 0, 0)
    }
    assert all("test_host_lane.py" in line for line in events["line"])
    assert events["quality"].tolist() == ["exact"] * 3
    assert (events["start"][1:] >= events["end"][:-1]).all()
    assert run.summary().launches == 3
    moves = run.events.of_kind("transfer")
    assert set(zip(moves["name"], moves["route"], moves["bytes"].tolist(), strict=True)) == {
        ("host 0 → left", "host", 32)
    }
    path = run.critical_path()
    assert path.length == pytest.approx(run.summary().makespan)
    assert "host" in run.idle().seconds
    assert run.what_if(kind="host", faster=2).matched == 3
