"""Memory that others than the controller hold: requests wait for it, and fail with its name, in the core alone."""

from __future__ import annotations

from pathways_nb.controller import log_text
from pathways_nb.controller.events_and_instructions import Grant, MemoryHeld, Occupied, PutRequested, Refuse, Wake, Woke
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.log import Logbook
from pathways_nb.controller.policies import policy_of
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.footprint import Allocation
from pathways_nb.plan.plan import Placement

WHERE = Placement(0, 0, 2)


def asked(buffer: int, count: int) -> PutRequested:
    return PutRequested(buffer, "", count, f"value {buffer}", Allocation(WHERE, count))


def core() -> StateMachine:
    return StateMachine("parallel", policy_of("fifo"), (2,), (100,))


def test_a_request_waits_for_what_others_hold_and_goes_on_when_they_let_go() -> None:
    machine = core()
    assert machine.handle(Occupied(0, 50, "50 B that others hold")) == []
    # What fits beside it is granted at once.
    assert [type(one) for one in machine.handle(asked(0, 30))] == [Grant, MemoryHeld]
    (wait,) = machine.handle(asked(1, 60), 1.0)
    assert isinstance(wait, Wake)
    (blocked,) = machine.admission.blocked.values()
    assert blocked.reason == "memory of island 0 held by no client 30 B, 50 B that others hold"
    assert machine.handle(Occupied(0, 20, "20 B that others hold"), 1.2) == []  # 50 are free, 60 are needed
    granted = machine.handle(Occupied(0, 0), 1.3)
    assert Grant(1, 1.0) in granted
    check_invariants(machine)


def test_a_wait_in_vain_names_what_others_hold() -> None:
    machine = core()
    machine.handle(Occupied(0, 90, "90 B that others hold, such as arrays of your own"))
    (wait,) = machine.handle(asked(0, 60))
    assert isinstance(wait, Wake)
    (refused,) = machine.handle(Woke(), wait.at)
    assert isinstance(refused, Refuse)
    assert str(refused.error) == (
        "value 0 needs 60 B on each device, and lacks 50 B of the 100 B per device of island 0, dev 0–1, less 90 B that "
        "others hold, such as arrays of your own, and nothing is under way that will give memory back. Held by "
        "variables: nothing there. Drop those you no longer need (del y, or fetch y.result() and keep that), or delete "
        "arrays of your own there."
    )


def test_more_than_all_memory_held_by_others_is_no_unlimited_budget() -> None:
    machine = core()
    machine.handle(Occupied(0, 1000, "1 KB that others hold"))
    (wait,) = machine.handle(asked(0, 60))
    assert isinstance(wait, Wake)


def test_a_log_holds_what_others_held() -> None:
    book = Logbook(core())
    book.handle(Occupied(0, 50, "50 B that others hold"), 0.0)
    book.handle(asked(0, 60), 1.0)
    book.handle(Occupied(0, 0), 1.5)
    log = log_text.from_bytes(log_text.as_bytes(book.log()))
    made = [instructions for _, instructions, _ in log.replay()]
    assert Grant(0, 1.0) in made[-1]
