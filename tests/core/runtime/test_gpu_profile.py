"""Profiles that JAX wrote on a GPU are read launch by launch; see ``pathways_datasets.recorded_files`` for the programs."""

from __future__ import annotations

import pytest
from jax.profiler import ProfileData

from pathways_datasets import recorded, recorded_files
from pathways_nb.runtime.local.profiler import Profiler
from pathways_nb.trace.exact_stamps import Span

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
