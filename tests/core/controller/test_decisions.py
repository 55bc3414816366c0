"""What the controller decided, with the rule, what else could be chosen and why calls wait, from logs alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from pathways_nb.controller.decisions import Decision, decisions, log_or_error
from pathways_nb.controller.events_and_instructions import Cancelled, Completed, Event, Opened, Submitted
from pathways_nb.controller.log import Logbook
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from tests.core.controller.imagined_devices import plan_of


def decided(machine: StateMachine, events: Sequence[tuple[float, Event]]) -> list[Decision]:
    book = Logbook(machine)
    start = book.begin()
    for now, event in events:
        book.handle(event, now)
    return list(decisions(book.end(start), 1.0))


def call(run: int, client: str, places: list[int]) -> Submitted:
    return Submitted(run, client, plan_of(places), (), (run,), (4,))


def test_without_competitors_a_program_is_enqueued_whole() -> None:
    (one,) = decided(StateMachine(devices=(1, 1)), [(1.5, call(0, "", [0, 1]))])
    assert (one.at, one.event, one.rule, one.call, one.client) == (0.5, "run 0 is called", "alone", 0, "")
    assert {island: len(names) for island, names in one.enqueued.items()} == {0: 1, 1: 1}
    assert one.waiting == ()
    assert str(one).endswith(
        "1 computation on island 0, 1 computation on island 1 (no other client has work: the whole program goes to all "
        "its islands at once)"
    )


def known_to_be_long(run: int) -> list[tuple[float, Event]]:
    """A call of nobody's that takes a second, after which no more than two of its plan fit on the island."""
    return [(1.0, Submitted(run, "", LONG, (), (run,), (4,))), (2.0, Completed(run, 0, 0, 1, 1.0))]


LONG = plan_of([0])


def in_turn(runs: Iterable[int]) -> list[tuple[float, Event]]:
    """Calls of two clients, one after the other."""
    return [(3.0, Submitted(run, "ab"[run % 2], LONG, (), (run,), (4,))) for run in runs]


def test_while_clients_compete_the_policy_chooses_of_what_is_ready() -> None:
    events = [*known_to_be_long(9), *in_turn(range(6)), (4.0, Completed(0, 0, 0, 1, 1.0))]
    chosen = decided(StateMachine(devices=(1,)), events)[-1]
    assert (chosen.rule, chosen.event) == ("policy", "island 0 has done a part of run 0")
    assert [(gang.client, gang.serial) for gang in chosen.ready] == [("a", 2), ("b", 3)]
    assert chosen.why == "the policy chose it of 2 computations"
    others = {each.call: each.why for each in chosen.waiting}
    later = "its client's earlier calls"
    assert others == {5 - chosen.call: "its turn", 4: later, 5: later}
    assert str(chosen).splitlines()[1].startswith("  ")


def test_what_a_call_waits_for_is_said() -> None:
    both = plan_of([0, 1])
    events = [*known_to_be_long(9), *in_turn(range(3)), (3.0, Submitted(4, "a", both, (), (4,), (4,)))]
    reads = Submitted(5, "b", plan_of([1], arguments=1), (4,), (5,), (4,))
    found = decided(StateMachine(devices=(1, 1)), [*events, (3.0, reads), (3.0, call(6, "c", [1]))])[-1]
    assert found.call == 6
    assert {each.call: each.why for each in found.waiting} == {
        2: "enough is enqueued on island 0",
        4: "enough is enqueued on island 0",
        5: "run 4, whose values it reads or takes over, must be enqueued before it",
    }


def test_cancelled_calls_go_first_and_sequential_dispatch_takes_one_at_a_time() -> None:
    events = [*known_to_be_long(9), *in_turn(range(5)), (3.0, Cancelled((4,)))]
    assert decided(StateMachine(devices=(1,)), events)[-1].rule == "cancelled"
    one_by_one = StateMachine(devices=(1,), dispatch="sequential")
    found = decided(one_by_one, [*in_turn(range(2)), (4.0, Completed(0, 0, 0, 1, 0.5))])
    assert [(one.rule, one.call) for one in found] == [("sequential", 0), ("sequential", 1)]


def test_the_policy_chooses_under_sequential_dispatch_too() -> None:
    one_by_one = StateMachine(devices=(1,), dispatch="sequential")
    found = decided(one_by_one, [*in_turn(range(3)), (4.0, Completed(0, 0, 0, 1, 0.5))])[-1]
    assert (found.rule, found.why) == ("policy", "the policy chose it of 2 computations")


def test_a_recording_begins_with_its_own_decisions() -> None:
    book = Logbook(StateMachine(devices=(1,)))
    book.handle(Opened("a", 1.0, 0.0, 0), 0.0)
    book.handle(call(0, "a", [0]), 0.0)
    start = book.begin()
    book.handle(call(1, "a", [0]), 0.5)
    assert [one.call for one in decisions(book.end(start))] == [1]


def test_a_run_without_a_log_says_so() -> None:
    with pytest.raises(UsageError, match="this run has no log of its controller: it still goes on, its controller is"):
        log_or_error(None)
