"""The filter of a timeline: in a page without a kernel, and what a live figure tells Python and is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets import LiveFigure, figure_of
from pathways_widgets.timeline.level_of_detail import MOST_BOXES
from tests.core.widgets.fake_run import FakeRun
from tests.core.widgets.test_event_filter import filtered_run
from tests.support.live_page import LivePage

pytestmark = pytest.mark.browser

_SEEN = """() => {
  const figure = Bokeh.documents[0].get_model_by_name("timeline")
  return figure.renderers.filter(({data_source}) => ["timeline_boxes", "timeline_marks"].includes(data_source.name) )
    .filter(({name}) => name !== "timeline_strips").map(({data_source: {data}, view}) => [...view.indices].map((i) => (data.name ?? data.text)[i]))
}"""


def seen(tab: Any, texts: bool = True) -> list[str]:
    """The names of the boxes that are visible; as many texts are, if the boxes are wide enough for ``texts``."""
    boxes, written = tab.evaluate(_SEEN)
    assert not texts or len(written) == len(boxes)
    return list(boxes)


def test_conditions_are_combined_on_a_page_without_a_kernel(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(filtered_run(), ("timeline",)))
    row = tab.get_by_role("group", name="Filter", exact=True)
    assert len(seen(tab)) == 8
    assert not row.is_visible()
    tab.get_by_role("button", name="filter").click()
    tab.get_by_label("program").select_option("train")
    assert seen(tab) == ["matmul", "matmul (bwd)", "sum"] * 2
    tab.get_by_label("place").select_option("right")
    assert seen(tab) == ["matmul (bwd)", "sum"] * 2
    tab.get_by_label("at most").fill("2500")
    assert seen(tab) == ["matmul (bwd)"] * 2
    assert row.get_by_text("2 of 8 boxes").is_visible()
    assert tab.get_by_role("button", name="filter (3)").is_visible()
    tab.get_by_label("client", exact=True).select_option("bob")
    assert seen(tab) == []
    tab.get_by_role("button", name="clear", exact=True).click()
    assert len(seen(tab)) == 8


def test_legend_clients_and_find_are_parts_of_the_same_filter(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(filtered_run(), ("timeline",)))
    tab.get_by_role("button", name="filter").click()
    tab.get_by_label("kind").select_option("compute")
    assert seen(tab) == ["matmul", "Matmul"] * 2
    assert tab.get_by_role("button", name="collective").get_attribute("aria-pressed") == "false"
    tab.get_by_title("Hide or show what is done for bob").click()
    assert seen(tab) == ["matmul"] * 2
    assert tab.get_by_label("client", exact=True).input_value() == "ann"
    tab.get_by_role("button", name="clear", exact=True).click()
    tab.get_by_placeholder("find").fill("bwd")
    assert len(seen(tab)) == 8, "it marks"
    tab.get_by_label("only names").check()
    assert seen(tab) == ["matmul (bwd)"] * 2


def test_a_live_figure_tells_python_and_is_told(opened: Callable[..., Any]) -> None:
    figure = LiveFigure(filtered_run(), ("timeline",))
    figure.push()
    live = LivePage(opened(LivePage.PLACE), figure)
    live.tab.get_by_role("button", name="filter").click()
    assert live.told("chosen") is None, "nothing was chosen yet"
    live.tab.get_by_label("program").select_option("train")
    live.tab.get_by_label("takes at least").fill("3000")
    figure.chosen = live.told("chosen")
    assert figure.selection is not None
    assert figure.selection.events["name"].tolist() == ["sum", "sum"]

    figure.select(25, 60, kind=("compute", "backward"), text="matmul", client="ann")
    live.update()
    assert seen(live.tab) == ["matmul", "matmul (bwd)"] * 2
    assert live.tab.get_by_label("client", exact=True).input_value() == "ann"
    assert live.tab.get_by_placeholder("find").input_value() == "matmul"
    assert live.told("chosen")["program"] == ["train"], "what Python sets is not told back"
    overlay = "() => { const {overlay} = Bokeh.documents[0].get_model_by_name('timeline').toolbar.tools.find(({type}) => type === 'BoxSelectTool'); return [overlay.visible, overlay.left, overlay.right] }"
    assert live.tab.evaluate(overlay) == [True, 25, 60]
    figure.selection = None
    live.update()
    assert len(seen(live.tab)) == 8
    assert live.tab.evaluate(overlay)[0] is False


def test_a_box_of_many_events_is_shown_if_one_of_them_fulfils_all_conditions(opened: Callable[..., Any]) -> None:
    programs = [
        Label("compute", name, program, place="left", island=0, devices=4) for name, program in (("f", "p"), ("g", "q"))
    ]
    rows = [Row(programs[i % 2], 2e-3 * i, 2e-3 * i + 1e-3, i, "exact") for i in range(4 * MOST_BOXES)]
    tab = opened(figure_of(FakeRun([], Events.from_rows(rows)), ("timeline",)))
    whole = len(seen(tab, texts=False))
    tab.get_by_role("button", name="filter").click()
    tab.get_by_label("program").select_option("p")
    assert len(seen(tab, texts=False)) == whole, "each box has events of both"
    tab.get_by_placeholder("find").fill("g")
    tab.get_by_label("only names").check()
    assert seen(tab, texts=False) == [], "no event of p is called g"
    tab.get_by_label("program").select_option("q")
    assert len(seen(tab, texts=False)) == whole
