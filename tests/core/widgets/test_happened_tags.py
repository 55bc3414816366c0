"""What happened to all is told by tags in a lane of their own, and lost devices look lost until they are back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import WAITS_ITS_TURN, Label, Row
from pathways_widgets import figure_of
from pathways_widgets.drawing.scene import Rect, Text
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.timeline import happened_columns
from pathways_widgets.timeline.happened_columns import HAPPENED, LOST
from pathways_widgets.timeline.lanes import HAPPENED_HEIGHT, Lanes
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun

WORK = [Row(Label("compute", "f", "p", "ann", island=0, devices=2), 10.0 * at, 10.0 * at + 9) for at in range(10)]


def changed(kind: str, time: float, island: int = 1, first: int = 0, count: int = 2) -> Row:
    return Row(Label(kind, f"island {island} {kind}", island=island, device=first, devices=count), time, time)


def eventful() -> FakeRun:
    """A run in which everything happens once."""
    held = Row(Label("stall", "memory of island 0 held by bob", "p", "ann"), 40.0, 42.0)
    turn = Row(Label("stall", WAITS_ITS_TURN, "p", "bob"), 58.0, 60.0)
    bad = Row(Label("compute", "g", "p", "ann", island=1, devices=2), 70.0, 75.0, status="failed")
    rows = [*WORK, changed("lost", 20.0), changed("back", 30.0), held, turn, bad]
    return FakeRun([], Events.from_rows(rows), (2, 2))


def tags(run: FakeRun, window: tuple[float, float] | None = None, pixels: float = 900.0) -> Any:
    view = Timeline(run.islands, pixels)
    return view.update(run, window)[HAPPENED]


def test_each_happening_has_a_tag_with_its_sentence_when_it_came() -> None:
    found = tags(eventful())
    assert list(zip(found["x"].tolist(), found["letter"], found["text"], strict=True)) == [
        (20.0, "−", "island 1 lost"),
        (30.0, "+", "island 1 back"),
        (40.0, "M", "ann waits 2 s: memory of island 0 held by bob"),
        (60.0, ">", "bob has its turn, after 2 s"),
        (75.0, "!", "g failed on island 1"),
    ]


def test_the_lane_is_above_all_others_once_there_is_anything_and_only_what_occurs_is_explained() -> None:
    view = Timeline((2, 2))
    view.update(FakeRun([], Events.from_rows(WORK), (2, 2)))
    assert "events" not in view.lanes.labels.values()
    assert view.sources[HAPPENED]["x"].tolist() == view.sources[LOST]["left"].tolist() == []
    before = view.lanes.bounds[-1]
    view.update(FakeRun([], Events.from_rows([*WORK, changed("lost", 20.0)]), (2, 2)))
    assert view.lanes.bounds[-1] == before + HAPPENED_HEIGHT
    assert view.lanes.labels[HAPPENED_HEIGHT / 2] == "events"
    assert sorted(view.lanes.labels.items())[1] == (HAPPENED_HEIGHT + 0.5, "island 0 · dev 0")
    assert view.properties["timeline_y"] == {"start": view.lanes.bounds[-1]}, "the figure grows"
    assert list(view.sources[HAPPENED]["words"]) == ["devices are lost"]
    # Boxes move with the lanes.
    assert (view.sources["timeline_boxes"]["top"] > HAPPENED_HEIGHT).all()


def test_all_lanes_move_below_it_with_several_runs_too() -> None:
    names = ("a 0", "b 0")
    plain, grown = Lanes((2, 2), names), Lanes((2, 2), names, happened=True)
    for island in range(2):
        assert grown.whole(island) == tuple(edge + HAPPENED_HEIGHT for edge in plain.whole(island))
        assert grown.controller(island) == plain.controller(island) + HAPPENED_HEIGHT


def test_lost_devices_look_lost_until_their_island_is_back_or_to_the_end() -> None:
    rows = [*WORK, changed("lost", 20.0), changed("back", 30.0), changed("lost", 50.0, 0, first=1, count=1)]
    view = Timeline((2, 2))
    lost = view.update(FakeRun([], Events.from_rows(rows), (2, 2)))[LOST]
    assert list(zip(lost["left"].tolist(), lost["right"].tolist(), strict=True)) == [(20.0, 30.0), (50.0, 99.0)]
    assert view.lanes.devices(1)[0] < lost["top"][0] < lost["bottom"][0] < view.lanes.devices(1)[1]
    assert lost["top"][1] > view.lanes.devices(0)[0] + 1, "one device of two"


def test_tags_that_would_cover_each_other_are_one_which_tells_of_all() -> None:
    rows = [Row(Label("stall", WAITS_ITS_TURN, "p", f"c{i}"), 10.0, 50.0 + i / 1000) for i in range(5)]
    run = FakeRun([], Events.from_rows([*WORK, *rows]), (2, 2))
    said = [f"c{i} has its turn, after 40 s" for i in range(3)]
    assert tags(run)["text"] == [" · ".join([*said, "and 2 more"])]
    zoomed = tags(run, (50.0, 50.004))
    assert zoomed["letter"] == [">"] * 5
    assert zoomed["text"][4] == "c4 has its turn, after 40 s"
    assert tags(run, (0.0, 10.0))["text"] == [], "out of sight"


def test_so_many_happenings_are_as_many_tags_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(Label("stall", WAITS_ITS_TURN, "p", "ann"), 0.0, at) for at in np.linspace(0.01, 99.0, 5000)]
    found = tags(FakeRun([], Events.from_rows([*WORK, *rows]), (2, 2)))
    assert (np.diff(found["x"]) >= 30 * 99.0 / 900).all()
    assert 15 < len(found["x"]) <= 30
    assert sum(int(text.rsplit("and ", 1)[1].split()[0].replace(",", "")) + 3 for text in found["text"]) == 5000
    monkeypatch.setattr(happened_columns, "_MOST", 2)
    assert len(tags(FakeRun([], Events.from_rows([*WORK, *rows]), (2, 2)))["text"]) == 2


def test_page_and_still_picture_have_lane_tags_and_legend() -> None:
    item = figure_of(eventful(), ("timeline",))
    assert "could not be drawn" not in item["summary"]
    shapes = scene_of(eventful(), ["timeline"]).shapes
    texts = [one.text for one in shapes if isinstance(one, Text)]
    assert {"events", "devices are lost", "devices are back", "failure", "wait for memory", "a client's turn"} <= {
        *texts
    }
    assert all(texts.count(letter) == 2 for letter in "−+M>!"), "the tag and its entry"
    assert any(isinstance(one, Rect) and one.hatch == "/" for one in shapes)
