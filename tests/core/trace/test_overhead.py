"""What a record says of the controller's cost: by island and host, with and without calls, and where it says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given

import pathways_nb as pw
from pathways_nb.timing.waits import CALL, DATA, LANE, MESSAGE
from pathways_nb.trace.causality.without_dispatch import overhead
from pathways_nb.trace.metrics import BUSY, covered
from pathways_nb.trace.overhead import overhead_of
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.rows import BY, Label, Row
from pathways_nb.trace.summary import summarise
from tests.core.trace.random_records import DEVICES, records


def enqueue(start: float, end: float, run: int = 0, why: int = MESSAGE, island: int = 0, host: int = -1) -> Row:
    return Row(Label("enqueue", "p", "p", island=island, host=host), start, end, run, "exact", cause=BY[why])


def node(start: float, end: float, run: int = 0, island: int = 0, host: int = -1, quality: str = "exact") -> Row:
    label = Label("compute", "f", "p", node=1, island=island, devices=1, host=host)
    return Row(label, start, end, run, quality, cause=BY[LANE])


def wait(start: float, end: float) -> Row:
    return Row(Label("wait", "p", "p"), start, end, quality="exact")


def test_a_record_without_dispatch_says_that_it_was_not_measured() -> None:
    found = overhead(Events.from_rows([node(0, 1)]))
    assert (found.dispatch, found.node, found.share) == (None, None, None)
    assert str(found) == "dispatch not measured"
    assert repr(found).splitlines()[0] == "dispatch: not measured"
    assert repr(found).count("not measured") == 5
    assert "· dispatch not measured ·" in str(summarise(Events.from_rows([node(0, 1)]), (1,)))
    assert summarise(Events.from_rows([]), (1,)).dispatch == 0


def test_the_busiest_island_and_the_slowest_dispatcher_decide() -> None:
    # Island 0 has three nodes and 1 s of dispatch, island 1 one node and 3 s.
    nodes = [node(0.5, 1.5), node(1.5, 2.5), node(2.5, 3.5), node(3, 4, island=1)]
    found = overhead_of(Events.from_rows([enqueue(0, 1), enqueue(0, 3, island=1), *nodes]))
    assert found.dispatch == 3  # of one or the other
    assert found.node == pytest.approx(4 / 4)
    assert found.hidden_from == pytest.approx(3 / 3)


def test_an_islands_dispatcher_feeds_all_its_devices() -> None:
    def on(device: int, devices: int, at: float) -> Row:
        return Row(Label("compute", "f", "p", node=1, island=0, device=device, devices=devices), at, at + 1)

    # Two nodes on each of four devices, then one on devices 1 and 2: they have three of the nine.
    rows = [*(on(device, 1, 10 + at) for device in range(4) for at in (0, 1)), on(1, 2, 12)]
    found = overhead_of(Events.from_rows([enqueue(0, 9), *rows]))
    assert (found.node, found.hidden_from) == (1, 3)


def test_hosts_of_one_island_dispatch_their_own_part_of_each_node() -> None:
    rows = [enqueue(0, 2, host=0), enqueue(0, 1, host=1), node(2, 3, host=0), node(2, 3, host=1)]
    found = overhead_of(Events.from_rows(rows))
    assert found.node == pytest.approx(1.5)
    assert found.hidden_from == pytest.approx(2)


def test_nodes_within_their_dispatch_give_a_lower_bound_where_they_are_real() -> None:
    rows = [enqueue(0, 4), node(0.2, 2), node(2.2, 4)]
    assert "nodes of more than 2 s hide it (estimated)" in str(overhead_of(Events.from_rows(rows)))
    rows = [enqueue(0, 4), *(row._replace(quality="simulated") for row in rows[1:])]
    assert "nodes of 2 s and longer hide it (estimated)" in str(overhead_of(Events.from_rows(rows)))
    rows = [enqueue(0, 1), node(0.5, 2), node(2, 4)]
    found = overhead_of(Events.from_rows(rows))
    assert found.within == pytest.approx(0.5 / 3.5)
    assert "nodes of 500 ms and longer hide it" in str(found)


def test_a_call_takes_what_lies_between_it_and_what_its_client_did_before() -> None:
    asked = [enqueue(at, at + 0.1, run, CALL) for run, at in enumerate((0.0, 2.0, 9.0, 20.0))]
    rows = [*asked, *(node(row.end, row.end + 0.5, row.run) for row in asked), wait(2.5, 6)]
    found = overhead_of(Events.from_rows(rows))
    # 2 s after the first call, 3 s after the value, 11 s after the third call.
    assert found.call == 3
    # Three of the four calls came without waiting for a value between them: 3 s each, over 4 nodes.
    assert found.fed_by == "calls"
    assert found.hidden_from == pytest.approx(3 * 3 / 4)
    assert "at most 3 s a call" in str(found)


def test_a_call_that_compiled_or_that_nobody_waited_for_is_not_taken_for_a_call() -> None:
    calls = [enqueue(0, 1, 0, CALL), enqueue(5, 6, 1, CALL), enqueue(7, 8, 2, MESSAGE)]
    compiled = Row(Label("compile", "f", "p"), 1, 4, quality="exact")
    found = overhead_of(Events.from_rows([*calls, compiled, node(1, 2), node(6, 7, 1), node(8, 9, 2)]))
    assert found.call is None
    assert "call" not in str(found)
    assert found._table().rows[1] == ["a client's thread for a call", "not measured"]


def test_sequential_dispatch_is_hidden_by_nothing() -> None:
    rows = [enqueue(0, 1, why=CALL), node(1, 2), enqueue(2, 3, why=DATA), node(3, 4)]
    found = overhead_of(Events.from_rows(rows))
    assert (found.node, found.hidden_from) == (1, None)
    assert str(found) == "dispatch 2 s (1 s a node); sequential, so no node hides it"
    assert found._table().rows[-1] == ["hidden by nodes of", "no length, as it is sequential"]


def test_the_share_is_what_a_run_without_dispatch_would_save() -> None:
    rows = [enqueue(0, 4, why=CALL), *(node(at, at + 0.5)._replace(cause=BY[MESSAGE]) for at in (1.0, 2.0, 3.0, 4.0))]
    found = overhead(Events.from_rows(rows))
    assert found.makespan == 4.5
    # The last node begins when the enqueue ends; the others waited within it.
    assert found.without == pytest.approx(2.0)
    assert found.share == pytest.approx(1 - 2 / 4.5)
    assert "56% of the makespan" in str(found)


def test_a_runs_summary_has_the_share_once_it_is_over() -> None:
    record = Record()
    for row in (enqueue(0, 1, why=CALL), node(1, 2)):
        record.add(row)
    run = pw.Run("p", (1,), record)
    assert run.summary().overhead.share is None
    assert "dispatch 1 s (1 s a node); nodes of" in run.summary_line()
    run.finished = True
    assert run.summary().overhead == run.overhead()
    assert "dispatch 1 s (1 s a node, 50% of the makespan); nodes of 1 s and longer hide it" in run.summary_line()


@given(records())
def test_whatever_a_record_says_the_figures_are_possible(events: Events) -> None:
    found, islands = overhead(events), (DEVICES, DEVICES)
    summary = summarise(events, islands)
    enqueues, launches = events.of_kind("enqueue"), events.of_kind(*BUSY)
    assert (found.dispatch is None) == (not len(enqueues))
    if found.dispatch is None:
        return
    assert found.dispatch == summary.dispatch == pytest.approx(covered(enqueues))
    assert found.makespan == pytest.approx(summary.makespan)
    assert 0 <= found.without <= found.makespan
    assert 0 <= (found.share or 0) <= 1
    assert -1e-9 <= found.within <= 1 + 1e-9
    assert found.call is None or found.call >= 0
    # Each island's dispatch over its own launches, by counting; none counts that launched nothing.
    fed = [events.is_("island", i) for i in (0, 1) if launches.is_("island", i).any()]
    seconds = [covered(events.select(on & events.is_("kind", "enqueue"))) for on in fed]
    if found.node is not None and all(seconds):
        assert found.node == pytest.approx(sum(seconds) / len(launches))
    if found.hidden_from is not None and found.fed_by == "dispatch":
        assert found.hidden_from * len(launches) >= max(seconds) * (1 - 1e-9)
