"""The critical path tiles the makespan and is the longest chain; slack is what may be lost without a longer run."""

from __future__ import annotations

import pytest
from hypothesis import given

from pathways_nb.trace.causality.breakdown import CAUSES, idle
from pathways_nb.trace.causality.critical_path import critical_path, slack
from pathways_nb.trace.causality.what_if import what_if
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import WINDOW_FULL, Label, Row
from pathways_nb.trace.summary import summarise
from tests.core.trace.random_records import DEVICES, Made, records, schedules
from tests.support.examples import examples

ISLANDS = (DEVICES, DEVICES)


def tiles(events: Events, islands: tuple[int, ...] = ISLANDS) -> None:
    path, makespan = critical_path(events), summarise(events, islands).makespan
    assert path.length == pytest.approx(makespan, rel=1e-12, abs=1e-15)
    ends = [segment.end for segment in path.segments]
    assert [segment.start for segment in path.segments[1:]] == ends[:-1], "no overlap and no hole"
    assert all(segment.end > segment.start for segment in path.segments)
    if path.segments:
        assert ends[-1] - path.segments[0].start == pytest.approx(makespan, rel=1e-12)
    assert sum(path.seconds.values()) == pytest.approx(path.length)


@examples(80)
@given(schedules())
def test_the_path_is_the_longest_chain(made: Made) -> None:
    events, makespan = made.events(), max(made.ends())
    path = critical_path(events)
    tiles(events)
    assert max(map(made.longest, range(len(made.labels)))) == makespan == path.length
    assert all(segment.event >= 0 for segment in path.segments), "nothing has slack, so nothing is a gap"
    ids = made.ids()
    chain = [ids.index(segment.event) for segment in path.segments]
    assert all(before in made.waits_for[after] for before, after in zip(chain[:-1], chain[1:], strict=True))


@examples(80)
@given(schedules(shortest=0))
def test_slack_is_what_an_event_may_lose(made: Made) -> None:
    events, ids, makespan = made.events(), made.ids(), max(made.ends())
    found = slack(events)
    by_id = dict(zip(found.events["id"].tolist(), found.seconds.tolist(), strict=True))
    assert len(by_id) == sum(label.kind != "stall" for label in made.labels)
    for number, identity in enumerate(ids):
        if identity in by_id:
            late = [by_id[identity] if i == number else 0.0 for i in range(len(ids))]
            later = [by_id[identity] + 1 if i == number else 0.0 for i in range(len(ids))]
            assert max(made.ends(delays=late)) == makespan
            assert max(made.ends(delays=later)) == makespan + 1
    on_path = critical_path(events).events
    assert all(by_id[identity] == 0 for identity in on_path & set(by_id))


@examples(100)
@given(records())
def test_whatever_was_recorded_is_tiled(events: Events) -> None:
    tiles(events)
    found = slack(events).seconds
    assert (found >= -1e-9).all()


def test_a_path_through_messages_work_and_transfers_reads_well() -> None:
    message = Label("stall", "message to island 0 on its way", "p", island=0, route="DCN")
    f = Label("compute", "f", "p", node=0, island=0, devices=4)
    send = Label("transfer", "left → right", "p", node=1, island=1, devices=4, parents=(0,))
    g = Label("compute", "g", "p", node=1, island=1, devices=4, parents=(1,))
    rows = [Row(message, 0, 1, 0), Row(f, 1, 5, 0), Row(send, 5.5, 6, 0), Row(g, 6, 10, 0)]
    path = critical_path(Events.from_rows(rows))
    assert [(s.start, s.end, s.cause, s.event) for s in path.segments] == [
        (0, 1, "dispatch", 0),
        (1, 5, "compute", 1),
        (5, 5.5, "transfer", -1),
        (5.5, 6, "transfer", 2),
        (6, 10, "compute", 3),
    ]
    assert path.seconds == {"compute": 8, "dispatch": 1, "transfer": 1}
    assert path.events == {0, 1, 2, 3}
    assert repr(path).splitlines()[0] == "critical path 10 s: compute 80%, dispatch 10%, transfer 10% (causes inferred)"
    assert ["before", "left", "→", "right", "transfer", "1", "500", "ms", "5%"] in [
        line.split() for line in repr(path).splitlines()
    ]
    assert "<th>cause</th>" in path._repr_html_()


def test_an_end_that_is_seen_late_is_cut_off() -> None:
    f = Label("compute", "f", "p", node=0, island=0, devices=1)
    g = Label("compute", "g", "p", node=1, island=0, device=1, devices=1, parents=(0,))
    path = critical_path(Events.from_rows([Row(f, 0, 5.25, 0), Row(g, 5, 8, 0)]))
    assert [(s.start, s.end, s.name) for s in path.segments] == [(0, 5, "f"), (5, 8, "g")]


def test_events_that_run_side_by_side_do_not_wait_for_each_other() -> None:
    f, g = (Label("compute", name, "p", node=node, island=0, devices=1) for node, name in enumerate("fg"))
    gather = Label("collective", "gather", "p", node=2, island=0, devices=1)
    rows = [Row(f, 0, 4, 0), Row(gather, 1, 9, 0), Row(g, 4, 8, 0)]
    path = critical_path(Events.from_rows(rows))
    assert [s.name for s in path.segments] == ["gather", "gather"], "not f, which goes on while it begins"
    assert [s.cause for s in path.segments] == ["other", "collective"]


@pytest.mark.parametrize(("reason", "cause"), [("memory of island 0 held by bob", "memory"), ("waits its turn", "scheduling")])  # fmt: skip
def test_a_stall_that_held_a_run_back_is_on_its_path(reason: str, cause: str) -> None:
    stall, enqueue = Label("stall", reason, "p"), Label("enqueue", "p", "p", island=0)
    f = Label("compute", "f", "q", island=0, devices=1)
    g = Label("compute", "g", "p", island=0, device=1, devices=1)
    rows = [Row(f, 0, 2, 0), Row(stall, 0.5, 6, 1), Row(enqueue, 6.5, 7, 1), Row(g, 7, 9, 1)]
    assert critical_path(Events.from_rows(rows)).seconds == {cause: 5.5, "dispatch": 1.5, "compute": 2}


def test_sequential_dispatch_alternates_between_messages_and_work() -> None:
    rows, t = [], 0.0
    for node in range(4):
        message = Label("stall", "message", "p", island=node % 2, route="DCN")
        work = Label(
            "compute", f"n{node}", "p", node=node, island=node % 2, devices=4, parents=(node - 1,) if node else ()
        )
        rows += [Row(message, t, t + 1, 0), Row(work, t + 1, t + 3, 0)]
        t += 3
    path = critical_path(Events.from_rows(rows))
    assert [s.cause for s in path.segments] == ["dispatch", "compute"] * 4
    assert path.seconds == {"compute": 8, "dispatch": 4}


def test_python_that_waits_for_a_value_before_it_goes_on_is_part_of_the_chain() -> None:
    f, enqueue = Label("compute", "f", "p", island=0, devices=1), Label("enqueue", "p", "p", island=0)
    rows = [Row(enqueue, 0, 1, 0), Row(f, 1, 4, 0), Row(Label("wait", "float(y)"), 0, 5)]
    rows += [Row(enqueue, 6, 7, 1), Row(f, 7, 9, 1)]
    path = critical_path(Events.from_rows(rows))
    assert [(s.start, s.end, s.cause) for s in path.segments] == [
        (0, 1, "dispatch"), (1, 4, "compute"), (4, 6, "dispatch"), (6, 7, "dispatch"), (7, 9, "compute"),
    ]  # fmt: skip


def test_the_wait_for_the_window_of_launches_is_time_of_the_devices() -> None:
    full, enqueue = Label("stall", WINDOW_FULL, "p", island=0), Label("enqueue", "p", "p", island=0)
    f = Label("compute", "f", "p", island=0, devices=1)
    rows = [Row(enqueue, 0, 1, 0), Row(f, 1, 9, 0)]
    for t in (1, 10, 19):  # one launch at a time: each waits for the end of the one before
        rows += [Row(full, t, t + 8, 0), Row(enqueue, t + 8, t + 9, 0), Row(f, t + 9, t + 17, 0)]
    events = Events.from_rows(rows)
    assert critical_path(events).seconds == {"compute": 32, "dispatch": 4}
    assert idle(events, (1,)).seconds == {**dict.fromkeys(CAUSES, 0), "busy": 32, "dispatch": 4}
    assert what_if(events, node="f", faster=2).after == 20
    assert summarise(events, (1,)).waits == {}


def test_nothing_has_no_path() -> None:
    path = critical_path(Events.from_rows([]))
    assert (path.length, path.segments, len(slack(Events.from_rows([])).seconds)) == (0, (), 0)
