"""Whose a box is: strips, shares of the busy lane, names that hide and show; nothing of it where there is one client."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.summary import summarise
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Rect, Text
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.timeline.client_shares import TINTS, legend_of, sharing
from pathways_widgets.timeline.level_of_detail import MOST_BOXES
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun, fake_run


def shared(count: int = 12, each: float = 0.01) -> FakeRun:
    """Ann and bob take turns on both islands, bob twice as long; every sixth gang is for nobody."""
    rows, at = [Row(Label("trace", "p", "p"), 0.0, each)], each
    labels = {
        (client, island): Label("compute", "f", "p", client, island=island, devices=4)
        for client in ("ann", "bob", "")
        for island in (0, 1)
    }
    for i in range(count):
        client = "" if i % 6 == 5 else ("ann", "bob")[i % 2]
        lasts = each * (2 if client == "bob" else 1)
        rows += [Row(labels[client, island], at, at + lasts) for island in (0, 1)]
        at += lasts
    return FakeRun([], Events.from_rows(rows))


def drawn(run: FakeRun) -> dict[str, Any]:
    return Timeline(run.islands).update(run)


def test_boxes_know_their_client_and_have_a_strip_along_the_bottom() -> None:
    run = shared()
    columns = drawn(run)["timeline_boxes"]
    assert columns["client"].tolist() == [{"ann": 1, "bob": 2, "": 0}[client] for client in run.events["client"]]
    has_strip = columns["strip"] < columns["bottom"]
    assert (has_strip == (columns["client"] > 0)).all()
    pixels = (columns["bottom"] - columns["strip"])[has_strip] * Timeline(run.islands).lanes.pixels
    np.testing.assert_allclose(pixels, 4, rtol=1e-3)
    assert [TINTS[tint] for tint in columns["tint"][1:4:2]] == [palette.client_colour(0), palette.client_colour(1)]


def test_one_client_has_no_strips_no_names_and_a_grey_curve() -> None:
    run = fake_run()
    view = Timeline(run.islands)
    sources = view.update(run)
    assert set(run.events.of_kind("compute")["client"]) == {"me"}
    assert not sources["timeline_boxes"]["client"].any()
    assert (sources["timeline_boxes"]["strip"] == sources["timeline_boxes"]["bottom"]).all()
    assert view.properties["timeline"] == {"tags": []}
    assert view.properties["timeline_strips"] == {"visible": False}
    assert not sources["timeline_busy"]["tint"].any()
    assert set(sources["timeline_busy"]["whose"]) == {""}


def test_the_busy_lane_is_stacked_by_client_and_adds_up_to_the_summary() -> None:
    run = shared()
    summary = summarise(run.events, run.islands)
    columns = drawn(run)["timeline_busy"]
    used = columns["share"] * (columns["right"] - columns["left"])
    for client, number in (("ann", 1), ("bob", 2), ("", 0)):
        assert used[columns["client"] == number].sum() / used.sum() == pytest.approx(summary.clients[client])
    for island in (0, 1):
        mine = columns["island"] == island
        assert used[mine].sum() == pytest.approx(summary.utilisation[island] * summary.makespan)
    _, bottom = Timeline(run.islands).lanes.busy(0)
    ann, bob = (columns["client"] == number for number in (1, 2))
    assert (columns["bottom"][ann & (columns["island"] == 0)] == bottom).all(), "the first client is lowest"
    assert set(np.array(columns["whose"])[bob]) == {" by bob"}


def test_overlapping_stamps_of_two_clients_do_not_make_devices_busier_than_they_are() -> None:
    rows = [Row(Label("compute", "f", "p", name, island=0, devices=4), 0.0, 1.0) for name in ("ann", "bob")]
    view = Timeline((4, 4))
    columns = view.update(FakeRun([], Events.from_rows(rows)))["timeline_busy"]
    top, bottom = view.lanes.busy(0)
    assert columns["top"].min() == pytest.approx(top)
    np.testing.assert_allclose(columns["share"], 0.5)
    np.testing.assert_allclose((columns["bottom"] - columns["top"]), (bottom - top) / 2)


def test_many_clients_have_fewer_steps_each() -> None:
    rows = [Row(Label("compute", "f", "p", f"c{i:02}", island=0, devices=4), 0.0, 1.0 + i) for i in range(16)]
    run = FakeRun([], Events.from_rows(rows))
    sources = drawn(run)
    assert len(sources["timeline_busy"]["left"]) <= 16 * 75
    assert sources["timeline_boxes"]["client"].tolist() == list(range(1, 17))
    assert sources["timeline_boxes"]["tint"].tolist() == [1 + i % 7 for i in range(16)]


def test_merged_boxes_are_of_one_client_and_stand_side_by_side() -> None:
    run = shared(12_000, each=1e-4)
    columns = drawn(run)["timeline_boxes"]
    assert len(columns["left"]) <= MOST_BOXES
    seconds = columns["duration"]
    events = run.events
    for number, name in ((1, "ann"), (2, "bob")):
        mine = events.select(events.is_("client", name))
        assert seconds[columns["client"] == number].sum() == pytest.approx((mine["end"] - mine["start"]).sum())
    on_island = columns["code"] == palette.CODES["compute"]
    for top in set(columns["top"][on_island].tolist()):
        lane = sorted(
            zip(*(columns[side][on_island & (columns["top"] == top)] for side in ("left", "right")), strict=True)
        )
        assert all(after[0] >= before[1] - 1e-7 for before, after in pairwise(lane))
    assert columns["right"].max() <= events["end"].max() + 0.01


def test_colours_do_not_depend_on_who_came_first() -> None:
    wanted = [(1, "ann", palette.CLIENTS[0]), (2, "bob", palette.CLIENTS[1]), (0, "no client", palette.NEUTRAL)]
    run = shared()
    rows = [Row(run.events.labels[i], 0.0, 1.0) for i in run.events.label.tolist()]
    assert legend_of(run.events) == legend_of(Events.from_rows(rows[::-1])) == wanted
    assert sharing(fake_run().events) == ()


def test_still_pictures_show_clients_too() -> None:
    run = shared()
    shapes = scene_of(run, ["timeline"]).shapes
    assert {"ann", "bob", "no client"} <= {shape.text for shape in shapes if isinstance(shape, Text)}
    columns = drawn(run)
    for number, colour in ((1, palette.client_colour(0)), (2, palette.client_colour(1))):
        rects = [s for s in shapes if isinstance(s, Rect) and s.fill == colour and (s.width, s.height) != (12, 12)]
        boxes = (columns["timeline_boxes"]["client"] == number).sum()
        curve = (columns["timeline_busy"]["client"] == number).sum()
        assert len(rects) == boxes + curve
    plain = {shape.fill for shape in scene_of(fake_run(), ["timeline"]).shapes if isinstance(shape, Rect)}
    assert palette.CLIENTS[0] not in plain
