"""Programs on simulated chips, compiled by those chips' own compilers: seconds, memory, basis, and the ops inside."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from pathways_nb.compilers import compiling
from pathways_nb.runtime.sim import chip_estimates, node_estimates
from tests.support.waiting import until

CHIPS = {"gpu_h100_sxm": "jax-cuda13-plugin", "tpu_v5e": "libtpu"}
SMALL = jax.ShapeDtypeStruct((8, 8), jnp.float32)
WEIGHTS, BATCH = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16), jax.ShapeDtypeStruct((8192, 4096), jnp.bfloat16)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    """Whatever this process has compiled before is compiled again."""
    monkeypatch.setattr(chip_estimates, "_opened", {})
    monkeypatch.delenv("PATHWAYS_COMPILER")


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def gradient(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: (x @ w).astype(jnp.float32).sum())(w)


def two_nodes() -> pw.Program:
    """A layer on the first island, a gradient on half of the second one whose layout is XLA's choice, a small node."""
    first, second = pw.virtual_slice(16, island=0), pw.virtual_slice(8, island=1)
    forward = pw.jit(layer, on=first, in_shardings=(pw.P("x"), pw.P("x")), out_shardings=pw.P("x"))
    backward = pw.jit(gradient, on=second, in_shardings=(pw.P("x"), pw.P("x")))
    double = pw.jit(lambda x: 2 * x, on=first)
    return pw.program(lambda w, x, s: (backward(w, forward(w, x)), double(s)), name="two")


def launches(run: pw.Run) -> dict[str, dict[str, Any]]:
    return {event["name"]: event for event in run.events.of_kind("compute", "collective")}


@pytest.mark.parametrize("chip", CHIPS)
def test_nodes_take_what_their_chips_compiler_schedules(chip, tmp_path, monkeypatch):
    with pw.attach("sim", chip=chip, islands=2, devices_per_island=16) as controller:
        assert f"nodes compiled by {CHIPS[chip]} " in repr(controller)
        assert f"nodes from 50 µs on are compiled for {chip} by {CHIPS[chip]} " in controller.status()
        assert f"are compiled for {chip} by {CHIPS[chip]}" in pw.doctor().read_text()
        program = two_nodes()
        run = program.run(WEIGHTS, BATCH, SMALL)
        peaks = program.peaks(WEIGHTS, BATCH, SMALL)
    found = launches(run)
    shape = {"gpu_h100_sxm": ("16 devices, 1x2x8", "8 devices, 1x1x8"), "tpu_v5e": ("16 devices, v5e:4x4", "8 devices, v5e:2x4")}[chip]  # fmt: skip
    for name, devices in zip(("layer", "gradient"), shape, strict=True):
        basis = found[name]["basis"]
        assert re.match(rf"{CHIPS[chip]} \S+; compiled text [0-9a-f]{{16}}; .* of the FLOP/s in products", basis)
        assert f"memory by the same compiler; compiled for {devices}" in basis
        inside = run.ops.of(launch=name)
        assert len(inside), "the launch is opened"
        assert inside["start"].min() >= found[name]["start"]
        assert inside["end"].max() == pytest.approx(found[name]["end"], abs=1e-9)
        assert any("test_simulated_chips.py" in line for line in inside["line"])
    assert re.search(r"exposed communication [\d.]+ .s: test_simulated_chips\.py:\d+ ", run.summary_line())
    assert "; shorter than 50 µs, so not compiled by its chip's compiler" in found["double"]["basis"]
    # At least the products on the data sheet's peak, and not ten times that with what is exchanged.
    least = 2 * 8192 * 4096 * 4096 / 16 / pw.chip(chip).flops("bf16")
    assert least < found["layer"]["end"] - found["layer"]["start"] < 20 * least
    parts = 2 * (4096 * 4096 + 2 * 8192 * 4096) / 16
    assert parts <= peaks[0].bytes < 1.2 * (parts + 2 * 4096 * 4096), "arguments, results, the gathered weights"
    assert "one device of each launch stands for all" in repr(run.ops)
    run.save(tmp_path / "a.run")
    loaded = pw.load(tmp_path / "a.run")
    assert list(loaded.ops) == list(run.ops)
    assert loaded.ops.note == run.ops.note
    run.savefig(tmp_path / "a.svg", show=("ops",))
    assert "one device of each launch" in (tmp_path / "a.svg").read_text()
    # Again, from the cache on disk.
    monkeypatch.setattr(chip_estimates, "_opened", {})
    monkeypatch.setattr(compiling, "_run", None)
    with pw.attach("sim", chip=chip, islands=2, devices_per_island=16, seed=1):
        again = two_nodes().run(WEIGHTS, BATCH, SMALL)
    assert [row["end"] for row in launches(again).values()] == [row["end"] for row in found.values()]


def test_a_second_kernel_reads_the_estimates_of_long_nodes_and_compiles_and_prices_nothing(monkeypatch):
    monkeypatch.setattr(node_estimates, "_LONG", 1)

    def run(seed: int) -> tuple[pw.Run, list[int]]:
        with pw.attach("sim", chip="gpu_h100_sxm", islands=2, devices_per_island=16, seed=seed):
            program = two_nodes()
            run = program.run(WEIGHTS, BATCH, SMALL)
            return run, [peak.bytes for peak in program.peaks(WEIGHTS, BATCH, SMALL)]

    first, peaks = run(seed=0)
    monkeypatch.setattr(chip_estimates.ChipEstimator, "_opened", None)
    again, peaks_again = run(seed=1)
    assert launches(again) == launches(first), "seconds, basis and FLOPs as well"
    assert peaks_again == peaks
    assert list(again.ops) == list(first.ops)
    assert len(again.ops) > 0


def test_a_pipeline_is_timed_by_the_chips_compiler():
    size = 2048

    def block(params: Any, x: Any) -> Any:
        return x + jnp.tanh(x @ params["a"]) @ params["b"]

    weights = {"a": jax.ShapeDtypeStruct((size, 4 * size), jnp.bfloat16), "b": jax.ShapeDtypeStruct((4 * size, size), jnp.bfloat16)}  # fmt: skip
    batch = jax.ShapeDtypeStruct((16384, size), jnp.bfloat16)
    with pw.attach("sim", chip="gpu_h100_sxm", islands=2, devices_per_island=4):
        schedule = pw.schedule("1f1b", devices=2, microbatches=4)
        places = [pw.virtual_slice(4, island=island) for island in (0, 1)]
        pipe = pw.pipeline([block] * 2, on=places, schedule=schedule, loss=lambda y, t: ((y - t) ** 2).mean())
        run = pipe.value_and_grad.run([weights] * 2, batch, batch)
        comparison = pw.compare(run, pipe.schedule)
    assert comparison.first_in_other_order is None
    assert "(simulated, jax-cuda13-plugin" in comparison.summary_line()
    forward = [run.ops.of(launch=name, kind="compute") for name in ("0F0", "0F1", "0F2", "0F3")]
    assert len({len(ops) for ops in forward}) == 1, "microbatches are one node"
    assert len(forward[0])


def test_a_program_that_its_chips_compiler_refuses_says_what_it_needs_and_its_largest_buffers():
    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            y = x
            for w in weights:
                y = jnp.tanh(y @ w)
            return (y * y).sum()

        return jax.value_and_grad(loss)(weights)

    weights, rows = [jax.ShapeDtypeStruct((8192, 8192), jnp.float32)] * 4, 1 << 18
    x = jax.ShapeDtypeStruct((rows, 8192), jnp.float32)
    with pw.attach("sim", chip="tpu_v5e", islands=1, devices_per_island=1):
        train = pw.program(pw.jit(step, on=pw.virtual_slice(1)), name="train")
        with pytest.raises(pw.OutOfMemoryError, match=r"train needs .* where there are 16 GB\. .*") as error:
            train.run(weights, x)
    text = str(error.value)
    assert re.search(
        r"The largest buffers there are 8\.59 GB f32\[262144,8192\]: .* at test_simulated_chips\.py:\d+", text
    )
    with pw.attach("sim", chip="tpu_v5e", islands=1, devices_per_island=1, hbm=100e9):
        train = pw.program(pw.jit(step, on=pw.virtual_slice(1)), name="train")
        (event,) = launches(train.run(weights, x)).values()
    assert "refused by libtpu" in event["basis"]
    assert "exceeds available HBM" in event["basis"]


def test_what_cannot_be_compiled_for_the_chip_is_estimated_and_says_so_or_is_an_error():
    def told(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return x @ x

    def run(**options: Any) -> pw.Run:
        with pw.attach("sim", chip="tpu_v5e", islands=1, devices_per_island=4, **options):
            return pw.program(pw.jit(told, on=pw.virtual_slice(4)), name="telling").run(WEIGHTS)

    (event,) = launches(run()).values()
    assert event["basis"].startswith("roofline")
    assert "not compiled by its chip's compiler: ValueError: the platform" in event["basis"]
    with pytest.raises(
        pw.UsageError,
        match=r'told of telling .*cannot be compiled for tpu_v5e, as compiler="own" wants: .*'
        r'Attach with compiler="auto" to estimate such nodes from their jaxpr\.',
    ):
        run(compiler="own")


def test_an_interrupt_ends_the_compilers_of_a_program(monkeypatch, tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(compiling.child, "__file__", str(script))

    def interrupt() -> None:
        until(lambda: len(compiling._running) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pw.attach("sim", chip="tpu_v5e", islands=2, devices_per_island=16), pytest.raises(KeyboardInterrupt):
        two_nodes().run(WEIGHTS, BATCH, SMALL)
    thread.join()
    until(lambda: not compiling._running)
