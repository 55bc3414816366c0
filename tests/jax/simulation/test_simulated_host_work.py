"""Host work in simulated time: it occupies its island's host, ahead of the devices and beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.simulated import NO_HOSTS, left, right

F8 = jax.ShapeDtypeStruct((8,), np.float32)
STEPS = 8


def never(*_: Any) -> Any:
    raise AssertionError("simulated devices call no function")


def epoch(load: Any, on_devices: float) -> pw.Program:
    compute = pw.work(on_devices, on=left, name="compute")
    return pw.program(lambda: compute(load()), name="epoch")


def recorded(step: pw.Program, times: int = STEPS) -> pw.Run:
    step().wait()
    with pw.record() as run:
        results = [step() for _ in range(times)]
        for result in results:
            result.wait()
    return run


@pytest.mark.parametrize(("host", "device"), [(5e-3, 2e-3), (2e-3, 5e-3), (3e-3, 3e-3)])
def test_the_slower_of_host_and_devices_sets_the_pace(host: float, device: float) -> None:
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4):
        run = recorded(epoch(pw.host(never, on=left, out=F8, seconds=host), device))
    moves = run.events.of_kind("transfer")
    (move,) = set((moves["end"] - moves["start"]).round(12).tolist())
    assert len(moves) == STEPS
    slower = max(host, device)
    summary = run.summary()
    assert summary.makespan == pytest.approx(host + move + device + (STEPS - 1) * slower, rel=1e-9)
    assert summary.utilisation[0] == pytest.approx(STEPS * device / summary.makespan)
    work = run.events.of_kind("host")
    assert (work["end"] - work["start"]).tolist() == pytest.approx([host] * STEPS)
    assert (work["start"][1:] == work["end"][:-1]).all()  # ahead of the devices, without a pause
    assert set(work["quality"]) == {"simulated"}


def test_hosts_of_two_islands_work_side_by_side_and_each_in_order() -> None:
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4):
        one, two = (pw.host(never, on=place, out=F8, seconds=4e-3) for place in (left, right))
        step = pw.program(lambda: (one(), one(), two()))
        for result in step():
            result.wait()
        with pw.record() as run:
            for result in step():
                result.wait()
    work = run.events.of_kind("host")
    first = work["start"].min()
    spans = sorted(zip(work["island"].tolist(), ((work["start"] - first) * 1e3).round(6).tolist(), strict=True))
    assert spans == [(0, 0.0), (0, 4.0), (1, 0.0)]


def test_seconds_may_be_a_function_which_is_asked_for_each_call() -> None:
    each = itertools.cycle([1e-3, 2e-3, 3e-3])
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4):
        run = recorded(epoch(pw.host(never, on=left, out=F8, seconds=lambda: next(each)), 1e-4), 3)
    work = run.events.of_kind("host")
    assert sorted(((work["end"] - work["start"]) * 1e3).round(6).tolist()) == [1.0, 2.0, 3.0]


def test_it_waits_for_its_arguments_and_for_their_way_to_the_host() -> None:
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4):
        compute, note = pw.work(5e-3, on=left, output_bytes=1 << 20), pw.host(never, on=right, seconds=1e-3)
        step = pw.program(lambda: note(compute()))
        step()
        with pw.record() as run:
            step()
    (work,), (move,), (node,) = (list(run.events.of_kind(kind)) for kind in ("host", "transfer", "compute"))
    assert move["route"] == "DCN"
    assert move["start"] == pytest.approx(node["end"])
    assert work["start"] == pytest.approx(move["end"])
    assert move["end"] > move["start"]


def test_without_seconds_the_error_names_the_fix() -> None:
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4):
        load = pw.host(never, on=left, out=F8)
        with pytest.raises(pw.UsageError) as caught:
            epoch(load, 1e-3)()
        said = str(caught.value)
        assert "never of epoch (test_simulated_host_work.py:" in said
        assert "nothing says how long it takes. Declare that: pw.host(on=left, out=…, seconds=2e-3)" in said
        wrong = pw.host(never, on=left, out=F8, seconds=2e-3)
        epoch(wrong, 1e-3)().wait()


def test_with_values_the_twin_calls_the_function_once() -> None:
    numbers = itertools.count(1)
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4, values=True):
        load = pw.host(lambda: np.full(8, next(numbers), np.float32), on=left, out=F8, seconds=1e-3)
        double = pw.jit(lambda x: x * 2, on=left)
        step = pw.program(lambda: double(load()))
        assert [step().result()[0] for _ in range(3)] == [2.0, 4.0, 6.0]


@pytest.mark.parametrize(("host", "device"), [(5e-3, 2e-3), (2e-3, 5e-3)])
def test_what_if_answers_what_a_new_simulation_finds(host: float, device: float) -> None:
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4):
        run = recorded(epoch(pw.host(never, on=left, out=F8, seconds=host), device))
        faster = recorded(epoch(pw.host(never, on=left, out=F8, seconds=host / 2), device))
    answer = run.what_if(kind="host", faster=2)
    assert answer.matched == STEPS
    assert answer.after == pytest.approx(faster.summary().makespan, rel=1e-9)
    path = run.critical_path()
    assert path.length == pytest.approx(run.summary().makespan)
    on_host = sum(part.end - part.start for part in path.segments if part.cause == "host")
    assert on_host == pytest.approx(host * (STEPS if host > device else 1), rel=1e-6)
    assert sum(run.idle().of(0, 0).values()) == pytest.approx(run.summary().makespan)


def test_a_real_run_is_compared_with_a_simulated_one(tmp_path, controller) -> None:
    value = np.zeros(8, np.float32)

    def program(fn: Callable[..., Any]) -> pw.Program:
        load, add = pw.host(fn, on=left, out=F8, seconds=1e-3), pw.jit(lambda x: x + 1, on=left)
        return pw.program(lambda: add(load()), name="epoch")

    def load() -> np.ndarray:
        return value

    real = recorded(program(load), 3)
    with pw.attach("sim", chip=NO_HOSTS, islands=2, devices_per_island=4):
        simulated = recorded(program(load), 3)
    comparison = pw.compare(real, simulated)
    table = comparison.difference.table if hasattr(comparison, "difference") else comparison.table
    assert table["kind"].tolist().count("host") == 3
    for run in (real, simulated):
        path = tmp_path / f"{run is real}.run"
        run.save(path)
        loaded = pw.load(path)
        assert loaded.events["kind"].tolist() == run.events["kind"].tolist()
        assert loaded.events["island"].tolist() == run.events["island"].tolist()
        assert str(loaded.summary()) == str(run.summary())
        assert [node.kind for node in loaded.programs[0].graph.nodes] == ["host", "computation", "result"]
        assert loaded.critical_path().length == pytest.approx(run.critical_path().length)


def test_predict_counts_it_on_its_own_lane(controller) -> None:
    step = epoch(pw.host(never, on=left, out=F8, seconds=4e-3), 1e-3)
    assert pw.predict(step) == pytest.approx(5e-3)
    assert pw.predict(step, seconds={"never": 1e-3}) == pytest.approx(2e-3)
    with pytest.raises(pw.UsageError, match="the duration of 'never' is unknown"):
        pw.predict(epoch(pw.host(never, on=left, out=F8), 1e-3))
