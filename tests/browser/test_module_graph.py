"""The graph of an adopted step on a page: a click opens a module, and timeline and source follow; the other way, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pathways_widgets import figure_of
from pathways_widgets.figures.live import LiveFigure
from tests.core.adopt.test_collective_table import TEXT
from tests.core.adopt.test_module_graph import predicted, step_of
from tests.support.live_page import DRAWN, LivePage
from tests.support.page_geometry import what_covers

pytestmark = pytest.mark.browser
_HELPERS = """() => {
  globalThis.model = (name) => Bokeh.documents[0].get_model_by_name(name)
  globalThis.level = () => model("graph_shown").data.level[0]
  globalThis.at = (name, x, y) => {
    const view = Bokeh.index.find_one(model(name)), box = view.canvas_view.el.getBoundingClientRect()
    return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)]
  }
  globalThis.card = (title) => {
    const {data} = model("graph_nodes")
    const i = Array.from(data.title).findIndex((one, k) => data.level[k] === level() && one.includes(title))
    return at("graph", data.x[i], data.y[i])
  }
  globalThis.marked = (source) => {
    const {data, selected} = model(source)
    return selected.indices.map((i) => data.name[i])
  }
  globalThis.pane = () => Bokeh.index.find_one(model("graph_code")).shadow_el.querySelector(".pathways-code")
}"""
_MARKED = "pane().querySelector('[data-marked]').textContent"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """The timeline of a step whose gather is in a loop in a module, and whose sum is in none."""
    source = tmp_path / "train.py"
    source.write_text("".join(f"y = f(x < {n})\n" for n in range(1, 41)))
    return step_of(predicted(TEXT.replace("/home/me/train.py", str(source)))).timeline()


def click(tab: Any, where: str) -> None:
    """Click where a script says, once everything is laid out and painted."""
    tab.evaluate(DRAWN)
    tab.mouse.click(*tab.evaluate(where))


def check(tab: Any) -> None:
    """Click a module and a bar of the timeline, and look at what follows."""
    tab.evaluate(_HELPERS)
    assert tab.evaluate("level()") == 0
    tab.wait_for_function(f"{_MARKED}.includes('y = f(x < ')")
    click(tab, "card('mlp')")
    tab.wait_for_function("level() > 0")
    tab.wait_for_function(f"{_MARKED}.trim() === '▸  12  y = f(x < 12)'")
    names = tab.evaluate("marked('timeline_boxes')")
    assert "gather" in names
    assert "sum" not in names
    assert "all-gather" in tab.evaluate("marked('graph_nodes')")

    click(tab, "card('all-gather')")
    tab.wait_for_function("marked('timeline_boxes').every((name) => name.includes('gather'))")
    tab.wait_for_function(
        "marked('graph_nodes').includes('all-gather') && !marked('graph_nodes').includes('dot_general')"
    )
    click(tab, "card('back')")
    tab.wait_for_function("level() === 0")
    # The same card again, which is not selected any more, opens again.
    click(tab, "card('mlp')")
    tab.wait_for_function("level() > 0")

    box = """(() => { const {data} = model("timeline_boxes"), i = data.name.findIndex((one) => one === "sum")
      return at("timeline", (data.left[i] + data.right[i]) / 2, (data.top[i] + data.bottom[i]) / 2) })()"""
    click(tab, box)
    tab.wait_for_function("level() === 0")
    tab.wait_for_function(f"{_MARKED}.includes('f(x < 30)')")
    assert tab.evaluate("marked('graph_nodes')")[0] == "all-reduce (bwd)"


def test_a_click_opens_a_module_and_timeline_and_source_follow(opened: Callable[..., Any], run: Any) -> None:
    check(opened(figure_of(run, ("modules", "ops"))))


def test_a_live_figure_does_the_same(opened: Callable[..., Any], run: Any) -> None:
    figure = LiveFigure(run, ("modules", "ops", "memory"))
    figure.push()
    tab = opened(LivePage.PLACE)
    LivePage(tab, figure)
    check(tab)


def test_on_a_narrow_page_cards_have_room_for_their_text_and_the_source_is_below(
    opened: Callable[..., Any], run: Any
) -> None:
    tab = opened(figure_of(run, ("modules", "ops")))
    assert what_covers(tab) == []
    rows = tab.evaluate(
        "allOf(document.querySelector('pathways-host'), '.pathways-legend').map((row) => row.ariaLabel)"
    )
    assert not {"Virtual slices", "Map"} & set(rows), "a level of this graph explains its colours itself"
    tab.evaluate(_HELPERS)
    for width, is_below in ((1300, False), (700, True)):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate(DRAWN)
        places = tab.evaluate(
            "['graph', 'graph_code'].map((one) => Bokeh.index.find_one(model(one)).el.getBoundingClientRect().top)"
        )
        assert (places[1] > places[0]) == is_below
