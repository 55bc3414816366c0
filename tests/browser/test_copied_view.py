"""A picture is a link: "copy this view" gives a line or a page that opens with zoom, selection, filter and step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from pathways_nb.bench.lab import LabServer
from pathways_widgets.figures.page import figure_of
from tests.browser.test_lab import open_notebook, run_all, wait_until_done, wait_until_painted
from tests.browser.test_lab_player import _RUN
from tests.core.widgets.fake_run import fake_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
_STATE = """(doc) => {
  const of = (name) => doc.get_model_by_name(name), {x_range, y_range} = of("graph") ?? of("timeline")
  const select = of("timeline").toolbar.tools.find((tool) => tool.type === "BoxSelectTool").overlay
  const marks = of("graph_nodes") ? [...of("graph_nodes").selected.indices] : []
  const zoom = of("graph") ? (x_range.reset_end - x_range.reset_start) / (x_range.end - x_range.start) : 1
  const drawn = of("timeline").renderers.find((one) => one.data_source?.name === "timeline_boxes")
  const kinds = [...new Set([...Object.values(globalThis.pathwaysBokeh ?? {B: globalThis.Bokeh})[0].index.find_one(drawn).all_indices].map((i) => drawn.data_source.data.kind[i]))].sort()
  return {time: [of("timeline_x").start, of("timeline_x").end], marks, zoom, brush: select.visible ? [select.left, select.right] : [], kinds}
}"""
_LAST = f"() => ({_STATE})(Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1))"
_LOOK = """(doc) => {
  const of = (name) => doc.get_model_by_name(name), {x_range, y_range} = of("graph"), middle = x_range.reset_end / 2
  of("timeline_x").setv({start: 0.21, end: 0.34})
  const tall = (y_range.reset_start - y_range.reset_end) / 4
  x_range.setv({start: middle - x_range.reset_end / 4, end: middle + x_range.reset_end / 4})
  y_range.setv({start: y_range.reset_end + 3 * tall, end: y_range.reset_end + tall})
  of("graph_nodes").selected.indices = [2]
}"""


def _copied(page: Page) -> str:
    page.get_by_role("button", name="copy this view").last.click()
    return page.get_by_label("This view").last.input_value()


def test_a_page_links_to_its_view_and_opens_at_it_on_any_width(opened: Callable[..., Any]) -> None:
    item = figure_of(fake_run())
    plain = opened(item)
    assert plain.get_by_role("button", name="copy this view").count() == 0, "a part of a page has no address"
    tab = opened(item | {"at": "time=0.1,0.2"})
    state = f"() => ({_STATE})(Bokeh.documents[0])"
    assert tab.evaluate(state)["time"] == [0.1, 0.2]
    tab.evaluate(f"() => ({_LOOK})(Bokeh.documents[0])")
    tab.get_by_role("button", name="computation").click()
    link, here = _copied(tab), tab.evaluate(state)
    assert "compute" not in here["kinds"]
    assert here["zoom"] == pytest.approx(2)
    address, view = link.split("#")
    assert address == tab.url
    assert view.startswith("time=0.21,0.34&graph=")
    assert view.endswith("hide=computation")
    tab.set_viewport_size({"width": 700, "height": 900})
    other = opened(item | {"at": view}, width=700)
    there = other.evaluate(state)
    assert there == here | {"zoom": pytest.approx(2)}
    assert _copied(other).split("#")[1] == view
    # A filter beside what is hidden, as both were.
    written = urlencode(
        {"filter": json.dumps({"shortest": 0.05}, separators=(",", ":")), "hide": "computation"}, safe=","
    )
    filtered = opened(item | {"at": written})
    left = filtered.evaluate(state)["kinds"]
    assert left
    assert set(left) < set(tab.evaluate(state)["kinds"]), "no short events are left, nor computations"
    assert _copied(filtered).split("#")[1] == written


def test_a_line_from_a_notebook_opens_the_same_view_and_a_page_of_it(
    chromium: Browser, lab: LabServer, tmp_path: Path
) -> None:
    lab.write("view.ipynb", [_RUN, "again = pw.load('two.run')\nagain.show()"])
    page, trouble = open_notebook(chromium, lab, "view.ipynb")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    run_all(page)
    page.get_by_role("button", name="copy this view").wait_for()
    wait_until_done(page)
    wait_until_painted(page)
    whole = page.evaluate(_LAST)["time"]
    span = whole[1] - whole[0]
    looked = [whole[0] + span / 4, whole[0] + span / 2]
    page.evaluate(f"""() => {{
      const of = (name) => Object.values(pathwaysBokeh)[0].documents.at(-1).get_model_by_name(name)
      of("timeline_x").setv({{start: {looked[0]}, end: {looked[1]}}})
      of("graph_nodes").selected.indices = [0]
    }}""")
    page.get_by_role("button", name="ann").last.click()
    line, here = _copied(page), page.evaluate(_LAST)
    assert page.evaluate("() => navigator.clipboard.readText()") == line
    assert page.get_by_text("copied", exact=True).is_visible()
    assert line.startswith('again.show("graph,timeline", at="time=')
    assert line.endswith('&hide=ann")')
    assert here["marks"]
    with page.expect_download() as kept:
        page.get_by_role("button", name="save as a page").click()
    kept.value.save_as(tmp_path / "kept.html")
    alone = chromium.new_context().new_page()
    alone.goto((tmp_path / "kept.html").as_uri())
    alone.wait_for_selector("body[data-drawn]")
    assert (tmp_path / "kept.html").stat().st_size < 1e6
    same = here | {"time": pytest.approx(here["time"], rel=1e-5)}
    assert alone.evaluate(f"() => ({_STATE})(Bokeh.documents[0])") == same

    # The line in a new cell shows the same.
    _run_below(page, line)
    page.wait_for_function("document.querySelectorAll('.pathways-figure').length === 2")
    wait_until_painted(page)
    assert page.evaluate(_LAST) == same
    assert _copied(page) == line
    # A range that was selected is added up again.
    _run_below(page, 'again.show("timeline", at="brush=0.001,0.002")')
    page.get_by_text("1 ms to 2 ms, ").wait_for()
    assert page.evaluate(_LAST)["brush"] == [0.001, 0.002]
    assert _copied(page) == 'again.show("timeline", at="brush=0.001,0.002")'
    # A step opens the player, which gives its step again.
    _run_below(page, 'again.show(at="rule=policy&step=3")')
    page.get_by_text(", 3 of ").wait_for()
    assert _copied(page) == 'again.show(at="step=3&rule=policy")'
    page.locator("button:text-is('▶')").click()
    page.get_by_text(", 4 of ").wait_for()
    assert _copied(page) == 'again.show(at="step=4&rule=policy")'
    assert not trouble


def _run_below(page: Page, code: str) -> None:
    page.evaluate(
        """async (code) => {
          await jupyterapp.commands.execute("notebook:insert-cell-below")
          jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel.setSource(code)
          await jupyterapp.commands.execute("notebook:run-cell")
        }""",
        code,
    )
