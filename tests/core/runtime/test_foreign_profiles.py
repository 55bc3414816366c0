"""Profiles of any JAX program become runs: recorded on a GPU, and of the shapes that XLA documents."""

from __future__ import annotations

import contextlib
import gzip
import json

import numpy as np
import pytest
from jax.profiler import ProfileData

import pathways_nb as pw
from pathways_datasets import recorded, recorded_files
from pathways_nb.program.emit import module_of
from pathways_nb.runtime.local.profiler import Profiler
from pathways_nb.runtime.recorded import xspace_pieces
from pathways_nb.trace.exact_stamps import matched
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.timeline.op_view import OpTimeline
from tests.support.xspace import MadeEvent, MadePlane, encoded

US = 1000


@pytest.fixture
def h200(tmp_path):
    """A training step on an H200, twice, recorded with JAX 0.11."""
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(recorded("h200_plain_step.xplane.pb"))
    return path


def test_a_profile_of_a_gpu_is_a_run(h200) -> None:
    run = pw.load(h200)
    assert (run.name, run.islands, run.about["trace"]["devices"]) == ("vm", (1,), ["GPU 0"])
    compute = run.events.of_kind("compute")
    assert len(compute) == 2 * 853
    assert set(compute["stream"]) == {"stream 14"}
    assert set(compute["program"]) == {"step"}
    assert not run.about.get("unread")
    seconds = recorded_files()["h200_plain_step.xplane.pb"]["seconds_per_step"]
    spans = [run.ops.of(run=serial) for serial in np.unique(run.ops["run"])]
    assert [ops["end"].max() - ops["start"].min() for ops in spans] == pytest.approx([seconds] * 2, rel=0.02)
    assert run.summary().utilisation[0] > 0.5
    assert run.critical_path().length == pytest.approx(run.summary().makespan)


def test_ops_of_a_profile_have_the_lines_of_the_program(tmp_path) -> None:
    """The profile holds the compiled module, whose text says of each op where it comes from."""
    path = tmp_path / "vm.xplane.pb.gz"
    path.write_bytes(gzip.compress(recorded("h200_cudnn_6x4096_full.xplane.pb")))
    ops = pw.load(path).ops
    assert ops.joined > 0.9
    assert {"forward", "backward", "optimizer"} <= set(ops["phase"])
    assert any(".py:" in line for line in ops["line"])


def tpu(**more) -> MadePlane:
    """Two launches on one TPU, with a loop, a collective beside computation, and a line that nobody knows."""
    modules = [MadeEvent("jit_step(77)", at * US, 100 * US, {"run_id": number}) for number, at in ((5, 10), (6, 200))]
    ops, beside = [], []
    for at in (10, 200):
        ops += [
            MadeEvent("%while.1 = (s32[]) while(%tuple)", at * US, 60 * US),
            MadeEvent("%fusion.3 = bf16[8]{0} fusion(%p)", at * US, 30 * US, {"tf_op": "jit(step)/dot_general:"}),
            MadeEvent(
                "%all-reduce.7 = f32[8]{0} all-reduce(%p)", (at + 40) * US, 20 * US, {"hlo_category": "all-reduce"}
            ),
        ]
        beside.append(MadeEvent("%copy-start.2 = (f32[8]) copy-start(%p)", (at + 5) * US, 50 * US))
    lines = {"Steps": [MadeEvent("1", 0, 300 * US)], "XLA Modules": modules, "XLA Ops": ops, "Async XLA Ops": beside}
    return MadePlane("/device:TPU:0", {**lines, **more})


def test_planes_of_a_tpu_as_xla_documents_them(tmp_path) -> None:
    odd = MadePlane("/device:TPU:0 SparseCore 1", {"XLA Ops": [MadeEvent("x", 0, US)]})
    when = MadePlane("Task Environment", {}, {"profile_start_time": 60})
    (tmp_path / "t.xplane.pb").write_bytes(encoded(tpu(**{"Barrier Cores": [MadeEvent("y", 0, US)]}), odd, when))
    run = pw.load(tmp_path / "t.xplane.pb")
    assert run.events["name"].tolist() == ["fusion.3", "copy-start.2", "all-reduce.7"] * 2, "a loop is its operations"
    assert run.events["kind"].tolist() == ["compute", "transfer", "collective"] * 2
    assert set(run.events["stream"]) == {"XLA Ops", "Async XLA Ops"}
    assert run.events["start"][:3] == pytest.approx([0, 5e-6, 40e-6])
    assert np.unique(run.ops["run"]).tolist() == [0, 1]
    assert set(run.ops["launch"]) == {"step"}
    assert run.ops[0].source == "jit(step)/dot_general"
    assert run.about["unread"] == {
        "/device:TPU:0 SparseCore 1, line 'XLA Ops'": 1,
        "/device:TPU:0, line 'Barrier Cores'": 1,
    }


def counted_by_itself(number: int, first: int, launches: int = 3) -> MadePlane:
    """A TPU as XProf's traces of two of them have it: it numbers its own launches, and has counters beside."""
    modules, ops = [], []
    for at in range(launches):
        begin = (100 * at + number) * US
        modules.append(MadeEvent("jit_pw_step(77)", begin, 90 * US, {"run_id": first + at}))
        reduce = "%all-reduce.1 = bf16[8,2]{1,0:T(8,128)S(1)} all-reduce(bf16[8,2]{1,0} %p), replica_groups=[1,2]<=[2]"
        ops += [
            MadeEvent("%slice-done.4 = s8[64]{0} async-done(%s)", begin, US, {"hlo_category": "async-done"}),
            MadeEvent(reduce, begin + 10 * US, 20 * US),
        ]
    lines = {"XLA Modules": modules, "XLA Ops": ops, "_counters_": [MadeEvent("P state", 0, 1, {"P State": "3"})]}
    return MadePlane(f"/device:TPU:{number}", lines)


@pytest.mark.parametrize(("launches", "found"), [((3, 3), 3), ((3, 2), 5)])
def test_tpus_count_their_launches_by_themselves(tmp_path, launches, found) -> None:
    """Where all have equally many the n-th is the n-th; else nobody can tell which are one launch."""
    planes = [counted_by_itself(0, 850, launches[0]), counted_by_itself(1, 247, launches[1])]
    (tmp_path / "t.xplane.pb").write_bytes(encoded(*planes))
    run = pw.load(tmp_path / "t.xplane.pb")
    assert len(np.unique(run.ops["run"])) == found
    assert not run.about.get("unread")
    assert run.idle().seconds["dispatch"] == 0, "nothing tells who sent what"
    assert set(run.events.of_kind("transfer")["name"]) == {"slice-done.4"}
    (label,) = {run.events.labels[one].basis for one in run.events.of_kind("collective").label}
    assert label == "replica groups [1,2]<=[2]; bf16[8,2]"


def test_launches_of_tpus_get_exact_stamps_though_each_counts_by_itself() -> None:
    when = MadePlane("Task Environment", {}, {"profile_start_time": 0})
    data = encoded(counted_by_itself(0, 850), counted_by_itself(1, 247), when)
    spans = list(Profiler(lambda: 0.0)._read(ProfileData.from_serialized_xspace(data)))
    record = Record()
    for at in range(3):
        record.add(Row(Label("compute", "step", island=0, devices=2), at, at + 1.0))
    match = matched(record, spans, [[0, 1]], module_of)
    assert {row: [span.device for span in on] for row, on in match.spans.items()} == {at: [0, 1] for at in range(3)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as an error it aborts the process in jaxlib
def test_a_profile_is_read_in_pieces_as_it_is_as_a_whole(h200, monkeypatch) -> None:
    """JAX's own reader takes eight times a file's size, so it gets some events at a time."""
    data = recorded("h200_plain_step.xplane.pb")
    told: list[float] = []
    monkeypatch.setattr(xspace_pieces, "PIECE", 1000)
    pieced = xspace_pieces.PiecedProfile(memoryview(data), told.append).planes
    whole = list(ProfileData.from_serialized_xspace(data).planes)

    def seen(planes):
        return [
            (plane.name, list(plane.stats), [(line.name, [_event(one) for one in line.events]) for line in plane.lines])
            for plane in planes
        ]

    assert seen(pieced) == seen(whole)
    assert len(told) > 20
    assert told == sorted(told)
    assert told[-1] <= 1


def _event(one):
    return one.name, one.start_ns, one.duration_ns, list(one.stats)


def test_launches_without_ops_are_the_tasks(tmp_path) -> None:
    plane = tpu()
    only = MadePlane(plane.name, {"XLA Modules": plane.lines["XLA Modules"]})
    (tmp_path / "t.xplane.pb").write_bytes(encoded(only))
    run = pw.load(tmp_path / "t.xplane.pb")
    assert run.events["name"].tolist() == ["jit_step"] * 2
    assert run.summary().utilisation == pytest.approx((200 / 290,))


def test_several_streams_and_devices_of_a_gpu(tmp_path) -> None:
    """Of a launch that the host's plane does not tell, tasks of one module in a row belong together."""

    def gpu(number: int) -> MadePlane:
        said = {"hlo_module": "jit_step", "hlo_op": "fusion.1"}
        kernels = [MadeEvent("fusion_1", at * US, 10 * US, said) for at in (0, 20)]
        reduce = MadeEvent(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 5 * US, 20 * US, said | {"hlo_op": "all-reduce-start.2"}
        )
        copy = MadeEvent("MemcpyH2D", 40 * US, 5 * US, {"memcpy_details": "kind_src:pageable size:640 dest:0"})
        lines = {"Stream #7(Compute)": kernels, "Stream #20(Compute)": [reduce], "Stream #9(MemcpyH2D)": [copy],
                 "XLA Ops": kernels}  # fmt: skip
        return MadePlane(f"/device:GPU:{number}", lines)

    (tmp_path / "g.xplane.pb").write_bytes(encoded(gpu(0), gpu(1)))
    run = pw.load(tmp_path / "g.xplane.pb")
    assert run.islands == (2,)
    assert len(run.events) == 8, "what is derived from streams counts once"
    assert run.events.select(run.events.is_("device", 1))["stream"].tolist() == [
        "stream 7",
        "stream 20",
        "stream 7",
        "stream 9",
    ]
    (copy, _) = run.events.of_kind("transfer")
    assert (copy["bytes"], copy["route"]) == (640, "host")
    assert set(run.ops["run"]) == {0}
    assert run.ops.of(kind="collective")["name"].tolist() == ["all-reduce-start.2"] * 2
    assert run.summary().utilisation == pytest.approx((30 / 45,))


def test_xprofs_own_trace_json_is_read_by_the_same_reader(tmp_path) -> None:
    def named(what, pid, tid, name):
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}

    events = [
        named("process_name", 1, 0, "/device:TPU:0"), named("thread_name", 1, 2, "XLA Modules"),
        named("thread_name", 1, 3, "XLA Ops"), named("process_name", 701, 0, "/host:CPU"),
        {"ph": "X", "pid": 1, "tid": 2, "name": "jit_step(77)", "ts": 10.0, "dur": 100.0, "args": {"run_id": "5"}},
        {"ph": "X", "pid": 1, "tid": 3, "name": "fusion.3", "ts": 10.0, "dur": 30.0, "args": {"tf_op": "jit(step)/dot:"}},
        {"ph": "X", "pid": 1, "tid": 3, "name": "all-reduce.7", "ts": 50.0, "dur": 20.0},
        {"ph": "X", "pid": 701, "tid": 1, "name": "python", "ts": 0.0, "dur": 500.0},
    ]  # fmt: skip
    (tmp_path / "t.trace.json").write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    run = pw.load(tmp_path / "t.trace.json")
    assert run.name == "t"
    assert run.events["name"].tolist() == ["fusion.3", "all-reduce.7"]
    assert run.events["kind"].tolist() == ["compute", "collective"]
    assert run.events["start"] == pytest.approx([0, 40e-6])
    assert run.ops["source"].tolist() == ["jit(step)/dot", ""]


def test_damaged_and_foreign_profiles_are_refused_in_a_line(tmp_path, h200) -> None:
    data = h200.read_bytes()

    def refused(data: bytes) -> str:
        path = tmp_path / "x.xplane.pb"
        path.write_bytes(data)
        with pytest.raises(pw.UsageError) as error:
            pw.load(path)
        assert str(error.value).startswith(f"load({str(path)!r}): this trace cannot be read: ")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "it ends in the middle" in refused(data[: len(data) // 2])
    assert "it has no planes" in refused(b"")
    assert "which no profile has" in refused(b"PK\x03\x04" + data)
    assert "it cannot be unpacked" in refused(gzip.compress(data)[:-50])
    assert "nothing in it ran on a device" in refused(
        encoded(MadePlane("/host:CPU", {"python": [MadeEvent("f", 0, 5)]}))
    )


def test_any_byte_may_be_wrong(tmp_path) -> None:
    """What JAX's reader is given is read or refused, and never ends the process."""
    data, random, path = bytearray(encoded(tpu())), np.random.default_rng(0), tmp_path / "x.xplane.pb"
    for at in random.choice(len(data), 200, replace=False):
        kept, data[at] = data[at], int(random.integers(256))
        path.write_bytes(data)
        with contextlib.suppress(pw.UsageError):
            pw.load(path)
        data[at] = kept


def test_the_folder_that_jax_wrote_to_opens_its_newest_profile(tmp_path) -> None:
    folder = tmp_path / "plugins" / "profile" / "2026_11_29"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_bytes(encoded(tpu()))
    assert pw.load(tmp_path).name == pw.load(folder).name == "host"
    (folder / "other.xplane.pb").write_bytes(encoded(tpu()))
    with pytest.raises(pw.UsageError, match=r"profiles of several hosts.*one of host\.xplane\.pb, other\.xplane\.pb"):
        pw.load(tmp_path)


def test_a_profile_beside_its_prediction(tmp_path) -> None:
    """The text of a step that was compiled on a GPU, priced, and a profile of the step there, on one axis."""
    name = "h200_cudnn_6x4096_full"
    for ending in ("hlo.txt", "xplane.pb"):
        (tmp_path / f"{name}.{ending}").write_bytes(recorded(f"{name}.{ending}"))
    seen = pw.load(tmp_path / f"{name}.xplane.pb")
    both = pw.compare(pw.load(tmp_path / f"{name}.hlo.txt", chip="gpu_h200_sxm"), seen)
    found = both.op_difference
    assert (len(found), found.only_a, found.only_b) == (615, 0, 0)
    assert "as fast as" in both.headline()
    assert "do not do the same work" not in both.headline(), "operations have other names than the launch"
    view = OpTimeline((1, 1), names=both.island_names)
    boxes = view.update(both)["timeline_boxes"]
    islands = np.array([place.split(", dev")[0][-1] for place in boxes["place"]])
    clients = [set(boxes["client"][islands == number].tolist()) for number in ("0", "1")]
    assert clients == [{1}, {0}], "ops are their own run's, although both count runs alike"
    lanes = [text for _, text in sorted(view.lanes.labels.items())]
    # Nobody called the step that was predicted.
    assert (lanes[0], lanes[5]) == ("jit_step (simulated) 0 · dev 0", f"{name} (real) 0 · stream 14")
    assert lanes[4] == f"{name} (real) · host"
