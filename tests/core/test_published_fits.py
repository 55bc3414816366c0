"""Fits of constants on published steps: what made the seconds is found again, and what is left out is not known."""

from __future__ import annotations

import json
import math

import pytest

import pathways_nb as pw
from pathways_datasets import published_steps
from pathways_nb.cost.hlo.hlo_schedule import LaunchAction, LaunchSchedule
from pathways_nb.cost.hlo.hlo_work import OpWork
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.errors import UsageError
from pathways_nb.published import prediction
from pathways_nb.published.prediction import CompiledRow, constants_of, predict, priced, slices_of
from pathways_nb.published.row_layouts import state_specs
from pathways_nb.published.step_fits import FittedRows
from pathways_nb.published.step_rows import PublishedStep, UnreadRow, read_rows, row_of

MODEL = {"layers": 4, "d_model": 1024, "d_ff": 4096, "heads": 8, "vocab": 1000}


def row(number: int, source: str, chip: str = "gpu_a100_80") -> PublishedStep:
    """A measured row of a made-up source."""
    said = {"id": f"row {number}", "stack": "jax", "chip": chip, "devices": 8, "mesh": {"fsdp": 8}, "model": MODEL,
            "seq": 1024, "batch": 8, "step_seconds": 1.0, "source": f"{source} line {number}", "family": source}  # fmt: skip
    return row_of(said)


def step(flops: float) -> CompiledRow:
    """A compiled step that does nothing but products."""
    place = LaunchPlace(pw.chip("gpu_a100_80"), [{"process": 0}] * 8, 8)
    return CompiledRow(
        4,
        LaunchSchedule((LaunchAction("a", "compute", "run", OpWork(flops, "bf16")),)),
        place,
        "digest",
        "c 1",
        "",
        1.0,
    )


def measured(factor: float, sources: str) -> FittedRows:
    """Steps that take as long as if a chip reached ``factor`` times the table's share in products."""
    rows, steps = [], []
    for number, source in enumerate(sources):
        made, one = row(number, source), [step(1e14 * (number + 1))]
        known = constants_of(made)
        seconds = priced(made, one, known.changed(matmul=known.matmul * factor)).ordered
        rows.append(row_of({"id": made.id, "stack": "jax", "chip": made.chip, "devices": 8, "mesh": {"fsdp": 8},
                            "model": MODEL, "seq": 1024, "batch": 8, "step_seconds": seconds, "source": source}))  # fmt: skip
        steps.append(one)
    return FittedRows(rows, steps)


@pytest.mark.parametrize("factor", [math.exp(-0.3), 1.0, math.exp(0.2)])
def test_the_constant_that_made_the_seconds_is_found(factor):
    found = measured(factor, "aabb").fit(range(4))
    assert found["matmul"] == pytest.approx(factor, rel=1e-9)
    assert found["node_bw"] == 1.0, "what no step shows stays as the table has it"


def test_a_step_is_predicted_with_constants_that_do_not_know_its_source():
    rows = measured(math.exp(-0.3), "aab")
    wrong = row_of({"id": "x", "stack": "jax", "chip": "gpu_a100_80", "devices": 8, "mesh": {"fsdp": 8}, "model": MODEL,
                    "seq": 1024, "batch": 8, "step_seconds": 1e6, "source": "b"})  # fmt: skip
    known = FittedRows([*rows.rows[:2], wrong], rows.steps).without(2)(2)
    assert known.matmul == pytest.approx(constants_of(wrong).matmul * math.exp(-0.3))


def test_the_only_source_of_a_chip_is_used_without_the_step_itself():
    rows = measured(math.exp(-0.3), "aaa")
    rows.rows = [*rows.rows[:2], row(2, "a")]
    assert rows.without(2)(2).matmul == pytest.approx(constants_of(rows.rows[0]).matmul * math.exp(-0.3))


def test_the_constant_that_a_prediction_is_held_against_does_not_know_the_step_either():
    rows = measured(1.0, "aab")
    before = rows.constant(2, 2)
    rows.rows = [*rows.rows[:2], row(2, "b")]  # the same step, measured otherwise
    assert rows.constant(2, 2) == before
    assert rows.constant(2) != pytest.approx(before)


def test_a_prediction_says_what_it_rests_on():
    made = predict(row(0, "a"), steps=[step(1e14)])
    assert made.basis == (
        "c 1; compiled text of 4 blocks digest; 0.68 of the FLOP/s in products, 0.55 in attention, 0.85 of HBM; in the "
        "compiler's order"
    )
    assert made.low < made.seconds < made.high


def test_a_step_that_does_not_fit_the_chip_is_refused_in_the_compilers_words():
    refused = CompiledRow(4, LaunchSchedule(()), step(1).place, "d", "c 1", "RESOURCE_EXHAUSTED: too large", 1.0)
    with pytest.raises(UsageError, match="row 0: the compiler refuses it: RESOURCE_EXHAUSTED: too large"):
        predict(row(0, "a"), steps=[refused])


def test_every_published_row_is_read(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(published_steps()))
    found = read_rows(path)
    assert len(found) == 90
    assert not [one for one in found if isinstance(one, UnreadRow)]
    for one in found:
        products, attention = one.flops
        assert 1e12 < (products + attention) / one.devices < 1e17
        assert one.seconds > 0


def test_a_row_that_says_little_is_read_as_its_framework_usually_is():
    (said,) = ({**one, "mesh": {"fsdp": 8}, "kv_heads": None} for one in [{"id": "r001", "devices": 8, "seq": 128, "batch": 8,
                "chip": "gpu_h100_sxm", "model": {"layers": 1, "d_model": 64, "d_ff": 128, "heads": 4, "vocab": 10}}])  # fmt: skip
    found = row_of(said)
    assert (found.stack, found.accumulate, found.remat, found.dp, found.tp) == ("jax", 1, "none", 1, 1)
    assert (found.model.kv_heads, found.model.head_dim, found.model.gated, found.model.tied) == (4, 16, True, False)
    assert found.seconds is None


@pytest.mark.parametrize(("field", "value"), [("devices", 0), ("seq", "long"), ("batch", None), ("devices", True)])
def test_a_row_without_what_decides_it_names_the_field(field, value):
    said = {"id": "r1", "devices": 8, "mesh": {"fsdp": 8}, "model": MODEL, "seq": 1, "batch": 1, field: value}
    with pytest.raises(UsageError, match=rf"r1: {field} is {value!r}; write a whole number of at least 1\."):
        row_of(said)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mesh": {"dp": 8}, "optimizer_shards": 3}, "optimizer_shards 3 does not divide the 8 replicas (dp)."),
        ({"stack": "pytorch"}, "the stack is 'pytorch'; write 'jax' or 'torch'."),
        ({"peak_memory": [5, "pages"]}, "peak_memory has the unit 'pages'; write one of MB, MiB, GB, GiB, TB, TiB."),
        ({"peak_memory": 5}, 'peak_memory is 5; write a number and a unit, such as [80.7, "GB"].'),
        ({"step_seconds": "fast"}, "step_seconds is 'fast'; write seconds above 0, or leave it out."),
        ({"mesh": {"fsdp": 4}}, "the mesh of dp 1 × fsdp 4 × tp 1 has 4 devices, not 8."),
        ({"mesh": {"fsdp": 8, "pp": 2}}, "mesh has pp 2, which no prediction follows; known are dp, fsdp, tp."),
        ({"mesh": {"fsdp": float("inf")}}, "fsdp is inf; write a whole number of at least 1."),
        ({"mesh": [8]}, "mesh is [8]; write an object with dp, fsdp, tp."),
        ({"model": MODEL | {"gated_mlp": "no"}}, "gated_mlp is 'no'; write true or false."),
        ({"model": MODEL | {"kv_heads": 5}}, f"kv_heads 5 does not divide the {MODEL['heads']} heads."),
        ({"accumulate": 3}, "accumulate 3 does not divide the 8 sequences of a step (batch)."),
        (
            {"accumulate": 2},
            "a microbatch of 4 sequences (batch / accumulate) cannot be divided over 8 devices (dp × fsdp).",
        ),
        ({"precision": "fp8"}, "precision is 'fp8'; products in bf16 are predicted, none in fp8."),
        ({"remat": ["dots"]}, "remat is ['dots']; write full, none, dots, or in words what is saved."),
    ],
)
def test_what_a_row_cannot_mean_is_refused(changed, said):
    usual = {"id": "r", "stack": "torch", "chip": "gpu_a100_80", "devices": 8, "mesh": {"fsdp": 8}, "model": MODEL,
             "seq": 1024, "batch": 8}  # fmt: skip
    with pytest.raises(UsageError) as refused:
        row_of(usual | changed)
    assert str(refused.value) == f"r: {said}"
    assert row_of(usual | {"peak_memory": [512, "MB"]}).peak == 2**29


def test_the_optimizers_state_is_divided_over_replicas_and_as_the_parameters_are():
    one = row_of({"id": "r", "stack": "torch", "chip": "gpu_a100_80", "devices": 16, "mesh": {"dp": 2, "fsdp": 8},
                  "model": MODEL, "seq": 1024, "batch": 16, "precision": "bf16, fp32 gradient accumulation"})  # fmt: skip
    assert state_specs(one, 1)["block0/query"] == pw.P(("zero", "fsdp"), "tp")
    assert state_specs(one, 1)["block0/norm1"] == pw.P(None)


@pytest.mark.parametrize(
    ("chip", "dp", "fsdp", "slices"),
    [
        ("tpu_v6e", 1, 256, 1), ("tpu_v6e", 4, 256, 4), ("tpu_v6e", 1, 512, 2), ("tpu_v6e", 2, 1024, 8),
        ("tpu_v5p", 1, 512, 1), ("tpu_v6e", 1, 257, 1), ("gpu_h100_sxm", 4, 8, 1),
    ],
)  # fmt: skip
def test_a_replica_that_no_pod_holds_spans_several_slices(chip, dp, fsdp, slices):
    said = {"chip": chip, "devices": dp * fsdp, "mesh": {"dp": dp, "fsdp": fsdp}, "model": MODEL, "seq": 1024}
    assert slices_of(row_of(said | {"batch": dp * fsdp}), pw.chip(chip)) == slices


USUAL = {
    "id": "r",
    "chip": "gpu_a100_80",
    "devices": 8,
    "mesh": {"fsdp": 8},
    "model": MODEL,
    "seq": 1024,
    "batch": 8,
}
"""A row that says what decides a step."""


def test_one_wrong_row_takes_no_other_along(tmp_path, monkeypatch):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([5, {}, USUAL | {"mesh": {"fsdp": float("inf")}}, USUAL, USUAL | {"id": "s"}]))
    found = read_rows(path)
    assert [type(one).__name__ for one in found] == ["UnreadRow"] * 3 + ["PublishedStep"] * 2
    assert found[0].reason == "row 0 is 5; write an object with id, chip, devices, model, …"

    def predicted(row):
        if row.id == "r":
            raise IndexError("list index out of range")
        return "done"

    monkeypatch.setattr(prediction, "predict", predicted)
    assert prediction.predictions(found, print)[3:] == ["r: IndexError: list index out of range", "done"]


def test_words_that_name_nothing_known_are_read_as_full_and_the_basis_says_so():
    found = row_of(USUAL | {"remat": "selective"})
    assert (found.remat, found.assumed) == ("full", "remat 'selective' is read as full")
    assert row_of(USUAL | {"remat": "save q and k"}).assumed == ""
