"""Memory by category in real runs: what the controller knows, what a program declares, and sums that stay the same."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw

KB = 1 << 10
w, x = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)  # 16 KiB on each device


def sums(run: pw.Run, by: str) -> list[tuple[int, list[float], list[int]]]:
    """Of each group of devices, the times at which the sum of its levels changes, and the sums."""
    found = []
    for held in run.memory(by):  # type: ignore[arg-type]
        changes = np.concatenate([[True], np.diff(held.total) != 0])
        found.append((held.island, held.times[changes].tolist(), held.total[changes].tolist()))
    return found


@pytest.fixture
def step(left) -> pw.Program:
    """A training step without a loss: parameters and a state come back."""
    first = pw.jit(lambda w, x: jnp.tanh(x @ w), on=left)
    second = pw.jit(lambda w, h: w - 0.1 * (h.T @ h), on=left)
    return pw.program(lambda params, x: ({"w": second(params["w"], first(params["w"], x))}, x.sum()), name="step")


def test_the_controller_knows_arguments_intermediates_results_and_temporaries(controller, left, step) -> None:
    there = pw.put({"w": w}, on=left)
    with pw.record() as run:
        params, _ = step(there, x)
        pw.wait(params)
    (held,) = run.memory(by="category")
    assert (
        {"values", "arguments", "intermediates"}
        <= {*held.names}
        <= {*("values", "arguments", "intermediates", "results", "temporaries")}
    )
    assert held.levels[:, held.names.index("values")].max() == 16 * KB
    assert held.levels[:, held.names.index("arguments")].max() == 16 * KB
    assert sums(run, "client") == sums(run, "category")
    assert max(held.peak.bytes for held in run.memory()) == max(held.peak.bytes for held in run.memory("category"))
    assert set(run.events.of_kind("memory")["category"]) == set(held.names)


def test_what_a_program_declares_stays_with_its_results(controller, left, step) -> None:
    declared = pw.program(step.fn, name="step", categories={"params": "parameters", "result[0]": "parameters"})
    params = pw.put({"w": w}, on=left, category="parameters")
    with pw.record() as run:
        for _ in range(3):
            params, _ = declared(params, x)
        pw.wait(params)
    (held,) = run.memory(by="category")
    parameters = held.levels[:-1, held.names.index("parameters")]
    assert parameters.min() == 16 * KB, "from the first to the last moment"
    assert "values" not in held.names
    assert sums(run, "client") == sums(run, "category")


def test_what_is_declared_changes_no_amount(controller, left, step) -> None:
    declared = pw.program(step.fn, name="step", categories={"params": "parameters", "x": "activations"})
    plain, said = (program.peaks({"w": w}, x) for program in (step, declared))
    assert [peak.bytes for peak in plain] == [peak.bytes for peak in said]


def test_unknown_categories_are_refused(controller, left) -> None:
    with pytest.raises(pw.UsageError, match=r"put\(category='weights'\): there is no such category of memory; choose"):
        pw.put(w, on=left, category="weights")
    with pytest.raises(
        pw.UsageError, match=r"pw\.program\(categories=\{'p': 'parameter'\}\).*did you mean 'parameters'"
    ):
        pw.program(lambda p: p, categories={"p": "parameter"})


def test_simulated_runs_divide_their_memory_as_real_ones_do(controller, left, step) -> None:
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=4):
        run = step.run({"w": w}, x)
    assert "intermediates" in run.memory("category")[0].names
    assert sums(run, "client") == sums(run, "category")
