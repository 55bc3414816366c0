"""A cell that is run again outlines where its events were the last time, as far as they have moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets import figure_of
from pathways_widgets.drawing.scene import Rect
from pathways_widgets.drawing.still_frame import LIGHT
from pathways_widgets.drawing.views import Moment
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.memory.memory_view import MemoryView
from pathways_widgets.timeline.ghost_columns import GHOST, Ghost
from pathways_widgets.timeline.lanes import Lanes
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun, fake_run, pipeline_events

F, G = (Label("compute", name, "p", node=node, island=node, devices=2) for node, name in enumerate("fg"))
NOW = [Row(F, 1.0, 2.0), Row(G, 2.0, 3.0)]


def outlined(last: list[Row], now: list[Row], islands: tuple[int, ...] = (2, 2)) -> list[tuple[float, ...]]:
    """Left, right, and whether it is in the lanes of the second island, of each outline."""
    view = Timeline(islands)
    view.update(FakeRun([], Events.from_rows(now), islands, last_time=Events.from_rows(last)))
    columns = view.sources[GHOST]
    assert view.properties["timeline_key_ghost"] == {"visible": len(columns["left"]) > 0}
    low = view.lanes.whole(len(islands) - 1)[0]
    return [
        (round(left, 9), round(right, 9), float(top > low))
        for left, right, top in zip(columns["left"], columns["right"], columns["top"], strict=True)
    ]


def again(forward: float = 0.01) -> FakeRun:
    """The training step, whose forward passes took longer the last time."""
    return replace(fake_run(), last_time=pipeline_events(forward=1.5 * forward))


def test_what_moved_is_outlined_where_it_was_since_the_first_dispatch() -> None:
    assert outlined([Row(F, 5.0, 6.0), Row(G, 6.5, 7.5)], NOW) == [(2.5, 3.5, 1.0)]
    assert outlined([Row(F, 5.0, 6.0), Row(G, 6.0, 7.0)], NOW) == []


def test_what_is_gone_is_outlined_and_what_was_on_other_islands_is_not() -> None:
    assert outlined(NOW, [Row(F, 1.0, 2.0)]) == [(2.0, 3.0, 1.0)]
    assert outlined([*NOW, Row(replace(G, island=2), 3.0, 4.0)], NOW) == []
    assert outlined([*NOW, Row(replace(G, device=1), 3.0, 4.0)], NOW) == []


def test_a_move_of_less_than_two_pixels_is_outlined_after_a_zoom_only() -> None:
    ghost, lanes = Ghost(), Lanes((2, 2))
    last, now = Events.from_rows([Row(F, 1.0, 2.0), Row(G, 2.001, 3.0)]), Events.from_rows(NOW)
    assert len(ghost.columns(last, now, lanes, None, 0.01)["left"]) == 0
    assert ghost.columns(last, now, lanes, (1.9, 2.1), 0.0001)["left"].tolist() == [2.001]
    assert len(ghost.columns(last, now, lanes, (0.0, 0.5), 0.0001)["left"]) == 0, "out of sight"
    assert ghost.columns(None, now, lanes, None, 0.01)["left"].tolist() == []


def test_the_axis_is_long_enough_for_the_last_run_in_all_pictures_over_time() -> None:
    run = again()
    ends = []
    for view in (Timeline((4, 4)), MemoryView((4, 4))):
        view.update(run)
        ends.append(view.properties["timeline_x"]["end"])
    assert ends[0] == ends[1] > run.last_time["end"].max()  # type: ignore[index]
    assert ends[0] > 1.01 * run.events["end"].max()


def test_nothing_is_outlined_while_a_run_goes_on_and_a_run_that_is_new_has_nothing_to_draw() -> None:
    run = again()
    run.finished = False
    assert Moment.of(run).last_time is None
    view = Timeline((4, 4))
    view.update(fake_run())
    assert view.sources[GHOST]["left"].tolist() == []
    assert view.properties["timeline_key_ghost"] == {"visible": False}


def test_page_and_still_picture_outline_alike() -> None:
    run = again()
    view = Timeline((4, 4))
    view.update(run)
    count = len(view.sources[GHOST]["left"])
    assert count > 10
    rects = [one for one in scene_of(run, ["timeline"]).shapes if isinstance(one, Rect) and one.line == LIGHT["soft"]]
    assert len(rects) == count + 1, "with the legend"
    item = figure_of(run, ("timeline",))
    assert "could not be drawn" not in item["summary"]
    assert item["properties"]["timeline_key_ghost"] == {"visible": True}
    assert np.isfinite(view.sources[GHOST]["right"]).all()
