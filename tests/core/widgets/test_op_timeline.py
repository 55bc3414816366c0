"""The timeline with ops: each in the lane of its device and kind, below the launch, with its source in the tooltip."""

from __future__ import annotations

import pytest

from pathways_nb.trace.launch_ops import Op, OpKind, Ops
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.drawing import palette
from pathways_widgets.figures.panel import Panel, check_show
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.timeline.op_view import OpLanes, OpTimeline, with_ops
from tests.core.widgets.fake_run import FakeRun


def op(name: str, kind: OpKind, device: int, start: float, end: float, source: str = "") -> Op:
    return Op(name, source, kind, "step", "train", 2, 5, 1, device, start, end)


OPS = [
    op("all-gather.1", "collective", 0, 1.0, 2.0, "jit(step)/gather/all_gather"),
    op("fusion.4", "compute", 0, 2.0, 3.0, "jit(step)/tanh"),
    op("copy.2", "copy", 1, 1.0, 1.5),
]


QUEUES = [
    op("copy-start.1", "prefetch", 0, 1.0, 1.5),
    op("copy-start.2", "host", 1, 1.0, 2.5),
    op("send.1", "dcn", 0, 2.0, 3.5),
    op("wait for send.1", "wait", 0, 3.0, 3.5),
]


def run_of(ops: list[Op], clients: tuple[str, ...] = ("",)) -> FakeRun:
    rows = [
        Row(Label("compute", "step", "train", name, 2, island=1, devices=2), 1 + 4 * i, 4 + 4 * i, 5 + i)
        for i, name in enumerate(clients)
    ]
    return FakeRun([], Events.from_rows(rows), (1, 2), ops=Ops.from_rows(ops))


def test_an_op_is_in_the_lane_of_its_device_and_kind_within_its_launch() -> None:
    view = OpTimeline((1, 2))
    boxes = view.update(run_of(OPS))["timeline_boxes"]
    names = {at: label for at, label in view.lanes.labels.items() if at > view.lanes.ops(1)[0]}
    middle = (boxes["top"] + boxes["bottom"]) / 2
    lanes = [names[min(names, key=lambda at: abs(at - y))] for y in middle.tolist()]
    drawn = dict(zip(boxes["name"], zip(boxes["left"], boxes["right"], lanes, strict=True), strict=True))
    assert drawn["all-gather.1"] == (1.0, 2.0, "dev 0 · collectives")
    assert drawn["fusion.4"] == (2.0, 3.0, "dev 0 · compute")
    assert drawn["copy.2"] == (1.0, 1.5, "dev 1 · compute")
    assert view.lanes.devices(1)[1] == view.lanes.ops(1)[0]
    assert (middle[1:] > view.lanes.ops(1)[0]).all()


def test_queues_that_occur_have_lanes_of_their_own() -> None:
    view = OpTimeline((1, 2))
    view.update(run_of(OPS))
    plain = view.lanes.bounds[-1]
    boxes = view.update(run_of([*OPS, *QUEUES]))["timeline_boxes"]
    assert view.lanes.queues == ("compute", "collectives", "copies", "host", "other slices")
    assert view.lanes.bounds[-1] == plain + 3 * 3, "three more lanes for each of three devices"
    assert view.properties["timeline_y"] == {"start": view.lanes.bounds[-1]}
    names = {at: label for at, label in view.lanes.labels.items() if at > view.lanes.ops(1)[0]}
    middle = (boxes["top"] + boxes["bottom"]) / 2
    lanes = [names[min(names, key=lambda at: abs(at - y))] for y in middle.tolist()]
    kinds = [palette.KINDS[code].name for code in boxes["code"]]
    drawn = dict(zip(boxes["name"], zip(lanes, kinds, strict=True), strict=True))
    assert drawn["copy-start.1"] == ("dev 0 · copies", "transfer")
    assert drawn["copy-start.2"] == ("dev 1 · host", "host")
    assert drawn["send.1"] == ("dev 0 · other slices", "transfer")
    assert drawn["wait for send.1"] == ("dev 0 · compute", "stall")
    panel = Panel(("ops",), (1, 2))
    panel.update(run_of([*OPS, *QUEUES]))  # type: ignore[arg-type]
    assert not panel.failures
    assert "dev 1 · other slices" in scene_of(run_of([*OPS, *QUEUES]), ("ops",)).svg()


def test_the_tooltip_tells_line_phase_and_source_the_work_and_what_hides_it() -> None:
    found = [
        op("gather", "collective", 0, 1.0, 2.0)._replace(work="all-gather of 8 MB, 1 group of 2", line="train.py:7"),
        op("product", "compute", 0, 1.0, 1.75, "jit(f)/transpose(jvp())/dot_general")._replace(
            line="train.py:9", phase="backward", work="3 GFLOP"
        ),
        op("wait for gather", "wait", 0, 1.75, 2.0),
    ]
    boxes = OpTimeline((1, 2)).update(run_of(found))["timeline_boxes"]
    told = dict(zip(boxes["name"], zip(boxes["line"], boxes["basis"], strict=True), strict=True))
    assert told["gather"] == ("train.py:7", "all-gather of 8 MB, 1 group of 2, 25% exposed, behind product")
    assert told["product"] == ("train.py:9 · backward · jit(f)/transpose(jvp())/dot_general", "3 GFLOP")
    assert [palette.KINDS[code].name for code in boxes["code"]][2] == "backward"


def test_ops_of_a_launch_that_was_simulated_are_simulated() -> None:
    label = Label("compute", "step", "train", "", 2, island=1, devices=2)
    run = FakeRun([], Events.from_rows([Row(label, 1, 4, 5, "simulated")]), (1, 2), ops=Ops.from_rows(OPS))
    assert set(OpTimeline((1, 2)).update(run)["timeline_boxes"]["quality"]) == {"simulated"}


def test_where_one_device_stands_for_all_the_others_have_no_lanes() -> None:
    labels = [Label("compute", name, "train", "", node, island=1, device=first, devices=8)
              for name, node, first in (("step", 2, 0), ("other", 3, 8))]  # fmt: skip
    rows = [Row(label, 1, 4, 5, "simulated") for label in labels]
    ops = [OPS[0], OPS[1], OPS[1]._replace(launch="other", node=3, device=8)]
    view = OpTimeline((1, 16))
    boxes = view.update(FakeRun([], Events.from_rows(rows), (1, 16), ops=Ops.from_rows(ops)))["timeline_boxes"]
    named = [text for at, text in view.lanes.labels.items() if at > view.lanes.ops(1)[0] and "·" in text]
    assert named == [f"dev {span} · {queue}" for span in ("0–7", "8–15") for queue in ("compute", "collectives")]
    assert view.lanes.ops(0)[0] == view.lanes.ops(0)[1], "no op is on this island"
    top, bottom = view.lanes.ops(1)
    assert bottom - top == 4
    drawn = {(round(float(up), 2), round(float(low), 2)) for up, low in zip(boxes["top"], boxes["bottom"], strict=True)}
    assert len(drawn) == 5, "two launches, three lanes of ops"


def test_beside_a_simulated_launch_each_device_of_a_real_one_has_its_own_lanes() -> None:
    labels = [Label("compute", "step", "train", "", 2, island=island, devices=2) for island in (0, 1)]
    rows = [Row(labels[0], 1, 4, 5, "simulated"), Row(labels[1], 1, 4, 6, "exact")]
    ops = [OPS[0]._replace(island=0), OPS[1]._replace(run=6), OPS[2]._replace(run=6)]
    view = OpTimeline((2, 2))
    view.update(FakeRun([], Events.from_rows(rows), (2, 2), ops=Ops.from_rows(ops)))
    named = [text.partition(" · ")[0] for text in view.lanes.labels.values() if text.endswith("· compute")]
    assert named == ["dev 0–1", "dev 0", "dev 1"]


def test_boxes_have_the_colours_of_their_kinds_and_tell_their_source() -> None:
    view = OpTimeline((1, 2))
    boxes = view.update(run_of(OPS))["timeline_boxes"]
    by_name = dict(zip(boxes["name"], zip(boxes["code"], boxes["line"], boxes["place"], boxes["id"], strict=True), strict=True))  # fmt: skip
    assert by_name["all-gather.1"] == (palette.CODES["collective"], "jit(step)/gather/all_gather",
                                       "in step · island 1, dev 0", "train#2")  # fmt: skip
    assert by_name["fusion.4"][0] == palette.CODES["compute"]
    assert by_name["copy.2"][:2] == (palette.CODES["transfer"], "")
    assert ("line or source", "@line") in view.tooltips
    assert "3 are ops, the source of 80% of their time known" in view.properties["timeline_title"]["text"]


def test_ops_do_not_count_as_work_of_devices_and_belong_to_the_client_of_their_run() -> None:
    plain, run = run_of([], ("ann", "bob")), run_of(OPS, ("ann", "bob"))
    busy = [list(OpTimeline((1, 2)).update(one)["timeline_busy"]["share"]) for one in (plain, run)]
    assert busy[0] == busy[1]
    assert {label.client for label in with_ops(run.events, run.ops).labels} == {"ann", "bob"}


def test_a_run_without_ops_says_so() -> None:
    view = OpTimeline((1, 2))
    view.update(run_of([]))
    assert view.properties["timeline_title"]["text"].endswith("no ops: record with pw.profile")


def test_many_devices_share_two_lanes_of_their_island() -> None:
    lanes = OpLanes((64, 64))
    assert "compute" in lanes.labels.values()
    (top, bottom), half = lanes.ops(1), sum(lanes.ops(1)) / 2
    assert top < lanes.band("op compute", 1, 63, 1)[1] < half < lanes.band("op collective", 1, 0, 1)[0] < bottom


def test_it_takes_the_place_of_the_timeline_in_figures_and_pictures() -> None:
    assert check_show("graph,timeline,ops") == ("graph", "ops")
    with pytest.raises(ValueError, match="'critical' and 'ops' are both the timeline; choose one of them"):
        check_show("ops,critical")
    panel = Panel(("ops",), (1, 2))
    panel.update(run_of(OPS))  # type: ignore[arg-type]
    assert not panel.failures
    assert "dev 1 · collectives" in scene_of(run_of(OPS), ("ops",)).svg()


def test_an_op_of_a_simulated_launch_stands_for_all_of_its_devices() -> None:
    label = Label("compute", "step", "train", node=2, island=0, devices=64)
    run = FakeRun([], Events.from_rows([Row(label, 0, 1, 0, "simulated")]), (64,), finished=True)
    names = ("prefetch", "compute", "host", "dcn", "wait")
    rows = [Op(f"a {kind}", "", kind, "step", "train", 2, 0, 0, 0, 0.0, 1.0, "a.py:1", "", "of 1 MB") for kind in names]
    run.ops = Ops.from_rows(rows)
    view = OpTimeline((64,))
    assert view.lanes.grouped
    boxes = view.update(run)["timeline_boxes"]
    drawn = dict(zip(boxes["name"], zip(boxes["top"], boxes["bottom"], boxes["line"], strict=True), strict=True))
    top, bottom = view.lanes.ops(0)
    for kind in names:
        above, below, line = drawn[f"a {kind}"]
        assert below - above > 0.9 * (bottom - top) / len(view.lanes.queues), "not a sixty-fourth of a lane"
        assert line == "a.py:1"
