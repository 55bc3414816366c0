"""Tooltips in a browser: one at a time, and without rows that say nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pathways_nb.cost.model import CostModel
from pathways_widgets import figure_of
from tests.browser.test_transfer_arrows import _HEAD
from tests.core.widgets.fake_run import FakeRun, fake_run
from tests.core.widgets.test_event_filter import filtered_run
from tests.core.widgets.test_merged_events import dense_run
from tests.core.widgets.test_transfer_columns import moving_run

pytestmark = pytest.mark.browser
_EMPTY = """() => {
  const {replace_placeholders} = Bokeh.require("core/util/templating"), found = new Set()
  let told = 0
  for (const figure of Bokeh.documents[0].roots().flatMap((root) => [...root.references()]).filter(({type}) => type === "Figure"))
    for (const tool of figure.toolbar.tools.filter(({type}) => type === "HoverTool"))
      for (const {data_source, view} of tool.renderers)
        for (const row of [...view.indices].slice(0, 300)) {
          told += 1
          for (const [label, format] of tool.tooltips) {
            const text = replace_placeholders(format, data_source, row, tool.formatters, {index: row}).replaceAll("·", "").trim()
            if (text ? text.includes("???") || text.includes("NaN") : label) found.add(`${label}: ${format}`)
          }
        }
  return {told, empty: [...found]}
}"""


@pytest.mark.parametrize("run", [fake_run(), filtered_run(), dense_run(("estimated",), 5), moving_run()], ids=["pipeline", "kinds", "dense", "moves"])  # fmt: skip
def test_no_row_of_a_tooltip_is_empty(opened: Callable[..., Any], run: FakeRun) -> None:
    views = ("graph", "timeline", "memory") if run.programs else ("timeline", "memory")
    found = opened(figure_of(run, views)).evaluate(_EMPTY)
    assert found["told"] > 0
    assert found["empty"] == []


def test_where_marks_lie_over_each_other_one_is_told(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(replace(moving_run(), link_model=CostModel.of("tpu_v3")), ("timeline",)))
    x, y = tab.evaluate(_HEAD)
    tab.mouse.move(x + 40, y)
    tab.locator(".bk-Tooltip").filter(has_text="compute").first.wait_for()
    tab.mouse.move(x + 3, y)  # the head of an arrow over the box that it leads to
    tab.locator(".bk-Tooltip").filter(has_text="f on island 0").first.wait_for()
    assert tab.locator(".bk-Tooltip:visible").count() == 1
    tab.mouse.move(x + 40, y)
    tab.locator(".bk-Tooltip").filter(has_text="compute").first.wait_for()
    assert tab.locator(".bk-Tooltip:visible").count() == 1


_BOXES = """(name) => {
  const doc = Bokeh.documents[0], figure = doc.get_model_by_name(name === "graph_nodes" ? "graph" : "timeline"), view = Bokeh.index.find_one(figure)
  const {data} = doc.get_model_by_name(name), page = view.canvas_view.el.getBoundingClientRect(), {x_scale, y_scale} = view.frame
  const sides = (i) => name === "graph_nodes"
    ? [data.x[i] - data.width[i] / 2, data.x[i] + data.width[i] / 2, data.y[i] - data.height[i] / 2, data.y[i] + data.height[i] / 2]
    : [data.left[i], data.right[i], data.top[i], data.bottom[i]]
  return Array.from(data.name, (_, i) => i).map(sides).map(([left, right, top, bottom]) =>
    [page.x + x_scale.compute(left), page.x + x_scale.compute(right), page.y + y_scale.compute(top), page.y + y_scale.compute(bottom)])
}"""


@pytest.mark.parametrize("width", [700, 1300])
def test_a_tooltip_covers_no_other_box_of_its_picture(opened: Callable[..., Any], width: int) -> None:
    tab = opened(figure_of(fake_run()), width=width, height=1000)
    for name, rows in (("graph_nodes", (0, 2, 3, 6)), ("timeline_boxes", (5, 12, 25, 40))):
        boxes = tab.evaluate(_BOXES, name)
        for row in rows:
            left, right, top, bottom = boxes[row]
            tab.mouse.move((left + right) / 2 - 1, (top + bottom) / 2)
            tab.mouse.move((left + right) / 2, (top + bottom) / 2)
            tip = tab.locator(".bk-Tooltip:visible")
            tip.wait_for()
            at = tip.bounding_box()
            covered = [
                i
                for i, (x0, x1, y0, y1) in enumerate(boxes)
                if i != row
                and x0 < at["x"] + at["width"]
                and at["x"] < x1
                and y0 < at["y"] + at["height"]
                and at["y"] < y1
            ]
            assert covered == [], f"{name} {row} at {width} pixels"
            assert at["y"] >= 0
            assert at["y"] + at["height"] <= 1000
