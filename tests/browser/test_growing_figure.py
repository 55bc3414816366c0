"""A live figure that grows, without a kernel: what its page says of it follows, and then nothing moves any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pathways_widgets import LiveFigure
from tests.core.widgets.fake_run import memory_run
from tests.support.live_page import LivePage

pytestmark = pytest.mark.browser
_PAINTS = """async () => {
  let count = 0
  const counted = () => { count += 1 }
  const plots = [...Bokeh.index.query((view) => "repainted" in view)]
  for (const plot of plots) plot.repainted.connect(counted)
  for (let frame = 0; frame < 30; frame++) await new Promise(requestAnimationFrame)
  for (const plot of plots) plot.repainted.disconnect(counted)
  return [plots.length, count]
}"""
_LEGEND = """() => {
  let row = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name("memory")).el
  while (row.ariaLabel !== "Legend") row = row.previousElementSibling
  return Array.from(row.children, (entry) => entry.textContent)
}"""


@pytest.mark.parametrize("width", [700, 1300])
def test_a_figure_that_grows_is_at_rest_between_two_updates(opened: Callable[..., Any], width: int) -> None:
    run = memory_run()
    run.shown, run.finished = 0, False
    figure = LiveFigure(run, ("timeline", "memory"))
    figure.push()
    live = LivePage(opened(LivePage.PLACE, width=width), figure)
    # Before anything ran on a device, in the folded part, before there are levels of memory, and with levels.
    for run.shown in (3, 6, 30, 70, None):
        figure.push()
        live.update()
        # Layout that changed what it follows would paint at each frame, and take all of the page's time.
        assert live.tab.evaluate(_PAINTS) == [2, 0]
    assert live.tab.evaluate(_LEGEND) == ["bob", "me", "budget of a device"]
