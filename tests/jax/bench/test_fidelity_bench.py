"""The fidelity bench in small: every figure is there, and every program is the same graph on both kinds of islands."""

from __future__ import annotations

import math
import sys

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.bench import _held_out, fidelity
from pathways_nb.examples import two_stages
from pathways_nb.trace.matching import Difference
from tests.support.closeness import close
from tests.support.measured_machine import forget_calibrations, measured

SMALL = {"ROWS": 8, "WIDTH": 8, "MICROBATCHES": 2, "LAYERS": 2, "LENGTH": 4, "BATCH": 2}


@pytest.fixture
def small(watchdog, monkeypatch, tmp_path):
    """Tiny programs on two islands of two devices, and measurements of a machine that is known, in no time."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    module = sys.modules["pathways_nb.calibration.calibrate"]  # the name of the function hides that of its module
    forget_calibrations(monkeypatch)
    monkeypatch.setattr(module, "measure", lambda *_: measured(devices=2, islands=2))
    for name, value in SMALL.items():
        monkeypatch.setattr(_held_out, name, value)
    monkeypatch.setattr(two_stages, "MICROBATCHES", 2)
    monkeypatch.setattr(two_stages, "BATCH", 2)
    quick = two_stages.pipelined
    monkeypatch.setattr(two_stages, "pipelined", lambda left, right: quick(left, right, microbatches=2))
    for name, value in {"DEVICES": 2, "ROUNDS": 2, "RECORDED": 1}.items():
        monkeypatch.setattr(fidelity, name, value)
    pw.attach("cpu", islands=2, devices_per_island=2)
    pw.reset()


def test_every_figure_is_there_and_both_records_have_the_same_events(small) -> None:
    found = fidelity.run()
    figures, rows = found["figures"], found["detail"]["programs"]
    assert set(figures) == {"mean_step_error", "noise_floor", *(f"error_{name}" for name in _held_out.PROGRAMS)}
    assert all(math.isfinite(value) for value in figures.values())
    errors = [figures[f"error_{name}"] for name in _held_out.PROGRAMS]
    assert figures["mean_step_error"] == pytest.approx(np.abs(errors).mean())
    assert all(error > -1 for error in errors)
    assert [row["program"] for row in rows] == list(_held_out.PROGRAMS)
    assert {row["program"]: row["unmatched"] for row in rows} == dict.fromkeys(_held_out.PROGRAMS, 0)
    kinds = [kind for row in rows for kind in row["events"].values()]
    # A transfer whose source is stamped late, on a busy machine, is recorded with no length.
    assert all(kind["real"] >= 0 and kind["simulated"] > 0 for kind in kinds)
    assert all(row["events"]["compute"]["real"] > 0 for row in rows)
    assert "transfer" in rows[list(_held_out.PROGRAMS).index("relay")]["events"]


def test_what_is_held_out_is_what_it_says(small) -> None:
    """The tenants are three clients, and every node of a relay stands elsewhere than the one before."""
    left, right = (pw.virtual_slice(2, island=island) for island in (0, 1))
    with pw.record() as run:
        pw.wait(_held_out.tenants(left, right)())
    assert set(run.events["client"][run.events["kind"] == "compute"]) == {"small", "medium", "large"}
    relay = _held_out.relay(left, right)
    pw.wait(relay())
    with pw.record() as run:
        pw.wait(relay())
    compute = run.events.of_kind("compute")
    order = np.argsort(compute["node"])
    assert compute["island"][order].tolist() == [0, 1] * (SMALL["LENGTH"] // 2)
    assert len(run.events.of_kind("transfer")) == SMALL["LENGTH"] - 1


def test_a_step_on_sharded_parameters_is_the_step_on_whole_ones(small) -> None:
    left, right = (pw.virtual_slice(2, island=island) for island in (0, 1))
    shards = pw.get(_held_out.fsdp(left, right)())
    weights, x = [_held_out._weight()] * SMALL["LAYERS"], np.ones((SMALL["ROWS"], SMALL["WIDTH"]), np.float32)

    def loss(weights, x):
        return (_held_out._layers(weights, x) ** 2).mean()

    for _ in range(2):  # the gradients of two devices' means add up
        gradients = jax.grad(loss)(weights, x)
        weights = [w - 0.01 * 2 * g for w, g in zip(weights, gradients, strict=True)]
    close(list(shards), list(weights))


def test_differences_add_up_by_kind() -> None:
    table = {"kind": np.array(["compute", "transfer", "compute"], object), "takes_a": np.array([1.0, 2.0, 4.0]),
             "takes_b": np.array([2.0, 2.0, 2.0])}  # fmt: skip
    assert fidelity._by_kind(Difference(table, 0, 0)) == {
        "compute": {"count": 2, "real": 5.0, "simulated": 4.0},
        "transfer": {"count": 1, "real": 2.0, "simulated": 2.0},
    }
