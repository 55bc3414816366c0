"""The controls of the token-slice explorer: set from here or from Python, the figure follows, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.parallel.terapipe.token_explorer import TokenExplorer
from pathways_widgets.explorers.controls_panel import ControlsPanel
from pathways_widgets.explorers.token_columns import WAITS
from tests.core.widgets.unpacking import columns_sent

CHOICES = ["stages", "length", "batch", "granularity", "uniform", "floor", "fixed", "per_token", "per_pair"]


@pytest.fixture
def explorer() -> TokenExplorer:
    return pw.terapipe.explore()


@pytest.fixture
def panel(explorer: TokenExplorer) -> ControlsPanel:
    return ControlsPanel(explorer)


def sent(panel: ControlsPanel, name: str) -> dict[str, list[Any]]:
    return columns_sent(panel.figure, f"tokens_{name}")


def test_every_choice_has_a_control(panel: ControlsPanel) -> None:
    assert list(panel.controls) == CHOICES
    placed = [control for row in panel.children for control in getattr(row, "children", ())]
    assert all(control in placed for control in panel.controls.values())
    typed = [one for one in panel.controls.values() if isinstance(one, ipywidgets.IntText)]
    assert [one.continuous_update for one in typed] == [False] * 5, "a number counts when it is complete"


def test_a_cost_of_the_user_has_no_sliders() -> None:
    panel = ControlsPanel(pw.terapipe.explore(lambda b, l, c: 1.0 * l, length=64))  # noqa: E741  the paper's letters
    assert list(panel.controls) == CHOICES[:5]


def test_a_control_moved_changes_boxes_surface_and_bars(explorer: TokenExplorer, panel: ControlsPanel) -> None:
    before = {name: sent(panel, name) for name in ("boxes", "surface", "bars", "best")}
    panel.controls["length"].value = 4096
    after = {name: sent(panel, name) for name in before}
    assert all(before[name] != after[name] for name in before)
    slices = explorer.planned.token_slices
    assert after["boxes"]["tokens"][: len(slices)] == list(slices)
    assert after["bars"]["latency"][0] == pytest.approx(explorer.planned.latency, rel=1e-12)
    assert panel.figure.description.startswith(f"optimum, {len(slices)} slices")


def test_constants_are_shown_in_their_units(explorer: TokenExplorer, panel: ControlsPanel) -> None:
    shown = {name: panel.controls[name].value for name in CHOICES[5:]}
    assert shown == pytest.approx({"floor": 9.75, "fixed": 6.0, "per_token": 43.1, "per_pair": 1.17})
    panel.controls["per_token"].value = 100.0
    assert explorer.per_token == pytest.approx(1e-4)
    explorer.floor = 0.1
    assert panel.controls["floor"].value == pytest.approx(100.0)
    assert panel.controls["floor"].max == pytest.approx(100.0), "it grows"


def test_a_slider_that_the_browser_rounds_changes_no_constant(explorer: TokenExplorer, panel: ControlsPanel) -> None:
    explorer.per_pair = 1.23456e-9
    slider = panel.controls["per_pair"]
    slider.value = round(slider.value / slider.step) * slider.step
    assert explorer.per_pair == 1.23456e-9


def test_one_box_of_each_row_is_the_slowest(explorer: TokenExplorer, panel: ControlsPanel) -> None:
    boxes = sent(panel, "boxes")
    colours = np.array(boxes["colour"])
    for row, top in zip(explorer.picture.rows, sorted(set(boxes["top"])), strict=True):
        mine = colours[np.array(boxes["top"]) == top]
        (slowest,) = np.flatnonzero(mine == WAITS)
        assert row.seconds[slowest] == row.seconds.max()


def test_an_error_takes_the_place_of_the_pictures(explorer: TokenExplorer, panel: ControlsPanel) -> None:
    panel.controls["length"].value = 2047
    assert sent(panel, "boxes")["tokens"] == sent(panel, "bars")["x"] == []
    assert " ".join(sent(panel, "headings")["text"]) == explorer.picture.error
    panel.controls["length"].value = 2048
    assert len(sent(panel, "boxes")["tokens"]) == 48


def test_the_button_writes_what_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, panel: ControlsPanel) -> None:
    monkeypatch.chdir(tmp_path)
    (button,) = (one for one in panel.children[-1].children if isinstance(one, ipywidgets.Button))
    button.click()
    assert "47 × max" in (tmp_path / "token_slices.svg").read_text()
    assert panel.message.value == "wrote token_slices.svg"


def test_still_and_live_draw_the_same_slices(explorer: TokenExplorer, panel: ControlsPanel) -> None:
    words = [shape.text for shape in explorer.scene().shapes if hasattr(shape, "text")]
    live = [text for text in sent(panel, "boxes")["text"] if text]
    assert [word for word in words if word in ("88", "80", "128", "256")][: len(live)] == live
    assert [word for word in words if word.startswith(("optimum,", "best uniform,", "yours, "))] == [
        row.heading for row in explorer.picture.rows
    ]
