"""The critical path over the timeline: one line from the beginning to the end of the makespan, through its events."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.trace.causality.critical_path import critical_path
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.summary import summarise
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Moment
from pathways_widgets.figures.panel import Panel, check_show
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.timeline.critical_view import ENDS, PATH, CriticalTimeline
from pathways_widgets.timeline.lanes import Lanes
from tests.core.widgets.fake_run import FakeRun, fake_run, many_events


def line_of(run: FakeRun) -> np.ndarray:
    columns = CriticalTimeline(run.islands).update(run)[PATH]
    return np.array([columns[end] for end in ENDS])


def test_the_line_goes_from_lane_to_lane_as_the_path_does() -> None:
    f = Label("compute", "f", "p", node=0, island=0, devices=4)
    move = Label("transfer", "x", "p", node=1, island=1, devices=4, parents=(0,))
    g = Label("compute", "g", "p", node=1, island=1, devices=4, parents=(1,))
    rows = [Row(f, 0, 4, 0), Row(move, 5, 6, 0), Row(g, 6, 8, 0)]
    run = FakeRun([], Events.from_rows(rows))
    lanes = Lanes(run.islands, uncontrolled=(0,))
    first, moves, second = (sum(lanes.band(*where)) / 2 for where in (("compute", 0, 0, 4), ("transfer", 1, 0, 4), ("compute", 1, 0, 4)))  # fmt: skip
    assert line_of(run).T.tolist() == [
        [0, first, 4, first], [4, moves, 5, moves], [5, moves, 6, moves], [6, second, 8, second],
        [4, first, 4, moves], [6, moves, 6, second],
    ]  # fmt: skip


def test_it_covers_the_makespan_once() -> None:
    run = fake_run()
    x0, y0, x1, y1 = line_of(run)
    along = y0 == y1
    assert (x1 - x0)[along].sum() == pytest.approx(summarise(run.events, run.islands).makespan)
    assert (x0 == x1)[~along].all()
    assert along.sum() == len(critical_path(run.events).segments)


def test_very_many_pieces_become_few() -> None:
    events = many_events(40_000)
    run = FakeRun([], events)
    x0, _, x1, _ = line_of(run)
    assert len(x0) < 3000
    assert (x0.min(), x1.max()) == pytest.approx((0, events["end"].max()), abs=0.02)


def test_nothing_has_no_line() -> None:
    assert line_of(FakeRun([], Events.from_rows([]))).shape == (4, 0)


def test_it_is_a_view_of_its_own_in_figures_and_pictures() -> None:
    assert check_show("graph,timeline,critical") == ("graph", "critical")
    run = fake_run()
    panel = Panel(("critical",), run.islands)
    panel.update(Moment.of(run))
    item = panel.item(data=True)
    assert panel.failures == {}
    assert item["themes"]["dark"]["timeline_path_line"] == {"line_color": palette.THEMES["dark"]["text"]}
    without, marked = (scene_of(run, (name,)).svg() for name in ("timeline", "critical"))
    assert len(marked) > len(without)
    assert marked.count("<path") - without.count("<path") == line_of(run).shape[1]
