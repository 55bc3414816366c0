"""What a user does on simulated devices: the same calls, the same records, and clear words where values are needed."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from jax.sharding import NamedSharding

import pathways_nb as pw
from pathways_nb.cost.collectives.pricing import collective
from pathways_nb.cost.hlo.compiled import CompiledFacts
from pathways_nb.cost.model import CostModel
from pathways_nb.runtime.sim import mesh_compiler
from tests.jax.runtime.test_interrupt import python_handles_interrupts  # noqa: F401
from tests.support.simulated import NO_HOSTS, X, a, b, both, is_empty, left
from tests.support.waiting import interrupt_when, until, until_freed

v = np.arange(8, dtype=np.float32)


@pytest.fixture
def sim(watchdog: None) -> Iterator[pw.Controller]:
    """Two simulated islands of four devices; at the end nothing is held or under way there."""
    with pw.attach("sim:tpu_v3:2x4") as controller:
        yield controller
        until_freed(lambda: controller.closed or is_empty(controller))  # errors hold the frames they came from


def test_a_future_is_there_when_time_has_passed(sim: pw.Controller) -> None:
    y = both(v)
    assert (y.shape, y.dtype, y.ndim, y.nbytes, len(y)) == ((8,), np.float32, 1, 32, 8)
    assert not y.done()
    assert repr(y) == "<future both: float32[8], not computed yet>"
    assert isinstance(y.sharding, NamedSharding)
    assert y.sharding.spec == pw.P("x")
    y.wait()
    assert y.done()
    assert repr(y) == "<future both: float32[8], done>"
    assert y.block_until_ready() is y
    assert pw.wait({"y": [y]})["y"][0] is y


ASKS: dict[str, Callable[[Any], Any]] = {
    "result": lambda y: y.result(),
    "array": lambda y: y.array(),
    "float": float,
    "bool": bool,
    "NumPy": np.asarray,
    "iteration": list,
    "format": lambda y: f"{y:.2f}",
    "get": lambda y: pw.get({"y": y}),
    "await": lambda y: asyncio.run(_awaited(y)),
}


async def _awaited(y: Any) -> Any:
    return await y


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_who_asks_for_a_value_is_told_where_and_the_ways_out(sim: pw.Controller, ask: Any, is_recorded: bool) -> None:
    y = both(v)
    with pw.record() if is_recorded else contextlib.nullcontext(), pytest.raises(pw.UsageError) as error:
        ask(y)
    assert re.fullmatch(
        r"the value of both is needed( at test_simulated_calls\.py:\d+)?, and simulated devices compute none\. Wait for it with "
        r"y\.wait\(\) instead, simulate with values=True \(small programs\), or attach real devices: "
        r'pw\.attach\("cpu"\)\.',
        str(error.value),
    )
    assert "at test_simulated_calls.py:" in str(error.value) or ask is ASKS["await"]


def test_calls_in_a_record_are_one_program_with_its_events(sim: pw.Controller) -> None:
    with pw.record("cell") as run:
        x = a(v)
        y = b(x)
    assert y.done()
    events = run.events.of_kind("compute", "transfer")
    assert events["name"].tolist() == ["x → left", "twice", "left → right", "plus"]
    assert set(events["quality"]) == {"simulated"}
    assert events["basis"][events["kind"] == "compute"].tolist() == ["roofline; memory estimated from the jaxpr"] * 2
    assert (np.diff(events["start"]) > 0).all()
    assert [program.runs for program in run.programs] == [1]


def test_a_cell_of_the_notebook(sim: pw.Controller, capsys: Any) -> None:
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "pathways_nb")
    shell.user_ns.update(a=a, b=b, v=v)
    shell.run_cell("%%pathways --run sim_cell\ny = b(a(v))\ny").raise_error()
    run = pw.runs["sim_cell"]
    assert len(run.events.of_kind("compute")) == 2
    assert "<future" in capsys.readouterr().out
    shell.user_ns.pop("y")
    shell.reset()
    InteractiveShell.clear_instance()
    pw.reset()


def test_a_run_is_drawn_and_says_that_it_is_simulated(sim: pw.Controller, tmp_path: Path) -> None:
    with pw.record(show="graph,timeline,memory") as run:
        pw.wait(both(v))
    run.savefig(tmp_path / "run.svg", show=("graph", "timeline", "memory"))
    drawn = (tmp_path / "run.svg").read_text()
    assert "twice" in drawn
    assert "simulated" in drawn
    assert "simulated makespan" in run.summary_line()
    assert "simulated makespan" in repr(run)


def test_a_saved_run_and_its_exports_hold_what_happened(sim: pw.Controller, tmp_path: Path) -> None:
    run = both.run(v)
    run.outputs = None
    run.save(tmp_path / "one.run")
    loaded = pw.load(tmp_path / "one.run")
    for column in ("kind", "name", "start", "end", "quality", "basis", "island"):
        assert loaded.events[column].tolist() == run.events[column].tolist()
    options = loaded.about["options"]
    assert (options["kind"], options["chip"], options["islands"], options["devices_per_island"]) == (
        "sim",
        "tpu_v3",
        2,
        4,
    )
    run.to_csv(tmp_path / "run.csv")
    run.to_chrome(tmp_path / "run.json")
    with open(tmp_path / "run.csv", newline="") as file:
        assert [row["quality"] for row in csv.DictReader(file)] == run.events["quality"].tolist()
    assert "twice" in (tmp_path / "run.json").read_text()


def test_arguments_may_be_shapes_arrays_numbers_and_results_of_other_controllers(watchdog: None) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=4) as real:
        pw.reset()
        there = both(v)
        with pw.attach("sim:tpu_v3:2x4") as controller:
            pw.wait([both(X), both(v), both(jnp.asarray(v)), both(there)])
            placed = pw.put(X, on=left, shardings=pw.P("x"))
            assert placed.sharding.spec == pw.P("x")
            pw.wait(a(placed))
            del placed
            pw.wait(pw.program(lambda x, k: a(x) * k, name="scaled")(X, 2.0))
            assert is_empty(controller)
            kept = both(X)
        assert real.driver.runs == {}
        assert both(there).result().tolist() == ((v * 2 + 1) * 2 + 1).tolist()
        with pytest.raises(pw.CancelledError, match="was cancelled before it was dispatched"):
            both(kept)


@pytest.mark.parametrize("call", [both, a, lambda x: pw.put(x, on=left)], ids=["program", "loose", "put"])
def test_shapes_alone_are_refused_by_real_devices(controller: pw.Controller, call: Any) -> None:
    with pytest.raises(pw.UsageError) as error:
        call(X)
    assert str(error.value).endswith(
        " is a jax.ShapeDtypeStruct, which has a shape but no values, and these are real devices. Pass an array, or "
        'simulate them: pw.attach("sim", chip="tpu_v5p").'
    )


def test_a_result_that_will_never_be_there_is_no_argument(sim: pw.Controller) -> None:
    with pw.attach("sim:tpu_v4:2x4"):
        lost = both(X)
        lost.wait()
    with pytest.raises(pw.LostError, match="both was held on devices that have been let go"):
        both(lost)


def test_no_array_is_copied_however_large(sim: pw.Controller) -> None:
    """Sixteen gigabytes that are one number seen again and again."""
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), shape=(1 << 32,), strides=(0,))
    with pw.record() as run:
        y = a(huge)
        z = b(y)
    del y, z
    pw.wait(both(huge))
    assert run.events.of_kind("transfer")["bytes"].tolist() == [1 << 34] * 2
    assert [program.runs for program in run.programs] == [1]


def test_donating_consumes(sim: pw.Controller) -> None:
    step = pw.program(lambda x: a(x), donate_argnums=0)
    x = pw.put(X, on=left, shardings=pw.P("x"))
    y = step(x)
    with pytest.raises(pw.LostError, match=r"put on left was donated at test_simulated_calls\.py:\d+"):
        x.wait()
    del x
    y.wait()
    assert len(sim.machine.store.buffers) == 1


def test_values_are_computed_beside_on_added_islands_and_of_arrays_that_change_later(watchdog: None) -> None:
    with pw.attach("sim:tpu_v3:2x4", values=True) as sim:
        mine = v.copy()
        with pw.record():
            y = b(a(mine))
            mine[:] = 0  # gathered, and not dispatched yet
        assert y.result().tolist() == (v * 2 + 1).tolist()
        assert isinstance(y.array(), jax.Array)
        assert sim.add(devices=2) == 2
        there = pw.jit(lambda x: x - 1, on=pw.virtual_slice(2, island=2))
        assert there(v).result().tolist() == (v - 1).tolist()


def test_a_gradient_stands_where_its_forward_nodes_do(sim: pw.Controller) -> None:
    graph = pw.program(jax.value_and_grad(lambda x: b(a(x)).sum()), name="gradient")
    run = graph.run(X)
    computed = run.events.of_kind("compute")
    assert {0, 1} == set(computed["island"].tolist())
    assert len(computed) == len([node for node in graph.graph(X).nodes if node.place is not None])
    run.outputs = None


def test_collectives_of_per_shard_code_take_their_time(sim: pw.Controller) -> None:
    def added(x: Any, y: Any) -> Any:
        return x + y

    def summed(x: Any, y: Any) -> Any:
        return jax.lax.psum(x, "x") + y

    shape = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    x = pw.put(shape, on=left, shardings=pw.P("x"))
    seconds = []
    for code in (added, summed):
        with pw.record() as run:
            pw.wait(pw.shard_map(code, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))(x, x))
        (event,) = run.events.of_kind("compute", "collective")
        seconds.append(event["end"] - event["start"])
    model: CostModel = sim.driver.model  # type: ignore[attr-defined]
    expected = collective("all_reduce", (1 << 20) / model.efficiency.all_reduce, model.topology(4), 4)
    assert seconds[1] - seconds[0] == pytest.approx(expected.seconds)


def test_of_code_that_was_compiled_what_was_used_last_is_remembered(sim: pw.Controller, monkeypatch) -> None:
    compiled: list[int] = []
    remembered: dict[Any, Any] = {}
    shift: int
    monkeypatch.setattr(mesh_compiler, "_compiled", remembered)
    monkeypatch.setattr(mesh_compiler, "_REMEMBERED", 2)
    monkeypatch.setattr(mesh_compiler, "_compile", lambda *asked: compiled.append(shift) or CompiledFacts((), ()))
    for shift in (1, 2, 1, 3, 1, 2):
        pw.wait(pw.jit(lambda x, n=shift: jnp.roll(x, n), on=left, in_shardings=pw.P("x"))(X))
    assert compiled == [1, 2, 3, 2]
    assert len(remembered) == 2


def test_a_fault_strikes_the_same_nodes_as_on_real_devices(watchdog: None) -> None:
    side = pw.jit(lambda x: x - 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    program = pw.program(lambda x: {"struck": b(a(x)), "beside": side(x), "after": a(a(x))}, name="forked")
    told = []
    for kind in ("cpu", "sim"):
        chip = "tpu_v3" if kind == "sim" else None
        with pw.attach(kind, islands=2, devices_per_island=4, chip=chip) as controller, pw.record() as run:
            controller.reset()  # runs are numbered anew, whatever ran there before
            with pw.inject_fault("twice", after=1) as fault:
                results = program(v)
            told.append({name: _why(future) for name, future in results.items()})
            assert fault.hits == 1
            program(v)["after"].wait()
            results = None
        failed = run.events.select(run.events.is_("status", "failed"))
        told.append(failed["name"].tolist())
    assert told[:2] == told[2:]
    assert any(why for why in told[0].values())
    assert not all(why for why in told[0].values())


def _why(future: pw.Future) -> str:
    try:
        future.wait()
    except pw.PathwaysError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_what_is_cancelled_says_so_and_all_goes_on(sim: pw.Controller) -> None:
    y = both(X)
    sim.cancel("")
    with pytest.raises(pw.CancelledError, match="plus of both, run 0, was cancelled before it was dispatched"):
        y.wait()
    del y
    both(X).wait()


def test_a_closed_clients_results_are_gone_and_say_so(sim: pw.Controller) -> None:
    with pw.client("ann"):
        y = both(X)
    with pytest.raises(pw.LostError, match="belonged to the client 'ann', which has closed"):
        y.wait()
    ann = pw.client("ann")
    with ann.acting():
        z = both(X)
    ann.close()
    with pytest.raises((pw.CancelledError, pw.LostError)):
        z.wait()


def test_devices_are_lost_come_back_and_are_added(sim: pw.Controller) -> None:
    kept = both(X)
    kept.wait()
    sim.remove(island=1, first=2, count=1)
    with pytest.raises(pw.LostError, match="both"):
        kept.wait()
    with pytest.raises(pw.PlaceError, match="right asks for 4 devices of island 1.*device 2 of island 1 is lost"):
        both(X)
    assert sim.add(island=1) == 1
    both(X).wait()
    assert sim.add(devices=2) == 2
    last = pw.virtual_slice(2, island=2)
    pw.program(pw.work(1e-3, on=last), name="there")(X).wait()
    assert "island 2: 2 × simulated tpu_v3, ids 0, 1" in sim.status()


def test_the_status_of_simulated_devices_says_nothing_of_watching(sim: pw.Controller) -> None:
    assert sim.status().splitlines()[-1] == "  0 programs under way"


def test_nodes_that_were_to_run_on_lost_devices_fail(sim: pw.Controller) -> None:
    y = both(X)
    sim.driver.event_loop.in_turn(lambda: None)
    sim.remove(island=1)
    with pytest.raises(pw.NodeError, match=r"left → right of both, run 0, failed on right .*LostError: device 0, 1, "):
        y.wait()


@pytest.mark.parametrize("way", ["lost", "cancelled", "struck"])
def test_what_happens_before_a_host_has_enqueued_a_node_touches_it(way: str) -> None:
    first, second = (pw.work(0.1, on=left, name=name) for name in ("first", "second"))
    slow = CostModel.of("tpu_v3", host=NO_HOSTS.host.replace(launch=1.0))
    with pw.attach("sim", chip=slow, islands=1, devices_per_island=4) as controller:
        done, late = pw.program(lambda: (first(), second()), name="pair")()
        done.wait()
        assert controller.clock() == pytest.approx(1.1), "the devices are free, the host is not"
        if way == "lost":
            controller.remove(island=0)
        elif way == "cancelled":
            controller.cancel("")
        else:
            pw.inject_fault("second")
        with pytest.raises(
            pw.PathwaysError, match=rf"second of pair, run 0, .*{way if way != 'struck' else 'injected'}"
        ):
            late.wait()


def test_reset_frees_everything_and_time_begins_anew(sim: pw.Controller) -> None:
    y, z = both(X), pw.program(pw.work(1e3, on=left), name="long")(X)
    y.wait()
    pw.reset()
    for future in (y, z):
        with pytest.raises((pw.LostError, pw.CancelledError)):
            future.wait()
    assert sim.clock() == 0.0
    assert both.run(X).events["end"].max() < 1.0


def test_attaching_the_same_again_changes_nothing_and_another_lets_go(sim: pw.Controller) -> None:
    assert pw.attach("sim:tpu_v3:2x4") is sim
    assert pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=4) is sim


def test_a_block_of_simulated_devices_leaves_the_real_ones_alone(controller: pw.Controller) -> None:
    before = both(v)
    with pw.attach("sim:tpu_v3:2x4"):
        with pw.attach("sim:tpu_v5e:2x4"):
            both(v).wait()
        inside = both(v)
        inside.wait()
    assert before.result().tolist() == (v * 2 + 1).tolist()
    assert both(before).result().tolist() == ((v * 2 + 1) * 2 + 1).tolist()
    with pytest.raises(pw.LostError):
        inside.wait()


def test_threads_may_call_and_wait_beside_each_other(sim: pw.Controller) -> None:
    errors: list[BaseException] = []

    def use(name: str) -> None:
        try:
            with pw.client(name):
                for _ in range(10):
                    y = both(X)
                    y.wait()
                    pw.wait(both(y))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    computed = sim.record.events().of_kind("compute")
    for name in ("t0", "t1", "t2", "t3"):
        assert (computed["client"] == name).sum() == 10 * 2 * 2


def test_an_interrupt_ends_a_long_simulation_and_all_stays_usable(
    sim: pw.Controller,
    python_handles_interrupts: None,  # noqa: F811
) -> None:
    works = [pw.work(1e-6, on=left) for _ in range(3)]

    def body(x: Any) -> Any:
        for _ in range(100):
            for work in works:
                x = work(x)
        return x

    program = pw.program(body, name="many")
    program(X).wait()
    results: list[pw.Future] = []
    before = sim.clock()

    def go_on() -> None:
        while True:
            results[:] = [program(X)]

    with (
        interrupt_when(lambda: bool(results) and sim.clock() > before),
        pytest.raises(KeyboardInterrupt),
        pw.record() as run,
    ):
        go_on()
    with pytest.raises(pw.CancelledError, match="was cancelled before it was dispatched"):
        results[0].wait()
    results.clear()
    assert len(run.events.of_kind("compute")) > 0
    program(X).wait()
    assert is_empty(sim)


def test_no_time_passes_for_a_thread_that_was_interrupted_before_it_could(
    sim: pw.Controller,
    python_handles_interrupts: None,  # noqa: F811
) -> None:
    program = pw.program(pw.work(1.0, on=left), name="long")
    engine, gate = sim.driver.event_loop, threading.Event()
    y = program(X)
    engine.inbox.put(gate.wait)  # its thread is busy: what the wait asks of it lies there
    until(lambda: engine.inbox.empty())
    with interrupt_when(lambda: not engine.inbox.empty()), pytest.raises(KeyboardInterrupt):
        y.wait()
    gate.set()
    engine.in_turn(lambda: None)
    assert sim.clock() < 0.1
    sim.cancel("")
    with pytest.raises(pw.CancelledError):
        y.wait()


def test_the_status_names_rows_of_devices_by_their_ends(watchdog: None) -> None:
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2048) as controller:
        assert "island 0: 2048 × simulated tpu_v3, ids 0–2047, 32 × 32 torus of chips, " in controller.status()
        assert len(controller.status()) < 1000


def test_what_would_be_is_predicted_as_elsewhere(sim: pw.Controller) -> None:
    assert pw.predict(both, X, seconds={"twice": 1e-3, "plus": 2e-3}) == pytest.approx(3e-3)


def test_real_and_simulated_events_are_matched_one_by_one(watchdog: None) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=4):
        real = both.run(v)
    with pw.attach("sim:tpu_v3:2x4"):
        simulated = both.run(v)
    compared = pw.compare(real, simulated)
    assert (compared.difference.only_a, compared.difference.only_b, len(compared.difference)) == (0, 0, 4)
    assert set(compared.table["name"]) >= {"twice", "plus", "left → right"}
    assert compared.islands == (4, 4, 4, 4)
