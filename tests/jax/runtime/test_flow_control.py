"""Long loops, back-pressure, flow control, dispatch modes, records: what the engine does while a cell runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.local_islands import LocalAttachment
from pathways_nb.runtime.run_state import RunState
from tests.support.closeness import close
from tests.support.waiting import LIMIT, Unseen, dispatchers, is_waited_for, until, until_freed

v = np.arange(8, dtype=np.float32)


def five_nodes(left: pw.VirtualSlice, right: pw.VirtualSlice) -> pw.Program:
    """Five computations over two islands, there and back twice."""
    there = pw.jit(lambda v: v + 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    back = pw.jit(lambda v: v * 1, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))

    @pw.program
    def step(v):
        return there(back(there(back(there(v)))))

    return step


def busy(place: pw.VirtualSlice, rounds: int = 40):
    """A computation of some milliseconds."""
    return pw.jit(
        lambda m: jax.lax.fori_loop(0, rounds, lambda i, x: jnp.tanh(x @ x + m), m),
        on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"),
    )  # fmt: skip


matrix = np.random.default_rng(0).normal(0, 0.05, (128, 128)).astype(np.float32)


def live(controller: pw.Controller) -> int:
    attachment = cast(LocalAttachment, controller.driver.attachment)
    return sum(len(island.devices[0].client.live_arrays()) for island in attachment.islands)


def test_a_wait_that_is_asked_once_more_when_its_run_is_over_raises_nothing(controller, monkeypatch) -> None:
    """All runs share a condition: between the end of a wait and its removal, other dispatchers ask it again."""
    ended, finish = list[RunState](), RunState.finish

    def keep(run: RunState) -> None:
        finish(run)
        ended.append(run)

    monkeypatch.setattr(RunState, "finish", keep)
    five_nodes(pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1))(v).result()
    until(lambda: bool(ended))
    kinds = {action.step.kind for action in ended[0].compiled_plan.actions}
    assert {"bring", "move", "launch"} <= kinds
    for one in dispatchers(controller):
        assert all(one.runner.inputs.is_ready(ended[0], step) for step in range(len(ended[0].compiled_plan.actions)))


@pytest.mark.slow
@pytest.mark.parametrize("dispatch", ["parallel", "sequential"])
def test_a_thousand_steps_without_a_wait(controller, dispatch, quiet) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2, dispatch=dispatch) as here:
        step = five_nodes(pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1))
        y, steps = v, 1000 if dispatch == "parallel" else 300
        for i in range(steps):
            y = step(y)
            if i == 100:
                after_100 = len(here.driver.entries)
        np.testing.assert_array_equal(y.result(), v + 3 * steps)
        quiet(here)
        assert len(here.machine.store.buffers) == len(here.driver.entries) == 1
        assert here.machine.calls == {}
        assert here.driver.runs == {}
        until_freed(lambda: live(here) <= 40)  # a few that idle threads still hold
        assert after_100 <= 64 + 10


def test_submitting_waits_when_64_programs_are_queued(controller, left) -> None:
    f = busy(left, 1)
    step = pw.program(lambda m: f(m))
    pw.wait(step(matrix))
    most = []

    def let_go() -> None:
        """Let ends be seen once the other thread has stood still for a while, which is worth a row of the record."""
        until(lambda: is_waited_for(controller))
        most.append(len(controller.driver.runs))
        since = controller.clock()
        until(lambda: controller.clock() > since + 5e-3)
        unseen.see()

    with pw.record() as run, Unseen(controller) as unseen:
        thread = threading.Thread(target=let_go)
        thread.start()
        y = step(matrix)
        for _ in range(80):
            y = step(y)
        thread.join()
    assert most == [64]
    stalls = [row for row in run.events.of_kind("stall") if row["name"] == "back-pressure: 64 programs queued"]
    assert stalls
    assert all(row["end"] - row["start"] > 1e-3 and row["program"] == "step" for row in stalls)


def test_launches_in_flight_are_bounded_on_each_island(controller, left, right, monkeypatch) -> None:
    most = {0: 0, 1: 0}
    for d in dispatchers(controller):

        def add(*args, add=d.computing.add, flight=d.computing.flight, island=d.island):
            add(*args)
            most[island] = max(most[island], len(flight))

        monkeypatch.setattr(d.computing, "add", add)
    f, g = busy(left, 1), busy(right, 1)
    pw.wait([f(matrix), g(matrix)])
    controller.wait_all()

    @pw.program
    def many(m):
        one = two = m
        for _ in range(40):
            one, two = f(one), g(two)
        return one, two

    with Unseen(controller) as unseen:
        results = many(matrix)
        until(lambda: most == {0: 24, 1: 24})
        unseen.see()
        pw.wait(results)
    assert most == {0: 24, 1: 24}


def test_transfers_that_have_ended_at_once_never_hold_a_run(fresh_python) -> None:
    done = fresh_python("""
    import faulthandler, numpy as np, pathways_nb as pw
    faulthandler.dump_traceback_later(280, exit=True)
    pw.attach("cpu", islands=2, devices_per_island=4)
    a = pw.jit(lambda v: v * 2, on=pw.virtual_slice(4), in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    b = pw.jit(lambda v: v + 1, on=pw.virtual_slice(4), in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    v = np.arange(8, dtype=np.float32)
    for i in range(200):
        with pw.record():
            x = b(a(v))
            x.wait()
            y = a(x)
        assert y.result()[0] == 2
    """)
    assert done.returncode == 0, done.stderr[-300:]


def spans(run: pw.Run, island: int) -> list[tuple[float, float]]:
    events = run.events.of_kind("compute")
    mine = events.select(events["island"] == island)
    return list(zip(mine["start"], mine["end"], strict=True))


def both(dispatch: str) -> tuple[pw.Run, list[np.ndarray]]:
    with pw.attach("cpu", islands=2, devices_per_island=2, dispatch=dispatch):  # type: ignore[arg-type]
        left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        f, g = busy(left, 20), busy(right, 20)
        chain, batches = pw.program(lambda ms: [g(f(m)) for m in ms]), [matrix + i / 1000 for i in range(6)]
        pw.wait(chain(batches))
        with pw.record(dispatch) as run:
            out = chain(batches)
        return run, pw.get(out)


def test_dispatch_in_parallel_and_in_sequence_computes_the_same(controller) -> None:
    for a, b in zip(both("parallel")[1], both("sequential")[1], strict=True):
        close(a, b)


def on_both_islands(inside: Callable[[int], None]) -> pw.Program:
    """Two computations that do not depend on each other, one on each island, that call ``inside(island)``."""

    def computation(island: int) -> pw.Computation:
        def call(x: np.ndarray) -> np.ndarray:
            inside(island)
            return np.asarray(x)

        return pw.jit(
            lambda x: jax.pure_callback(call, jax.ShapeDtypeStruct((), np.float32), x),
            on=pw.virtual_slice(1, island=island),
        )

    one, two = computation(0), computation(1)
    return pw.program(lambda x: (one(x), two(x)), name="both")


def test_islands_work_at_the_same_time_in_parallel_dispatch(watchdog) -> None:
    """Each waits for the other in the midst of its computation."""
    met = threading.Barrier(2, timeout=LIMIT)
    with pw.attach("cpu", islands=2, devices_per_island=1, dispatch="parallel"):
        assert pw.get(on_both_islands(lambda island: met.wait())(1.0)) == (1.0, 1.0)


def test_islands_never_work_at_the_same_time_in_sequential_dispatch(watchdog) -> None:
    inside: set[int] = set()
    most: list[int] = []

    def enter(island: int) -> None:
        inside.add(island)
        most.append(len(inside))
        threading.Event().wait(1e-2)  # nothing depends on how long: another would be let in
        inside.remove(island)

    with pw.attach("cpu", islands=2, devices_per_island=1, dispatch="sequential"):
        program = on_both_islands(enter)
        for _ in range(5):
            assert pw.get(program(1.0)) == (1.0, 1.0)
    assert most == [1] * 10


def test_sequential_dispatch_enqueues_a_step_when_the_one_before_is_done(controller) -> None:
    run, _ = both("sequential")
    computed = sorted((s for island in (0, 1) for s in spans(run, island)), key=lambda span: span[1])
    assert len(computed) == 12
    for before, after in zip(computed, computed[1:], strict=False):
        assert after[0] >= before[0]
        assert after[1] > before[1]


def test_a_device_runs_one_thing_at_a_time(controller, left) -> None:
    one, two = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=0)
    f, g = busy(one, 20), busy(left, 20)
    run_ = pw.program(lambda m: (f(g(m)), g(f(m))))
    pw.wait(run_(matrix))
    with pw.record() as run:
        run_(matrix), busy(two, 20)(matrix)
    events = run.events.of_kind("compute")
    for device in range(4):
        here = events.select((events["device"] <= device) & (device < events["device"] + events["devices"]))
        ordered = sorted(zip(here["start"], here["end"], strict=True))
        assert all(b[0] >= a[1] - 1e-9 for a, b in zip(ordered, ordered[1:], strict=False)), device


def test_every_event_is_complete_and_inside_its_run(controller, left, right) -> None:
    step = five_nodes(left, right)
    pw.wait(step(v))
    with pw.record() as run:
        for _ in range(3):
            y = step(v)
    assert y.done()
    events = run.events
    assert (events["end"] >= events["start"]).all()
    computed = events.of_kind("compute")
    assert len(computed) == 15
    assert set(computed["run"]) == set(events.of_kind("transfer")["run"])
    assert len(set(computed["run"])) == 3
    assert set(computed["status"]) == {"ok"}
    assert set(computed["devices"]) == {4}
    assert (computed["bytes"] == 32).all()
    assert all(line.startswith("test_flow_control.py:") for line in computed["line"])
    producers = {row["node"]: row["parents"] for row in computed}
    assert all(set(parents) <= set(producers) | {0} for parents in producers.values())


def test_a_run_knows_its_programs_and_adds_up(controller, left, right) -> None:
    step = five_nodes(left, right)
    run = step.run(v)
    np.testing.assert_array_equal(run.outputs.result(), v + 3)
    assert run.finished
    assert [(p.graph.name, p.runs) for p in run.programs] == [("step", 1)]
    assert sorted(run.programs[0].where.values()) == ["island 0, dev 0–3", "island 1, dev 0–3"]
    assert "DCN" in run.programs[0].routes.values()
    summary = run.summary()
    assert summary.launches == 5
    assert summary.failed == 0
    assert summary.makespan > 0
    assert all(0 < share <= 1 for share in summary.utilisation)
    assert "5 launches" in repr(run)
    assert "<run step: 1 program," in repr(run)


def test_a_training_loop_is_one_program_run_many_times(controller, left, right) -> None:
    step = five_nodes(left, right)
    with pw.record("train") as run:
        y = v
        for i in range(30):
            y = step(y)
            if i % 10 == 0:
                float(y.result()[0])
    assert [(p.graph.name, p.runs) for p in run.programs] == [("step", 30)]
    assert len(run.events.of_kind("wait")) <= 3
    assert len(run.events.of_kind("fetch")) == 3


def test_a_long_loop_outside_a_record_remembers_a_bounded_number_of_events(controller) -> None:
    one = pw.virtual_slice(1, island=0)
    inc = pw.program(pw.jit(lambda v: v + 1, on=one))
    y = np.float32(0)
    for _ in range(4000):
        y = inc(y)
    assert y.result() == 4000
    assert len(controller.record.events()) < 4000


def test_two_threads_may_call_at_once(controller, left, right) -> None:
    step = five_nodes(left, right)
    pw.wait(step(v))
    out: list[np.ndarray] = []

    def work(start: float) -> None:
        y = v + start
        for _ in range(20):
            y = step(y)
        out.append(pw.get(y) - 60 - start)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(out) == 3
    for result in out:
        np.testing.assert_array_equal(result, v)


def test_a_node_that_only_exchanges_values_is_a_collective(controller, left) -> None:
    def shards(fn):
        return pw.shard_map(fn, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"), check_vma=False)

    pure = [
        lambda x: jax.lax.psum(x, "x"),
        lambda x: jax.lax.pmean(x, "x"),
        lambda x: jax.lax.all_gather(x, "x").reshape(-1)[: x.size] * 0 + x,  # computes as well
        lambda x: jax.lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)]),
    ]
    kinds = []
    for fn in pure:
        with pw.record() as run:
            shards(fn)(np.arange(8.0, dtype=np.float32))
        kinds += [kind for kind in run.events["kind"] if kind in ("compute", "collective")]
    assert kinds == ["collective", "collective", "compute", "collective"]


def test_a_misspelt_view_is_told_with_the_one_that_was_meant(a) -> None:
    with pw.record() as run:
        a(np.arange(8, dtype=np.float32)).wait()
    with pytest.raises(ValueError, match="there is no view 'timelin'; choose from .* or none; did you mean 'timeline'"):
        run.show("timelin")
    with pytest.raises(
        ValueError,
        match="there is no view 'qq'; choose from graph, timeline, critical, ops, modules, memory, categories or none$",
    ):
        run.show("graph", "qq")
