"""Pipelines that ran, laid over their schedules: on devices, simulated, loaded, step after step."""

from __future__ import annotations

import optax
import pytest

import pathways_nb as pw
from tests.support.pipelines import mlp, mlp_model, squared


def of_mlps(name: str, microbatches: int = 4) -> pw.Pipeline:
    schedule = pw.schedule(name, devices=2, microbatches=microbatches)
    on = [pw.virtual_slice(2, island=island) for island in (0, 1)]
    return pw.pipeline([mlp] * schedule.stages, on=on, schedule=schedule, loss=squared)


def test_a_run_on_devices_keeps_the_order_of_its_schedule(controller, tmp_path) -> None:
    pipe = of_mlps("1f1b")
    params, x, targets = mlp_model(2)
    run = pipe.value_and_grad.run(params, x, targets)
    run.save(tmp_path / "a.run")
    for one in (run, pw.load(tmp_path / "a.run")):
        comparison = pw.compare(one, pipe.schedule)
        assert comparison.first_in_other_order is None
        assert "1f1b pipeline (real, estimated" in comparison.summary_line()
        assert len(comparison.table["action"]) == 16
        assert (comparison.table["run_end"] >= comparison.table["run_start"]).all()
    comparison.savefig(tmp_path / "a.svg")
    assert "1f1b as planned, 2 devices" in (tmp_path / "a.svg").read_text()


def test_the_last_of_several_steps_is_taken(controller) -> None:
    pipe = of_mlps("zb-v")
    params, x, targets = mlp_model(4)
    optimizer = optax.sgd(0.1)
    step, state = pipe.step(optimizer), pipe.init(optimizer, params)
    with pw.record("steps") as run:
        for _ in range(3):
            params, state, _ = step(params, state, x, targets)
        pw.wait(params)
    for call in (None, 0, 1):
        comparison = pw.compare(pipe.schedule, run, call=call)
        assert comparison.first_in_other_order is None
        assert comparison.overlay.number == f"call {3 if call is None else call + 1} of 3"
        assert comparison.overlay.call.program == "zb-v step"
    assert pw.compare(run, pipe.schedule).overlay.call.sent, "transfers between stages are found"


@pytest.mark.parametrize("name", ["1f1b", "dualpipe-v"])
def test_a_simulated_run_says_so_and_begins_late_for_its_launches(name: str) -> None:
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=4):
        pipe = of_mlps(name)
        params, x, targets = mlp_model(len(pipe.stages))
        run = pipe.value_and_grad.run(params, x, targets)
    comparison = pw.compare(run, pipe.schedule)
    assert comparison.first_in_other_order is None
    assert "pipeline (simulated, roofline) " in comparison.summary_line()
    assert comparison.first_late is not None
    assert comparison.first_late.words.endswith("until its launch)")
    assert comparison.overlay.ran.makespan > comparison.overlay.planned.makespan


def test_a_run_of_another_schedule_is_refused(controller) -> None:
    pipe = of_mlps("1f1b")
    params, x, targets = mlp_model(2)
    run = pipe.value_and_grad.run(params, x, targets)
    with pytest.raises(pw.UsageError, match=r"Take the schedule that the pipeline ran, pipe\.schedule\.$"):
        pw.compare(run, of_mlps("1f1b", 2).schedule)
