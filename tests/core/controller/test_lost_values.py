"""Values that go with their client while a call is on the way, in the state machine alone."""

from __future__ import annotations

from pathways_nb.controller.events_and_instructions import (
    Closed,
    Completed,
    Fail,
    Finish,
    Free,
    Launch,
    Lose,
    Stored,
    Submitted,
    Voided,
)
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.footprint import Allocation, Sizes, footprint_of
from pathways_nb.plan.plan import Placement
from tests.core.controller.imagined_devices import plan_of

whole = Allocation(Placement(0, 0, 1), 4)


def test_a_call_whose_argument_goes_with_its_client_on_the_way_fails_and_leaves_nothing() -> None:
    machine = StateMachine()
    machine.handle(Stored(5, "ann", 8, "hers", whole))
    machine.handle(Closed("ann"))
    submitted = Submitted(0, "bob", plan_of([0, 1], 1, 2), (5, 6), (7,), (8,))
    machine.handle(Stored(6, "bob", 8, "his"))
    fail, *rest = machine.handle(submitted)
    assert isinstance(fail, Fail)
    assert str(fail.error) == (
        "plan, run 0, reads what belonged to a client that closed while it was called. Fetch what you need before it "
        "does."
    )
    assert rest == [Launch(0, 0, 0, 3), Launch(0, 1, 0, 1)]
    check_invariants(machine)
    machine.handle(Completed(0, 0, 0, 3))
    assert Finish(0) in machine.handle(Completed(0, 1, 0, 1))
    assert set(machine.store.buffers) == {6, 7}


def test_the_same_of_a_program_that_hands_back_what_has_gone() -> None:
    machine, plan = StateMachine(), plan_of([0], [0, 1], 2)
    machine.handle(Stored(5, "ann", 8, "hers", whole))
    machine.handle(Stored(6, "bob", 8, "his", whole))
    machine.handle(Closed("ann"))
    needs = footprint_of(plan, Sizes((4, 4, 4), {}, {}), [1])
    machine.handle(Submitted(0, "bob", plan, (5, 6), (7, 8), (8, 8), needs))
    machine.handle(Voided((7, 8)))
    assert Finish(0) in machine.handle(Completed(0, 0, 0, 3))
    assert set(machine.store.buffers) == {6, 7, 8}
    check_invariants(machine)


def test_a_result_that_outlives_its_client_in_a_run_is_lost_by_name_when_the_run_ends() -> None:
    machine = StateMachine()
    machine.handle(Stored(5, "ann", 8, "hers", whole))
    machine.handle(Submitted(0, "bob", plan_of([0], 1, 1), (5,), (6,), (8,)))
    assert not any(isinstance(i, (Lose, Free)) for i in machine.handle(Closed("ann")))
    _, lose, free, *_ = machine.handle(Completed(0, 0, 0, 2))
    why = "hers belonged to the client 'ann', which has closed. Fetch what you need before it does."
    assert (lose, free) == (Lose((5,), (why,)), Free((5,)))
