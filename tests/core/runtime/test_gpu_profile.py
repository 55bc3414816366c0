"""Profiles that JAX wrote on a GPU are read launch by launch; see ``pathways_datasets.recorded_files`` for the programs."""

from __future__ import annotations

import pytest
from jax.profiler import ProfileData

import pathways_nb as pw
from pathways_datasets import recorded, recorded_files
from pathways_nb.cost.hlo.hlo_sources import ops_of
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.op_seconds import LaunchPlace
from pathways_nb.cost.launch.opened_launch import open_launch
from pathways_nb.runtime.local.profiler import Profiler
from pathways_nb.trace.exact_stamps import Span
from pathways_nb.trace.launch_ops import Op, Ops
from pathways_nb.trace.op_matching import compare_ops

# As an error it would abort the process in jaxlib.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(name: str) -> list[Span]:
    profile = ProfileData.from_serialized_xspace(recorded(name))
    return sorted(Profiler(lambda: 0.0)._read(profile), key=lambda span: span.start)


def test_launches_are_told_apart_by_the_calls_that_they_made():
    g, h, *rest = read("h200_four_launches.xplane.pb")
    assert {(span.device, span.module) for span in (g, h, *rest)} == {(0, "jit_pw_lambda")}
    assert len({span.launch for span in (g, h, *rest)}) == 4
    product = 318e-6  # a product of 4096 x 4096 in float32 there
    for span in (g, *rest):
        assert [op.name for op in span.ops] == ["custom-call.0"] * 2 + ["wrapped_tanh"] + ["custom-call.1"] * 2
        assert 2 * product < span.end - span.start < 2.5 * product
    assert [op.name for op in h.ops].count("custom-call.1") == 8, "four rounds of a memset and a product"
    assert 4 * product < h.end - h.start < 5 * product
    assert all(one.end <= other.start for one, other in zip((g, h, *rest), (h, *rest), strict=False))


def test_a_launch_of_one_cuda_graph_has_the_names_of_its_kernels():
    one, two = read("h200_plain_step.xplane.pb")
    for step in (one, two):
        assert step.module == "jit_step"
        assert step.end - step.start == pytest.approx(
            recorded_files()["h200_plain_step.xplane.pb"]["seconds_per_step"], rel=0.02
        )
        assert len(step.ops) == 853
        assert not any(op.name.startswith("command_buffer") for op in step.ops)
    assert [op.name for op in one.ops] == [op.name for op in two.ops]


def test_a_predicted_step_has_the_ops_of_its_profile():
    """The text of a step that was compiled on a GPU, priced by the table, beside what the profiler saw there."""
    name = "h200_cudnn_6x4096_full"
    text = recorded(f"{name}.hlo.txt").decode()
    (span,), known = read(f"{name}.xplane.pb"), ops_of(text)
    seen = Ops.from_rows(
        Op(op.name, one.source, one.kind, "", "", 0, 0, 0, 0, op.start, op.end, one.line, one.phase)
        for op in span.ops
        if (one := known[op.name])
    )
    place = LaunchPlace(pw.chip("gpu_h200_sxm"), [{"process": 0}], 1)
    said = open_launch(text, place, constants("gpu_h200_sxm")).ops
    found = compare_ops(said, seen)
    assert (len(found), found.only_a, found.only_b) == (615, 0, 0)
    for phase in ("forward", "backward", "recomputed", "optimizer"):
        both = [ops.select(ops["phase"] == phase).seconds for ops in (said, seen)]
        assert both[0] == pytest.approx(both[1], rel=0.17), phase
