"""Programs that the chips' own compilers compiled here, opened from inside, and as a dump that a user brings."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from pathways_nb.compilers import compiling
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.cost.launch.opened_launch import open_launch
from tests.jax.compilers.test_compiling import CHIPS, program

NAMES = {"gpu_h100_sxm": "sm_9.0a_gpu_", "tpu_v5p": "cl_1."}


def opened(chip: str, **asked: int):
    """What the compiler wrote, and the launch."""
    found = compiling.compile_for(*program(chip, **asked))
    place = LaunchPlace(pw.chip(chip), found.places, 8)
    said = {name: getattr(found, name) for name in ("buffers", "memory", "live", "compiler", "refused")}
    return found, open_launch(found.text, place, constants(chip), **said)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_compiled_program_opens_with_lines_phases_and_memory(chip):
    found, launch = opened(chip)
    ops = launch.ops
    assert ops["end"].max() == pytest.approx(launch.seconds.ordered)
    assert launch.seconds.hidden <= launch.seconds.ordered <= launch.seconds.exposed + 1e-12
    assert {"compute", "collective"} <= set(ops["kind"])
    lines = {line.partition(":")[0] for line in ops["line"]} - {""}
    assert lines == {"test_compiling.py"}
    assert {"forward", "backward"} & set(ops["phase"])
    assert launch.memory.peak == launch.memory.arguments + launch.memory.results + launch.memory.temporaries
    assert 0 < launch.memory.levels.peak <= launch.memory.peak
    assert launch.memory.fits
    assert launch.basis.startswith(f"{found.compiler}; compiled text ")


@pytest.mark.parametrize("chip", CHIPS)
def test_what_a_compiler_dumps_is_opened_by_load(chip, tmp_path):
    found, launch = opened(chip)
    stem = f"module_0003.jit_layer.{NAMES[chip]}after_optimizations"
    parts = {"": found.text, "-buffer-assignment": found.buffers, "-live-range": found.live}
    for name, text in parts.items():
        (tmp_path / f"{stem}{name}.txt").write_text(text)
    run = pw.load(tmp_path, chip=chip)
    assert len(run.ops) == len(launch.ops)
    assert run.ops.labels[0].name == launch.ops.labels[0].name
    assert run.memory("category")[0].peak.bytes == launch.memory.levels.peak


def test_a_program_that_is_refused_says_how_much_it_needs():
    _, launch = opened("tpu_v5e", devices=8, rows=1 << 24)
    assert launch.memory.peak > launch.memory.available
    assert not launch.memory.fits
    assert "RESOURCE_EXHAUSTED" in launch.memory.refused
