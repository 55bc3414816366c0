"""The panel of the explorer of sharded steps: set from here or from Python, figure and tables follow, nothing is lost."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import pytest

from pathways_nb.errors import size
from pathways_nb.parallel.fsdp.step_explorer import FsdpExplorer
from pathways_nb.parallel.fsdp.variants import Variants
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Rect, Text
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.style import current
from pathways_widgets.explorers.controls_panel import ControlsPanel
from pathways_widgets.explorers.step_columns import STALL, columns_of
from pathways_widgets.explorers.step_memory_columns import CATEGORIES
from pathways_widgets.figures import output
from tests.core.widgets.unpacking import columns_sent
from tests.jax.fsdp.test_step_explorer import NETWORK, made


@pytest.fixture(scope="module")
def variants() -> Variants:
    return Variants(made(), chip="gpu_h100_sxm")


@pytest.fixture
def explorer(variants: Variants) -> FsdpExplorer:
    return FsdpExplorer(variants, **NETWORK)


@pytest.fixture
def panel(explorer: FsdpExplorer) -> ControlsPanel:
    return ControlsPanel(explorer)


def sent(panel: ControlsPanel, name: str) -> dict[str, list[Any]]:
    return columns_sent(panel.figure, f"step_{name}")


def test_every_choice_has_a_control_with_a_hint(panel: ControlsPanel) -> None:
    assert tuple(panel.controls) == panel.explorer.choices
    assert all(control.tooltip for control in panel.controls.values())
    placed = [control for row in panel.children for control in (row, *getattr(row, "children", ()))]
    assert all(control in placed for control in panel.controls.values())


@pytest.mark.parametrize(
    ("choice", "value", "sources"),
    [
        ("mode", "zero2", ("boxes", "memory", "headings")),
        ("wrapping", "per parameter", ("band", "boxes", "memory", "headings")),
        ("prefetch", 3, ("boxes", "headings")),
        ("keep", True, ("boxes", "memory", "headings")),
        ("three_streams", True, ("boxes", "lane_names", "headings")),
        ("devices", 64, ("boxes", "memory", "headings")),
        ("chip", "tpu_v5p", ("boxes", "headings")),
        ("bandwidth", "100", ("boxes", "memory", "headings")),
        ("latency", "", ("boxes", "headings")),
        ("memory", "1", ("headings",)),
        ("buckets", "layers; embedding; head, norm", ("band", "labels", "boxes", "memory", "headings")),
    ],
)
def test_a_control_that_is_set_changes_what_is_sent(
    panel: ControlsPanel, choice: str, value: Any, sources: tuple[str, ...]
) -> None:
    before = {name: sent(panel, name) for name in sources}
    panel.controls[choice].value = value
    assert all(sent(panel, name) != before[name] for name in sources)
    assert panel.figure.description == repr(panel.explorer)


def test_numbers_are_shown_in_their_units(explorer: FsdpExplorer, panel: ControlsPanel) -> None:
    assert [panel.controls[name].value for name in ("bandwidth", "latency", "memory")] == ["20", "40", ""]
    panel.controls["memory"].value = "64"
    assert explorer.memory == 64e9
    explorer.bandwidth = 50e9
    assert panel.controls["bandwidth"].value == "50"
    panel.controls["latency"].value = "long"
    assert "latency, µs: 'long' is no number" in panel.refusals["machine"].value
    assert panel.controls["latency"].value == "40"


def test_the_field_of_buckets_follows_the_plan_and_takes_the_users_own(
    explorer: FsdpExplorer, panel: ControlsPanel
) -> None:
    field = panel.controls["buckets"]
    assert field.value == "embedding\nhead\nlayers.*\nnorm"
    explorer.wrapping = "per parameter"
    assert "layers.*.gate" in field.value
    assert explorer.wrapping == "per parameter", "showing a plan is no choice of the user"
    field.value = "layers.*\nembedding, norm, head"
    assert panel.controls["wrapping"].value == "own"
    assert len(explorer.plan.buckets) == 4


def test_boxes_are_the_spans_and_the_stalls_of_the_timeline(explorer: FsdpExplorer, panel: ControlsPanel) -> None:
    boxes, found = sent(panel, "boxes"), explorer.timeline
    assert len(boxes["left"]) == len(found.spans) + len(found.stalls)
    lane = np.floor(boxes["top"]).astype(int)
    for number in range(len(explorer.picture.lanes)):
        mine = sorted(
            zip(np.array(boxes["left"])[lane == number], np.array(boxes["right"])[lane == number], strict=True)
        )
        assert all(one[1] <= two[0] + 1e-15 for one, two in zip(mine, mine[1:], strict=False)), "one thing at a time"
    waits = [one for one in zip(boxes["kind"], boxes["colour"], boxes["words"], strict=True) if one[0] == "stall"]
    assert {colour for _, colour, _ in waits} == {STALL}
    assert any(words.startswith("waits for the all-gather of ") for *_, words in waits)
    kinds = dict(zip(zip(boxes["left"], boxes["top"], strict=True), boxes["kind"], strict=True))
    over = sent(panel, "hatched")
    where = zip(over["left"], over["top"], over["hatch"], strict=True)
    marked = {(kinds[left, top], hatch) for left, top, hatch in where}
    assert marked == {("stall", palette.HATCHES["level"]), ("reduce-scatter", palette.HATCHES["upright"])}


def test_a_parameter_has_the_colour_of_its_bucket_on_the_lanes_too(
    explorer: FsdpExplorer, panel: ControlsPanel
) -> None:
    band, boxes = sent(panel, "band"), sent(panel, "boxes")
    colours = dict(zip(band["name"], band["colour"], strict=True))
    gathers = dict(zip(boxes["words"], boxes["colour"], strict=True))
    assert gathers["layers.1"] == colours["layers.1.gate"]
    assert gathers["embedding"] == colours["embedding"]
    assert band["left"][0] == 0.0
    assert band["right"][-1] == pytest.approx(1.0)
    assert np.diff([band["left"], band["right"]], axis=0).min() * 740 > 1.0, "the smallest parameter is seen"


def test_levels_of_memory_reach_the_peak(explorer: FsdpExplorer, panel: ControlsPanel) -> None:
    memory, peak = sent(panel, "memory"), sent(panel, "peak")
    assert max(memory["bytes"]) == explorer.timeline.memory.peak
    stacked = np.array([memory[name] for name in ("base", *CATEGORIES)])
    assert (np.diff(stacked, axis=0) >= 0).all()
    held = sum(np.array(memory[f"{name}_held"]) for name in CATEGORIES)
    np.testing.assert_allclose(held, memory["bytes"])
    assert stacked[-1].max() == pytest.approx(peak["y"][0])
    explorer.memory = 1.2 * explorer.timeline.memory.peak
    assert len(sent(panel, "limit")["y"]) == 1


def test_long_steps_are_drawn_in_few_steps_that_keep_the_peak(explorer: FsdpExplorer) -> None:
    explorer.wrapping = "per parameter"
    sources, _ = columns_of(explorer.picture, 740, current())
    assert len(explorer.picture.times) > 370 >= len(sources["step_memory"]["left"])
    assert sources["step_memory"]["bytes"].max() == explorer.timeline.memory.peak


def tables(panel: ControlsPanel) -> ipywidgets.Accordion:
    (found,) = (one for one in panel.children if isinstance(one, ipywidgets.Accordion))
    return found


def test_a_plan_is_kept_beside_others(explorer: FsdpExplorer, panel: ControlsPanel) -> None:
    keep = next(one for one in panel.children[-1].children if getattr(one, "description", "") == "keep beside")
    plans = []
    for wrapping in ("per block", "per parameter"):
        panel.controls["wrapping"].value = wrapping
        plans.append(explorer.plan)
        keep.click()
    keep.click()
    assert list(explorer.kept_plans.values()) == plans, "each once"
    assert tables(panel).titles[-1] == "2 plans kept beside this one"
    shown = tables(panel).children[-1].value
    for words in explorer.kept_plans:
        assert escape(words) in shown
    assert shown.count("exposed") == 2


def test_too_much_memory_is_marked(explorer: FsdpExplorer) -> None:
    assert "⚠" not in repr(explorer)
    explorer.memory = explorer.timeline.memory.peak - 1000
    assert f"of {size(explorer.memory)}, ⚠ TOO MUCH" in explorer.picture.headings[2]
    drawing = explorer.make_drawing()
    drawing.update(explorer.picture)
    assert drawing.sources["step_peak"]["text"] == [
        f"peak {size(explorer.timeline.memory.peak)}, ⚠ 1 KB more than a device has"
    ]


def test_tables_list_collectives_and_schedules(explorer: FsdpExplorer, panel: ControlsPanel) -> None:
    collectives, schedules, _ = (table.value for table in tables(panel).children)
    assert tables(panel).titles[0] == f"{len(explorer.collectives)} collectives"
    assert collectives.count("\n") == len(explorer.collectives)
    assert "reduce-scatter" in collectives
    assert "regather" in schedules
    explorer.mode = "ddp"
    assert "all-reduce" in tables(panel).children[0].value
    assert "regather" not in tables(panel).children[1].value


def test_an_error_takes_the_place_of_the_pictures(explorer: FsdpExplorer, panel: ControlsPanel) -> None:
    panel.controls["buckets"].value = "layers.*"
    assert sent(panel, "band")["left"] == sent(panel, "boxes")["left"] == sent(panel, "memory")["left"] == []
    assert " ".join(sent(panel, "headings")["text"]) == explorer.picture.error
    assert not panel.figure.drawing.properties["step_lanes"]["visible"]
    panel.controls["wrapping"].value = "per block"
    assert len(sent(panel, "band")["left"]) == len(made().parameters)


def button(panel: ControlsPanel, name: str) -> ipywidgets.Button:
    (found,) = (one for one in panel.children[-1].children if getattr(one, "description", "") == name)
    return found


def test_buttons_search_and_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, explorer: FsdpExplorer, panel: ControlsPanel
) -> None:
    monkeypatch.chdir(tmp_path)
    button(panel, "search").click()
    assert (explorer.searches, explorer.wrapping, button(panel, "search").disabled) == (1, "searched", False)
    assert panel.controls["prefetch"].value == explorer.plan.prefetch
    button(panel, "save").click()
    assert panel.message.value == "wrote plan.json"
    button(panel, "SVG").click()
    assert "searched: " in (tmp_path / "plan.svg").read_text()
    explorer.buckets = "layers.*"
    button(panel, "save").click()
    assert "parameter embedding and 2 more of the model is in no bucket" in panel.message.value


@pytest.mark.parametrize("wrapping", ["per block", "per parameter", "greedy"])
def test_text_of_the_still_picture_stays_on_the_page(explorer: FsdpExplorer, wrapping: str) -> None:
    explorer.wrapping = wrapping
    scene = explorer.scene(700)
    starts = [one for one in scene.shapes if isinstance(one, Text) and one.align == "start"]
    assert all(one.x + text_width(one.text, one.size) <= scene.width for one in starts)
    assert all(one.y <= scene.height for one in scene.shapes if isinstance(one, Text))
    words = [one.text for one in scene.shapes if isinstance(one, Text)]
    assert {"compute", "collectives", "activations", "pace"} <= set(words)
    drawn = [one for one in scene.shapes if isinstance(one, Rect) and one.fill in palette.DEVICES]
    assert len(drawn) > len(explorer.picture.names)


def test_a_page_without_a_kernel_gets_the_figure_with_its_data(
    monkeypatch: pytest.MonkeyPatch, explorer: FsdpExplorer
) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(output, "display", lambda bundle, **_: shown.append(bundle))
    ControlsPanel(explorer).display()
    assert all(output.ITEM_TYPE not in bundle for bundle in shown)
    assert "image/png" in shown[-1]
    assert all(bundle.get("text/plain", repr(explorer)) == repr(explorer) for bundle in shown)
    shown.clear()
    monkeypatch.setenv("PATHWAYS_EMBED_FIGURES", "1")
    ControlsPanel(explorer).display()
    assert "layers.1" in json.dumps(shown[0][output.ITEM_TYPE])
