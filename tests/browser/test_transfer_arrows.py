"""Arrows of transfers in a browser: read by the pointer, hidden by their legend and by a filter, and in the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pathways_nb.cost.model import CostModel
from pathways_widgets import figure_of
from tests.core.widgets.test_transfer_columns import moving_run

pytestmark = pytest.mark.browser
_HEAD = """() => {
    const doc = Bokeh.documents[0], view = Bokeh.index.find_one(doc.get_model_by_name("timeline"))
    const {data} = doc.get_model_by_name("timeline_arrows"), box = view.canvas_view.el.getBoundingClientRect()
    return [box.x + view.frame.x_scale.compute(data.x1[0]), box.y + view.frame.y_scale.compute(data.y1[0])]
}"""
_DRAWN = """() => {
    const {renderers} = Bokeh.documents[0].get_model_by_name("timeline")
    return renderers.filter(({data_source: {name}}) => name === "timeline_arrows").map(({visible, view}) => visible ? [...view.indices].length : 0)
}"""


def test_an_arrow_tells_achieved_beside_modelled_bandwidth(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(replace(moving_run(), link_model=CostModel.of("tpu_v3")), ("timeline",)))
    x, y = tab.evaluate(_HEAD)
    tab.mouse.move(x - 30, y)
    tab.mouse.move(x - 2, y)
    tip = tab.locator(".bk-Tooltip").filter(has_text="f on island 0").first
    tip.wait_for()
    text = tip.evaluate("(element) => (element.shadowRoot ?? element).textContent")
    for part in ("f → right", "from: f on island 0", "g on island 1", "moves: 8.0 MB", "achieved: 4.0 MB/s", "modelled: 22.5 GB/s"):  # fmt: skip
        assert part in text
    assert tab.evaluate(_DRAWN) == [2, 2]
    tab.get_by_role("button", name="from producer to consumer").click()
    assert tab.evaluate(_DRAWN) == [0, 0]
    tab.get_by_role("button", name="from producer to consumer").click()
    tab.get_by_role("button", name="transfer").click()
    assert tab.evaluate(_DRAWN) == [0, 0], "with its box an arrow is hidden"
    tab.get_by_role("button", name="transfer").click()
    tab.get_by_text("as a table").click()
    tab.get_by_role("cell", name="g on island 1").first.wait_for()
