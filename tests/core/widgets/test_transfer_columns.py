"""Transfers on a timeline: arrows from producer to consumer, and achieved beside modelled bandwidth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pathways_nb.cost.model import CostModel
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.drawing.scene import Curve, Text
from pathways_widgets.timeline.timeline_view import Timeline
from pathways_widgets.timeline.transfer_columns import ARROWS, MOST_ARROWS, MOST_SHOWN, rates
from tests.core.widgets.fake_run import FakeRun

# A transfer is of the node that asks for the value, which so is its own parent.
MADE = Label("compute", "f", "p", "ann", 0, place="left", island=0, devices=4, parents=(0,))
MOVED = Label("transfer", "f → right", "p", "ann", 1, place="right", island=1, devices=4, parents=(0,), bytes=8_000_000, route="DCN")  # fmt: skip
READ = Label("compute", "g", "p", "ann", 1, place="right", island=1, devices=4, parents=(1,))
PUT = Label("transfer", "x → left", "p", "ann", 0, place="left", island=0, devices=4, bytes=4_000, route="host")


def moving_run(moved: Label = MOVED, calls: int = 1) -> FakeRun:
    """For each call: x is put, f, its value is moved, g; not in the order of the record."""
    rows = []
    for i in range(calls):
        at = 10.0 * i
        rows += [Row(READ, at + 4, at + 5, i, "exact"), Row(PUT, at, at + 0.5, i, "exact")]
        rows += [Row(MADE, at + 1, at + 2, i, "exact"), Row(moved, at + 2, at + 4, i, "exact")]
    return FakeRun([], Events.from_rows(rows))


def test_an_arrow_leads_from_what_made_a_value_to_what_reads_it() -> None:
    view = Timeline((4, 4))
    sources = view.update(moving_run())
    arrows, boxes = sources[ARROWS], sources["timeline_boxes"]
    assert arrows["name"] == ["f → right", "x → left"]
    assert (arrows["maker"], arrows["reader"]) == (["f on island 0", ""], ["g on island 1", "f on island 0"])
    assert arrows["x0"].tolist() == [2, 0.5], "from the end of f, or of the transfer where nothing made the value"
    assert arrows["x1"].tolist() == [4, 1]
    middle = dict(zip(boxes["name"], (boxes["top"] + boxes["bottom"]) / 2, strict=True))
    assert arrows["y0"] == pytest.approx([middle["f"], middle["x → left"]])
    assert arrows["y1"] == pytest.approx([middle["g"], middle["f"]])
    assert [boxes["name"][row] for row in arrows["box"]] == arrows["name"], "the filter finds its box"
    assert view.properties["timeline_key_arrows"] == {"visible": True, "label": {"value": "from producer to consumer"}}
    of = {end: [boxes["name"][row] if row >= 0 else "" for row in arrows[f"{end}_box"]] for end in ("maker", "reader")}
    assert of == {"maker": ["f", ""], "reader": ["g", "f"]}, "a tapped box finds its arrows"


def test_achieved_bandwidth_is_told_beside_that_of_the_model() -> None:
    model = CostModel.of("tpu_v3")
    seconds = model.transfer(8_000_000, "DCN", model.topology(4), 4, 4).seconds
    run = replace(moving_run(), link_model=model)
    view = Timeline((4, 4))
    boxes = view.update(run)["timeline_boxes"]
    moved = list(boxes["name"]).index("f → right")
    assert boxes["rate"][moved] == 4e6
    assert boxes["modelled"][moved] == f"{8_000_000 / seconds / 1e9:.1f} GB/s"
    assert boxes["rate"][list(boxes["name"]).index("f")] == 0, "no transfer"
    assert view.sources[ARROWS]["modelled"][0] == boxes["modelled"][moved]
    facts = dict(zip(view.sources["timeline_facts"]["id"], view.sources["timeline_facts"]["text"], strict=True))
    assert any(f"8 MB at 4 MB/s, modelled: {boxes['modelled'][moved]}" in text for text in facts.values())


def test_a_simulated_transfer_says_that_it_is_the_model() -> None:
    simulated = replace(MOVED, links=("out of island 0", "into island 1"))
    run = replace(moving_run(simulated), link_model=CostModel.of("tpu_v3"))
    assert "the same: this transfer is simulated" in list(Timeline((4, 4)).update(run)["timeline_boxes"]["modelled"])


def test_without_a_model_there_is_none() -> None:
    view = Timeline((4, 4))
    assert set(view.update(moving_run())["timeline_boxes"]["modelled"]) == {""}
    text = " ".join(view.sources["timeline_facts"]["text"])
    assert "modelled: not known before pw.calibrate()" in text


def test_of_many_transfers_those_in_sight_have_arrows() -> None:
    view, run = Timeline((4, 4)), moving_run(calls=400)
    arrows = view.update(run, (1500.0, 2300.0))[ARROWS]
    assert len(arrows["x0"]) == MOST_ARROWS
    in_sight = (arrows["x1"] >= 1500) & (arrows["x0"] <= 2300)
    assert in_sight[:160].all(), "those come first"
    run.finished = False
    assert len(view.update(run)[ARROWS]["x0"]) == 0, "what reads what is looked up when the run is over"


def test_a_still_picture_has_the_longest_arrows_and_says_so() -> None:
    view = Timeline((4, 4))
    view.window = 0.0, 59.0
    shapes, _ = view.still(moving_run(calls=20), 900.0, 0.0)
    assert len([one for one in shapes if isinstance(one, Curve) and one.bezier]) == MOST_SHOWN
    assert "from producer to consumer: the 12 longest" in [one.text for one in shapes if isinstance(one, Text)]
    assert view.sources[ARROWS]["takes"].tolist() == [2.0] * 6 + [0.5] * 6, "those that take longest"


def test_of_very_many_transfers_to_one_event_the_tooltip_says_how_many_there_are() -> None:
    rows = [Row(READ, 4, 5, 0, "exact"), Row(MADE, 1, 2, 0, "exact")]
    parts = [replace(MOVED, name=f"part {i}", parents=(0,)) for i in range(5)]
    rows += [Row(part, 2, 3 + i / 10, 0, "exact") for i, part in enumerate(parts)]
    said = Timeline((4, 4)).update(FakeRun([], Events.from_rows(rows)))[ARROWS]["beside"]
    assert set(said) == {"5 transfers end"}
    assert set(Timeline((4, 4)).update(moving_run())[ARROWS]["beside"]) == {""}


def test_no_time_is_no_rate() -> None:
    assert rates(np.array([8.0, 8.0]), np.array([2.0, 0.0])).tolist() == [4, 0]
