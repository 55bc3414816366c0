"""The picture of memory: its rows, steps, budgets and peaks; read as columns, as shapes, and in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bokeh.models import HoverTool
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.trace.memory_history import memory_of
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS, Label, Row
from pathways_widgets import LiveFigure
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Curve, Rect, Text
from pathways_widgets.drawing.views import Columns, Moment
from pathways_widgets.figures.panel import DEFAULT_SHOW, Panel, check_show
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.memory.memory_columns import MOST_ROWS, MOST_STEPS, MemoryLayout
from pathways_widgets.memory.memory_view import CategoryView, MemoryView
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun, fake_run, memory_run
from tests.core.widgets.unpacking import columns_sent
from tests.support.examples import examples

MB = 1_000_000


def level(client: str, held: int, start: float, end: float, first: int = 0, count: int = 4, island: int = 0) -> Row:
    label = Label("memory", "memory", "", client, island=island, device=first, devices=count, bytes=held)
    return Row(label, start, end, quality="exact")


def run_of(rows: list[Row], hbm: tuple[int, ...] = (0, 0), islands: tuple[int, ...] = (4, 4)) -> FakeRun:
    return FakeRun([], Events.from_rows(rows), islands, hbm=hbm)


def drawn(run: FakeRun, window: tuple[float, float] | None = None) -> tuple[MemoryView, dict[str, Columns]]:
    view = MemoryView(run.islands)
    return view, view.update(run, window)


def boxes(columns: Columns) -> list[tuple[Any, ...]]:
    """Client, bytes, from and to of every box, from left to right and from below."""
    names = ("left", "bottom", "client", "bytes", "start", "end")
    return [row[2:] for row in sorted(zip(*(columns[n] for n in names), strict=True), key=lambda r: (r[0], -r[1]))]


def test_levels_are_stacked_and_what_stays_alike_is_one_box() -> None:
    rows = [level("ann", 4 * MB, 0, 3), level("bob", 2 * MB, 1, 2), level("bob", 6 * MB, 2, 4)]
    view, sources = drawn(run_of(rows))
    columns = sources["memory_levels"]
    assert boxes(columns) == [
        ("ann", 4 * MB, 0, 3), ("bob", 2 * MB, 1, 2), ("bob", 6 * MB, 2, 4), ("bob", 6 * MB, 2, 4),
    ]  # fmt: skip
    heights = (columns["bottom"] - columns["top"]) / (view.layout.y(0, 0) - view.layout.y(0, 1))
    np.testing.assert_allclose(heights, columns["bytes"])
    assert columns["where"] == ["island 0, dev 0–3"] * 4
    floor = view.layout.y(0, 0)
    assert sorted(columns["bottom"] == floor) == [False, False, True, True], "bob is on the ground once ann has gone"


def test_equal_devices_are_a_row_and_rows_have_one_scale() -> None:
    view, sources = drawn(memory_run())
    assert [strip.name for strip in view.layout.strips] == [
        "island 0, dev 0–3", "island 1, dev 0–1", "island 1, dev 2–3",
    ]  # fmt: skip
    assert view.layout.top == 16 * MB
    assert sources["memory_peaks"]["text"] == ["peak 7.4 MB of 16 MB", "peak 11.8 MB of 16 MB", "peak 14.3 MB of 16 MB"]
    assert len(sources["memory_budgets"]["y"]) == 3
    texts = [text for _, text in sorted(view.layout.labels.items())]
    assert texts == [part for strip in view.layout.strips for part in (strip.name, "10 MB", "0")], (
        "from above: its name, then bytes"
    )
    assert view.properties["memory_y"]["start"] == 3


def test_a_budget_far_above_everything_is_said_and_not_drawn() -> None:
    view, sources = drawn(memory_run((80_000 * MB, 0)))
    assert sources["memory_budgets"]["y"] == []
    assert sources["memory_peaks"]["text"][:2] == ["peak 7.4 MB of 80 GB", "peak 11.8 MB"]
    assert view.layout.top == pytest.approx(14.3 * MB)


def test_words_at_a_peak_do_not_lie_across_the_budget() -> None:
    for held, above in ((15 * MB, True), (13 * MB, True), (6 * MB, False), (16 * MB, True)):
        view, sources = drawn(run_of([level("ann", held, 0, 1)], (16 * MB, 0)))
        peaks, budget = sources["memory_peaks"], sources["memory_budgets"]["y"][0]
        assert peaks["text_y"] == [budget if above else peaks["y"][0]], held
        assert view.layout.head * view.layout.row > 2 * view.style.font, "there is room above the scale"


def test_words_at_a_peak_stay_in_the_picture() -> None:
    rows = [level("ann", 5, 0.0, 0.1), level("bob", 9, 5, 5.1, island=1), level("ann", 7, 9.9, 10, 0, 1)]
    assert drawn(run_of(rows))[1]["memory_peaks"]["align"] == ["right", "left", "center"]


def test_clients_have_their_colours_and_nobody_is_grey() -> None:
    work = Row(Label("compute", "f", client="amy", island=0, devices=4), 0, 2)
    run = run_of([work, level("", 5, 0, 2), level("bob", 9, 1, 2)])
    legend = drawn(run)[1]["memory_clients"]
    assert legend["client"] == ["bob", "no client"]
    assert legend["fill"] == [palette.client_colour(1), palette.NEUTRAL], "amy, who held nothing, is the first client"
    columns = drawn(run)[1]["memory_levels"]
    assert dict(zip(columns["client"], columns["fill"], strict=True)) == dict(
        zip(legend["client"], legend["fill"], strict=True)
    )


@pytest.mark.parametrize(("islands", "shown"), [(3, 3), (12, MOST_ROWS)])
def test_many_different_devices_become_the_fullest_of_each_island(islands: int, shown: int) -> None:
    rows = [level("ann", (1 + d + 10 * i) * MB, 0, 1, d, 1, i) for i in range(islands) for d in range(4)]
    view, sources = drawn(run_of(rows, islands=(4,) * islands, hbm=(0,) * islands))
    kept = range(islands - shown, islands)
    assert [strip.name for strip in view.layout.strips] == [f"island {i}, fullest" for i in kept]
    assert sources["memory_levels"]["where"] == [f"island {i}, dev 3" for i in kept]
    which = "each island" if islands == shown else "8 islands"
    assert view.properties["memory_title"]["text"].endswith(f"memory held on the fullest device of {which}")


def test_devices_far_apart_are_counted_where_ranges_are_many() -> None:
    rows = [level("ann", 5, 0, 1, d, 1) for d in (0, 2, 4, 5)]
    view, _ = drawn(run_of(rows, islands=(6,), hbm=(0,)))
    assert view.layout.strips[0].where == "island 0, 4 dev"
    view, _ = drawn(run_of(rows[2:] + rows[:1], islands=(6,), hbm=(0,)))
    assert view.layout.strips[0].where == "island 0, dev 0, 4–5"


def busy_run(count: int, peak_at: int) -> FakeRun:
    """Many short levels of two clients, one of which is high for a moment."""
    rows = [level("ann", 1000 + i % 7 + (5000 if i == peak_at else 0), i * 1e-3, (i + 1) * 1e-3) for i in range(count)]
    return run_of([*rows, level("bob", 500, 0, count * 1e-3)], (20_000, 0))


@examples(15)
@given(st.integers(0, 19_999))
def test_thinning_never_hides_a_peak(peak_at: int) -> None:
    run = busy_run(20_000, peak_at)
    view, sources = drawn(run)
    columns = sources["memory_levels"]
    assert len(columns["left"]) <= MOST_STEPS
    highest = int(np.argmin(columns["top"]))
    assert columns["top"][highest] == pytest.approx(view.layout.y(0, 0) - heights(view.layout, 6500 + peak_at % 7))
    assert columns["left"][highest] <= (peak_at + 0.5) * 1e-3 <= columns["right"][highest]


def heights(layout: MemoryLayout, held: float) -> float:
    return float(layout.y(0, 0) - layout.y(0, held))


def test_each_thinned_step_is_the_fullest_of_its_pixel() -> None:
    run = busy_run(20_000, 1)
    (held,) = memory_of(run.events)
    view, sources = drawn(run)
    columns = sources["memory_levels"]
    upper = columns["client"].numbers == columns["client"].words.index("bob")
    for left, right, top in zip(*(columns[side][upper] for side in ("left", "right", "top")), strict=True):
        inside = (held.times[1:] > left) & (held.times[:-1] < right)
        assert heights(view.layout, held.total[:-1][inside].max()) == pytest.approx(view.layout.y(0, 0) - top)


def test_a_window_shows_single_steps_again() -> None:
    run = busy_run(20_000, 10_000)
    view = MemoryView(run.islands)
    view.update(run)
    columns = view.update(run, (10.0, 10.02))["memory_levels"]
    ann = columns["client"].numbers == 0
    assert ann.sum() == pytest.approx(40, abs=2), "with half a window on each side"
    assert 5000 + 1000 + 10_000 % 7 in columns["bytes"]
    np.testing.assert_allclose(columns["end"][ann] - columns["start"][ann], 1e-3, rtol=1e-6)
    bob = columns["bytes"] == 500
    assert set(columns["start"][bob]) == {0.0}, "its level is older than the window"


def test_nothing_recorded_is_said() -> None:
    view, sources = drawn(fake_run())
    assert view.properties["memory_title"]["text"] == "fake · no levels of memory were recorded"
    assert len(sources["memory_levels"]["left"]) == 0
    assert "no levels of memory were recorded" in scene_of(fake_run(), ("memory",)).svg()


def test_levels_of_unknown_islands_do_not_break_it() -> None:
    view, _ = drawn(run_of([level("ann", 5, 0, 1, island=7)]))
    assert view.layout.strips == []


def test_growing_and_cleared_records_are_followed() -> None:
    run = memory_run()
    view = MemoryView(run.islands)
    for shown, rows in ((0, 0), (59, 0), (60, 1), (108, 3), (3, 0)):
        run.shown = shown
        view.update(run)
        assert len(view.layout.strips) == rows, shown
        assert view.properties["memory_y"]["start"] == max(rows, 1)


def test_the_timeline_is_the_same_with_and_without_levels() -> None:
    plain, full = Timeline((4, 4)).update(fake_run()), Timeline((4, 4)).update(memory_run())
    for name in ("left", "right", "top", "bottom", "code", "name"):
        assert list(plain["timeline_boxes"][name]) == list(full["timeline_boxes"][name]), name
    assert len(memory_run().events.without(GAUGE_KINDS)) == len(fake_run().events)
    assert "memory" not in DEFAULT_SHOW


def test_both_have_one_time_axis_and_each_has_one_alone() -> None:
    run = memory_run()
    both = Panel(("graph", "timeline", "memory"), run.islands)
    both.update(Moment.of(run))
    assert both.views["timeline"].root.x_range is both.views["memory"].root.x_range
    spans = [view.properties["timeline_x"] for name, view in both.views.items() if name != "graph"]
    assert spans[0] == spans[1]
    assert json.dumps(both.item(data=True)).count('"timeline_x"') == 2, "the range and its properties"
    assert Panel(("memory",), run.islands).views["memory"].root.x_range.name == "timeline_x"


def test_a_live_figure_of_memory_alone_answers_for_its_window() -> None:
    figure = LiveFigure(busy_run(20_000, 10), ("memory",))
    figure.push()
    assert len(columns_sent(figure, "memory_levels")["left"]) < 10, "of a pixel the fullest, and most pixels are alike"
    figure.view = [3.0, 3.01]
    assert len(columns_sent(figure, "memory_levels")["left"]) == pytest.approx(20 + 20, abs=4), (
        "ann's, and bob's on them"
    )


def texts(shapes: list[Any]) -> list[str]:
    return [shape.text for shape in shapes if isinstance(shape, Text)]


def test_a_still_picture_shows_what_the_live_one_does() -> None:
    run = memory_run()
    shapes = scene_of(run, ("memory",)).shapes
    assert {"me", "bob", "budget of a device", "peak 14.3 MB of 16 MB", "island 1, dev 2–3", "10 MB"} <= set(
        texts(shapes)
    )
    columns = drawn(run)[1]["memory_levels"]
    for client in ("me", "bob"):
        mine = columns["client"].numbers == columns["client"].words.index(client)
        fill = columns["fill"].words[columns["client"].words.index(client)]
        areas = [s.width * s.height for s in shapes if isinstance(s, Rect) and s.fill == fill and s.width != s.height]
        expected = ((columns["right"] - columns["left"]) * columns["bytes"])[mine]
        np.testing.assert_allclose(np.array(areas) / max(areas), expected / expected.max(), rtol=1e-6)
    dashed = [shape for shape in shapes if isinstance(shape, Curve) and shape.dash]
    assert len(dashed) == 4, "three budgets and the legend's"
    assert "budget" not in " ".join(texts(scene_of(memory_run((0, 0)), ("memory",)).shapes))


@pytest.mark.parametrize("width", [317.0, 600.0, 1800.0])
def test_nothing_leaves_a_still_picture_and_no_words_meet(width: float) -> None:
    run = memory_run(clients=("training", "evaluation"))
    scene = scene_of(run, ("memory",), width)
    found = [shape for shape in scene.shapes if isinstance(shape, Text)]
    extents = []
    for shape in found:
        long = 0.5 * shape.size * len(shape.text)
        left = shape.x - {"start": 0, "middle": long / 2, "end": long}[shape.align]
        assert left >= 0, shape.text
        assert left + long <= width, shape.text
        assert 0 <= shape.y <= scene.height
        extents.append((left, left + long, shape.y - shape.size / 2, shape.y + shape.size / 2, shape.text))
    for i, (left, right, top, bottom, text) in enumerate(extents):
        for other in extents[:i]:
            apart = right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
            assert apart, (text, other[4])
    for box in scene.shapes:
        if isinstance(box, Rect):
            assert -1 <= box.x <= box.x + box.width <= width + 1
            assert -1 <= box.y <= box.y + box.height <= scene.height + 1


def test_the_time_axis_ends_with_what_happened_last_and_levels_with_it() -> None:
    work = Row(Label("compute", "f", island=0, devices=4), 0, 2)
    run = run_of([work, level("bob", 5 * MB, 1, 4), level("amy", MB, 3, 4)])
    view, sources = drawn(run)
    assert boxes(sources["memory_levels"]) == [("bob", 5 * MB, 1, 2)]
    assert sources["memory_peaks"]["x"] == [1.5]
    timeline = Timeline(run.islands)
    timeline.update(run)
    assert (
        view.properties["timeline_x"] == timeline.properties["timeline_x"] == {"start": -0.02, "end": 2.02, "tags": []}
    )


def test_memory_is_stacked_by_category_in_the_order_of_the_legend() -> None:
    rows = [level("ann", 4 * MB, 0, 3), level("bob", 2 * MB, 1, 2)]
    rows = [row._replace(label=replace(row.label, category=category))
            for row in rows for category in ("temporaries", "parameters")]  # fmt: skip
    run = run_of([*rows, level("ann", MB, 2, 4)])
    view = CategoryView(run.islands)
    sources = view.update(run)
    assert sources["memory_clients"]["client"] == ["parameters", "temporaries", "no category"]
    assert sources["memory_clients"]["fill"][:2] == [palette.CATEGORIES[name] for name in ("parameters", "temporaries")]
    columns = sources["memory_levels"]
    assert boxes(columns)[:2] == [("parameters", 4 * MB, 0, 1), ("temporaries", 4 * MB, 0, 1)]
    assert ("parameters", 6 * MB, 1, 2) in boxes(columns), "of both clients together"
    peaks = [held.peak.bytes for held in memory_of(run.events)]
    assert [strip.held.peak.bytes for strip in view.layout.strips] == peaks
    tooltips = next(tool for tool in view.root.tools if isinstance(tool, HoverTool)).tooltips
    assert tooltips[0] == ("category", "@client")


def test_categories_take_the_place_of_memory_in_figures_and_pictures() -> None:
    assert check_show("timeline,memory,categories") == ("timeline", "categories")
    panel = Panel(("timeline", "categories"), (4, 4))
    panel.update(Moment.of(memory_run()))
    assert not panel.failures
    assert "no category" in scene_of(memory_run(), ("categories",)).svg()
