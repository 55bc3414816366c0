"""Who used the devices and who waited, read off a record: shares add up, waiting counts once and has its reasons."""

from __future__ import annotations

import pytest

from pathways_nb.trace.metrics import clients_of
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.summary import summarise


def work(client: str, start: float, end: float, island: int = 0, devices: int = 2) -> Row:
    return Row(Label("compute", "f", f"{client}'s", client, island=island, devices=devices), start, end)


def stall(client: str, reason: str, start: float, end: float, program: str = "p") -> Row:
    return Row(Label("stall", reason, program, client), start, end)


def test_device_time_is_split_by_client_over_all_islands() -> None:
    rows = [work("ann", 0, 1), work("bob", 1, 3), work("bob", 0, 3, island=1, devices=1), work("", 3, 4)]
    summary = summarise(Events.from_rows(rows), (2, 1))
    assert summary.clients == pytest.approx({"ann": 2 / 11, "bob": 7 / 11, "": 2 / 11})
    assert "ann 18%, bob 64%, no client 18% of device time" in str(summary)
    assert repr(summary) == str(summary).replace(" · ", "\n"), "one fact a line as the last expression of a cell"
    assert summary.utilisation == pytest.approx((1.0, 0.75)), "which is over all of the time, this is of the busy time"


def test_one_client_needs_no_split() -> None:
    for name in ("", "ann"):
        summary = summarise(Events.from_rows([work(name, 0, 1)]), (2,))
        assert summary.clients == {name: 1.0}
        assert "of device time" not in str(summary)
    assert summarise(Events.from_rows([]), (2,)).clients == {}


def test_waiting_is_grouped_by_client_and_reason_and_counts_once() -> None:
    rows = [
        work("ann", 0, 9), work("bob", 9, 10),
        stall("ann", "waits its turn", 0, 2), stall("ann", "waits its turn", 1, 3, "another"),
        stall("ann", "memory held by bob", 3, 3.5), stall("bob", "waits its turn", 0, 1),
        stall("", "Python's garbage collection", 0, 5, program=""),
    ]  # fmt: skip
    summary = summarise(Events.from_rows(rows), (2,))
    assert summary.waits == {
        "ann": {"waits its turn": 3.0, "memory held by bob": 0.5},
        "bob": {"waits its turn": 1.0},
    }
    assert str(summary).endswith(
        "ann waited 3 s (waits its turn), 500 ms (memory held by bob) · bob waited 1 s (waits its turn)"
    )


def test_waiting_for_no_client_has_no_name_where_there_is_no_other() -> None:
    rows = [work("", 0, 1), stall("", "back-pressure: 64 programs queued", 0, 1)]
    assert str(summarise(Events.from_rows(rows), (2,))).endswith("· waited 1 s (back-pressure: 64 programs queued)")
    rows.append(work("ann", 1, 2))
    assert str(summarise(Events.from_rows(rows), (2,))).endswith(
        "no client waited 1 s (back-pressure: 64 programs queued)"
    )


def test_clients_have_the_same_position_whoever_came_first() -> None:
    rows = [work("bob", 0, 1), work("", 1, 2), stall("eve", "waits its turn", 1, 2), work("ann", 2, 3)]
    for one in (rows, rows[::-1]):
        events = Events.from_rows(one)
        assert clients_of(events) == ("ann", "bob", "eve", "")
        assert clients_of(events.select(events.is_("client", "ann"))) == ("ann", "bob", "eve", "")
