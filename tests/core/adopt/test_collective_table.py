"""The table of collectives: where they come from, over which axes, what the compiler's text shows to be wrong."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.adopt.collective_table import axes_of_groups, collectives_of
from pathways_nb.adopt.flags import INVARIANT, SCATTER, flags_in
from pathways_nb.adopt.name_stacks import scope_of
from pathways_nb.adopt.predicted_step import STEP, PredictedStep
from pathways_nb.adopt.scheduled_depths import ScheduledDepths
from pathways_nb.adopt.step_answers import SavedStep
from pathways_nb.adopt.step_check import Budget, problems, sizes_in
from pathways_nb.adopt.tried_lines import TriedLines
from pathways_nb.adopt.whole_copies import copies_in
from pathways_nb.cost.hlo.exchanges import HloExchange
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.launch.bands import SecondsBand
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.launch_memory import LargeBuffer, LaunchMemory
from pathways_nb.cost.launch.op_seconds import LaunchPlace, exchange_seconds, hosts_of, price_of
from pathways_nb.cost.launch.opened_launch import open_launch
from pathways_nb.util.json_text import Field

SCOPES = {
    "jit(step)/jvp(L)/Dense_0/dot_general": "L/Dense_0",
    "jit(step)/transpose(jvp(jvp()))/checkpoint/rematted_computation/mlp/dot_general": "mlp",
    "jit(step)/while/body/closed_call/attention/mul": "attention",
    "jit(step)/jvp(L)/(Dense_0/add:Dense_1/mul)": "L",
    "jit(step)/jvp(attention)/reshape;checkpoint/attention/mul": "attention",
    "jit(step)/jvp(jit(_take))/a,b->c/gather": "",
    "jit(step)/transpose(jvp(eqx.nn.MLP))/eqx.nn.Linear/add": "eqx.nn.MLP/eqx.nn.Linear",
    "jit(step)/add": "",
    "": "",
}


@pytest.mark.parametrize(("source", "scope"), SCOPES.items())
def test_a_scope_is_what_the_user_named(source, scope):
    assert scope_of(source) == scope


def test_the_axes_of_a_group_are_those_in_which_its_devices_differ():
    mesh = {"data": 2, "model": 4}
    ids = np.arange(8).reshape(2, 4)

    def over(groups: np.ndarray) -> tuple[str, ...]:
        return axes_of_groups(HloExchange("all-gather", 1.0, groups, "f32", 1), mesh)

    assert over(ids) == ("model",)
    assert over(ids.T) == ("data",)
    assert over(ids.reshape(1, 8)) == ("data", "model")
    assert over(np.array([[0, 1], [1, 2]])) == ("model",)
    assert axes_of_groups(HloExchange("all-gather", 1.0, np.arange(2).reshape(1, 2), "f32", 1), {}) == ()


# A loop of 3 passes gathers the same weights in each; a sum of which each device keeps a part.
TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/train.py"

FunctionNames
1 "step"
2 "block"

FileLocations
1 {file_name_id=1 function_name_id=1 line=30 end_line=30 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=12 end_line=12 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%body (p: (s32[], f32[64,512], f32[64,512])) -> (s32[], f32[64,512], f32[64,512]) {
  %p = (s32[], f32[64,512], f32[64,512]) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %w = f32[64,512] get-tuple-element(%p), index=1
  %x = f32[64,512] get-tuple-element(%p), index=2
  %c = f32[64,512] copy(%w)
  %gather = f32[512,512] all-gather(%c), replica_groups=[1,8]<=[8], dimensions={0}, metadata={op_name="jit(step)/while/body/mlp/dot_general" stack_frame_id=2}
  %y = f32[64,512] dot(%x, %gather), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/while/body/mlp/dot_general" stack_frame_id=2}
  %one = s32[] constant(1)
  %m = s32[] add(%n, %one)
  ROOT %t = (s32[], f32[64,512], f32[64,512]) tuple(%m, %w, %y)
}

%cond (p: (s32[], f32[64,512], f32[64,512])) -> pred[] {
  %p = (s32[], f32[64,512], f32[64,512]) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%n, %three), direction=LT
}

ENTRY %main (w: f32[64,512], x: f32[64,512], at: s32[]) -> f32[8,512] {
  %w = f32[64,512] parameter(0)
  %x = f32[64,512] parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  %start = (s32[], f32[64,512], f32[64,512]) tuple(%zero, %w, %x)
  %loop = (s32[], f32[64,512], f32[64,512]) while(%start), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %y = f32[64,512] get-tuple-element(%loop), index=2
  %sum = f32[64,512] all-reduce-start(%y), replica_groups=[1,8]<=[8], to_apply=%add, metadata={op_name="jit(step)/transpose(jvp())/add" stack_frame_id=1}
  %done = f32[64,512] all-reduce-done(%sum)
  ROOT %part = f32[8,512] dynamic-slice(%done, %at, %zero), dynamic_slice_sizes={8,512}
}
"""
H100 = pw.chip("gpu_h100_sxm")


def made(text: str = TEXT, memory: str = "") -> PredictedStep:
    """What follows from a text on 8 H100."""
    known = constants("gpu_h100_sxm")
    place = LaunchPlace(H100, [{"process": 0}] * 8, 8)
    found = collectives_of(ScheduledDepths.of([parse(text)], 8, price_of(place, known)), place, {"d": 8})
    launch = open_launch(text, place, known, memory=memory)
    return PredictedStep(launch, SecondsBand(launch.seconds.ordered, 0.0, 1.0), found)


def test_each_line_has_its_collectives_with_their_bytes_times_and_flags():
    gather, total = sorted(made().collectives.rows, key=lambda row: row.kind)
    assert (gather.line, gather.function, gather.scope, gather.kind) == ("train.py:12", "block", "mlp", "all-gather")
    assert (gather.bytes, gather.count, gather.devices, gather.hosts) == (512 * 512 * 4, 3, 8, 1)
    assert (gather.axes, gather.flag) == (("d",), INVARIANT)
    assert gather.exposed == pytest.approx(gather.seconds), "nothing runs meanwhile"
    assert (total.line, total.function, total.kind, total.count) == ("train.py:30", "step", "all-reduce", 1)
    assert total.flag == SCATTER
    text, html = repr(made().collectives), made().collectives._repr_html_()
    assert "train.py:12  mlp    all-gather  d     8 on 1 host  1.05 MB  3" in text
    assert '<tr data-collective="0" class=flagged>' in html
    assert f'<span class="flag">⚠ {INVARIANT}</span>' in html


WARNED = (
    "[SPMD] Involuntary full rematerialization. The compiler cannot go from sharding {devices=[2,1,4]<=[4,2]T(1,0) "
    "last_tile_dim_replicate} to {devices=[1,8,1]<=[8]} efficiently for HLO operation %dot = f32[512,64]{1,0} "
    'copy(%x), metadata={op_name="jit(step)/dot" stack_frame_id=1}. As the last resort, SPMD will replicate.'
)


def test_a_copy_that_the_compiler_warned_of_is_found_by_the_shape_of_a_part():
    module = parse(TEXT)
    (copy,) = copies_in(module, WARNED)
    assert copy.gathers == ("gather",)
    assert flags_in(module, [copy])["gather"] == (
        f"copied whole to every device: no direct way from the layout of train.py:30; {INVARIANT}"
    )
    older = WARNED.replace("cannot", "was not able to").replace(
        "efficiently for", "without doing a full rematerialization of the tensor for"
    )
    assert copies_in(module, older) == (copy,)
    named = WARNED.replace("{devices=[1,8,1]<=[8]}", "{mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]}")
    assert copies_in(module, named)[0].gathers == ("gather",)
    assert copies_in(module, named)[0].after == "{mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]}"
    (other,) = copies_in(module, WARNED.replace("f32[512,64]", "f32[512,128]"))
    assert other.gathers == ()
    assert other.note == (
        "what train.py:30 makes is copied whole to every device: no direct way from {devices=[2,1,4]<=[4,2]T(1,0) "
        "last_tile_dim_replicate} to {devices=[1,8,1]<=[8]}"
    )
    (unsaid,) = copies_in(module, WARNED.replace(" stack_frame_id=1", ""))
    assert unsaid.note.startswith("what an unknown line makes is copied")
    assert copies_in(module, "") == ()


def test_a_gather_of_what_changes_and_a_sum_that_is_read_whole_are_not_flagged():
    other = TEXT.replace("tuple(%m, %w, %y)", "tuple(%m, %y, %x)").replace(
        "ROOT %part = f32[8,512] dynamic-slice(%done, %at, %zero), dynamic_slice_sizes={8,512}",
        "ROOT %part = f32[64,512] negate(%done)",
    )
    assert flags_in(parse(TEXT)) == {"gather": INVARIANT, "sum": SCATTER}
    assert flags_in(parse(other)) == {}


def test_answers_are_read_as_they_were_written(tmp_path):
    found = made()
    again = STEP.read(Field(json.loads(json.dumps(STEP.write(found)))))
    assert (again.collectives, again.band, again.launch.notes) == (found.collectives, found.band, found.launch.notes)
    step = SavedStep("step", "gpu_h100_sxm", {"d": 8}, found)
    step.save(tmp_path / "a.step")
    loaded = pw.load(tmp_path / "a.step")
    assert repr(loaded) == "<step step: 8 × gpu_h100_sxm, d 8>"
    assert loaded.collectives() == step.collectives()
    assert loaded.seconds == step.seconds
    assert (loaded.seconds.low, loaded.seconds.high) == (0.0, 1.0)
    assert "exposed communication" in loaded.timeline().summary_line()
    data = (tmp_path / "a.step").read_bytes()
    for damaged in (data[: len(data) // 2], data[:40] + b"damage" + data[46:]):
        (tmp_path / "b.step").write_bytes(damaged)
        with pytest.raises(pw.UsageError, match=r"load\('.*b\.step'\): this saved step cannot be read"):
            pw.load(tmp_path / "b.step")
    with pytest.raises(pw.UsageError, match=r"chip='tpu_v5p'\): this is a saved run; chip= is for dumps of XLA"):
        pw.load(tmp_path / "a.step", chip="tpu_v5p")


def test_two_steps_are_compared_by_their_timelines():
    here = SavedStep("step", "gpu_h100_sxm", {"d": 8}, made())
    found = pw.compare(here, SavedStep("step", "gpu_h100_sxm", {"d": 4, "m": 2}, made()))
    assert found.name == "d 8 (simulated) above, d 4 × m 2 (simulated) below"
    assert (found.op_difference.only_a, found.op_difference.only_b) == (0, 0)
    longer = found.op_difference.table["longer"]
    assert len(longer) > 9, "three passes of a loop"
    assert not longer.any()
    assert len(found.difference) == 1, "the launches are one program"
    with pytest.raises(pw.UsageError, match="the second argument is an int, not a run"):
        pw.compare(here, 3)


def test_a_comparison_of_steps_says_what_differs_and_which_line_became_slower(tmp_path):
    moved = TEXT.replace("line=12", "line=14").replace("line=30", "line=32").replace("f32[64,512]", "f32[128,512]")
    slower = made(moved)
    versions = {"jax": "0.10.2", "compiler": "gpu 1"}
    a = SavedStep("step", "gpu_h100_sxm", {"d": 8}, made(), {"xla_x": True, "xla_y": 1}, versions)
    b = SavedStep("step", "gpu_b200", {"d": 8}, slower, {"xla_y": 2, "xla_z": False}, {**versions, "jax": "0.12"})
    a.save(tmp_path / "a.step")
    compared = pw.compare(pw.load(tmp_path / "a.step"), b)
    assert compared.changes == (
        "chip gpu_h100_sxm in a, gpu_b200 in b", "xla_x=True only in a", "xla_y=1 in a, 2 in b", "xla_z=False only in b",
        "jax=0.10.2 in a, 0.12 in b",
    )  # fmt: skip
    assert compared.summary_line().startswith("chip gpu_h100_sxm in a, gpu_b200 in b · xla_x=True only in a · ")
    rows = compared.lines().rows
    assert (rows[0].line, rows[0].operation) == ("train.py:30 → train.py:32", "add")
    assert rows[0].longer == max(row.longer for row in rows) > 0
    assert "train.py:12 → train.py:14" in [row.line for row in rows], "matched though lines were inserted above"
    assert "train.py:30 → train.py:32" in repr(compared.lines())
    older = SavedStep("step", "gpu_h100_sxm", {"d": 4, "m": 2}, made())
    assert pw.compare(a, older).changes == (
        "mesh d=8 in a, 4 in b", "mesh m=2 only in b", "xla_x=True only in a", "xla_y=1 only in a"
    )  # fmt: skip


def test_a_loaded_step_says_what_only_the_program_answers_and_prints_its_memory():
    step = SavedStep("step", "gpu_h100_sxm", {"d": 8}, made())
    said = r"^on: step was loaded from a file.* pw\.adopt\(step, …, chip='gpu_h100_sxm', mesh=\{'d': 8\}\)\.on\(…\)\.$"
    with pytest.raises(AttributeError, match=said):
        step.on(mesh={"d": 4})
    with pytest.raises(AttributeError, match="'SavedStep' object has no attribute 'other'"):
        _ = step.other
    buffer = LargeBuffer(6_000_000, "fusion.3", "jit(step)/mlp/dot_general", "f32[1500000]", "train.py:12")
    memory = LaunchMemory(8_000_000, 2_000_000, 0, 6_000_000, (buffer,), 7_000_000)
    assert repr(memory).splitlines() == [
        "memory of a device: 8 MB of 7 MB (does not fit); temporaries 6 MB, arguments 2 MB",
        "  largest buffers at the peak         shape         line  bytes",
        "  dot_general                  f32[1500000]  train.py:12   6 MB",
    ]


def test_without_a_flag_beside_a_constraint_those_that_can_be_tried_are_named():
    assert repr(TriedLines("step", (), (), ("a.py:3", "a.py:9"))).splitlines()[0] == (
        "step: no constraint stands beside a flagged collective; try_line tries any of those that there are, at "
        "a.py:3, a.py:9"
    )


def test_a_step_that_was_saved_without_versions_is_read(tmp_path):
    SavedStep("step", "gpu_h100_sxm", {"d": 8}, made()).save(tmp_path / "a.step")
    begin = b"pathways_nb step\n"
    said = json.loads(gzip.decompress((tmp_path / "a.step").read_bytes().removeprefix(begin)))
    del said["options"], said["versions"]
    (tmp_path / "a.step").write_bytes(begin + gzip.compress(json.dumps(said).encode()))
    loaded = pw.load(tmp_path / "a.step")
    assert (loaded.options, loaded.versions) == ({}, {})


def checked(text: str, budget: str, before: str | None) -> list[str]:
    """What is more than agreed, of a changed text."""
    steps = []
    for one in (text, before):
        if one is None:
            steps.append(None)
            continue
        found = made(one, memory="Memory Space: default\nTotal bytes: 1000000000")
        steps.append(SavedStep("step", "gpu_h100_sxm", {"d": 8}, found))
    return problems(steps[0], Budget.of(budget), steps[1])


def test_a_line_above_changes_nothing_and_a_new_collective_is_named_by_its_line():
    moved = TEXT.replace("line=12", "line=14").replace("line=30", "line=32")
    assert checked(moved, "", TEXT) == []
    without = TEXT.replace("all-gather(%c), replica_groups=[1,8]<=[8], dimensions={0}", "broadcast(%c), dimensions={0}")
    (found,) = [one for one in checked(moved, "", without) if one.startswith("new")]
    assert found == "new: all-gather at train.py:14 (mlp in block): 3 times in a step, 1.05 MB each"


def test_what_was_saved_elsewhere_is_not_compared():
    here, there = (SavedStep("step", "gpu_h100_sxm", mesh, made()) for mesh in ({"d": 8}, {"d": 4, "m": 2}))
    memory = open_launch(TEXT, LaunchPlace(H100, [{"process": 0}] * 8, 8), constants("gpu_h100_sxm"),
                         memory="Memory Space: default\nTotal bytes: 1000")  # fmt: skip
    here._predicted = PredictedStep(memory, SecondsBand(1, 1, 1), made().collectives)
    with pytest.raises(
        pw.UsageError,
        match=r"--against: this step is on 8 × gpu_h100_sxm, d 8, and what was saved on 8 × gpu_h100_sxm, d 4 × m 2; save",
    ):
        problems(here, Budget(), there)


def test_a_group_spans_the_most_hosts_of_any():
    mesh = {"data": 4, "model": 6}
    place = LaunchPlace(H100, [{"process": n // 8} for n in range(24)], 8)
    groups = np.arange(24).reshape(4, 6)
    exchange = HloExchange("all-gather", 6e6, groups, "f32", 1)
    assert hosts_of(exchange, place) == 2
    inside = HloExchange("all-gather", 6e6, groups[:1], "f32", 1)
    known = constants("gpu_h100_sxm")
    assert exchange_seconds(exchange, place, known) > exchange_seconds(inside, place, known)
    assert axes_of_groups(exchange, mesh) == ("model",)


def test_a_budget_is_kept_or_said_with_what_takes_most():
    assert checked(TEXT, "memory=2GB,exposed=1", None) == []
    memory, exposed = checked(TEXT, "memory=500MB,exposed=1e-6", None)
    assert memory.startswith("memory: 1 GB is more than 500 MB; the largest: ")
    assert re.fullmatch(
        r"exposed: [\d.]+ µs is more than 1 µs; the longest: all-gather at train\.py:12 \(mlp in block\), [\d.]+ µs",
        exposed,
    )
    assert Budget.of("memory=2GiB") == Budget(2**31)
    assert Budget.of("exposed = 50ms") == Budget(exposed=0.05)
    for wrong in ("memory", "memory=much", "speed=3", "exposed=5GB", "memory=3s"):
        with pytest.raises(pw.UsageError, match=rf"--budget {wrong}: write memory=95GB, exposed=0\.05"):
            Budget.of(wrong)
    assert sizes_in("data=16,model=8") == {"data": 16, "model": 8}
    with pytest.raises(pw.UsageError, match="write the devices along each axis, such as data=16,model=8"):
        sizes_in("data=16,model")
