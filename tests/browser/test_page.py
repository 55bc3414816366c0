"""Stand-alone pages, read as text and opened in a real browser without any network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets import figure_of, page
from pathways_widgets.drawing import style
from pathways_widgets.graph.graph_view import GraphView
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun, fake_run
from tests.core.widgets.test_folded_time import COMPILED, run_of
from tests.support.waiting import until

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def evil_run() -> FakeRun:
    label = Label("compute", EVIL, EVIL, place=EVIL, island=0, devices=4, bytes=1_500_000)
    return FakeRun([], Events.from_rows([Row(label, 0.0, 0.25, 3, "exact")]))


def test_a_page_holds_everything_and_escapes_names() -> None:
    text = page(f"a {EVIL}", ["<h1>hello</h1>", figure_of(evil_run())])
    assert EVIL not in text
    assert "<h1>hello</h1>" in text
    assert "<script src" not in text
    assert "<link" not in text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_paints_without_network_or_errors(opened: Callable[..., Any], tmp_path: Path, scheme: str) -> None:
    tab = opened("<h1>A little pipeline</h1>", figure_of(fake_run()), height=800, color_scheme=scheme)
    until(lambda: painted_colours(tab) > 8)
    assert tab.inner_text(".pathways-headline") == "fake waits <20 % of the time"
    assert tab.evaluate("getComputedStyle(document.querySelector('.pathways-headline')).fontSize") == "16px"
    numbers = tab.get_by_text("59 events on 8 devices, bubble < 12 %")
    assert not numbers.is_visible()
    tab.get_by_text("details").click()
    assert numbers.is_visible()
    tab.screenshot(path=str(tmp_path / f"page-{scheme}.png"))


@pytest.mark.browser
def test_what_is_said_and_the_graph_are_as_large_as_the_style_says(opened: Callable[..., Any]) -> None:
    sizes, sentences, nodes = {}, {}, {}
    try:
        for name in ("screen", "projector"):
            style.choose(name)
            tab = opened(figure_of(fake_run()), height=900, width=700)
            size = "(one) => parseFloat(getComputedStyle(one).fontSize)"
            sentences[name] = tab.locator(".pathways-headline").evaluate(size)
            nodes[name] = tab.evaluate(
                "parseFloat(Bokeh.documents[0].get_model_by_name('graph_titles_text').text_font_size.value)"
            )
            summary = tab.get_by_text("59 events on 8 devices").first
            sizes[name] = float(summary.evaluate(size))
    finally:
        style.choose("screen")
    assert sizes == {"screen": 12.0, "projector": pytest.approx(12 * 16 / 11, rel=1e-3)}
    assert sentences == {"screen": 16.0, "projector": pytest.approx(16 * 16 / 11, rel=1e-3)}
    assert nodes["projector"] >= 0.84 * 13 * 16 / 11, (
        "a graph that does not fit is moved, and not made too small to read"
    )


@pytest.mark.browser
def test_hover_shows_names_as_text(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(evil_run(), ("timeline",)), height=800)
    box = tab.locator(".bk-Figure").bounding_box()
    tab.mouse.move(box["x"] + 400, box["y"] + 80)
    tab.mouse.move(box["x"] + 402, box["y"] + 80)
    tip = tab.locator(".bk-Tooltip").first
    tip.wait_for()
    tip.locator(".bk-tooltip-row-value, td, span").first.wait_for(state="attached")
    text = tip.evaluate("(element) => (element.shadowRoot ?? element).textContent")
    assert EVIL in text
    assert "250 ms" in text
    assert "1.5 MB" in text
    assert "island 0, dev 0–3" in text
    assert "moves: 1.5 MB" in text
    assert "line: " not in text, "it has none"
    assert tip.locator("img, script").count() == 0


@pytest.mark.browser
def test_kinds_are_hidden_by_the_legend_and_names_are_found(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(fake_run()), height=800)
    tab.evaluate("""() => { window.model = (name) => Bokeh.documents[0].get_model_by_name(name) }""")
    seen = """() => {
      const {data} = model("timeline_boxes"), renderer = model("timeline").renderers.find(
        (one) => one.data_source === model("timeline_boxes"))
      const mask = Bokeh.index.find_one(renderer).all_indices
      return [...mask].map((i) => data.kind[i])
    }"""
    before = tab.evaluate(seen)
    assert {"compute", "transfer"} <= set(before)
    entry = tab.get_by_role("button", name="computation")
    entry.click()
    tab.wait_for_function(f"({seen})().length < {len(before)}")
    assert sorted(tab.evaluate(seen)) == sorted(kind for kind in before if kind != "compute")
    assert entry.get_attribute("aria-pressed") == "false"
    entry.click()
    tab.wait_for_function(f"({seen})().length === {len(before)}")

    field = tab.locator("input[type=search]")
    name = tab.evaluate(
        "() => model('graph_nodes').data.title.find((_, i) => model('graph_nodes').data.kind[i] === 'computation')"
    )
    field.fill(name.upper())
    marked = "(source, names) => model(source).selected.indices.map((i) => model(source).data[names][i])"
    for source, names in (("graph_nodes", "title"), ("timeline_boxes", "name")):
        found = tab.evaluate(f"() => ({marked})('{source}', '{names}')")
        assert found
        assert all(name.lower() in one.lower() for one in found)
    field.fill("nothing has this name")
    assert "0 boxes" in str(field.get_attribute("title"))
    field.fill("")
    assert tab.evaluate("() => model('timeline_boxes').selected.indices") == []


@pytest.mark.browser
def test_what_was_before_the_first_launch_is_shown_by_one_click_and_hidden_by_another(
    opened: Callable[..., Any],
) -> None:
    tab = opened(figure_of(run_of(*COMPILED, ("compute", 0.7, 1.0)), ("timeline", "memory")), height=500)
    bounds = "() => { const {start, end} = Bokeh.documents[0].get_model_by_name('timeline_x'); return [start, end] }"
    folded = tab.evaluate(bounds)
    assert folded == pytest.approx([0.697, 1.003])
    button = tab.locator(".pathways-fold")
    assert button.inner_text() == "↯ compiled for 660 ms before · show"
    button.click()
    assert tab.evaluate(bounds) == pytest.approx([-0.01, 1.01])
    assert button.get_attribute("aria-expanded") == "true"
    button.click()
    assert tab.evaluate(bounds) == folded


def painted_colours(tab: Any) -> int:
    """How many different opaque colours the page's canvases hold, sampled."""
    return int(
        tab.evaluate(
            """() => {
                const canvases = [], colours = new Set()
                const walk = (node) => {
                    for (const child of node.children) {
                        if (child.tagName === "CANVAS") canvases.push(child)
                        if (child.shadowRoot) walk(child.shadowRoot)
                        walk(child)
                    }
                }
                walk(document.body)
                for (const canvas of canvases) {
                    if (!canvas.width || !canvas.height) continue
                    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
                    for (let i = 0; i < data.length; i += 28)
                        if (data[i + 3] === 255) colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`)
                }
                return colours.size
            }"""
        )
    )


_LINKED = """() => {
  const doc = Bokeh.documents[0], source = name => doc.get_model_by_name(name)
  const marked = name => source(name).selected.indices
  return {nodes: marked("graph_nodes").map(i => source("graph_nodes").data.name[i]),
          bars: [...new Set(marked("timeline_boxes").map(i => source("timeline_boxes").data.name[i]))]}
}"""
_AT = """([figure, x, y]) => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(figure))
  const box = view.canvas_view.el.getBoundingClientRect()
  return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)]
}"""


@pytest.mark.browser
def test_picking_a_node_marks_its_bars_and_the_other_way_round(opened: Callable[..., Any], tmp_path: Path) -> None:
    run = fake_run()
    tab = opened(figure_of(run))

    def click(figure: str, x: float, y: float, *marked: str) -> None:
        """Click at a place of a figure and wait until that marks these; two clicks at once would be a double click."""
        tab.evaluate("() => { window.before = performance.now() }")
        tab.wait_for_function("performance.now() > before + 500")
        tab.mouse.click(*tab.evaluate(_AT, [figure, x, y]))
        expected = {"nodes": list(marked), "bars": list(marked)}
        tab.wait_for_function(f"(expected) => JSON.stringify(({_LINKED})()) === JSON.stringify(expected)", arg=expected)

    graph, timeline = GraphView().update(run)["graph_nodes"], Timeline(run.islands).update(run)["timeline_boxes"]
    row = graph["name"].index("stage1")
    click("graph", graph["x"][row], graph["y"][row], "stage1")
    bar = list(timeline["name"]).index("stage0 (bwd)")
    middle = (timeline["left"][bar] + timeline["right"][bar]) / 2
    click("timeline", float(middle), float(timeline["top"][bar] + 1.2), "stage0 (bwd)")
    tab.screenshot(path=str(tmp_path / "linked.png"))
    click("graph", 5, 30)  # beside all nodes
