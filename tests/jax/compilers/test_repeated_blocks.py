"""A step of blocks in a Python loop, compiled a few blocks at a time, against the whole step compiled."""

from __future__ import annotations

import jax
import pytest

from pathways_nb.compilers import compiling, lowered, targets
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.cost.hlo.buffers import buffers_in, live_ranges_in
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.deeper_launch import deeper
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.cost.launch.opened_launch import open_launch
from pathways_nb.program.shortened import DEPTHS, shortened
from pathways_nb.published import prediction
from pathways_nb.published.row_model import step_program
from pathways_nb.published.step_rows import row_of

MODEL = {"layers": 32, "d_model": 4096, "d_ff": 11008, "heads": 32, "kv_heads": 32, "head_dim": 128,
         "vocab": 32000, "gated_mlp": True}  # fmt: skip


CASES = {
    "H100, 16 blocks": ("gpu_h100_sxm", 64, 16, DEPTHS),
    "H100, 8 blocks": ("gpu_h100_sxm", 64, 8, (4, 6)),
    "v5p, 16 blocks": ("tpu_v5p", 16, 16, DEPTHS),
}


def compiled(row, function, arguments, donated):
    """A program on a row's chip, opened, and its buffers."""
    chip, devices = row.chip, row.devices
    target = targets.target(make_topology(chip_of(chip), devices))
    text = lowered.lower(function, arguments, donated, target.platform)
    options = prediction.options_of(row) if target.platform == "cuda" else {}
    made = compiling.compile_for(text, target, options, say=lambda line: None)
    place = LaunchPlace(chip_of(chip), made.places, min(chip_of(chip).devices_per_host, devices))
    launch = open_launch(made.text, place, constants(chip, "jax"), buffers=made.buffers, live=made.live)
    return launch, (buffers_in(made.buffers), live_ranges_in(made.live))


@pytest.mark.parametrize("name", CASES)
def test_a_few_blocks_tell_seconds_and_memory_of_all(name):
    chip, devices, blocks, depths = CASES[name]
    row = row_of({"id": "blocks", "stack": "torch", "chip": chip, "devices": devices, "mesh": {"fsdp": devices},
                  "model": MODEL, "seq": 4096 if "H100" in name else 2048, "batch": devices, "precision": "bf16",
                  "remat": "full"})  # fmt: skip
    step = step_program(row, blocks, "cuda" if "H100" in name else "tpu")
    whole = shortened(jax.make_jaxpr(step.function)(*step.arguments), depths)
    assert whole is not None
    assert whole.blocks == blocks
    each = [
        compiled(row, one.function, one.arguments_of(step.arguments), one.donated_of(step.donated))
        for one in whole.programs
    ]
    wanted, _ = compiled(row, step.function, step.arguments, step.donated)
    launches, buffers = zip(*each, strict=True)
    found = deeper(launches, buffers, depths, blocks)
    assert found.seconds.ordered == pytest.approx(wanted.seconds.ordered, rel=0.03)
    assert found.memory.peak == pytest.approx(wanted.memory.peak, rel=0.05)
    exposed, in_whole = (sum(seconds for _, seconds in one.exposed) for one in (found, wanted))
    assert exposed == pytest.approx(in_whole, rel=0.1)
    # The ops of the others have room where they are: at the end is what ends the whole.
    assert found.ops["end"].max() == pytest.approx(found.seconds.ordered)
    others = [op for op in found.ops if op.name.endswith("more blocks")]
    assert [op.phase for op in others] == ["forward", "backward"]
