"""The controls of an explorer as marimo shows them: one state, set from both sides."""

from __future__ import annotations

import json
from typing import Any

import pytest

import pathways_nb as pw
from pathways_widgets.explorers.controls_panel import ControlsPanel
from pathways_widgets.explorers.mirrored_controls import MirroredControls


@pytest.fixture
def panel() -> ControlsPanel:
    """The panel of an explorer with menus, numbers, a slider of steps and buttons."""
    return ControlsPanel(pw.explore_schedules(devices=4, microbatches=8))


def leaves(tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All controls, those in boxes too."""
    return [found for one in tree for found in (one, *leaves(one["inside"]))]


def test_what_either_side_sets_is_shown_on_the_other(panel: ControlsPanel) -> None:
    mirror = MirroredControls([one for one in panel.children if one is not panel.figure], {panel.play: panel.slider})
    number = {one["description"]: one["number"] for one in leaves(json.loads(mirror._tree))}
    kinds = {one["kind"] for one in leaves(json.loads(mirror._tree))}
    assert {"menu", "number", "slider", "button", "play", "text", "row"} <= kinds

    def shown(name: str) -> Any:
        return json.loads(mirror._states)[number[name]]["value"]

    assert shown("devices") == 4
    panel.explorer.devices = 6
    assert shown("devices") == 6
    mirror._sent = [number["devices"], 3, 1]
    assert panel.explorer.devices == 3
    menu = json.loads(mirror._states)[number["above"]]
    mirror._sent = [number["above"], menu["options"].index("zb-h1"), 2]
    assert json.loads(mirror._states)[number["above"]]["value"] == menu["options"].index("zb-h1")
    mirror._sent = [number["▶"], 0, 3]
    mirror._sent = [number["▶"], 0, 4]
    assert panel.slider.value == shown("step") == 2
    play = next(one["number"] for one in leaves(json.loads(mirror._tree)) if one["kind"] == "play")
    mirror._sent = [play, 5, 5]
    assert panel.slider.value == 5
