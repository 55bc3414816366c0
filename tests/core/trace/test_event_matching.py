"""Events of two records matched: by name and occurrence, on one axis."""

from __future__ import annotations

from pathways_nb.trace.matching import beginning, compare_events
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row

f = Label("compute", "f", "p", node=1, island=0, devices=2)
send = Label("transfer", "x", "p", node=2, island=1, devices=2, bytes=8)


def test_times_count_from_the_first_dispatch_and_occurrences_are_told_apart() -> None:
    compiling = Row(Label("compile", "f", "p"), 0.0, 5.0)
    one = Events.from_rows([compiling, Row(f, 6.0, 7.0), Row(f, 7.0, 8.0), Row(send, 8.0, 8.5)])
    two = Events.from_rows([Row(f, 0.0, 1.0), Row(f, 1.0, 4.0)])
    assert (beginning(one), beginning(two)) == (6.0, 0.0)
    difference = compare_events(one, two)
    assert (len(difference), difference.only_a, difference.only_b) == (2, 1, 0)
    assert difference.table["occurrence"].tolist() == [0, 1]
    assert difference.table["start_a"].tolist() == difference.table["start_b"].tolist() == [0.0, 1.0]
    assert difference.table["longer"].tolist() == [0.0, 2.0]
    assert difference.worst() == ["f: +2 s"]


def test_what_differs_by_rounding_only_is_no_difference() -> None:
    one, two = (Events.from_rows([Row(f, at, at + 0.1), Row(send, at + 0.1, at + 0.2)]) for at in (0.0, 0.3))
    assert compare_events(one, two).worst() == []


def test_what_one_client_did_is_no_partner_of_what_another_did() -> None:
    bob, eve = (Label("compute", "f", "p", client, node=1, island=0, devices=2) for client in ("bob", "eve"))
    one = Events.from_rows([Row(bob, 0.0, 1.0), Row(eve, 1.0, 2.0)])
    two = Events.from_rows([Row(eve, 0.0, 3.0), Row(bob, 3.0, 4.0)])
    difference = compare_events(one, two)
    assert difference.table["client"].tolist() == ["bob", "eve"]
    assert difference.table["longer"].tolist() == [0.0, 2.0]
    assert difference.worst(1) == ["f of eve: +2 s"]
    alone = compare_events(Events.from_rows([Row(bob, 0.0, 1.0)]), Events.from_rows([Row(eve, 0.0, 1.0)]))
    assert (len(alone), alone.only_a, alone.only_b) == (0, 1, 1)
