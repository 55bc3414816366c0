"""A tap on a gap says what was waited for, and the chain is followed back, on a page without a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pathways_nb.trace.record import Events
from pathways_widgets import LiveFigure, figure_of
from tests.core.widgets.fake_run import FakeRun, fake_run
from tests.core.widgets.test_why_columns import ROWS
from tests.support.live_page import LivePage

pytestmark = pytest.mark.browser

_AT = """([x, lane]) => {
    const doc = Bokeh.documents[0], view = Bokeh.index.find_one(doc.get_model_by_name("timeline"))
    const {data} = doc.get_model_by_name("timeline_labels"), box = view.canvas_view.el.getBoundingClientRect()
    const y = data.y[Array.from(data.text).indexOf(lane)]
    return [box.x + view.frame.x_scale.compute(x), box.y + view.frame.y_scale.compute(y)]
}"""


def tap(tab: Any, seconds: float, lane: str) -> None:
    tab.mouse.click(*tab.evaluate(_AT, [seconds, lane]))


def test_a_live_figure_tells_it_once_the_run_is_over(opened: Callable[..., Any]) -> None:
    run = FakeRun([], Events.from_rows(ROWS), finished=False)
    figure = LiveFigure(run, ("timeline",))
    figure.push()
    live = LivePage(opened(LivePage.PLACE), figure)
    tap(live.tab, 2.0, "island 1 · dev 1")
    live.tab.get_by_text("Why events began is told once the run is over.").wait_for()
    run.finished = True
    figure.push()
    live.update()
    assert not live.tab.locator(".pathways-why").is_visible(), "what was said is no longer so"
    tap(live.tab, 1.0, "island 1 · dev 1")  # two clicks at one place are no two taps
    live.tab.get_by_text("`g` on island 1 waited 4 s for `f` on island 0 (data, inferred)").wait_for()


def test_a_node_of_the_graph_tells_what_it_took(opened: Callable[..., Any]) -> None:
    run = fake_run()
    tab = opened(figure_of(run))
    name = tab.evaluate("""() => {
        const nodes = Bokeh.documents[0].get_model_by_name("graph_nodes")
        const row = nodes.data.kind.indexOf("computation")
        nodes.selected.indices = [row]
        return nodes.data.title[row]
    }""")
    panel = tab.locator(".pathways-why")
    panel.wait_for()
    assert f"`{name}` of " in panel.inner_text()
    assert " of the makespan; " in panel.inner_text()


def test_a_gap_is_asked_and_its_chain_followed(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(FakeRun([], Events.from_rows(ROWS)), ("timeline",)), height=900)
    panel, steps = tab.locator(".pathways-why"), tab.locator(".pathways-why li")
    outlined = "() => Array.from(Bokeh.documents[0].get_model_by_name('timeline_asked').data.left)"
    assert not panel.is_visible()
    tap(tab, 2.0, "island 1 · dev 1")
    steps.first.wait_for()
    first = "`g` on island 1 waited 4 s for `f` on island 0 (data, inferred), of which 1 s was its transfer"
    assert steps.all_inner_texts() == [first]
    assert tab.evaluate(outlined) == [4, 0], "the event, and the gap before it"
    tab.get_by_role("button", name="and why that?").click()
    assert steps.all_inner_texts() == [first, "`f` on island 0 came first"]
    assert tab.evaluate(outlined) == [4, 0, 0]
    assert tab.get_by_role("button", name="and why that?").count() == 0, "nothing was before it"
    tab.get_by_role("button", name="Close").click()
    assert not panel.is_visible()
    assert tab.evaluate(outlined) == []

    tap(tab, 5.5, "island 1 · dev 1")
    steps.first.wait_for()
    assert "`g` of p (compute): 2 times, 2 s in all, 1 s each, 33 % of the makespan" in panel.inner_text()
    slider = tab.get_by_role("slider", name="What if it were faster")
    slider.fill("2")
    assert "if `g` were 4 times as fast: makespan 6 s → 4.5 s, with order and gaps as recorded" in panel.inner_text()
    tap(tab, 5.5, "island 0 · dev 0")
    tab.get_by_text("Nothing runs here any more.").wait_for()
