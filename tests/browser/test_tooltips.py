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
          for (const [label, format] of tool.tooltips.filter(([label]) => label)) {
            const text = replace_placeholders(format, data_source, row, tool.formatters, {index: row}).replaceAll("·", "").trim()
            if (!text || text.includes("???")) found.add(`${label}: ${format}`)
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
