"""How fast products of a type and a precision are made: passes on a TPU, units outside tensor cores on a GPU."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.hlo.hlo_work import OpWork, work_of
from pathways_nb.cost.launch.product_rates import product_rate

H100, V5P, A100 = pw.chip("gpu_h100_sxm"), pw.chip("tpu_v5p"), pw.chip("gpu_a100_80")


@pytest.mark.parametrize(
    ("chip", "dtype", "precision", "rate"),
    [
        (H100, "bf16", "", H100.flops("bf16")),
        (H100, "f32", "", H100.flops("fp32")),
        (H100, "f32", "high", H100.flops("fp32")),
        (H100, "f32", "highest", 66.9e12),
        (A100, "f32", "highest", 19.5e12),
        (H100, "f8e4m3fn", "", H100.flops("fp8")),
        (H100, "s4", "", H100.flops("int8")),
        (V5P, "bf16", "highest", V5P.flops("bf16")),
        (V5P, "f32", "", V5P.flops("bf16")),
        (V5P, "f32", "high", V5P.flops("bf16") / 3),
        (V5P, "f32", "highest", V5P.flops("bf16") / 6),
    ],
)
def test_the_rate_of_a_type_and_a_precision(chip, dtype, precision, rate):
    found = product_rate(OpWork(1.0, dtype, precision=precision), chip)
    assert found.flops == pytest.approx(rate, rel=1e-2)
    assert found.note == ""


def test_a_type_without_a_rate_says_what_it_counts_as():
    double = product_rate(OpWork(1.0, "f64"), H100)
    assert double.flops == pytest.approx(66.9e12, rel=1e-2)
    assert double.note == (
        "no rate of gpu_h100_sxm is known for products of f64: they count as float32 outside tensor cores"
    )
    whole = product_rate(OpWork(1.0, "s32", precision="highest"), V5P)
    assert whole.flops == V5P.flops("bf16")
    assert whole.note == (
        "no rate of tpu_v5p is known for products of s32 at precision highest: they count as bfloat16"
    )
    assert product_rate(OpWork(1.0, "f64"), V5P).flops == V5P.flops("bf16")


TEXT = """HloModule m

%fused (p: f32[64,32]) -> f32[64,64] {{
  %p = f32[64,32]{{1,0}} parameter(0)
  ROOT %d = f32[64,64]{{1,0}} dot(%p, %p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}{inner}
}}

ENTRY %main (a: f32[64,32]) -> f32[64,64] {{
  %a = f32[64,32]{{1,0}} parameter(0)
  %f = f32[64,64]{{1,0}} fusion(%a), kind=kOutput, calls=%fused
  ROOT %c = (f32[64,64]{{1,0}}, s8[1]{{0}}) custom-call(%a, %a), custom_call_target="__cublas$gemm", backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{"lhs_contracting_dimensions":["1"]}},"precision_config":{{"operand_precision":["{library}","DEFAULT"]}}}}}}
}}
"""


@pytest.mark.parametrize(
    ("inner", "library", "said"),
    [("", "DEFAULT", ["", ""]), (", operand_precision={high,highest}", "HIGH", ["highest", "high"])],
)
def test_the_precision_that_is_asked_for_stands_in_the_text(inner, library, said):
    module = parse(TEXT.format(inner=inner, library=library))
    main = module.computations[module.entry]
    found = [work_of(module, main, main.instructions[name]) for name in ("f", "c")]
    assert [one.precision for one in found] == said
    assert [one.flops for one in found] == [2 * 64 * 64 * 32] * 2
