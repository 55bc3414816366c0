"""The simulation bench in small: its figures, and that its contenders do what they say."""

from __future__ import annotations

import math
import sys
import types

import pytest

import pathways_nb as pw
from pathways_nb.bench import simulate

SMALL = {"DEVICES": 16, "FEW": 4, "NODES": 5, "CALLS": 2, "ROUNDS": 1, "SIZES": (2, 8), "STAGES": 8, "MICROBATCHES": 4}


@pytest.fixture
def small(monkeypatch):
    """Few nodes and rounds."""
    for name, value in {**SMALL, "STAGED": 4, "STAGED_ROUNDS": 1}.items():
        monkeypatch.setattr(simulate, name, value)
    yield
    pw.reset()


def test_every_figure_has_its_name(small, monkeypatch) -> None:
    fake = types.SimpleNamespace(Environment=None)
    monkeypatch.setitem(sys.modules, "simpy", fake)
    monkeypatch.setattr(simulate.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(simulate, "simpy_operations", lambda count: count * simulate.LASTS)
    monkeypatch.setattr(simulate.packages, "is_installed", lambda kind: True)
    monkeypatch.setattr(simulate._deep_step, "seconds_of", lambda what, blocks, cache: float(blocks))
    found = simulate.run()
    assert found["figures"]["simulate_seconds_32_over_2_blocks"] == 16
    assert set(found["figures"]) == {
        "simulate_seconds_8b_128",
        "simulate_seconds_8b_128_cached",
        "simulate_seconds_32_over_2_blocks",
        "adopt_seconds_8b",
        "adopt_seconds_cached",
        "gang_ops_per_second",
        "gang_ops_over_simpy",
        "growth_exponent",
        "bytes_per_event",
        "seconds_2048_over_8_devices",
        "static_million_tasks_seconds",
        "static_tasks_over_array",
        "static_million_over_wavefront",
    }
    assert all(math.isfinite(value) for value in found["figures"].values())


def test_the_short_form_leaves_growth_out(small, monkeypatch) -> None:
    monkeypatch.setattr(simulate, "SHORT_CALLS", 2)
    monkeypatch.setattr(simulate, "SHORT_ROUNDS", 1)
    monkeypatch.setattr(simulate, "simpy_operations", lambda count: count * simulate.LASTS)
    figures = simulate.run(short=True)["figures"]
    assert "simulate_seconds_8b_128" not in figures
    assert set(simulate.SPEED) < set(figures)
    assert "growth_exponent" not in figures


def test_without_simpy_its_figure_is_absent(small, monkeypatch) -> None:
    monkeypatch.setattr(simulate.importlib.util, "find_spec", lambda name: None)
    figures, detail = simulate._gangs(2, 1)
    assert set(figures) == {"gang_ops_per_second"}
    assert set(detail) == {"controller, operations per second"}


def test_a_chain_is_as_many_gangs_on_all_devices_one_after_another(small) -> None:
    simulated = simulate.chain(16, nodes=5, calls=2)
    with pw.record("calls") as run:
        simulated()
    gangs = run.events.of_kind("compute")
    assert set(gangs["devices"]) == {16}
    assert len(gangs) == 10
    assert gangs["start"][1:] == pytest.approx(gangs["end"][:-1])
    assert gangs["end"] - gangs["start"] == pytest.approx(simulate.LASTS)


def test_simpy_takes_as_long_on_its_own_clock() -> None:
    assert simulate.simpy_operations(7) == pytest.approx(7 * simulate.LASTS)


def test_the_static_pipeline_has_its_closed_form(small) -> None:
    assert simulate.pipeline() == pytest.approx((4 + 8 - 1) * simulate.LASTS + (8 - 1) * simulate.LASTS / 10)
    assert simulate.wavefront() == simulate.pipeline()


def test_the_exponent_of_a_power_is_it() -> None:
    assert simulate.exponent({n: 3e-6 * n**1.5 for n in (10, 100, 1000)}) == pytest.approx(1.5)
