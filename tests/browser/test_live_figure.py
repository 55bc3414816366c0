"""The widget without a browser: what it sends, when, and what happens when a view fails."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from pathways_widgets import LiveDisplay, LiveFigure, figure_of
from pathways_widgets.drawing.views import Columns, Moment
from pathways_widgets.figures import live_display, output, panel
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.panel import Panel
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import fake_run, many_events, memory_run
from tests.core.widgets.unpacking import columns_sent, unpack
from tests.support.waiting import LIMIT


@pytest.mark.parametrize("size", [0, 1, 3, 1000])
def test_columns_survive_packing(size: int) -> None:
    columns: Columns = {
        "x": np.arange(size) / 7,
        "y": np.arange(size, dtype=np.float32),
        "code": np.zeros(size, np.uint8),
        "run": np.arange(size, dtype=np.int32),
        "name": [f"<é{i % 3}>" for i in range(size)],
        "plain": [float(i) for i in range(size)],
    }
    assert unpack(pack(columns)) == {name: list(values) for name, values in columns.items()}


def test_every_column_that_a_glyph_reads_is_sent() -> None:
    run = memory_run()
    made = Panel(("graph", "timeline", "memory"), run.islands)
    made.update(Moment.of(run))
    for view in made.views.values():
        for name, table in view.tables.items():
            assert set(table.data) == set(view.sources[name])


def test_named_models_exist_for_properties_and_themes() -> None:
    run = memory_run()
    made = Panel(("graph", "timeline", "memory"), run.islands)
    made.update(Moment.of(run))
    named = {model.name: model for model in made.root.references() if model.name}
    for wanted in (made.properties, *made.themes.values()):
        for name, properties in wanted.items():
            assert set(properties) <= named[name].properties(), name
    assert set(made.sources) <= set(named)


def test_push_sends_only_what_changed() -> None:
    run = fake_run(10)
    figure = LiveFigure(run)
    assert figure.push()
    assert not figure.push()
    changed: list[str] = []
    figure.observe(lambda change: changed.append(change["name"]))
    run.shown = 11
    assert figure.push()
    assert "_data_timeline_boxes" in changed
    assert not any("graph" in name for name in changed)


def test_what_is_in_view_decides_what_is_sent() -> None:
    run = fake_run()
    run.recorded = many_events(20_000)
    figure = LiveFigure(run, ("timeline",))
    figure.push()
    figure.view = [3.0, 3.1]
    assert set(columns_sent(figure, "timeline_boxes")["name"]) == {"step"}
    figure.view = []
    assert "step" not in columns_sent(figure, "timeline_boxes")["name"]


def test_new_islands_make_a_new_picture() -> None:
    run = fake_run()
    figure = LiveFigure(run)
    figure.push()
    before = list(columns_sent(figure, "timeline_labels")["text"])
    run.islands = (4, 4, 4)
    assert figure.push()
    after = list(columns_sent(figure, "timeline_labels")["text"])
    assert "island 2 · dev 0" in after
    assert not any("island 2" in label for label in before)


def test_the_item_holds_the_data() -> None:
    run = fake_run()
    for item in (figure_of(run), LiveFigure(run).json_item_with_data()):
        text = json.dumps(item)
        assert "train_step \\u00d7200" in text
        assert "float(loss)" in text
        assert item["summary"] == "59 events on 8 devices, bubble < 12 %"


def test_unknown_views_are_named() -> None:
    with pytest.raises(
        ValueError,
        match="there is no view 'graf'; choose from graph, timeline, critical, ops, modules, memory, categories or none",
    ):
        LiveDisplay(fake_run(), ("graf",))


def test_a_view_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, Columns]:
        raise RuntimeError("no such lane")

    monkeypatch.setattr(Timeline, "update", broken)
    item = figure_of(fake_run())
    assert "The timeline could not be drawn: RuntimeError: no such lane" in item["summary"]
    assert "stage0 (bwd)" in json.dumps(item)


def test_a_view_that_cannot_be_made_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(islands: tuple[int, ...], names: tuple[str, ...]) -> Timeline:
        raise RuntimeError("no such lane")

    monkeypatch.setitem(panel.VIEWS, "timeline", broken)
    figure = LiveFigure(fake_run())
    assert figure.push()
    assert "RuntimeError: no such lane" in repr(figure)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a notebook would display."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(live_display, "shows_figures", lambda: True)
    monkeypatch.setattr(output, "display", lambda bundle, **_: found.append(bundle))
    return found


def test_the_display_follows_and_ends(shown: list[dict[str, Any]]) -> None:
    run = fake_run(0)
    display = LiveDisplay(run)
    display.start()
    assert shown[0]["text/plain"] == "fake: a live figure; the picture that follows is how it ended."
    assert display.figure is not None
    moved = threading.Event()
    display.figure.observe(lambda _: moved.set(), "summary")
    run.shown = 20
    assert moved.wait(LIMIT)
    run.shown, run.finished = None, True
    display.stop()
    display.stop()
    assert repr(display.figure) == "59 events on 8 devices, bubble < 12 %"
    assert not [thread for thread in threading.enumerate() if thread.name == "pathways-figure"]


def test_a_script_gets_the_summary_once_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    run = fake_run(0)
    display = LiveDisplay(run)
    display.start()
    assert capsys.readouterr().out == ""
    run.shown = None
    display.stop()
    display.stop()
    assert capsys.readouterr().out == "fake: 59 events on 8 devices, bubble < 12 %\n"


def test_a_figure_that_fails_is_a_line_of_text(monkeypatch: pytest.MonkeyPatch, shown: list[dict[str, Any]]) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no comm")

    monkeypatch.setattr(LiveFigure, "push", broken)
    display = LiveDisplay(fake_run())
    display.start()
    display.stop()
    assert "The figure could not be drawn: RuntimeError: no comm" in shown[0]["text/plain"]


def test_a_brushed_range_comes_back_as_events_and_totals() -> None:
    run = fake_run()
    figure = LiveFigure(run)
    assert figure.selection is None
    figure.brushed = [0.1, 0.05]
    selection = figure.selection
    assert selection is not None
    assert (selection.start, selection.end) == (0.05, 0.1)
    assert len(selection.events) == ((run.events["end"] >= 0.05) & (run.events["start"] <= 0.1)).sum()
    assert sum(selection.islands[0].seconds.values()) == pytest.approx(0.05)
    assert figure.totals.splitlines()[0] == f"50 ms to 100 ms, {len(selection.events)} events"
    assert figure.totals.splitlines()[1].startswith("island 0: busy")
    figure.brushed = []
    assert figure.totals == ""


def test_a_box_of_the_graph_and_its_bars_have_the_same_id() -> None:
    run = fake_run()
    panel_ = Panel(("graph", "timeline"), run.islands)
    panel_.update(Moment.of(run))
    boxes = {one for ids in panel_.sources["graph_nodes"]["ids"] for one in ids.split(" ")}
    bars = {one for one in panel_.sources["timeline_boxes"]["id"] if one}
    assert {f"train_step#{node}" for node in (2, 3, 4, 5)} == bars
    assert bars <= boxes
