"""Arrows of transfers in a browser: read by the pointer, hidden by their legend and by a filter, and in the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pathways_nb.cost.model import CostModel
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Row
from pathways_widgets import figure_of
from tests.core.widgets.fake_run import FakeRun
from tests.core.widgets.test_transfer_columns import MADE, MOVED, READ, moving_run

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


def told_at_head(tab: Any, words: str) -> str:
    """What the tooltip with some words says at the head of the first arrow."""
    x, y = tab.evaluate(_HEAD)
    tab.mouse.move(x - 30, y)
    tab.mouse.move(x - 2, y)
    tip = tab.locator(".bk-Tooltip").filter(has_text=words).first
    tip.wait_for()
    return str(tip.evaluate("(element) => (element.shadowRoot ?? element).textContent"))


def test_an_arrow_tells_achieved_beside_modelled_bandwidth(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(replace(moving_run(), link_model=CostModel.of("tpu_v3")), ("timeline",)))
    text = told_at_head(tab, "f on island 0")
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


_SHOWN = """() => {
    const doc = Bokeh.documents[0], {data} = doc.get_model_by_name("timeline_arrows")
    const {view} = doc.get_model_by_name("timeline").renderers.find(({name}) => name === "timeline_arrow_heads")
    return [...view.indices].map((i) => data.x1[i])
}"""


def test_of_many_arrows_the_longest_in_sight_are_shown_or_those_of_a_tapped_box(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(moving_run(calls=40), ("timeline",)))
    tab.get_by_role(
        "button", name="from producer to consumer: the 12 longest; point at a box, or tap it, for its own"
    ).wait_for()
    see = "(ends) => Bokeh.documents[0].get_model_by_name('timeline_x').setv({start: ends[0], end: ends[1]})"
    tab.evaluate(see, [0, 400])
    assert len(tab.evaluate(_SHOWN)) == 12
    tab.evaluate(see, [100, 119])
    shown = tab.evaluate(_SHOWN)
    assert sorted(shown) == [101, 104, 111, 114], "all that are in sight"
    select = "(rows) => { Bokeh.documents[0].get_model_by_name('timeline_boxes').selected.indices = rows }"
    name = "(i) => Bokeh.documents[0].get_model_by_name('timeline_boxes').data.name[i]"
    row = next(i for i in range(200) if tab.evaluate(name, i) == "g")
    tab.evaluate(select, [row])
    assert len(tab.evaluate(_SHOWN)) == 40, "those of a node, whenever it ran"
    tab.evaluate(select, [])
    assert tab.evaluate(_SHOWN) == shown


_CENTRE = """(wanted) => {
    const doc = Bokeh.documents[0], view = Bokeh.index.find_one(doc.get_model_by_name("timeline"))
    const {data} = doc.get_model_by_name("timeline_boxes"), box = view.canvas_view.el.getBoundingClientRect()
    const row = Array.from(data.name).findIndex((name, i) => name === wanted.name && data.left[i] === wanted.left)
    const middle = (one, other) => (data[one][row] + data[other][row]) / 2
    return [box.x + view.frame.x_scale.compute(middle("left", "right")), box.y + view.frame.y_scale.compute(middle("top", "bottom"))]
}"""


def test_the_box_under_the_pointer_shows_its_arrows_beside_the_longest(opened: Callable[..., Any]) -> None:
    tab = opened(figure_of(moving_run(calls=40), ("timeline",)))
    tab.evaluate("() => Bokeh.documents[0].get_model_by_name('timeline_x').setv({start: 0, end: 200})")
    longest = tab.evaluate(_SHOWN)
    other = next(start for start in range(4, 200, 10) if start not in longest)
    x, y = tab.evaluate(_CENTRE, {"name": "g", "left": other})
    tab.mouse.move(x - 40, y + 60)
    tab.mouse.move(x, y)
    tab.wait_for_function(f"({_SHOWN})().length > 12")
    assert set(tab.evaluate(_SHOWN)) - set(longest) == {other}
    tab.mouse.move(2, 2)
    tab.wait_for_function(f"({_SHOWN})().length === 12")
    assert tab.evaluate(_SHOWN) == longest


def test_transfers_that_end_at_one_place_are_all_told(opened: Callable[..., Any]) -> None:
    two = [replace(MOVED, name=f"part {i}") for i in range(2)]
    rows = [Row(MADE, 1, 2, 0, "exact"), *(Row(one, 2, 3, 0, "exact") for one in two), Row(READ, 4, 5, 0, "exact")]
    tab = opened(figure_of(FakeRun([], Events.from_rows(rows)), ("timeline",)))
    text = told_at_head(tab, "part 0")
    assert "part 0" in text
    assert "part 1" in text
