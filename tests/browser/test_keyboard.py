"""Figures by keyboard on a page: what each key does, and what is said for a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

import pathways_nb as pw
from pathways_nb.parallel.schedules.picture import SchedulePicture
from pathways_nb.trace.record import Events
from pathways_widgets import LiveFigure, curve, figure_of, tradeoff
from pathways_widgets.schedules.schedule_display import ScheduleFigure
from pathways_widgets.shardings.sharding_display import ShardingFigure
from tests.core.widgets.fake_run import FakeRun, fake_run, memory_run
from tests.core.widgets.test_why_columns import ROWS
from tests.support.live_page import LivePage

pytestmark = pytest.mark.browser
_RANGE = "() => { const {start, end} = Bokeh.documents[0].get_model_by_name('timeline_x'); return [start, end] }"


def focus(tab: Any, name: str) -> None:
    tab.get_by_role("application", name=name).focus()


def says(tab: Any, *keys: str) -> list[str]:
    """Return what is said after each key."""
    told = []
    for key in keys:
        tab.keyboard.press(key)
        told.append(tab.get_by_role("status").inner_text())
    return told


def test_arrows_go_from_box_to_box_and_from_lane_to_lane(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(FakeRun([], Events.from_rows(ROWS), (4, 4, 1)), ("timeline",)))
    focus(tab, "Timeline")
    assert tab.get_by_role("status").inner_text() == ""
    f = "f, compute, start 0 µs, takes 3 s (estimated, ok). `f` on island 0 came first"
    assert says(tab, "ArrowRight", "ArrowDown", "ArrowRight", "ArrowUp") == [
        f"island 0 · dev 0: {f}", f"island 0 · dev 1: {f}", "Nothing after this on island 0 · dev 1.", f"island 0 · dev 0: {f}",
    ]  # fmt: skip
    assert says(tab, "ArrowUp") == ["No lane further on."]
    waited = "`g` on island 1 waited 4 s for `f` on island 0 (data, inferred), of which 1 s was its transfer"
    lanes = says(tab, *["ArrowDown"] * 10, *["ArrowUp"] * 5)
    assert lanes[3].startswith("busy: ")
    assert lanes[9] == "island 2 · dev 0: nothing here"
    assert lanes[4] == lanes[14] == f"island 1 · dev 0: g, compute, start 4 s, takes 1 s (estimated, ok). {waited}"
    again, none, last, first = says(tab, "ArrowRight", "ArrowRight", "End", "Home")
    assert again.startswith("g, compute, start 5 s")
    assert none == "Nothing after this on island 1 · dev 0."
    assert last == again
    assert first.endswith(waited)
    assert tab.locator(".pathways-cursor").is_visible()
    tab.keyboard.press("Enter")
    tab.get_by_role("group", name="Why").get_by_text(waited).wait_for()
    assert says(tab, "Escape") == [""]
    assert not tab.get_by_role("group", name="Why").is_visible()
    assert not tab.locator(".pathways-cursor").is_visible()


def test_keys_and_buttons_zoom_pan_fit_find_and_tell(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(FakeRun([], Events.from_rows(ROWS)), ("timeline",)))
    focus(tab, "Timeline")
    whole = tab.evaluate(_RANGE)
    wide, middle = whole[1] - whole[0], sum(whole) / 2
    for key in ("+", "w", "="):
        tab.keyboard.press(key)
        assert tab.evaluate(_RANGE) == pytest.approx([middle - wide / 3, middle + wide / 3])
        tab.keyboard.press("s" if key == "w" else "-")
        assert tab.evaluate(_RANGE) == pytest.approx(whole)
    tab.keyboard.press("d")
    assert tab.evaluate(_RANGE) == pytest.approx([whole[0] + wide / 5, whole[1] + wide / 5])
    tab.keyboard.press("F")
    assert tab.evaluate(_RANGE) == pytest.approx(whole)
    tab.keyboard.press("a")
    assert tab.evaluate(_RANGE)[0] == pytest.approx(whole[0] - wide / 5)
    tab.keyboard.press("Control+d")  # the browser's own
    assert tab.evaluate(_RANGE)[0] == pytest.approx(whole[0] - wide / 5)
    (keys,) = says(tab, "?")
    assert all(word in keys for word in ("Arrows", "W and S", "F: fit", "/: find"))
    tab.get_by_role("button", name="Show everything").click()
    assert tab.evaluate(_RANGE) == pytest.approx(whole)
    tab.get_by_role("button", name="Zoom in").click()
    assert tab.evaluate(_RANGE) == pytest.approx([middle - wide / 3, middle + wide / 3])
    tab.get_by_role("button", name="Zoom out").click()
    assert tab.evaluate(_RANGE) == pytest.approx(whole)
    focus(tab, "Timeline")
    tab.keyboard.press("/")
    tab.keyboard.type("g")
    assert tab.get_by_role("searchbox").input_value() == "g"
    focus(tab, "Timeline")
    tab.evaluate(
        _RANGE.replace("return", "Bokeh.documents[0].get_model_by_name('timeline_x').setv({start: 4, end: 5}); return")
    )
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate(_RANGE) == pytest.approx([0, 1]), "a box out of sight comes into sight"


def test_a_legend_keeps_the_focus_when_it_is_pressed_and_while_a_run_goes_on(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(fake_run(), ("timeline",)))
    legend = tab.get_by_role("group", name="Legend")
    legend.get_by_role("button").first.focus()
    for pressed in ("false", "true"):
        tab.keyboard.press("Enter")
        legend.locator(f"button[aria-pressed={pressed}]:focus").wait_for()
    held, boxes = (
        legend.get_by_role("button").first.element_handle(),
        "Bokeh.documents[0].get_model_by_name('timeline_boxes')",
    )
    tab.evaluate(f"async () => {{ {boxes}.data = {{...{boxes}.data}}; await null }}")
    assert held.evaluate("(one) => one.isConnected"), "nothing in it has changed"


def test_arrows_go_from_node_to_node_and_enter_tells_what_it_took(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(fake_run()))
    focus(tab, "Graph")
    first, second, third, none = says(tab, "ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown")
    assert first == "batch, argument; makes float32[1024] (4.1 KB)"
    assert second.startswith("stage0, computation; where left, island 0, dev 0–3")
    assert third.startswith("stage1, computation")
    assert none == "Nothing further in this direction."
    tab.keyboard.press("Enter")
    tab.get_by_role("group", name="Why").get_by_text("`stage1` of train_step").wait_for()


def test_no_key_that_is_pressed_in_a_figure_is_one_for_the_page(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(fake_run()), figure_of(fake_run()))
    tab.evaluate("() => { window.keys = []; document.addEventListener('keydown', ({key}) => keys.push(key)) }")
    for place in ("application", "button", "searchbox"):
        tab.get_by_role(place).first.focus()
        tab.keyboard.press("b")
    assert tab.evaluate("() => keys") == []


def test_a_live_figure_is_labelled_by_what_it_says_now(opened: Callable[..., Any]) -> None:
    run = FakeRun([], Events.from_rows(ROWS), shown=1, finished=False)
    figure = LiveFigure(run, ("timeline",))
    figure.push()
    live = LivePage(opened(LivePage.PLACE), figure)
    run.shown, run.finished = None, True
    figure.push()
    live.update()
    label = live.tab.get_by_role("figure").get_attribute("aria-label")
    assert label == f"{run.headline()}. {run.summary_line()}"
    focus(live.tab, "Timeline")
    assert says(live.tab, "ArrowRight")[0].endswith("`f` on island 0 came first")


def test_the_table_behind_a_figure_has_a_row_for_each_box(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(FakeRun([], Events.from_rows(ROWS)), ("timeline",)))
    tab.get_by_text("as a table").click()
    table = tab.get_by_role("table", name="Timeline", exact=True)
    table.get_by_role("columnheader").first.wait_for()
    assert table.get_by_role("columnheader").all_inner_texts()[:5] == ["what", "where", "program", "start", "takes"]
    rows = [row.split("\t") for row in table.get_by_role("row").all_inner_texts()[1:]]
    assert [(row[0], row[3]) for row in rows] == [
        ("f, compute", "0 µs"), ("left → right, transfer", "3 s"), ("g, compute", "4 s"), ("g, compute", "5 s"),
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_figure(opened: Callable[..., Any], scheme: str) -> None:
    pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=8)
    schedules = [SchedulePicture.of(pw.schedule(name, 4, 8)) for name in ("dualpipe", "seq1f1b")]
    sharding = pw.show_sharding((8, 4), pw.P("x"), pw.virtual_slice(8), to=pw.P(None, "x"))
    tab = opened(
        "<h1>Figures</h1>",
        figure_of(fake_run(), ("graph", "timeline", "memory")),
        figure_of(fake_run(), ("critical",)),
        figure_of(memory_run(), ("timeline", "categories")),
        ScheduleFigure(schedules).json_item_with_data(),
        ShardingFigure(sharding).json_item_with_data(),
        curve({"loss": [3.0, 2.0, 1.5]}, x="step", y="nats").json_item_with_data(),
        tradeoff({"a": (1.0, 2.0), "b": (2.0, 1.0)}, x="memory", y="bubble").json_item_with_data(),
        pw.terapipe.explore(length=512, stages=4, granularity=16).make_figure().json_item_with_data(),
        color_scheme=scheme,
    )
    for table in tab.get_by_text("as a table").all():
        table.click()
    for picture in tab.get_by_role("application").all():
        picture.focus()
        tab.keyboard.press("ArrowRight")
    found = Axe().run(tab).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []
