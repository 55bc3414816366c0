"""The timeline of two runs: a lane for each controller, and what one run costs beyond the other is shaded."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.two_records import as_one_record
from pathways_widgets import figure_of
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Rect
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.timeline.compared_view import SURPLUS, ComparedTimeline
from pathways_widgets.timeline.lanes import BUSY_HEIGHT, CONTROLLER_HEIGHT, Lanes
from pathways_widgets.timeline.op_view import OpLanes
from tests.core.widgets.fake_run import FakeRun

NAMES = ("slow 0", "slow 1", "fast 0", "fast 1")


def compared() -> FakeRun:
    """One program twice: the second time a message less is waited for, and ``g`` is quicker."""
    whole = {"program": "p", "devices": 2}
    f, g = (Label("compute", name, node=node, island=node, **whole) for node, name in enumerate("fg"))  # type: ignore[arg-type]
    message, enqueue = Label("stall", "message to island 1 on its way", "p", route="DCN"), Label("enqueue", "p", "p")
    slow = [Row(enqueue, 0.0, 0.1), Row(f, 0.1, 1.0), Row(message, 1.0, 2.0), Row(g, 2.0, 4.0)]
    fast = [Row(message, 0.0, 0.1), Row(enqueue, 0.0, 0.1), Row(f, 0.1, 1.0), Row(g, 1.0, 2.0)]
    both = as_one_record(Events.from_rows(slow), Events.from_rows(fast), 2)
    return FakeRun([], both, (2, 2, 2, 2), NAMES, "slow above, fast below", hbm=(0,) * 4)


@pytest.mark.parametrize("kind", [Lanes, OpLanes])
def test_each_run_has_a_lane_for_its_controller_above_its_islands(kind: type[Lanes]) -> None:
    lanes = kind((2, 2, 2, 2), NAMES)
    labels = [text for _, text in sorted(lanes.labels.items())]
    assert [i for i, text in enumerate(labels) if text.endswith(" · controller")] == [0, len(labels) // 2]
    assert (labels[0], labels[len(labels) // 2]) == ("slow · controller", "fast · controller")
    second = lanes.whole(2)[0] - CONTROLLER_HEIGHT
    assert second == lanes.whole(1)[1], "below the islands of the first run"
    for island, top in ((-1, 0.0), (0, 0.0), (1, 0.0), (-3, second), (2, second), (3, second)):
        upper, lower = lanes.band("stall", island, 0, 0)
        assert top < upper < lower < top + CONTROLLER_HEIGHT


def test_islands_without_a_run_have_one_controller() -> None:
    assert Lanes((2, 1), ("left", "right")).controllers == Lanes((2, 1)).controllers == ()
    assert Lanes((2,) * 12, tuple(f"mine {i}" for i in range(12))).controllers == (), "the tenth is no first one"


def test_two_runs_have_no_lane_that_is_empty_in_both() -> None:
    work, begins = Label("compute", "f", "p", island=0, devices=2), Label("enqueue", "p", "p")
    move = Label("transfer", "x", "p", island=0, route="DCN", bytes=1)
    trace = [Row(work, 0, 1)]
    run = [Row(begins, 0, 0.1), *trace]

    def lanes(first: list[Row], second: list[Row]) -> list[str]:
        both = as_one_record(Events.from_rows(first), Events.from_rows(second), 1)
        view = ComparedTimeline((2, 2), names=("one 0", "two 0"))
        view.update(FakeRun([], both, (2, 2), ("one 0", "two 0")))
        return [text for _, text in sorted(view.lanes.labels.items()) if "dev" not in text]

    assert lanes(trace, trace) == ["busy", "busy"]
    assert lanes(run, trace) == ["one · controller", "busy", "busy"]
    assert lanes(trace, run) == ["busy", "two · controller", "busy"]
    assert lanes(trace, [*trace, Row(move, 1, 2)]) == ["busy", "busy", "transfers"]
    assert lanes(run, run) == ["one · controller", "busy", "two · controller", "busy"]


def test_what_one_run_costs_beyond_the_other_is_shaded_in_its_lanes() -> None:
    view = ComparedTimeline((2, 2, 2, 2), names=NAMES)
    view.update(compared())
    shaded = view.sources[SURPLUS]
    # g of the slow run, on its second island: waited for one second longer, and takes one second longer.
    assert sorted(zip(shaded["left"].tolist(), shaded["right"].tolist(), strict=True)) == [(1.0, 2.0), (3.0, 4.0)]
    top = 2 * CONTROLLER_HEIGHT - CONTROLLER_HEIGHT + 2 + BUSY_HEIGHT
    assert all(top < upper < lower < top + 2 for upper, lower in zip(shaded["top"], shaded["bottom"], strict=True))
    assert view.properties["timeline_surplus_key"] == {"visible": True}


def test_parts_below_a_pixel_are_not_shaded_until_a_zoom_and_a_legend_explains_only_what_is_there() -> None:
    view, run = ComparedTimeline((2, 2, 2, 2), names=NAMES, pixels=2.0), compared()
    view.update(run)
    assert len(view.sources[SURPLUS]["left"]) == 0
    assert view.properties["timeline_surplus_key"] == {"visible": False}
    view.update(run, (1.0, 2.5))
    assert len(view.sources[SURPLUS]["left"]) == 2
    run.recorded = Events.from_rows([Row(Label("compute", "f", "p", island=0, devices=2), 0.0, 1.0)])
    view.update(run)
    assert len(view.sources[SURPLUS]["left"]) == 0, "of one record nothing"


def test_a_still_picture_shades_with_opacity_and_a_page_has_the_legend() -> None:
    scene = scene_of(compared(), ["timeline"])
    shades = [one for one in scene.shapes if isinstance(one, Rect) and one.fill == f"{palette.NEUTRAL}80"]
    assert len(shades) == 3, "two parts, and the legend"
    assert f'fill="{palette.NEUTRAL}" fill-opacity="0.50"' in scene.svg()
    assert scene.png(0.5).startswith(b"\x89PNG")
    item = figure_of(compared(), ("timeline",))
    assert "could not be drawn" not in item["summary"]
    assert "longer than in the other run" in str(item["doc"])


def test_a_picture_of_one_run_has_nothing_to_shade() -> None:
    run = compared()
    run.island_names, run.recorded = (), run.recorded.select(np.arange(0))
    assert SURPLUS not in str(figure_of(run, ("timeline",))["doc"])
