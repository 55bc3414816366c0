"""Schedules with more boxes than are drawn one by one: rows of pixels say the same, exactly; hovers follow."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.parallel.schedules.picture import SchedulePicture
from pathways_widgets.drawing import palette
from pathways_widgets.schedules import schedule_dense as dense
from pathways_widgets.schedules import schedule_display
from pathways_widgets.schedules.schedule_columns import COLOURS, fullest
from pathways_widgets.schedules.schedule_display import ScheduleFigure
from pathways_widgets.schedules.schedule_view import Schedules
from tests.core.widgets.test_schedule_view import NAMES, TIMES, picture
from tests.core.widgets.unpacking import columns_sent
from tests.support.examples import examples

WINDOWS = [(-2.0, 40.0), (3.3, 17.7), (-5.0, 3.0), (20.0, 90.0)]


def shares(boxes: dict[str, Any], top: float, edges: np.ndarray) -> np.ndarray:
    """Of each pixel of a row the share of its time that each box has, box by box: ``(pixels, colours)``."""
    found = np.zeros((len(edges) - 1, len(COLOURS)))
    for row in np.flatnonzero(boxes["top"] == top):
        begin, end = (np.clip(float(boxes[side][row]), edges[:-1], edges[1:]) for side in ("left", "right"))
        found[:, boxes["code"][row]] += (end - begin) / np.diff(edges)
    return found


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_pixels_have_of_each_colour_what_boxes_cover_of_them(name: str, window: tuple[float, float]) -> None:
    view = Schedules(1)
    boxes = view.update([picture(name, **TIMES)])["schedules_boxes"]
    lanes = dense.pixel_columns(boxes, window, 50)
    edges = np.linspace(*window, 51)
    colours = np.array([palette.channels(colour) for colour in COLOURS])
    np.testing.assert_allclose(lanes["y"], view.sources["schedules_idle"]["top"], rtol=1e-6)
    assert lanes["image"].shape == (4, 50)
    for top, pixels in zip(lanes["y"], lanes["image"].view(np.uint8).reshape(4, 50, 4), strict=True):
        share = shares(boxes, top, edges)
        covered = share.sum(axis=1)
        np.testing.assert_allclose(pixels[:, 3], 255 * covered, atol=0.6)
        seen = covered > 1e-3
        np.testing.assert_allclose(pixels[seen, :3], (share @ colours)[seen] / covered[seen, None], atol=0.6)


def test_many_boxes_are_pixels_and_few_are_boxes_also_of_a_part_of_the_same() -> None:
    view = Schedules(1)
    sources = view.update([picture("gpipe", 16, 128)])
    assert view.is_dense
    assert not sum(len(sources[f"schedules_fill{code}"]["left"]) for code in range(len(COLOURS)))
    assert (sources["schedules_lanes"]["x"][0], sources["schedules_lanes"]["dw"][0]) == pytest.approx(
        (view.properties["timeline_x"]["start"], 1.01 * view.extent)
    )
    found = view.zoom((10.0, 30.0))
    assert not view.is_dense
    assert len(found["schedules_lanes"]["x"]) == 0
    boxes = view.sources["schedules_boxes"]
    seen = np.count_nonzero((boxes["right"] >= 0) & (boxes["left"] <= 40))
    assert sum(len(found[f"schedules_fill{code}"]["left"]) for code in range(len(COLOURS))) == seen
    view.zoom((20.0, 400.0))
    assert view.sources["schedules_lanes"]["image"].shape == (16, 2 * view.pixels), "half a window more on each side"


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), min_size=1, max_size=60), st.sampled_from([0.01, 1, 7])
)
@examples(60)
def test_of_a_pixel_the_fullest_is_kept_and_the_course_returns_to_the_truth(steps: Any, pixel: float) -> None:
    times, held = np.array(sorted(time for time, _ in steps)), np.array([float(level) for _, level in steps])
    x, y = fullest(times, held, pixel)
    assert (np.diff(x) >= 0).all()
    lasting = np.append(np.diff(times) > 0, True)
    assert held[lasting].max() <= y.max() <= held.max()
    assert y[-1] == held[-1]

    def at(when: float, xs: np.ndarray, ys: np.ndarray) -> float:
        return float(ys[np.searchsorted(xs, when, "right") - 1])

    for time in np.unique(times):
        assert at(time, x, y) >= at(time, times, held), "never less than there is"
    if len(times) * pixel <= times[-1] - times[0]:
        assert [at(time, x, y) for time in times] == [at(time, times, held) for time in times]
    else:
        assert len(x) <= 2 * len(np.unique(np.floor(times / pixel)))


def test_what_a_hover_says_follows_once_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = list[threading.Timer](), threading.Timer

    def timer(seconds: float, call: Any) -> threading.Timer:
        made.append(real(0.0, call))
        monkeypatch.setattr(made[-1], "start", lambda: None)
        return made[-1]

    pictures = [SchedulePicture.of(pw.schedule("gpipe", 16, 128), F=time) for time in (1.0, 2.0)]
    figure = ScheduleFigure(pictures[:1])
    count = len(columns_sent(figure, "schedules_boxes")["left"])
    assert count == 4096
    monkeypatch.setattr(schedule_display.threading, "Timer", timer)
    figure.draw(pictures[1:])
    assert columns_sent(figure, "schedules_boxes")["left"] == [], "a hover never says what was true before"
    made[-1].function()
    assert columns_sent(figure, "schedules_boxes")["right"][0] == 2.0
    figure.draw(pictures[1:])
    assert len(made) == 1, "nothing to follow"


def test_pixels_are_made_for_the_width_at_which_they_are_seen() -> None:
    figure = ScheduleFigure([picture("gpipe", 16, 128)])
    figure.pixels = 500
    assert figure.drawing.sources["schedules_lanes"]["image"].shape == (16, 500)


def test_a_page_without_a_kernel_has_all_boxes() -> None:
    figure = ScheduleFigure([picture("gpipe", 16, 128)])
    figure.json_item_with_data()
    tables = figure.drawing.tables
    assert sum(len(tables[f"schedules_fill{code}"].data["left"]) for code in range(len(COLOURS))) == 4096
    assert len(tables["schedules_lanes"].data["x"]) == 0
