"""The sentence above a picture says who waits for what, how busy devices are, or which of two is faster."""

from __future__ import annotations

import pytest

from pathways_nb.timing.waits import CALL
from pathways_nb.trace.causality.headlines import (
    MOST_EVENTS,
    comparison_headline,
    rerun_headline,
    run_headline,
    runs_headline,
    schedule_headline,
    sweep_headline,
)
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Cause, Label, Row
from tests.core.widgets.fake_run import many_events


def computed(island: int, start: float, end: float, name: str = "f", status: str = "ok") -> Row:
    """A computation on both devices of an island."""
    return Row(Label("compute", name, "p", node=island, island=island, devices=2), start, end, 0, status=status)


def enqueued(island: int, start: float, end: float, why: int = -1) -> Row:
    """Its dispatch."""
    return Row(Label("enqueue", "f", "p", node=island, island=island), start, end, cause=Cause(why))


@pytest.mark.parametrize(
    ("rows", "islands", "said"),
    [
        ([computed(0, 0.0, 1.0)], (2,), "The devices are busy 100 % of the time"),
        ([computed(0, 0.0, 1.0)], (1,), "The device is busy 100 % of the time"),
        ([computed(1, 0.0, 1.0)], (2, 2), "Island 1 is busy 100 % of the time, and the other has nothing to do"),
        ([computed(0, 0.0, 1.0), computed(1, 0.02, 1.0)], (2, 2), "Both islands are busy 99 % of the time"),
        (
            [enqueued(0, 0.0, 0.01), enqueued(1, 0.0, 0.01), computed(0, 0.01, 0.5), computed(1, 0.5, 1.0, "g")],
            (2, 2),
            "Island 0 has nothing left to do in the last 50 % of the time",
        ),
        (
            [enqueued(0, 0.0, 0.6), computed(0, 0.6, 1.0)],
            (2,),
            "The island waits 60 % of the time for the controller",
        ),
        (
            # Python does something else between two calls, and the controller nothing.
            [
                row._replace(run=run)
                for run, begin in enumerate((0.0, 0.9))
                for row in (enqueued(0, begin, begin + 0.05, CALL), computed(0, begin + 0.05, begin + 0.1))
            ],
            (2,),
            "The island waits 80 % of the time for the next program to be called",
        ),
        (
            [computed(0, 0.0, 1.0), computed(1, 0.0, 0.3, "g", "failed"), computed(1, 0.3, 0.4, "h", "failed")],
            (2, 2),
            "g failed on island 1, and 1 more event failed",
        ),
        ([Row(Label("compile", "f", "p"), 0.0, 1.0)], (2,), ""),
        ([], (2,), ""),
    ],
)
def test_a_run_says_what_matters(rows, islands, said) -> None:
    assert run_headline(Events.from_rows(rows), islands) == said


def test_while_it_goes_on_and_of_very_many_events_only_how_busy_devices_are() -> None:
    rows = [enqueued(0, 0.0, 0.6), computed(0, 0.6, 1.0)]
    assert run_headline(Events.from_rows(rows), (2,), finished=False) == "The devices are busy 40 % of the time"
    assert "busy" in run_headline(many_events(MOST_EVENTS + 1), (4, 4))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((1.0, 1.61), "parallel is 1.6 times as fast as sequential"),
        ((1.1, 1.0), "sequential is 1.10 times as fast as parallel"),
        ((1.0, 1.01), "parallel and sequential take the same time"),
        ((1.0, 1234.0), "parallel is 1,234 times as fast as sequential"),
        ((0.0, 1.0), ""),
    ],
)
def test_a_comparison_says_which_is_faster(seconds, said) -> None:
    assert comparison_headline(("parallel", "sequential"), seconds) == said


def test_a_run_that_failed_or_did_other_work_is_not_called_faster() -> None:
    good, other = [computed(0, 0.0, 1.0, "total")], [computed(0, 0.0, 0.25, "other")]
    broken = [computed(1, 0.0, 0.5, "total", status="failed")]
    say = lambda *records: runs_headline("ab", [Events.from_rows(rows) for rows in records], (1.0, 0.5))  # noqa: E731
    assert say(good, good) == "b is 2.0 times as fast as a"
    assert say(good, broken) == "b: total failed on island 1; neither run is called faster"
    assert say(broken, broken).count("total failed") == 2
    assert say(good, other) == "b is 2.0 times as fast as a, but they do not do the same work"
    more = [computed(0, at / 8, (at + 1) / 8, "total") for at in range(8)]
    assert say(more, good) == "b is 2.0 times as fast as a, with 1 computation instead of 8"
    assert say(good, more) == "b is 2.0 times as fast as a, with 8 computations instead of 1"
    assert say(good, []) == "b is 2.0 times as fast as a, but they do not do the same work"


@pytest.mark.parametrize(
    ("idle", "said"),
    [(0.273, "1f1b leaves devices idle 27 % of the time"), (0.001, "1f1b leaves no device idle")],
)
def test_a_schedule_says_what_it_leaves_idle(idle, said) -> None:
    assert schedule_headline("1f1b", idle) == said


F, G = computed(0, 0.0, 1.0), computed(1, 1.0, 2.0, "total")


@pytest.mark.parametrize(
    ("last", "now", "said"),
    [
        ([F, G], [F, computed(1, 1.0, 1.25, "total")], "1.6 times as fast as last time: `total` takes 750 ms less"),
        ([F, G], [F, computed(1, 1.0, 3.0, "total")], "Takes 1.5 times as long as last time: `total` takes 1 s more"),
        (
            [F, G],
            [F, computed(1, 2.0, 3.0, "total")],
            "Takes 1.5 times as long as last time: 1 s more waiting before `total`",
        ),
        # Twice as long, half of it because of each; but what became quicker is no reason for that.
        (
            [F, G],
            [computed(0, 0.0, 0.5), computed(1, 1.0, 4.0, "total")],
            "Takes 2.0 times as long as last time: `total` takes 2 s more",
        ),
        ([F, G], [F, computed(1, 5.0, 6.0, "other")], "Takes 3.0 times as long as last time"),
        ([F], [computed(0, 0.0, 3.0, "other")], "Takes 3.0 times as long as last time, but does other work"),
        ([F], [computed(0, 7.0, 8.0, "other")], "As fast as last time, but does other work"),
        ([F, G], [computed(0, 7.0, 8.0), computed(1, 8.0, 9.0, "total")], "As fast as last time"),
        ([F], [computed(0, 0.0, 1.0)] * 3, "As fast as last time, with 3 computations instead of 1"),
        ([F, G], [], ""),
        ([], [F, G], ""),
    ],
)
def test_a_cell_that_is_run_again_says_what_has_changed(last, now, said) -> None:
    assert rerun_headline(Events.from_rows(last), Events.from_rows(now)) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"n=1": 1.0, "n=2": 4.2, "n=4": 2.0}, "n=1 is fastest, 4.2 times as fast as n=2"),
        ({"n=1": 1.0, "n=2": 1.01}, "All 2 take the same time"),
        ({"n=1": 1.0}, ""),
        ({"n=1": 0.0, "n=2": 1.0}, ""),
    ],
)
def test_a_sweep_says_which_point_is_fastest(seconds, said) -> None:
    assert sweep_headline(seconds) == said
