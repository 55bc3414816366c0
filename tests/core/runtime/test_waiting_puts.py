"""A log in which a value waits for memory when the recording begins: another policy is not tried on it."""

from __future__ import annotations

from typing import Any

import pytest

from pathways_nb.controller.events_and_instructions import Event, PutRequested, Submitted
from pathways_nb.controller.log import Logbook
from pathways_nb.controller.policies import fifo
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from pathways_nb.plan.footprint import Allocation
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.sim.policy_replay import ReplayedCalls
from tests.core.controller.imagined_devices import plan_of


def test_a_value_that_waited_when_the_recording_began_is_refused() -> None:
    machine: Any = StateMachine(devices=(1,), budgets=(12,))
    book = Logbook(machine)
    told: list[Event] = [
        PutRequested(number, "ann", 8, name, Allocation(Placement(0, 0, 1), 8))
        for number, name in ((1, "first"), (2, "second"))
    ]
    for event in told:
        book.handle(event, 0.0)
    assert [request.event.name for request in machine.put_requests.waiting.values()] == ["second"]
    start = book.begin()
    book.handle(Submitted(0, "bob", plan_of([0]), (), (0,), (4,)), 1.0)
    with pytest.raises(UsageError, match=r"replay\(policy=\): second waited for memory when it was put, and under "):
        ReplayedCalls(book.end(start), lambda call, node: 1.0, fifo, 1.0)
