"""Views on stand-alone pages: drawn, hovered, clicked."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets import figure_of, tradeoff
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.terms import IN_TEXT, TERMS
from pathways_widgets.drawing.views import FULL_WIDTH
from pathways_widgets.graph.graph_view import GraphView
from pathways_widgets.shardings.sharding_display import ShardingFigure, columns_of
from pathways_widgets.timeline.lanes import Lanes
from tests.core.widgets.fake_run import FakeRun, fake_run, memory_run
from tests.core.widgets.test_memory_view import drawn
from tests.core.widgets.test_timeline_clients import shared
from tests.core.widgets.test_tradeoff_plot import POINTS
from tests.support.dragging import drag


@pytest.mark.browser
def test_a_click_on_a_client_hides_and_shows_its_boxes(opened: Callable[..., Any], tmp_path: Path) -> None:
    tab = opened(figure_of(shared(), ("timeline",)), figure_of(fake_run()))
    names = tab.locator("[role=group][aria-label^=Clients] button:visible")
    assert names.all_inner_texts() == ["ann", "bob", "no client"], "of the second figure, which has one client, none"
    seen = """() => {
      const model = (name) => Bokeh.documents[0].get_model_by_name(name), source = model("timeline_boxes")
      return model("timeline").renderers.filter((one) => one.data_source === source).map((renderer) =>
        [...Bokeh.index.find_one(renderer).all_indices].map((i) => source.data.client[i]))
    }"""
    boxes, strips = tab.evaluate(seen)
    assert boxes == strips
    assert set(boxes) == {0, 1, 2}
    ann = names.nth(0)
    ann.click()
    tab.wait_for_function(f"({seen})()[0].length < {len(boxes)}")
    assert tab.evaluate(seen) == [[client for client in boxes if client != 1]] * 2
    assert ann.get_attribute("aria-pressed") == "false"
    names.nth(2).press("Enter")
    tab.wait_for_function(f"({seen})()[0].length === {boxes.count(2)}")
    tab.screenshot(path=str(tmp_path / "bob.png"))
    names.nth(2).press("Space")
    ann.click()
    tab.wait_for_function(f"({seen})()[0].length === {len(boxes)}")
    assert names.nth(0).get_attribute("aria-pressed") == "true"

    ann.click()
    tags = "[[1, '<i>x</i>', 'red'], [2, 'ann', 'blue']]"
    tab.evaluate(f"() => Bokeh.documents[0].get_model_by_name('timeline').setv({{tags: {tags}}})")
    assert names.all_inner_texts() == ["<i>x</i>", "ann"], "names are text, and follow the figure"
    assert [one.get_attribute("aria-pressed") for one in names.all()] == ["true", "false"]
    assert 2 not in tab.evaluate(seen)[0], "who is hidden stays so under another number"
    tab.screenshot(path=str(tmp_path / "all.png"))


@pytest.mark.browser
def test_a_browser_draws_it_in_the_ink_of_its_theme(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(fake_run(), ("critical",)), color_scheme="dark")
    colour = tab.evaluate("Bokeh.documents[0].get_model_by_name('timeline_path_line').line_color.value")
    assert colour == palette.THEMES["dark"]["text"]


_MODEL = "(name) => Bokeh.documents[0].get_model_by_name(name)"
_PLACES = """() => {
  const model = MODEL, host = Bokeh.index.find_one(model("memory")), other = Bokeh.index.find_one(model("timeline"))
  const box = (view) => { const {left, top} = view.canvas_view.el.getBoundingClientRect(), f = view.frame.bbox
    return [left + f.left, top + f.top, f.width, f.height] }
  return [box(host), box(other)]
}""".replace("MODEL", _MODEL)
_COLOURS = """([left, top, width, height]) => {
  const view = Bokeh.index.find_one((MODEL)("memory")), canvas = view.canvas_view.primary.canvas
  const page = canvas.getBoundingClientRect(), ratio = canvas.width / page.width
  const {data} = canvas.getContext("2d").getImageData(
    (left - page.left) * ratio, (top - page.top) * ratio, width * ratio, height * ratio)
  const found = {}
  for (let i = 0; i < data.length; i += 4) {
    const hex = "#" + [0, 1, 2].map((k) => data[i + k].toString(16).padStart(2, "0")).join("").toUpperCase()
    if (data[i + 3] === 255) found[hex] = (found[hex] ?? 0) + 1
  }
  return found
}""".replace("MODEL", _MODEL)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_paints_below_the_timeline_and_both_move_together(
    opened: Callable[..., Any], tmp_path: Path, scheme: str
) -> None:
    tab = opened(figure_of(memory_run(), ("timeline", "memory")), color_scheme=scheme)
    memory, timeline = tab.evaluate(_PLACES)
    assert memory[0] == pytest.approx(timeline[0], abs=1), "one time is one place on the page"
    assert memory[2] == pytest.approx(timeline[2], abs=1)
    seen = tab.evaluate(_COLOURS, memory)
    view, sources = drawn(memory_run())
    columns, span = sources["memory_levels"], view.properties["timeline_x"]
    areas = (columns["right"] - columns["left"]) * (columns["bottom"] - columns["top"])
    whole = (span["end"] - span["start"]) * len(view.layout.strips)
    for colour in palette.PLACES[:2]:
        expected = areas[np.array(columns["fill"]) == colour].sum() / whole
        assert seen.get(colour, 0) / (memory[2] * memory[3]) == pytest.approx(expected, rel=0.2), colour

    ends = (
        f"() => ['timeline', 'memory'].map((name) => {{ const r = ({_MODEL})(name).x_range; return [r.start, r.end] }})"
    )
    before = tab.evaluate(ends)
    x, y = memory[0] + 500, memory[1] + 20
    drag(tab, (x, y), (x - 100, y))
    after = tab.evaluate(ends)
    assert after[0] == after[1] != before[0]
    shift = (after[0][0] - before[0][0]) / (before[0][1] - before[0][0])
    assert shift == pytest.approx(100 / memory[2], rel=0.1)
    tab.screenshot(path=str(tmp_path / f"memory-{scheme}.png"))


@pytest.mark.browser
def test_hovering_says_whose_how_much_and_since_when(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(memory_run(), ("memory",)), height=600)
    at = """() => {
      const view = Bokeh.index.find_one((MODEL)("memory")), page = view.canvas_view.el.getBoundingClientRect()
      return [page.left + view.frame.x_scale.compute(0.06), page.top + view.frame.y_scale.compute(0.95)]
    }""".replace("MODEL", _MODEL)
    x, y = tab.evaluate(at)
    tab.mouse.move(x, y)
    tab.mouse.move(x + 2, y)
    tip = tab.locator(".bk-Tooltip").first
    tip.wait_for()
    text = re.sub(r"\s+", " ", tip.evaluate("(element) => (element.shadowRoot ?? element).textContent"))
    for part in ("me", "3.0 MB on each", "island 0, dev 0–3", "50 ms to 67 ms"):
        assert part in text


_POINT = """([name, x, y]) => {
  const view = Bokeh.index.find_one((MODEL)(name)), page = view.canvas_view.el.getBoundingClientRect()
  return [page.left + view.frame.x_scale.compute(x), page.top + view.frame.y_scale.compute(y)]
}""".replace("MODEL", _MODEL)


def tip_at(tab: Any, figure: str, x: float, y: float) -> str:
    """Return the text of the tooltip at a position in a figure's own units."""
    left, top = tab.evaluate(_POINT, [figure, x, y])
    tab.mouse.move(left - 1, top)
    tab.mouse.move(left, top)
    tip = tab.locator(".bk-Tooltip").first
    tip.wait_for()
    return re.sub(r"\s+", " ", tip.evaluate("(element) => (element.shadowRoot ?? element).textContent"))


@pytest.mark.browser
def test_words_of_the_field_are_said_in_plain_words(opened: Callable[..., Any]) -> None:
    rows = [
        Row(Label("stall", "its turn", "p"), 0.0, 1.0),
        Row(Label("transfer", "left → right", "p", island=1, devices=1, bytes=8, route="DCN"), 1.0, 2.0),
        Row(Label("compute", "f", "p", island=0, devices=1), 0.0, 2.0),
    ]
    run = FakeRun([], Events.from_rows(rows), (1, 1))
    tab, lanes = opened(figure_of(run, ("timeline",)), height=600), Lanes((1, 1))
    for (kind, island), said in (
        (("stall", -1), f"that is: {TERMS['stall']}"),
        (("transfer", 1), f"over: {TERMS['DCN']}"),
    ):
        at = 0.5 if kind == "stall" else 1.5
        assert said in tip_at(tab, "timeline", at, sum(lanes.band(kind, island, 0, 1)) / 2)
    assert "that is" not in tip_at(tab, "timeline", 0.5, sum(lanes.band("compute", 0, 0, 1)) / 2), "everybody knows"
    # Legends and sentences say them, too, where they stand first.
    waits = tab.get_by_role("button", name="program waits")
    assert waits.get_attribute("title") == f"Hide or show: {TERMS['stall']}"
    assert tab.get_by_role("button", name="computation").get_attribute("title") == "Hide or show: computation"
    item = figure_of(run, ("timeline",)) | {"headline": "<b> over DCN, and DCN again", "summary": "makespan 2 s"}
    tab = opened(item, height=600)
    sentence = tab.locator(".pathways-headline")
    assert sentence.inner_text() == "<b> over DCN, and DCN again"
    assert sentence.locator("abbr").evaluate_all("(all) => all.map((one) => [one.textContent, one.title])") == [
        ["DCN", TERMS["DCN"]]
    ]
    assert tab.get_by_title(IN_TEXT["makespan"]).text_content() == "makespan"
    # Without a pointer they are a list, which the keyboard opens.
    tab.locator(".pathways-words summary").focus()
    tab.keyboard.press("Enter")
    listed = tab.locator(".pathways-words dt")
    listed.first.wait_for()
    meanings = dict(zip(listed.all_inner_texts(), tab.locator(".pathways-words dd").all_inner_texts(), strict=True))
    assert meanings["DCN"] == TERMS["DCN"]
    assert meanings["makespan"] == IN_TEXT["makespan"]
    assert meanings["program waits"] == TERMS["stall"], "and what legends show"


@pytest.mark.browser
def test_an_edge_says_how_its_values_are_laid_out(opened: Callable[..., Any]) -> None:
    run = fake_run()
    layout = "float32[512] as P('x') on left → P() on right"
    run.programs[0].layouts = {(2, 3): layout}
    touch = GraphView().update(run)["graph_touch"]
    row = touch["layouts"].index(layout) + 3
    tab = opened(figure_of(run, ("graph",)), height=600)
    text = tip_at(tab, "graph", touch["x0"][row], touch["y0"][row])
    assert "stage0 → stage1" in text
    assert layout in text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_block_says_which_devices_hold_it(opened: Callable[..., Any], tmp_path: Path, scheme: str) -> None:
    place = pw.virtual_slice((2, 4), axes=("data", "model"), name="mesh")
    moved = pw.show_sharding((8, 4), pw.P("data"), place, to=pw.P(None, "model"))
    sources, _ = columns_of(moved, FULL_WIDTH)
    block, move = sources["sharding_blocks"], sources["sharding_moves"]
    tab = opened(ShardingFigure(moved).json_item_with_data(), height=600, color_scheme=scheme)
    text = tip_at(tab, "sharding", block["left"][1] + 9, block["top"][1] + 9)
    for part in ("[4:8, :]", "dev 4–7 (4 copies)", "64 B", "mesh: data=2, model=4"):
        assert part in text
    text = tip_at(tab, "sharding", move["left"][0] + 9, move["top"][0] + 9)
    assert "dev 0 → dev 4" in text
    assert tab.locator("[role=figure]").first.get_attribute("aria-label") == repr(moved)
    ink = tab.evaluate("Bokeh.documents[0].get_model_by_name('sharding_words_text').text_color.value")
    assert ink == palette.THEMES[scheme]["text"]  # type: ignore[index]
    tab.screenshot(path=str(tmp_path / f"sharding-{scheme}.png"))


@pytest.mark.browser
def test_a_browser_draws_it_with_words_in_the_ink_of_its_theme(opened: Callable[..., Any]) -> None:
    tab = opened(tradeoff(POINTS, x="memory", y="bubble").json_item_with_data(), color_scheme="dark")
    colour = tab.evaluate("Bokeh.documents[0].get_model_by_name('tradeoff_label').text_color.value")
    assert colour == palette.THEMES["dark"]["text"]


@pytest.mark.browser
def test_texts_of_a_selected_node_are_as_small_as_those_of_others(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(fake_run(), ("graph",)), width=600)
    sizes = tab.evaluate(
        """() => Bokeh.documents[0].get_model_by_name("graph").renderers
          .filter(({glyph, selection_glyph}) => glyph.type === "Text" && selection_glyph?.type)
          .map((one) => [one.glyph, one.selection_glyph, one.nonselection_glyph].map(({text_font_size}) => parseFloat(text_font_size.value)))"""
    )
    assert len(sizes) == 2
    assert all(one == two == three < 11 for one, two, three in sizes)
