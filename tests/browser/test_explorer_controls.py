"""The explorer's controls without a browser: set from here or from there, nothing is lost, and the figure follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import pathways_nb as pw
from pathways_nb.parallel.schedules import registry
from pathways_nb.parallel.schedules.picture import SchedulePicture
from pathways_widgets.explorers import controls_panel as panel_module
from pathways_widgets.explorers.controls_panel import ControlsPanel
from pathways_widgets.figures import output
from pathways_widgets.schedules.schedule_display import ScheduleFigure
from tests.core.widgets.unpacking import columns_sent
from tests.support.notebook import Notebook

CELL_FIVE = (
    'pw.compare(pw.schedule("gpipe", devices=4, microbatches=8), pw.schedule("1f1b", devices=4, microbatches=8)).show()'
)


@pytest.fixture
def explorer() -> pw.ScheduleExplorer:
    return pw.explore_schedules()


@pytest.fixture
def panel(explorer: pw.ScheduleExplorer) -> ControlsPanel:
    return ControlsPanel(explorer)


def boxes(panel: ControlsPanel) -> dict[str, list[Any]]:
    return columns_sent(panel.figure, "schedules_boxes")


def test_every_choice_has_a_control(panel: ControlsPanel) -> None:
    assert tuple(panel.controls) == panel.explorer.choices
    assert panel.controls["first_name"].options == tuple(pw.schedules())
    placed = [control for row in panel.children for control in getattr(row, "children", ())]
    assert all(control in placed for control in panel.controls.values())
    typed = [one for one in panel.controls.values() if not isinstance(one, ipywidgets.Dropdown)]
    assert not any(one.continuous_update for one in typed), "a number counts when it is complete"


def test_a_control_moved_changes_both_pictures(explorer: pw.ScheduleExplorer, panel: ControlsPanel) -> None:
    before = boxes(panel)
    panel.controls["microbatches"].value = 12
    assert explorer.microbatches == 12
    after = boxes(panel)
    assert [one.devices for one in explorer.pictures] == [4, 4]
    assert (len(before["left"]), len(after["left"])) == (128, 192)
    headings = [panel.figure.json_item_with_data()["properties"][f"schedules_heading{i}"]["text"] for i in range(2)]
    assert headings == ["gpipe, 4 devices × 12 microbatches", "1f1b, 4 devices × 12 microbatches"]
    np.testing.assert_allclose(max(after["right"]), 45)


def test_what_is_set_from_python_is_seen_in_the_controls(explorer: pw.ScheduleExplorer, panel: ControlsPanel) -> None:
    explorer.second_name, explorer.chunks, explorer.F, explorer.cap = "interleaved-1f1b", 4, 2.5, 6
    values = {name: control.value for name, control in panel.controls.items()}
    assert values == {"first_name": "gpipe", "second_name": "interleaved-1f1b", "devices": 4, "microbatches": 8, "chunks": "4",
                      "token_slices": "", "F": 2.5, "I": 1.0, "W": 1.0, "transfer": 0.0, "cap": "6"}  # fmt: skip
    assert max(boxes(panel)["stage"]) == 15
    explorer.chunks = explorer.cap = None
    assert (panel.controls["chunks"].value, panel.controls["cap"].value) == ("", "")


def test_what_is_no_number_is_put_back_and_nothing_is_lost(explorer: pw.ScheduleExplorer, panel: ControlsPanel) -> None:
    panel.controls["cap"].value = "5"
    assert explorer.cap == 5
    sent = columns_sent(panel.figure, "schedules_caps")
    panel.controls["cap"].value = "much"
    assert (explorer.cap, panel.controls["cap"].value) == (5, "5")
    beside = panel.refusals["times"]
    assert "memory cap: 'much' is no number" in beside.value
    assert any({panel.controls["cap"], beside} <= set(getattr(row, "children", ())) for row in panel.children)
    panel.controls["chunks"].value = "1.5"
    assert (explorer.chunks, panel.controls["chunks"].value) == (None, "")
    assert columns_sent(panel.figure, "schedules_caps") == sent
    panel.controls["cap"].value = ""
    assert explorer.cap is None
    assert {place.value for place in panel.refusals.values()} == {""}, "what was said is over"


def test_a_choice_that_is_refused_is_told_beside_the_controls_that_were_changed(panel: ControlsPanel) -> None:
    panel.controls["devices"].value = 0
    told = {group: place.value for group, place in panel.refusals.items() if place.value}
    assert list(told) == ["sizes"]
    assert "devices=0" in told["sizes"]
    assert told["sizes"].startswith('<span role="status"')
    panel.controls["cap"].value = "-2"
    told = {group: place.value for group, place in panel.refusals.items() if place.value}
    assert list(told) == ["times"]
    panel.controls["devices"].value, panel.controls["cap"].value = 4, "<b>"
    assert "'&lt;b&gt;' is no number" in panel.refusals["times"].value, "text, not HTML"
    assert panel.refusals["sizes"].layout.display == "none", "it takes no room"


@pytest.mark.parametrize("cap", ["-2", "nan"])
def test_a_cap_that_is_no_amount_is_told_in_place_of_the_pictures(panel: ControlsPanel, cap: str) -> None:
    panel.controls["cap"].value = cap
    words = panel.figure.json_item_with_data()["properties"]["schedules_words0"]["text"].replace("\n", " ")
    assert words == f"cap={float(cap)!r} is no number of microbatches of activations, such as 4 or 2.5; None for any."
    panel.controls["cap"].value = "4"
    assert len(boxes(panel)["left"]) == 128


def test_a_refused_size_leaves_the_other_picture_and_the_controls(
    explorer: pw.ScheduleExplorer, panel: ControlsPanel
) -> None:
    panel.controls["first_name"].value = "dualpipe"
    panel.controls["devices"].value = 3
    words = panel.figure.json_item_with_data()["properties"]["schedules_words0"]["text"].replace("\n", " ")
    assert words == explorer.pictures[0].error
    assert len(boxes(panel)["left"]) == 48
    panel.controls["devices"].value = 4
    assert {chr(code) for code in boxes(panel)["direction"] if code} == {"a", "b"}


def test_steps_and_their_words(explorer: pw.ScheduleExplorer, panel: ControlsPanel) -> None:
    assert panel.figure.summary == "128 steps, in the order of time: each says what let its cell start"
    back, on = (button for button in panel.children[-1].children if getattr(button, "description", "") in ("◀", "▶"))
    for _ in range(4):
        on.click()
    assert (explorer.step, panel.slider.value) == (4, 4)
    assert panel.figure.summary == explorer.why
    assert len(columns_sent(panel.figure, "schedules_now")["left"]) == 2
    panel.slider.value = 2
    back.click()
    back.click()
    back.click()
    assert explorer.step == 0
    assert columns_sent(panel.figure, "schedules_now")["left"] == []
    explorer.microbatches = 2
    assert panel.slider.max == panel.play.max == explorer.steps == 32


def test_buttons_write_what_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, panel: ControlsPanel) -> None:
    monkeypatch.chdir(tmp_path)
    for button in panel.children[-1].children:
        if getattr(button, "description", "") in ("CSV", "SVG"):
            button.click()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["schedules.csv", "schedules.svg"]
    assert panel.message.value == "wrote schedules.svg"
    before = (tmp_path / "schedules.svg").read_bytes()
    for number in (2, 3):
        next(one for one in panel.children[-1].children if getattr(one, "description", "") == "SVG").click()
        assert panel.message.value == f"wrote schedules {number}.svg; schedules.svg stays as it was"
        assert (tmp_path / f"schedules {number}.svg").exists()
    assert (tmp_path / "schedules.svg").read_bytes() == before


def test_a_schedule_that_is_registered_now_can_be_chosen(own_schedules: None, panel: ControlsPanel) -> None:
    pw.register_schedule("mine")(registry.kind_of("1f1b").generate)
    assert "mine" in panel.controls["first_name"].options
    panel.controls["first_name"].value = "mine"
    assert panel.figure.description.startswith("mine, 4 devices")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What cells display."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(output, "display", lambda bundle, metadata, **_: found.append((bundle, metadata)))
    return found


@pytest.fixture
def notebook() -> Any:
    book = Notebook()
    book.ok("import pathways_nb as pw")
    yield book
    book.shell.user_ns.clear()
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (CELL_FIVE, ["gpipe, 4 devices × 8 microbatches: makespan 33", "1f1b, 4 devices"]),
        ("pw.schedule('zb-v', 4, 8)", ["zb-v, 4 devices × 8 microbatches × 2 chunks: makespan 25.5"]),
        ("pw.compare(pw.schedule('gpipe', 4, 8), pw.schedule('zb-v', 4, 8))", ["gpipe, 4", "zb-v, 4"]),
        ("pw.explore_schedules(cap=3)", ["exceeds the cap of 3 on 4 of 4 devices", "1f1b, 4 devices"]),
    ],
)
def test_a_cell_shows_a_figure_a_picture_and_words(notebook: Any, shown: list[Any], cell: str, says: list[str]) -> None:
    notebook.ok(cell)
    (live, _), (hide, _), (still, about) = shown
    assert "application/vnd.jupyter.widget-view+json" in live
    assert "pathways-figure" in hide["text/html"]
    assert still["image/png"]
    for words in (live["text/plain"], still["text/plain"], about["image/png"]["alt"]):
        assert all(part in words for part in says)


def test_a_schedule_that_cannot_be_carried_out_is_told_not_drawn(notebook: Any, shown: list[Any], capsys: Any) -> None:
    notebook.ok("pw.Schedule.parse('0F0 0B0\\n1B0 1F0', 'wrong')")
    assert shown == []
    assert "1B0 (action 1) needs 1F0, which comes only as action 2. Put 1F0 before 1B0." in capsys.readouterr().out


def test_the_still_picture_follows_once_nothing_changes(monkeypatch: pytest.MonkeyPatch, panel: ControlsPanel) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(panel_module, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(panel_module, "show_still", lambda draw, text, handle: drawn.append((text, handle)) or "handle")
    panel.show_still()
    panel.explorer.devices = 2
    assert panel._timer is not None
    panel._timer.join()
    assert [handle for _, handle in drawn] == [None, "handle"]
    assert "2 devices" in drawn[1][0]


# ---- in a browser, without a kernel

_HOVER = """() => {
  const figure = Bokeh.documents[0].get_model_by_name("schedules")
  const tool = figure.toolbar.tools.find((one) => one.name === "schedules_hover")
  const formatters = tool.formatters instanceof Map ? Object.fromEntries(tool.formatters) : tool.formatters
  const rows = Bokeh.documents[0].get_model_by_name("schedules_boxes").data.code.length
  const says = (field, index) => formatters[field].format(0, "", {index})
  return Array.from({length: rows}, (_, i) => ["@code", "@left", "@by", "@idle"].map((field) => says(field, i)))
}"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_hover_says_what_the_timing_says(opened: Any, tmp_path: Path, scheme: str) -> None:
    pictures = [SchedulePicture.of(pw.schedule(name, 4, 8), transfer=0.25) for name in ("dualpipe", "seq1f1b")]
    tab = opened(ScheduleFigure(pictures).json_item_with_data(), color_scheme=scheme)
    expected = []
    for one in pictures:
        timing = one.timing
        for cell in one.boxes["cell"].tolist():
            span = f"{timing.start[cell]:g} to {timing.end[cell]:g}"
            where = f"{timing.tasks.cells[cell]} on device {timing.tasks.owner[cell]}"
            expected.append([where, span, timing.why(cell), f"{timing.gaps[cell]:g}"])
    assert tab.evaluate(_HOVER) == expected
    said = tab.locator(".pathways-figure [role=figure]").get_attribute("aria-label")
    words = "\n".join(f"{one.heading}: {one.words}" for one in pictures)
    assert said == f"dualpipe is 1.04 times as fast as seq1f1b. {words}"
    tab.screenshot(path=str(tmp_path / f"schedules-{scheme}.png"))
