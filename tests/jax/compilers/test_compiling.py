"""Programs compiled for chips that are not here: what comes back, from the cache too, and what ends a compiler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import pathways_nb as pw
from pathways_nb.compilers import compiling, lowered, targets
from pathways_nb.compilers.compiling import CompilerError
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.cost.hlo.hlo_schedule import schedule_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.errors import UsageError
from tests.support.waiting import until

CHIPS = ("gpu_h100_sxm", "tpu_v5p")
P = PartitionSpec


def program(
    chip: str, devices: int = 8, rows: int = 1024, step=None
) -> tuple[lowered.LoweredText, targets.CompilerTarget]:
    """One step of a layer whose weights are divided over all devices."""
    mesh = AbstractMesh((devices,), ("d",), axis_types=(AxisType.Auto,))
    weights = jax.ShapeDtypeStruct((rows, 1024), jnp.bfloat16, sharding=NamedSharding(mesh, P("d")))
    batch = jax.ShapeDtypeStruct((16 * devices, rows), jnp.bfloat16, sharding=NamedSharding(mesh, P("d")))

    def layer(w, x):
        gradient = jax.grad(lambda w: jnp.tanh(x @ w).astype(jnp.float32).sum())(w)
        return (w - gradient,)

    target = targets.target(make_topology(pw.chip(chip), devices))
    return lowered.lower(step or layer, [weights, batch], [0], target.platform), target


@pytest.mark.parametrize("chip", CHIPS)
def test_a_program_comes_back_scheduled_with_its_memory_lines_and_places(chip):
    text, target = program(chip)
    found = compiling.compile_for(text, target)
    assert found.seconds > 0
    assert found.refused == ""
    module = parse(found.text)
    assert schedule_of(module, 8).flops == pytest.approx(2 * 2 * 16 * 1024 * 1024, rel=1e-6)
    assert {one.exchange.kind for one, _ in schedule_of(module, 8).runs() if one.exchange} >= {"all-gather"}
    assert __file__ in found.text, "the user's file is named"
    assert "jit(call)" not in found.text, "what only our way of compiling adds is left out"
    assert len(found.places) == 8
    assert len({(tuple(one["coords"]), one["core"]) for one in found.places}) == 8
    assert found.memory.startswith("Memory Space: default")
    assert "allocation 0" in found.buffers
    assert "HloLiveRange" in found.live


@pytest.mark.parametrize("chip", CHIPS)
def test_what_was_compiled_once_is_not_compiled_again(chip, monkeypatch):
    found = []
    for _ in range(2):
        found.append(compiling.compile_for(*program(chip)))
        monkeypatch.setattr(compiling, "_run", None)
    assert (found[1].text, found[1].seconds) == (found[0].text, 0.0)


def test_a_cell_that_another_kernel_compiled_comes_from_the_cache_with_this_kernels_file(monkeypatch):
    cell = """
def step(w, x):
    return (w + (x.T @ x)[:, :1].astype(w.dtype),)
"""
    found = []
    for number in (10001, 10002):
        names: dict = {}
        exec(compile(cell, f"/tmp/ipykernel_{number}/123.py", "exec"), names)
        found.append(compiling.compile_for(*program("gpu_h100_sxm", step=names["step"])))
        monkeypatch.setattr(compiling, "_run", None)
    assert "/tmp/ipykernel_10001/123.py" in found[0].text
    assert f"/tmp/ipykernel_{os.getpid()}/123.py" in found[1].text
    assert found[1].seconds == 0


def test_a_program_larger_than_the_chip_is_refused_in_the_compilers_words():
    found = compiling.compile_for(*program("tpu_v5e", 8, rows=1 << 24))
    assert "RESOURCE_EXHAUSTED" in found.refused
    assert "exceeds" in found.refused


def test_an_option_that_the_compiler_does_not_know_is_an_error_of_ours():
    text, target = program("gpu_h100_sxm")
    with pytest.raises(
        CompilerError, match=r"jax-cuda13-plugin .* does not take this program \(compile\): .*xla_no_such"
    ):
        compiling.compile_for(text, target, {"xla_no_such_option": True})


def test_flags_of_this_process_are_not_those_of_the_compiler_and_types_of_64_bits_are_kept(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")  # XLA ends a process with an unknown flag
    mesh = AbstractMesh((8,), ("d",), axis_types=(AxisType.Auto,))
    with jax.enable_x64(True):
        weights = jax.ShapeDtypeStruct((512, 512), jnp.float64, sharding=NamedSharding(mesh, P("d")))
        text = lowered.lower(lambda w: [w @ w, jnp.arange(8)], [weights], [], "cuda")
    found = compiling.compile_for(text, targets.target(make_topology(pw.chip("gpu_h100_sxm"), 8)))
    assert "->(f64[64,512]{1,0}, s64[8]{0})" in found.text.partition("\n")[0]


def test_a_compiler_that_dies_is_an_error_of_ours_and_kills_nothing(monkeypatch, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text("import os, signal; print('about to die', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr(compiling.child, "__file__", str(script))
    text, target = program("gpu_h100_sxm")
    with pytest.raises(CompilerError, match=r"ended without a word about the program; .*SIGSEGV: about to die"):
        compiling.compile_for(text, target)


def test_an_interrupt_ends_the_compiler(monkeypatch, tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(compiling.child, "__file__", str(script))
    text, target = program("gpu_h100_sxm")

    def interrupt() -> None:
        until(lambda: bool(compiling._running))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compiling.compile_for(text, target)
    thread.join()
    assert not compiling._running


def test_a_users_own_jax_does_not_see_the_compilers():
    code = "import jax; print(jax.devices())"
    plain = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain)
    assert "Cpu" in done.stdout or "cpu" in done.stdout.lower()
    assert done.stderr == ""


def test_arguments_without_a_mesh_are_refused():
    with pytest.raises(UsageError, match=r"the arguments name 0 meshes; give each a NamedSharding on the same mesh\."):
        lowered.lower(lambda x: [x], [jax.ShapeDtypeStruct((8,), jnp.float32)], [], "cuda")
