"""Filters of a timeline: what they keep of events, what a box of many events tells them, and what Python can set."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets import LiveFigure
from pathways_widgets.timeline.event_filter import EventFilter, facts_of, joined
from pathways_widgets.timeline.level_of_detail import MOST_BOXES
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun

LABELS = (
    Label("compute", "matmul", "train", "ann", place="left", island=0, devices=4),
    Label("compute", "matmul (bwd)", "train", "ann", place="right", island=1, devices=4),
    Label("collective", "sum", "train", "bob", place="right", island=1, devices=4),
    Label("compute", "Matmul", "serve", "bob", place="left", island=0, devices=4),
    Label("memory", "held", "train", "ann", island=0, bytes=7),
)


def filtered_run(count: int = 8) -> FakeRun:
    """Every fourth event has the same label, and takes a second more than the one before it."""
    rows = [Row(LABELS[i % 4], 10.0 * i, 10.0 * i + 1 + i % 4, i, "exact") for i in range(count)]
    return FakeRun([], Events.from_rows([*rows, Row(LABELS[4], 0.0, 0.0, 0, "exact")]))


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ({"client": "ann"}, {0, 1}),
        ({"program": ["train"]}, {0, 1, 2}),
        ({"place": "right"}, {1, 2}),
        ({"place": "island 0"}, {0, 3}),
        ({"kind": "compute"}, {0, 3}),
        ({"kind": ("backward", "collective")}, {1, 2}),
        ({"text": "MATMUL"}, {0, 1, 3}),
        ({"shortest": 2.0, "longest": 3.0}, {1, 2}),
        ({"program": "train", "text": "matmul", "place": "right", "client": "ann", "shortest": 2}, {1}),
        ({"program": "serve", "client": "ann"}, set()),
    ],
)
def test_every_condition_must_hold(conditions: dict[str, Any], kept: set[int]) -> None:
    run, chosen = filtered_run(), EventFilter.of(**conditions)
    expected = [i % 4 in kept for i in range(8)]
    assert chosen.keeps(run.events).tolist() == [*expected, False], "a level of memory has no box"
    assert EventFilter.of_state(json.loads(json.dumps(chosen.state))) == chosen


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"programme": "train"}, "programme: there is no such condition; did you mean 'program'?"),
        ({"kind": "colective"}, "no box is of this kind; did you mean 'collective'?"),
        ({"shortest": 2, "longest": 1}, "no duration is between them"),
        ({"shortest": "2 ms"}, "shortest='2 ms': seconds should stand here."),
        ({"longest": math.nan}, "longest=nan: seconds should stand here."),
        ({"text": 3}, "text=3: a part of a name should stand here."),
        ({"client": 3}, "client=3: names should stand here."),
        ({"place": [0]}, "place=[0]: names should stand here."),
    ],
)
def test_a_filter_that_nothing_fulfils_by_mistake_is_refused(conditions: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        EventFilter.of(**conditions)


def test_a_selection_is_read_and_set_in_python() -> None:
    run = filtered_run()
    figure = LiveFigure(run)
    assert figure.selection is None
    selected = figure.select(program="train", client="ann")
    assert selected is not None
    assert selected.events["name"].tolist() == ["matmul", "matmul (bwd)"] * 2
    assert figure.totals == "client ann, program train: 4 events, 6 s in all"
    assert figure.chosen["client"] == ["ann"]

    ranged = figure.select(15, 45, kind="compute")
    assert ranged is not None
    assert (ranged.start, ranged.end, ranged.events["name"].tolist()) == (15, 45, ["Matmul", "matmul"])
    assert sum(ranged.islands[0].seconds.values()) == pytest.approx(30), "times are those of all events"
    assert figure.brushed == [15, 45]
    other = LiveFigure(filtered_run(16))
    other.selection = ranged
    assert other.selection is not None
    assert (other.selection.start, other.selection.chosen) == (15, ranged.chosen)
    figure.selection = None
    assert (figure.selection, figure.totals) == (None, "")
    with pytest.raises(ValueError, match="the range must end after it begins"):
        figure.select(3, 2)


def test_the_browser_leaves_nothing_is_no_event_not_all() -> None:
    figure = LiveFigure(filtered_run())
    figure.chosen = EventFilter().state | {"kind": [""]}
    assert figure.selection is not None
    assert len(figure.selection.events) == 0


def test_of_more_events_than_boxes_those_wanted_are_drawn_one_by_one() -> None:
    view, run = Timeline((4, 4)), filtered_run(4 * MOST_BOXES)
    boxes = view.update(run)["timeline_boxes"]
    merged = [i for i, quality in enumerate(boxes["quality"]) if quality == "merged"]
    assert merged
    groups = json.loads(boxes["facts"][merged[0]])
    assert {program for group in groups for program in group["program"]} <= {"train", "serve"}
    assert boxes["shortest"][merged[0]] <= boxes["longest"][merged[0]] <= boxes["duration"][merged[0]] + 1e-9
    view.chosen = EventFilter.of(program="serve", shortest=4, longest=4)
    boxes = view.update(run)["timeline_boxes"]
    assert {*boxes["name"]} == {"Matmul"}
    assert len(boxes["name"]) == MOST_BOXES


def test_facts_of_many_events_say_which_of_them_belong_together() -> None:
    each = [facts_of(label, ()) for label in LABELS[:4]]
    found = {(*one["program"], *one["place"]): one["name"] for one in json.loads(joined(each))}
    assert found == {
        ("train", "left", "island 0"): ["matmul"],
        ("train", "right", "island 1"): ["matmul (bwd)", "sum"],
        ("serve", "left", "island 0"): ["Matmul"],
    }
    assert json.loads(joined(each[:1])) == each[:1]


def test_few_events_are_all_drawn_for_the_page_to_choose() -> None:
    view = Timeline((4, 4))
    view.chosen = EventFilter.of(program="serve")
    view.update(filtered_run())
    assert len(view.sources["timeline_boxes"]["name"]) == 8
    assert view.properties["timeline_boxes"] == {
        "tags": [{"program": ["serve", "train"], "place": ["island 0", "island 1", "left", "right"]}]
    }
    marks = view.sources["timeline_marks"]
    boxes = view.sources["timeline_boxes"]
    middles = (boxes["left"] + boxes["right"])[marks["box"]] / 2
    assert np.array_equal(marks["x"], middles), "each text has the number of its box"
