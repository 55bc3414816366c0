"""The timeline's columns: lanes, gangs, kinds, level of detail."""

from __future__ import annotations

import json
from itertools import groupby, pairwise

import numpy as np
import pytest
from bokeh.models import HoverTool

from pathways_nb.timing.waits import CALL, TURN
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import BY, CONTROLLER_KINDS, QUALITIES, Cause, Label, Row
from pathways_nb.trace.summary import summarise
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.terms import TERMS
from pathways_widgets.drawing.views import Columns
from pathways_widgets.timeline.lanes import BUSY_HEIGHT, CONTROLLER_HEIGHT, Lanes
from pathways_widgets.timeline.level_of_detail import MOST_BOXES, Digest, choose_boxes
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun, fake_run, many_events, many_rows

BAD_ENDS = ("draining", "failed")


def boxes_of(run: FakeRun, window: tuple[float, float] | None = None) -> Columns:
    return Timeline(run.islands).update(run, window)["timeline_boxes"]


def one_event(label: Label, status: str = "ok", islands: tuple[int, ...] = (4, 4)) -> FakeRun:
    row = Row(label, 1, 3, 7, "exact", status)
    return FakeRun([], Events.from_rows([row]), islands)


def test_lanes_are_controller_devices_transfers() -> None:
    labels = list(dict(sorted(Lanes((2, 1)).labels.items())).values())
    devices = ["island 0 · dev 0", "island 0 · dev 1", "busy", "island 1 · dev 0", "busy"]
    assert labels == ["controller", *devices, "transfers"]


def test_what_no_controller_ran_has_no_lanes_for_one_and_for_transfers_once_it_is_over() -> None:
    view, devices = Timeline((1, 1)), ["island 0 · dev 0", "busy", "island 1 · dev 0", "busy"]

    def lanes(*labels: Label, finished: bool = True) -> list[str]:
        view.update(FakeRun([], Events.from_rows([Row(label, 0, 1) for label in labels]), (1, 1), finished=finished))
        return [text for _, text in sorted(view.lanes.labels.items())]

    work, move, level = (
        Label("compute", "f", island=0),
        Label("transfer", "x", island=1),
        Label("memory", "x", island=0),
    )
    assert lanes() == lanes(work, finished=False) == ["controller", *devices, "transfers"]
    assert lanes(work, level) == devices, "of a trace or a replay, idle islands included"
    assert view.properties["timeline_islands_ticks"]["ticks"] == [2.0]
    assert view.properties["timeline_y"] == {"start": 4.0}
    assert lanes(work, move) == [*devices, "transfers"]
    assert lanes(work, Label("enqueue", "f")) == ["controller", *devices, "transfers"], "nothing was moved"
    assert lanes(work, Label("compute", "g", island=7)) == ["controller", *devices, "transfers"], "of a lost island"


def test_many_devices_share_a_lane_per_island() -> None:
    lanes = Lanes((32, 32))
    assert list(lanes.labels.values())[2:] == ["busy", "island 0 · 32 dev", "busy", "island 1 · 32 dev"]
    upper, lower = lanes.band("compute", 0, 0, 16), lanes.band("compute", 0, 16, 16)
    assert lanes.bounds[1] <= upper[0] < upper[1] <= lower[0] < lower[1] <= lanes.bounds[2]


def test_a_gang_is_one_box_over_its_devices() -> None:
    columns = boxes_of(one_event(Label("compute", "f", island=1, device=1, devices=2)))
    assert len(columns["left"]) == 1
    first = 4 + BUSY_HEIGHT + 1
    assert first <= columns["top"][0] < first + 0.2
    assert first + 1.8 < columns["bottom"][0] <= first + 2
    assert (columns["left"][0], columns["right"][0]) == (1.0, 3.0)
    assert columns["place"] == ["island 1, dev 1–2"]


def test_host_work_has_a_lane_under_its_islands_devices_once_there_is_any() -> None:
    label = Label("host", "load", "p", place="left", island=0)
    labels = list(dict(sorted(Lanes((2, 1), hosts=(0,)).labels.items())).values())
    devices = ["island 0 · dev 0", "island 0 · dev 1", "island 0 · host", "busy", "island 1 · dev 0", "busy"]
    assert labels == ["controller", *devices, "transfers"]
    columns = boxes_of(one_event(label))
    assert 4 <= columns["top"][0] < columns["bottom"][0] <= 5
    assert (columns["code"][0], columns["place"], columns["kind"]) == (
        palette.CODES["host"], ["left · island 0, host"], ["host"]
    )  # fmt: skip


def test_the_lane_of_a_host_appears_while_a_run_is_recorded() -> None:
    """Boxes that were drawn before it move, and the names of the lanes with them."""
    below = Label("compute", "f", island=1, device=0, devices=4)
    rows = [Row(below, 1, 2), Row(Label("host", "load", island=0), 2, 3), Row(below, 3, 4)]
    view = Timeline((4, 4))
    first = view.update(FakeRun([], Events.from_rows(rows[:1]), finished=False))
    assert "timeline_y" not in view.properties
    assert "island 0 · host" not in first["timeline_labels"]["text"]
    before = float(first["timeline_boxes"]["top"][0])
    second = view.update(FakeRun([], Events.from_rows(rows), finished=False))
    assert [float(top) for top in second["timeline_boxes"]["top"][[0, 2]]] == pytest.approx([before + 1] * 2)
    assert "island 0 · host" in second["timeline_labels"]["text"]
    assert view.properties["timeline_ticks"]["ticks"] == second["timeline_labels"]["y"]
    assert view.properties["timeline_y"] == {"start": view.lanes.bounds[-1]}
    assert view.properties["timeline"]["height"] > Timeline((4, 4)).root.height


@pytest.mark.parametrize("kind", ["trace", "lower", "compile", "enqueue", "wait", "stall", "fetch"])
def test_the_controllers_work_is_in_its_lane(kind: str) -> None:
    columns = boxes_of(one_event(Label(kind, "f")))
    assert 0 <= columns["top"][0] < columns["bottom"][0] <= CONTROLLER_HEIGHT
    assert columns["code"][0] == palette.CODES[kind]


def test_a_box_says_which_line_waited() -> None:
    assert boxes_of(one_event(Label("fetch", "loss", line="Cell In[4], line 3")))["line"] == ["Cell In[4], line 3"]


def test_a_box_says_why_it_began_as_far_as_it_was_told() -> None:
    first, then = Label("compute", "f", island=0), Label("compute", "g", island=0)
    rows = [Row(first, 0, 1, 0, cause=BY[CALL]), Row(then, 1, 2, 1, cause=Cause(TURN, first, 0)), Row(then, 2, 3, 2)]
    assert list(boxes_of(FakeRun([], Events.from_rows(rows), (1,)))["why"]) == ["call", "turn, after f", ""]
    merged = boxes_of(FakeRun([], many_events(1000), (4, 4)))
    assert set(merged["why"]) == {""}


def test_transfers_have_their_lane_below_all_devices() -> None:
    columns = boxes_of(one_event(Label("transfer", "x", island=1, bytes=1_500_000, route="DCN")))
    assert columns["top"][0] > 8 + 2 * BUSY_HEIGHT
    assert columns["bytes"][0] == 1_500_000
    assert columns["route"] == ["DCN"]


@pytest.mark.parametrize("status", BAD_ENDS)
def test_what_did_not_end_well_is_hatched(status: str) -> None:
    run = one_event(Label("compute", "f", island=0, devices=4), status)
    sources = Timeline(run.islands).update(run)
    assert {name: len(sources[f"timeline_{name}"]["left"]) for name in BAD_ENDS} == {
        name: int(name == status) for name in BAD_ENDS
    }


@pytest.mark.parametrize("quality", QUALITIES)
def test_a_box_with_guessed_times_has_a_dashed_edge(quality: str) -> None:
    run = FakeRun([], Events.from_rows([Row(Label("compute", "f", island=0, devices=4), 0, 1, 0, quality)]))
    view = Timeline((4, 4))
    sources = view.update(run)
    assert {name: len(sources[f"timeline_{name}"]["left"]) for name in palette.DASHES} == {
        name: int(name == quality) for name in palette.DASHES
    }
    boxes = sources["timeline_boxes"]
    assert (boxes["edge"][0] == len(palette.KINDS)) == (quality not in palette.DASHES), "or it would be solid"
    assert boxes["quality"] == [quality], "and the tooltip says so"
    drawn = {name: view.root.select_one({"name": f"timeline_{name}_edges"}).glyph for name in palette.DASHES}
    assert {name: tuple(edges.line_dash) for name, edges in drawn.items()} == palette.DASHES
    assert [item.label.value for item in view.root.select_one({"name": "timeline_legend2"}).items] == [
        "estimated: end seen, start inferred", "interpolated: end not watched",
    ]  # fmt: skip
    explained = [name for name in palette.DASHES if view.properties[f"timeline_key_{name}"]["visible"]]
    assert explained == [name for name in palette.DASHES if name == quality], "or it would explain nothing"
    kinds = {kind.name for kind in palette.KINDS if view.properties[f"timeline_kind_{kind.name}"]["visible"]}
    assert kinds == {"compute"}


@pytest.mark.parametrize(("seconds", "text"), [(1.0, "1F10"), (0.028, "F")])
def test_the_name_of_an_action_is_written_whole_or_not_at_all(seconds: float, text: str) -> None:
    """A part of it, such as ``F10``, would read as a name that is cut."""
    labels = [Label("compute", name, island=0, devices=1, microbatch=10) for name in ("1F10", "1B9")]
    run = FakeRun([], Events.from_rows([Row(labels[0], 0, seconds, 0), Row(labels[1], seconds, 1.0 + seconds, 0)]))
    marks = Timeline((1,), pixels=1000.0).update(run)["timeline_marks"]  # in 27 pixels there is room for "F10"
    assert sorted(marks["text"]) == sorted([text, "1B9"])


def test_rows_of_the_tooltip_that_few_boxes_have_carry_their_label_in_the_value() -> None:
    """Bokeh shows the label of every row, also of an empty one."""
    view = Timeline((4, 4))
    view.update(fake_run())
    tool = next(
        tool for tool in view.root.tools if isinstance(tool, HoverTool) and ("what", "@name · @kind") in tool.tooltips
    )
    rows = ["@why{custom}", "@bytes{custom} @route", "@route{custom}", "@rate{custom}", "@modelled{custom}"]
    rows += ["@line{custom}", "@basis{custom}"]
    assert tool.tooltips[-7:] == [("", row) for row in rows]
    for column, label in (("@why", "begins by"), ("@bytes", "moves"), ("@line", "line"), ("@kind", "that is")):
        made = tool.formatters[column]
        assert made.args == {"label": label}
        assert "return text && `${label}: ${text}`" in made.code


def test_words_of_the_field_are_explained_where_they_are_met() -> None:
    tool = next(one for one in Timeline((4, 4)).root.tools if isinstance(one, HoverTool) and "@kind" in one.formatters)
    for column, words in (
        ("@kind", ("stall", "wait", "enqueue", "lower")),
        ("@route", ("DCN", "ICI")),
    ):
        for word in words:
            assert json.dumps({word: TERMS[word]})[1:-1] in tool.formatters[column].code
    assert TERMS["stall"] != TERMS["wait"]
    assert set(TERMS) >= {*CONTROLLER_KINDS}, "all that the controller does"


def test_events_of_unknown_islands_do_not_break_it() -> None:
    columns = boxes_of(one_event(Label("compute", "f", island=9, devices=4)))
    assert 0 <= columns["top"][0] < columns["bottom"][0] <= CONTROLLER_HEIGHT


def test_a_pipeline_keeps_its_gaps_and_devices_do_one_thing_at_a_time() -> None:
    run = fake_run()
    columns = boxes_of(run)
    assert len(columns["left"]) == len(run.events)
    on_device = np.isin(columns["code"], [palette.CODES[kind] for kind in ("compute", "backward", "collective")])
    for top in set(columns["top"][on_device].tolist()):
        lane = on_device & (columns["top"] == top)
        order = np.argsort(columns["left"][lane])
        left, right = columns["left"][lane][order], columns["right"][lane][order]
        assert (left[1:] >= right[:-1] - 1e-12).all()
        assert (left[1:] > right[:-1] + 1e-3).any()


@pytest.mark.parametrize("islands", [(4, 4), (40, 8)])
def test_the_curve_of_busy_devices_adds_up_to_the_summary(islands: tuple[int, ...]) -> None:
    run = fake_run()
    summary = summarise(run.events, islands)
    view = Timeline(islands)
    run.islands = islands
    columns = view.update(run)["timeline_busy"]
    for island, devices in enumerate(islands):
        mine = columns["island"] == island
        used = (columns["share"] * (columns["right"] - columns["left"]))[mine].sum() * devices
        assert used == pytest.approx(summary.utilisation[island] * summary.makespan * devices, rel=1e-9)
        top, bottom = view.lanes.busy(island)
        assert ((columns["top"][mine] >= top - 1e-6) & (columns["bottom"][mine] == bottom)).all()


def test_marks_name_microbatches() -> None:
    texts = Timeline((4, 4)).update(fake_run())["timeline_marks"]["text"]
    assert {"F0", "B0", "F7", "B7"} <= set(texts)
    assert "w float(loss)" in texts


def test_nothing_yet_is_an_empty_picture() -> None:
    view = Timeline((4, 4))
    assert len(view.update(fake_run(0))["timeline_boxes"]["left"]) == 0
    assert view.properties["timeline_title"]["text"] == "fake · 0 events"


def test_growing_and_cleared_records_are_followed() -> None:
    view, run = Timeline((4, 4)), fake_run(0)
    for shown in (0, 1, 10, 10, 59, 3):
        run.shown = shown
        assert len(view.update(run)["timeline_boxes"]["left"]) == shown


@pytest.mark.parametrize("window", [(0.0, 10.0), (2.0, 7.0)])
def test_merging_keeps_the_busy_time_of_every_lane(window: tuple[float, float]) -> None:
    events = many_events(60_000)
    digest = Digest(Lanes((4, 4)))
    digest.extend(events)
    boxes = choose_boxes(digest, window)
    inside = digest.within(window)
    assert 0 < len(boxes) <= MOST_BOXES < len(inside) == len(boxes.alone) + boxes.count.sum()
    lasts = digest.end - digest.start
    real = np.bincount(digest.track[inside], lasts[inside])
    drawn = np.bincount(digest.track[boxes.alone], lasts[boxes.alone], 8) + np.bincount(boxes.track, boxes.busy, 8)
    np.testing.assert_allclose(drawn, real, rtol=1e-9)


def test_merged_boxes_of_a_lane_do_not_overlap_and_say_how_many() -> None:
    run = fake_run()
    run.recorded = many_events(60_000)
    view = Timeline(run.islands)
    columns = view.update(run)["timeline_boxes"]
    rows = sorted(zip(columns["top"], columns["left"], columns["right"], strict=True))
    for _, lane in groupby(rows, key=lambda row: row[0]):
        boxes = list(lane)
        assert all(after[1] >= before[2] - 1e-9 for before, after in pairwise(boxes))
    assert view.properties["timeline_title"]["text"] == (
        f"fake · 60,000 events as {len(rows):,} boxes · 60,000 without exact stamps"
    )
    assert columns["name"][0].endswith(" events here")


def test_kinds_that_are_alike_in_grey_have_patterns_where_there_is_room() -> None:
    def rows(seconds: float, status: str) -> list[Row]:
        label = Label("collective", "psum", island=0, devices=4)
        return [Row(label, 0.0, seconds, status=status), Row(Label("wait", "the end"), 99.0, 100.0)]

    for seconds, status, upright, failed in ((10.0, "ok", 1, 0), (0.1, "ok", 0, 0), (10.0, "failed", 1, 1)):
        sources = Timeline((4,)).update(FakeRun([], Events.from_rows(rows(seconds, status)), (4,)))
        assert len(sources["timeline_upright"]["left"]) == upright, (seconds, status)
        assert len(sources["timeline_failed"]["left"]) == failed
        assert len(sources["timeline_level"]["left"]) == 0


def test_a_crowded_merged_box_names_its_programs() -> None:
    labels = [Label("compute", "n", program, node=i, island=0, devices=1) for program in ("p", "q") for i in range(40)]
    rows = [Row(labels[i % 80], i * 1e-3, i * 1e-3 + 5e-4) for i in range(30_000)]
    rows.append(Row(Label("stall", "far away"), 1e4, 1e4 + 1))
    columns = Timeline((1,)).update(FakeRun([], Events.from_rows(rows)))["timeline_boxes"]
    ids = {id for id, kind in zip(columns["id"], columns["kind"], strict=True) if kind == "compute"}
    assert ids == {"p#* q#*"}


def test_a_merged_box_names_the_nodes_that_it_stands_for() -> None:
    nodes = 3
    labels = [Label("compute", f"n{i}", "p q", node=i, island=0, devices=1) for i in range(nodes)]
    rows = [Row(labels[i % nodes], i * 1e-3, i * 1e-3 + 5e-4) for i in range(30_000)]
    rows.append(Row(Label("stall", "far away"), 1e4, 1e4 + 1))
    columns = Timeline((1,)).update(FakeRun([], Events.from_rows(rows)))["timeline_boxes"]
    ids = [id for id, kind in zip(columns["id"], columns["kind"], strict=True) if kind == "compute"]
    assert len(ids) < 100
    assert all(id == "p_q#0 p_q#1 p_q#2" for id in ids), "a box of a pixel holds all three"


def test_failures_are_never_merged_away() -> None:
    run = fake_run()
    failed = Row(Label("compute", "bad", island=0, devices=1), 5, 5 + 1e-7, 0, "exact", "failed")
    run.recorded = Events.from_rows([*many_rows(60_000), failed])
    sources = Timeline(run.islands).update(run)
    assert sources["timeline_boxes"]["name"].count("bad") == 1
    assert len(sources["timeline_failed"]["left"]) == 1


def test_a_window_shows_single_events_again() -> None:
    run = fake_run()
    run.recorded = many_events(60_000)
    columns = boxes_of(run, (3.0, 3.1))
    assert set(columns["name"]) == {"step"}
    assert columns["right"].min() <= 2.96
    assert columns["left"].max() >= 3.14


def test_what_is_waited_for_and_who_waits_are_rows_of_their_own() -> None:
    lanes = Lanes((4,))
    rows = [lanes.band(kind, -1, -1, 0) for kind in ("enqueue", "stall", "wait")]
    assert all(above[1] <= below[0] for above, below in pairwise(rows))
    assert lanes.band("fetch", -1, -1, 0) == rows[2]


def test_lanes_of_an_island_of_several_hosts_are_grouped_by_host() -> None:
    parts = [Label("compute", "f", "p", island=1, host=host, device=2 * host, devices=2) for host in range(2)]
    view = Timeline((2, 4))
    found = view.update(FakeRun([], Events.from_rows([Row(label, 1, 2) for label in parts])))
    first = view.lanes.devices(1)[0]
    named = dict(zip(found["timeline_labels"]["y"], found["timeline_labels"]["text"], strict=True))
    assert [named[first + n + 0.5] for n in range(4)] == [f"island 1 · host {n // 2} · dev {n}" for n in range(4)]
    assert view.lanes.edges_of_hosts == [first + 2]
    assert first + 2 in view.properties["timeline_islands_ticks"]["ticks"]
    assert list(found["timeline_boxes"]["place"]) == ["island 1, host 0, dev 0–1", "island 1, host 1, dev 2–3"]
    assert "island 0 · dev 0" in named.values()


def test_hosts_are_not_told_apart_where_an_island_is_one_lane() -> None:
    lanes = Lanes((32, 32), per_host=(16, 16))
    assert lanes.edges_of_hosts == []
    assert list(lanes.labels.values())[2:] == ["busy", "island 0 · 32 dev", "busy", "island 1 · 32 dev"]


def test_what_a_long_loop_opens_on_is_drawn_event_by_event() -> None:
    label = Label("compute", "step", "loop", island=0, devices=4)
    run = FakeRun([], Events.from_rows([Row(label, float(i), i + 0.5, i, "exact") for i in range(20 * MOST_BOXES)]))
    view = Timeline((4, 4))
    view.update(run)
    span = view.properties["timeline_x"]
    assert span["end"] - span["start"] < 10, "the last three calls"
    boxes = view.sources["timeline_boxes"]
    in_sight = (boxes["right"] > span["start"]) & (boxes["left"] < span["end"])
    assert {boxes["quality"][i] for i in np.flatnonzero(in_sight)} == {"exact"}
    assert in_sight.sum() >= 3
    assert boxes["duration"].sum() == pytest.approx(10 * MOST_BOXES), "what is folded keeps its busy time"
    assert len(boxes["left"]) <= MOST_BOXES
    assert any(span["start"] < x < span["end"] for x in view.sources["timeline_marks"]["x"]), "texts are in sight"
