"""Pictures of one cell are linked in the page: a zoom of one is a zoom of all, and the pointer is shown in the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pathways_widgets import figure_of
from pathways_widgets.figures.page import drawing_script
from tests.core.widgets.fake_run import fake_run, memory_run
from tests.support.dragging import drag

pytestmark = pytest.mark.browser
_MOUNT = f"""<script type="module">
{drawing_script()}
window.mounts = [...(window.mounts ?? []), mount]
</script>"""
"""A copy of the script, as each widget has one."""
_CELLS = """async (items) => {
  window.docs = []
  window.ends = []
  for (const [i, [cell, item]] of items.entries()) {
    const id = `cell${cell}`
    let home = document.getElementById(id)
    if (!home) {
      home = Object.assign(document.createElement("div"), {id, className: cell < 0 ? "" : "cell"})
      document.body.append(home)
    }
    const at = document.createElement("div")
    home.append(at)
    const {doc, dispose} = await mounts[i % 2](Bokeh, item, at)
    docs.push(doc)
    ends.push(dispose)
  }
}"""
"""Script: mount by turns, by both copies, each item in the cell with its number, or below none if that is negative."""
_RANGES = "() => docs.map((doc) => { const {start, end} = doc.get_model_by_name('timeline_x'); return [start, end] })"
_PLACE = """(number) => {
  const view = Bokeh.index.find_one(docs[number].get_model_by_name("timeline"))
  view.canvas_view.el.scrollIntoView({block: "center"})
  const {x, y} = view.canvas_view.el.getBoundingClientRect(), {left, top, width, height} = view.frame.bbox
  return [x + left + width / 2, y + top + height / 2, width]
}"""
_LINES = """() => docs.map((doc) => ["timeline", "memory"].map((name) => {
  const figure = doc.get_model_by_name(name), view = figure && Bokeh.index.find_one(figure)
  const line = view && view.shadow_el.querySelector(".pathways-pointed")
  return line && line.style.display === "block" ? view.frame.x_scale.invert(parseFloat(line.style.left)) : null
}))"""


@pytest.fixture
def cells(opened: Callable[..., Any]) -> Any:
    """A tab with two pictures in a cell, of which the second has its memory as well, one in another, and one in none."""
    tab = opened("<p>a page</p>", _MOUNT, _MOUNT)
    items = [(0, fake_run(), ("timeline",)), (0, memory_run(), ("timeline", "memory"))]
    items += [(1, fake_run(), ("timeline",)), (-1, fake_run(), ("timeline",))]
    tab.evaluate(_CELLS, [(cell, figure_of(run, show)) for cell, run, show in items])
    tab.wait_for_function("docs.every((one) => one.is_idle)")
    return tab


def test_a_pan_moves_all_pictures_of_the_cell_and_no_other_and_reset_brings_them_home(cells: Any) -> None:
    before = cells.evaluate(_RANGES)
    x, y, _ = cells.evaluate(_PLACE, 0)
    drag(cells, (x, y), (x - 150, y))
    cells.wait_for_function(f"() => ({_RANGES})()[0][0] !== {before[0][0]}")
    after = cells.evaluate(_RANGES)
    assert after[0] == pytest.approx(after[1])
    assert after[0][0] > before[0][0]
    assert after[2:] == before[2:]
    cells.evaluate("() => Bokeh.index.find_one(docs[0].get_model_by_name('timeline')).reset()")
    cells.wait_for_function(f"() => Math.abs(({_RANGES})()[1][0] - {before[1][0]}) < 1e-9")
    assert cells.evaluate(_RANGES) == [pytest.approx(one) for one in before]


def test_the_pointer_is_a_line_at_the_same_time_in_the_other_pictures_of_the_cell(cells: Any) -> None:
    x, y, width = cells.evaluate(_PLACE, 0)
    start, end = cells.evaluate(_RANGES)[0]
    cells.mouse.move(x - 5, y)
    cells.mouse.move(x, y)
    time = (start + end) / 2
    near = 2 * (end - start) / width
    cells.wait_for_function(f"() => Math.abs(({_LINES})()[1][0] - {time}) < {near}")
    lines = cells.evaluate(_LINES)
    assert lines[1] == [pytest.approx(time, abs=near)] * 2, "in the timeline and below it in the memory"
    assert [lines[0][0], lines[2][0], lines[3][0]] == [None] * 3
    cells.mouse.move(2, 2)
    cells.wait_for_function(f"() => ({_LINES})()[1][0] === null")


def test_a_picture_that_is_gone_is_linked_no_longer(cells: Any) -> None:
    before = cells.evaluate(_RANGES)
    cells.evaluate("() => ends[1]()")
    x, y, _ = cells.evaluate(_PLACE, 0)
    drag(cells, (x, y), (x - 150, y))
    cells.wait_for_function(f"() => ({_RANGES})()[0][0] !== {before[0][0]}")
    assert cells.evaluate(_RANGES)[1] == before[1]
