"""The time before the first launch is folded, in live figures and in still pictures; data is as it was."""

from __future__ import annotations

import pytest

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.drawing.folded_time import fold_of, time_span
from pathways_widgets.drawing.scene import Text
from pathways_widgets.drawing.time_axis import TIME_RANGE
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.memory.memory_view import MemoryView
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun

COMPILED = [("trace", 0.0, 0.1), ("lower", 0.1, 0.2), ("compile", 0.2, 0.66), ("compile", 0.3, 0.5)]


def run_of(*events: tuple[str, float, float]) -> FakeRun:
    """A run of events of these kinds, starts and ends, on one island of four devices."""
    places = {"compute": {"island": 0, "devices": 4}}
    rows = [Row(Label(kind, "f", "p", **places.get(kind, {})), start, end) for kind, start, end in events]
    return FakeRun([], Events.from_rows(rows), (4,))


def test_an_axis_begins_at_the_first_launch_and_says_what_was_before() -> None:
    run = run_of(*COMPILED, ("wait", 0.0, 1.0), ("enqueue", 0.7, 0.71), ("compute", 0.75, 1.0))
    assert fold_of(run.events) == (
        0.7, "compiled for 660 ms before · show", "hide what was before the first launch"
    )  # fmt: skip
    span = time_span(run.events)
    assert (span["start"], span["end"]) == pytest.approx((0.697, 1.003))
    (tag,) = span["tags"]
    assert tag["whole"] == pytest.approx([-0.01, 1.01])
    assert tag["folded"] == [span["start"], span["end"]]


def test_a_run_that_would_be_folded_as_a_whole_is_not() -> None:
    run = run_of(("compute", 1.0, 1.0))
    assert fold_of(run.events) is None, "of something that took no time at its end, nothing would be left"
    assert "1000 ms" in {one.text for one in scene_of(run, ["timeline", "memory"]).shapes if isinstance(one, Text)}


def test_the_time_in_which_python_prepares_data_is_folded() -> None:
    run = run_of(("wait", 0.5, 1.0), ("compute", 0.75, 1.0))
    words, less = "nothing ran for 750 ms before · show", "hide what was before the first launch"
    assert fold_of(run.events) == (0.75, words, less)
    assert fold_of(run_of(("compute", 0.15, 1.0)).events) is None, "a small part"


@pytest.mark.parametrize(
    "events",
    [
        [("compute", 0.0, 1.0)],
        COMPILED,
        [*COMPILED, ("compute", 0.7, 10.0)],
        [("compute", 0.0, 0.1), *COMPILED, ("compute", 0.7, 1.0)],
    ],
    ids=["nothing before", "nothing after", "a short part", "a launch before"],
)
def test_nothing_else_is_folded(events) -> None:
    run = run_of(*events)
    assert fold_of(run.events) is None
    assert time_span(run.events)["tags"] == []


def test_all_pictures_over_time_are_folded_alike_and_keep_the_boxes_before() -> None:
    run = run_of(*COMPILED, ("compute", 0.7, 1.0))
    timeline, memory = Timeline((4,)), MemoryView((4,))
    boxes = timeline.update(run)["timeline_boxes"]
    memory.update(run)
    assert timeline.properties[TIME_RANGE] == memory.properties[TIME_RANGE]
    assert set(boxes["kind"]) == {"trace", "lower", "compile", "compute"}, "they are there when it is unfolded"


def test_a_still_picture_has_the_break_and_the_words() -> None:
    run = run_of(*COMPILED, ("compute", 0.7, 1.0))
    scene = scene_of(run, ["timeline"])
    texts = [shape.text for shape in scene.shapes if isinstance(shape, Text)]
    assert "compiled for 660 ms before" in texts
    assert "0 ms" not in texts
    assert not any("before" in shape.text for shape in scene_of(run_of(("compute", 0, 1)), ["timeline"]).shapes
                   if isinstance(shape, Text))  # fmt: skip


def calls(*programs: str, client: str = "me") -> FakeRun:
    """A run of calls of a second each of these programs, one after another."""
    clients = dict(zip(dict.fromkeys(programs), (client, "me"), strict=False))
    rows = [Row(Label("compute", "f", name, clients[name], island=0, devices=4), number, number + 0.9, number)
            for number, name in enumerate(programs)]  # fmt: skip
    return FakeRun([], Events.from_rows(rows), (4,))


def test_a_loop_opens_on_its_last_three_calls() -> None:
    fold = fold_of(calls(*["p"] * 20).events)
    assert fold == (17.0, "the last 3 of 20 calls · show all", "show the last 3 calls")
    assert time_span(calls(*["p"] * 20).events)["end"] == pytest.approx(19.9, abs=0.1)


@pytest.mark.parametrize(
    "run", [calls("p", "p", "p"), calls(*["p", "q"] * 5), calls(*["p", "q"] * 5, client="ann")],
    ids=["three calls", "two programs", "two clients"],
)  # fmt: skip
def test_other_runs_open_whole(run) -> None:
    assert fold_of(run.events) is None


def test_two_runs_on_one_axis_are_no_loop() -> None:
    assert fold_of(calls(*["p"] * 20).events, of_one=False) is None
    run = calls(*["p"] * 20)
    run.island_names = ("a 0",)
    timeline = Timeline((4,), names=("a 0",))
    timeline.update(run)
    assert timeline.properties[TIME_RANGE]["tags"] == []


def test_the_record_and_its_exports_are_whole(tmp_path) -> None:
    run = run_of(*COMPILED, ("compute", 0.7, 1.0))
    Timeline((4,)).update(run)
    assert run.events["start"].min() == 0.0
    assert len(run.events.of_kind("compile")) == 2
