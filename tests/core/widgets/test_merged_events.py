"""Boxes of many events: what they say, and that guessed times are told apart however narrow a box is."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.timeline.level_of_detail import MOST_BOXES
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun

LABELS = [Label("compute", f"f{i}", f"p{i}", place="left", island=1, devices=4) for i in range(5)]


def dense_run(qualities: tuple[str, ...], programs: int = 1, count: int = 4 * MOST_BOXES) -> FakeRun:
    """Events of a millisecond one after another, with one quality after another."""
    rows = [
        Row(LABELS[i % programs], 2e-3 * i, 2e-3 * i + 1e-3, i, qualities[i * len(qualities) // count])
        for i in range(count)
    ]
    return FakeRun([], Events.from_rows(rows))


def drawn(run: FakeRun) -> Timeline:
    view = Timeline((4, 4))
    view.update(run, (0.0, float(run.events["end"].max())))
    return view


@pytest.mark.parametrize(("programs", "said"), [(1, {"p0"}), (3, {"p0, p1, p2"}), (5, {"5 programs"})])
def test_a_box_of_many_events_says_how_many_and_where(programs: int, said: set[str]) -> None:
    boxes = drawn(dense_run(("exact",), programs)).sources["timeline_boxes"]
    merged = [i for i, quality in enumerate(boxes["quality"]) if quality == "merged"]
    assert len(merged) > 100
    assert all(boxes["name"][i].endswith(" events here") for i in merged)
    assert sum(int(boxes["name"][i].split()[0]) for i in merged) == 4 * MOST_BOXES
    assert {boxes["place"][i] for i in merged} == {"island 1, dev 0–3"}
    assert {boxes["program"][i] for i in merged} == said


def test_guessed_times_have_their_edge_below_a_pixel_too() -> None:
    run = dense_run(("exact", "estimated", "interpolated"))
    view, end = drawn(run), float(run.events["end"].max())
    for third, name in enumerate(("estimated", "interpolated"), start=1):
        edges = view.sources[f"timeline_{name}"]
        assert len(edges["left"]) > 0
        assert edges["left"].min() == pytest.approx(third * end / 3, rel=0.02)
        assert edges["right"].max() == pytest.approx((third + 1) * end / 3, rel=0.02)
        assert (edges["right"] - edges["left"]).min() >= 2.99 * end / 900, "wide enough to be seen"
        assert view.properties[f"timeline_key_{name}"] == {"visible": True}
        assert edges["box"].max() < len(view.sources["timeline_boxes"]["left"])
    assert not len(drawn(dense_run(("exact",))).sources["timeline_estimated"]["left"])
    assert not len(drawn(dense_run(("simulated",))).sources["timeline_interpolated"]["left"])


def test_narrow_boxes_far_apart_have_an_edge_each() -> None:
    rows = [Row(LABELS[0], 100.0 * i, 100.0 * i + 1e-3, i, "estimated") for i in range(10)]
    edges = drawn(FakeRun([], Events.from_rows(rows))).sources["timeline_estimated"]
    assert edges["left"].tolist() == [100.0 * i for i in range(10)]
    assert np.array_equal(edges["box"], np.arange(10))
