"""Rows of published steps as programs: their work is that of the formula, whatever divides them, on both compilers."""

from __future__ import annotations

import json

import pytest

from pathways_nb.__main__ import main
from pathways_nb.errors import UsageError
from pathways_nb.published import prediction
from pathways_nb.published.step_rows import read_rows, row_of

MODEL = {
    "layers": 2,
    "d_model": 512,
    "d_ff": 1408,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "vocab": 2048,
    "gated_mlp": True,
}


def row(**changed):
    """A small row on eight devices."""
    usual = {"id": "small", "stack": "torch", "chip": "gpu_h100_sxm", "devices": 8, "mesh": {"dp": 1, "fsdp": 8, "tp": 1},
             "model": MODEL, "seq": 512, "batch": 16, "precision": "bf16", "remat": "none"}  # fmt: skip
    return row_of(usual | changed)


CASES = {
    "sharded": {},
    "sharded, with accumulation": {"accumulate": 2, "batch": 32},
    "whole after the forward pass": {"schedule": "FSDP SHARD_GRAD_OP (ZeRO-2)"},
    "tensor parallel": {"mesh": {"dp": 1, "fsdp": 2, "tp": 4}},
    "replicas, states divided": {"mesh": {"dp": 8, "fsdp": 1, "tp": 1}, "optimizer_shards": 4},
    "replicas and tensor parallel": {"mesh": {"dp": 4, "fsdp": 1, "tp": 2}, "optimizer_shards": 4},
    "PyTorch's tensor parallelism": {"mesh": {"dp": 1, "fsdp": 2, "tp": 4}, "schedule": "FSDP2+TP"},
    "a copy for the optimizer": {
        "mesh": {"dp": 4, "fsdp": 1, "tp": 2},
        "precision": "bf16, fp32 gradient accumulation",
    },
    "JAX, a scan": {"stack": "jax"},
    "JAX, a TPU": {"stack": "jax", "chip": "tpu_v5p"},
    "JAX, two slices": {"stack": "jax", "chip": "tpu_v5e", "mesh": {"dp": 2, "fsdp": 4, "tp": 1}},
    "one device": {"devices": 1, "mesh": {"dp": 1, "fsdp": 1, "tp": 1}},
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_does_the_work_of_its_formula(name):
    one = row(**CASES[name])
    (step,) = prediction.compiled_steps(one)
    products, attention = one.flops
    # Splash attention on a TPU computes scores twice in the backward pass, and the loss in tiles its logits again.
    more = 2.0 if one.chip.startswith("tpu") else 1.02
    found = step.schedule.flops * one.devices
    assert products + attention <= found * 1.001
    assert found <= more * (products + attention)
    predicted = prediction.predict(one, steps=[step])
    assert 0 < predicted.low <= predicted.seconds <= predicted.high
    assert step.digest in predicted.basis


def test_full_recomputation_does_the_forward_pass_again():
    none, full = (prediction.compiled_steps(row(remat=remat))[0].schedule.flops for remat in ("none", "full"))
    block = 2 * 16 * 512 * 2 * row().model.block_weights / 8
    attention = row().flops[1] / 3.5 / 8
    last = 2 * 16 * 512 * 2 * 512 * 1408 / 8  # the last product of a block, whose result no gradient needs
    assert full - none == pytest.approx(block + attention - last, rel=0.01)


def test_both_passes_of_every_microbatch_gather_the_weights_of_blocks():
    """XLA kept what the forward pass of the first one had gathered: memory of all blocks, and half of the exchange."""
    one = row(remat="full", accumulate=2, batch=32)
    (step,) = prediction.compiled_steps(one)
    actions = [(action, times) for action, times in step.schedule.runs() if action.role in ("run", "start")]
    gathered = sum(a.exchange.bytes * n for a, n in actions if a.exchange and a.exchange.kind == "all-gather")
    blocks, ends = one.model.layers * one.model.block_weights, 2 * one.model.vocab * one.model.d_model
    # Two bytes a weight, two microbatches, two passes; the ends are not computed again.
    assert gathered == pytest.approx(2 * 2 * (2 * blocks + ends), rel=0.01)


def test_the_command_predicts_what_it_can_and_says_why_not(tmp_path, capsys):
    usual = {"devices": 8, "mesh": {"fsdp": 8}, "model": MODEL, "seq": 512, "batch": 16, "chip": "gpu_h100_sxm"}
    rows = [
        {"id": "good", **usual},
        {"id": "bad", **usual, "devices": 9},
        {"id": "unknown", **usual, "chip": "gpu_mine"},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    assert main(["predict-steps", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["rows"]
    assert [one["id"] for one in said] == ["good", "bad", "unknown"]
    assert 0 < said[0]["low"] < said[0]["seconds"] < said[0]["high"]
    assert said[0]["peak_bytes"] > 0
    assert "jax-cuda13-plugin" in said[0]["basis"]
    assert said[1]["seconds"] is None
    assert said[1]["reason"] == "bad: the mesh of dp 1 × fsdp 8 × tp 1 has 8 devices, not 9."
    assert "gpu_mine" in said[2]["reason"]


def test_a_file_without_rows_is_refused(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("7")
    with pytest.raises(UsageError, match=r"rows\.json: this is no list of rows; each row is an object with id, chip,"):
        read_rows(path)
