"""A run laid over its schedule, drawn by a browser and in the explorer's figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pathways_nb as pw
from pathways_widgets.drawing import palette
from pathways_widgets.explorers.controls_panel import ControlsPanel
from pathways_widgets.schedules.schedule_display import ScheduleFigure
from tests.core.schedules.test_run_over_schedule import late_run, schedule
from tests.core.widgets.unpacking import columns_sent

_PAINTED = """(colours) => {
  const canvas = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name("schedules")).canvas_view.primary.canvas
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
  return colours.map((colour) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16))
    let count = 0
    for (let i = 0; i < data.length; i += 4) count += data[i] === r && data[i + 1] === g && data[i + 2] === b
    return count
  })
}"""
_LEGEND = """() => Bokeh.documents[0].get_model_by_name("schedules_legend0").items
  .filter((item) => item.visible).map((item) => item.label.value)"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_marks_are_painted_and_explained(opened: Callable[..., Any], tmp_path: Path, scheme: str) -> None:
    pictures = pw.compare(late_run(), schedule()).overlay.pictures()
    tab = opened(ScheduleFigure(pictures).json_item_with_data(), height=500, color_scheme=scheme)
    tab.screenshot(path=str(tmp_path / f"overlay-{scheme}.png"))
    painted = tab.evaluate(_PAINTED, [palette.OTHER_ORDER, palette.LATE])
    assert min(painted) > 100, painted
    assert tab.evaluate(_LEGEND) == ["first in another order", "first later than planned"]


def test_a_run_laid_over_its_schedule_is_drawn_in_the_explorer() -> None:
    explorer = pw.explore_schedules("1f1b", "gpipe", devices=2, microbatches=4)
    panel = ControlsPanel(explorer)
    explorer.overlay(late_run())
    assert len(columns_sent(panel.figure, "schedules_first_late")["left"]) == 1
    assert "made (simulated, roofline), in ms" in panel.figure.description
    panel.controls["second_name"].value = "zb-h1"
    assert columns_sent(panel.figure, "schedules_first_late")["left"] == []
