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
from pathways_nb.program.emit import module_of
from pathways_nb.runtime.local.launch_op_sources import launch_ops
from pathways_nb.runtime.local.profiler import Profiler
from pathways_nb.trace.exact_stamps import Span, matched
from pathways_nb.trace.launch_ops import Op, Ops
from pathways_nb.trace.op_matching import compare_ops
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.timeline.op_view import OpTimeline
from tests.support.xspace import MadeEvent, MadePlane, encoded

US = 1000
"""Nanoseconds of a microsecond."""
# As an error it would abort the process in jaxlib.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(name: str) -> list[Span]:
    profile = ProfileData.from_serialized_xspace(recorded(name))
    return sorted(Profiler(lambda: 0.0)._read(profile), key=lambda span: span.start)


def test_launches_are_told_apart_by_the_calls_that_they_made():
    g, h, *rest = read("h200_four_launches.xplane.pb")
    assert {(span.device, span.module) for span in (g, h, *rest)} == {(0, "jit_pw_lambda")}
    assert len(rest) == 2
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


def test_computation_collectives_and_copies_of_a_launch_are_on_lanes_of_their_own():
    """Two streams and a copy in one launch of two devices, told by the calls that the launch made on the host."""
    calls = [
        MadeEvent("cudaLaunchKernel", (10 + at) * US, 2 * US, {"correlation_id": at, "device_id": at % 2})
        for at in range(1, 7)
    ]
    launch = MadeEvent(
        "CommonPjRtLoadedExecutable::Execute (jit_pw_f)", 5 * US, 20 * US, {"name": "jit_pw_f", "run_id": 9}
    )

    def gpu(number: int) -> MadePlane:
        first = 1 + number % 2
        graph = {"hlo_op": "command_buffer", "hlo_module": "jit_pw_f"}
        return MadePlane(f"/device:GPU:{number}", {
            "Stream #7(Compute)": [MadeEvent("fusion_3", 100 * US, 50 * US, {"correlation_id": first, "hlo_op": "fusion.3"})],
            "Stream #20(Compute)": [MadeEvent("ncclDevKernel_AllGather_RING_LL(x)", 120 * US, 60 * US, {"correlation_id": first + 2} | graph)],
            "Stream #9(MemcpyD2H)": [MadeEvent("MemcpyD2H", 160 * US, 30 * US, {"correlation_id": first + 4} | graph)],
            "XLA Ops": [MadeEvent("fusion.3", 100 * US, 50 * US)],
            "Sampled counters": [MadeEvent("sm", 0, 5 * US)],
        })  # fmt: skip

    when = MadePlane("Task Environment", {}, {"profile_start_time": 0})
    profiler = Profiler(lambda: 0.0)
    data = encoded(MadePlane("/host:CPU", {"main": [launch, *calls]}), gpu(0), gpu(1), when)
    spans = list(profiler._read(ProfileData.from_serialized_xspace(data)))
    assert profiler.unread == {f"/device:GPU:{number}, line 'Sampled counters'": 1 for number in (0, 1)}
    assert [(span.device, span.module, round((span.end - span.start) * 1e6)) for span in spans] == [
        (0, "jit_pw_f", 90), (1, "jit_pw_f", 90)
    ]  # fmt: skip
    record = Record()
    record.add(Row(Label("compute", "f", island=0, devices=2), 0.0, 1.0, run=3))
    ops = launch_ops(record, matched(record, spans, [[0, 1]], module_of), [[0, 1]], {})
    assert [(op.name, op.kind) for op in ops.of(device=1)] == [
        ("fusion.3", "compute"), ("ncclDevKernel_AllGather_RING_LL(x)", "collective"), ("MemcpyD2H", "host"),
    ]  # fmt: skip
    view = OpTimeline((2,))
    run = pw.Run("r", (2,), record, finished=True)
    run.ops = ops
    view.update(run)
    lanes = set(view.lanes.labels.values())
    assert {f"dev {device} · {queue}" for device in (0, 1) for queue in ("compute", "collectives", "host")} <= lanes
