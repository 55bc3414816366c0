"""What the page knows of causes: a sentence for each event, the row of what it waited for, and the facts of its kind."""

from __future__ import annotations

import pytest

from pathways_nb.trace.causality.what_if import what_if
from pathways_nb.trace.causality.why import why
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.timeline import why_columns
from pathways_widgets.timeline.timeline_view import Timeline
from pathways_widgets.timeline.why_columns import FACTS, FASTER, MOST_EVENTS, WHY
from tests.core.widgets.fake_run import FakeRun, fake_run, many_events

f = Label("compute", "f", "p", "ann", node=0, island=0, devices=4)
move = Label("transfer", "left → right", "p", "ann", node=1, island=1, devices=4, parents=(0,), bytes=2_000_000)
g = Label("compute", "g", "p", "ann", node=1, island=1, devices=4, parents=(1,), line="model.py:12")
ROWS = [Row(f, 0, 3, 0), Row(move, 3, 4, 0), Row(g, 4, 5, 0), Row(g, 5, 6, 0)]


def test_each_event_has_its_sentence_and_the_row_of_what_it_waited_for() -> None:
    run = FakeRun([], Events.from_rows(ROWS))
    view = Timeline(run.islands)
    columns = view.update(run)[WHY]
    row = columns["text"].index(
        "`g` on island 1 waited 4 s for `f` on island 0 (data, inferred), of which 1 s was its transfer"
    )
    assert columns["text"][columns["next"][row]] == "`f` on island 0 came first"
    assert (columns["free"][row], columns["left"][row], columns["right"][row]) == (0, 4, 5)
    assert (columns["top"][row], columns["bottom"][row]) == view.lanes.band("compute", 1, 0, 4)


def test_the_page_says_what_python_says() -> None:
    run = fake_run()
    columns = Timeline(run.islands).update(run)[WHY]
    row, told = max(range(len(columns["text"])), key=lambda i: columns["left"][i]), []
    steps = why(run.events, columns["left"][row], int(columns["top"][row] > 5)).steps
    while row >= 0:
        told.append(columns["text"][row])
        row = columns["next"][row]
    assert told == [step.text for step in steps]


def test_facts_are_of_all_events_of_a_kind() -> None:
    run = FakeRun([], Events.from_rows(ROWS))
    columns = Timeline(run.islands).update(run)
    assert columns[FACTS]["text"] == [
        "`f` of p (compute): 1 time, 3 s in all, 50 % of the makespan; on the critical path",
        "`left → right` of p (transfer): 1 time, 1 s in all, 17 % of the makespan; on the critical path · 2 MB at 2 MB/s, modelled: not known before pw.calibrate()",
        "`g` of p (compute): 2 times, 2 s in all, 1 s each, 33 % of the makespan; on the critical path · model.py:12",
    ]
    assert columns[FACTS]["id"] == ["p#0", "p#1", "p#1"]


def test_facts_say_what_if_it_were_faster_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun([], Events.from_rows(ROWS))
    facts = Timeline(run.islands).update(run)[FACTS]
    assert facts["faster2"][0] == "if `f` were 2 times as fast: makespan 6 s → 4.5 s, with order and gaps as recorded"
    for factor in FASTER:
        after = what_if(run.events, node="g", faster=factor).after
        assert f"makespan 6 s → {duration(after)}," in facts[f"faster{factor}"][2]
    monkeypatch.setattr(why_columns, "MOST_RETIMED", 3)
    assert not any(Timeline(run.islands).update(run)[FACTS]["faster2"]), "they would be timed anew for long"


def test_where_there_is_nothing_to_tell_the_page_says_why() -> None:
    def said(run: FakeRun) -> list[str]:
        view = Timeline(run.islands, names=run.island_names)
        assert not len(view.update(run)[WHY]["text"])
        return list(view.properties[WHY]["tags"])

    going_on = FakeRun([], Events.from_rows(ROWS), finished=False)
    assert said(going_on) == ["Why events began is told once the run is over."]
    assert said(FakeRun([], many_events(MOST_EVENTS + 1))) == [
        "A page has the causes of 4,000 events at most; of 4,001 ask in Python: run.why(at=…, island=…)."
    ]
    compared = FakeRun([], Events.from_rows(ROWS), island_names=("before", "after"))
    assert said(compared) == ["Ask one of the runs, not their comparison: run.why(at=…, island=…)."]
