"""Room for a value on devices: waited for under the same rule as programs wait for memory, and answered by the core."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.controller.admission import MOST_PASSED, PATIENCE, PATIENCE_WITH_OTHERS
from pathways_nb.controller.events_and_instructions import (
    Closed,
    Completed,
    Event,
    Fail,
    Finish,
    Free,
    Grant,
    Instruction,
    Launch,
    Opened,
    PutRequested,
    Refuse,
    Released,
    Removed,
    Submitted,
    Voided,
    Wake,
    Woke,
)
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.orders import find_cycle
from pathways_nb.controller.policies import POLICIES
from pathways_nb.controller.precedence import Precedence
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.footprint import Allocation, Sizes, footprint_of
from pathways_nb.plan.plan import Placement
from tests.core.controller.imagined_devices import Devices, plan_of
from tests.support.examples import examples

DEVICE, BUDGET = Placement(0, 0, 1), 8
LASTS = 0.01
"""Seconds of a program."""


class Core:
    """The core with one device of ``BUDGET`` bytes, on which programs take turns, and a clock of its own."""

    def __init__(self, **options: Any):
        self.machine = StateMachine(devices=(1,), budgets=(BUDGET,), **options)
        self.now = self.free = 0.0
        self.agenda: list[tuple[float, int, Event]] = []
        self.numbers = itertools.count()
        self.ended: dict[int, float] = {}
        self.failed: dict[int, float] = {}
        """By run: when it ended well, and when it was told to fail."""
        self.begun: set[int] = set()
        self.answers: list[Instruction] = []
        self.on_end: Callable[[str], None] = lambda client: None
        self.clients: dict[int, str] = {}

    def send(self, event: Event) -> list[Instruction]:
        out = self.machine.handle(event, self.now)
        check_invariants(self.machine)
        for instruction in out:
            self.obey(instruction)
        return out

    def obey(self, instruction: Instruction) -> None:
        match instruction:
            case Launch(run, island, start, stop):
                skipped = run in self.failed
                self.begun |= set() if skipped else {run}
                self.free = max(self.free, self.now) + (0.0 if skipped else LASTS)
                if skipped:
                    self.at(self.free, Voided((run,)))  # the number of its result, too
                self.at(self.free, Completed(run, island, start, stop, LASTS))
            case Fail(run):
                self.failed[run] = self.now
            case Wake(at):
                self.at(at, Woke())
            case Grant() | Refuse():
                self.answers.append(instruction)
            case Finish(run):
                self.ended[run] = self.now
                self.on_end(self.clients[run])

    def at(self, time: float, event: Event) -> None:
        heapq.heappush(self.agenda, (time, next(self.numbers), event))

    def step(self) -> None:
        self.now, _, event = heapq.heappop(self.agenda)
        self.send(event)

    def call(self, client: str, size: int, arguments: tuple[int, ...] = (), *, keep: bool = True) -> int:
        """Call a program whose result has so many bytes; returns its result."""
        run = result = next(self.numbers)
        self.clients[run] = client
        plan = plan_of([0], 1, len(arguments), {0: DEVICE})
        footprint = footprint_of(plan, Sizes((0,) * len(arguments) + (size,), {}, {}))
        self.send(Submitted(run, client, plan, arguments, (result,), (8,), footprint))
        if not keep:
            self.send(Released((result,)))
        return result

    def reserve(self, client: str, size: int) -> PutRequested:
        event = PutRequested(next(self.numbers), client, 8, "put", Allocation(DEVICE, size))
        self.send(event)
        return event

    def hold(self, client: str, size: int) -> int:
        self.reserve(client, size)
        (grant,) = self.answers
        self.answers.clear()
        assert isinstance(grant, Grant)
        return grant.buffer


# ---- the core: fairness


@given(
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(["parallel", "sequential"]),
    st.lists(st.lists(st.integers(1, BUDGET), min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(1, BUDGET),
    st.integers(0, 40),
)
@examples(60)
def test_a_value_is_passed_by_so_many_programs_and_no_more(
    policy: str, dispatch: Any, streams: list[list[int]], size: int, warm: int
) -> None:
    core = Core(policy=POLICIES[policy], dispatch=dispatch)
    turns = {f"client {n}": itertools.cycle(sizes) for n, sizes in enumerate(streams)}
    core.on_end = lambda client: core.at(core.now, Opened(client, 1, 0))  # a client calls again when it has been told

    def again() -> None:
        _, _, event = core.agenda[0]
        core.step()
        if isinstance(event, Opened):
            core.call(event.client, next(turns[event.client]), keep=False)

    for client in turns:
        core.call(client, next(turns[client]), keep=False)
    for _ in range(warm):
        again()
    before, waiting = len(core.begun), len(core.machine.admission.blocked)
    core.reserve("putter", size)
    while not core.answers:
        again()
    assert isinstance(core.answers[0], Grant)
    assert len(core.begun) - before <= MOST_PASSED + waiting


def test_values_pass_a_program_no_oftener_than_programs_do() -> None:
    core = Core()
    held = [core.hold("ann", 4), core.hold("ann", 4)]
    run = core.call("bob", 8)
    for _ in range(MOST_PASSED):
        core.send(Released((held.pop(0),)))
        held.append(core.hold("ann", 4))
    core.send(Released((held.pop(0),)))
    core.reserve("ann", 4)
    assert core.answers == []
    core.send(Released((held.pop(),)))
    assert run in core.begun


# ---- the core: answers


def test_the_answer_of_a_value_that_waits() -> None:
    core = Core()
    held = core.hold("ann", 6)
    waits = core.reserve("bob", 4)
    assert core.answers == []
    core.now = 0.5
    core.send(Released((held,)))
    assert core.answers == [Grant(waits.buffer, 0.0)]
    assert core.machine.store.buffers[waits.buffer].allocation == Allocation(DEVICE, 4)


def refusal(core: Core, event: Event) -> str:
    """The error of the only value that waits, and that nothing of it is left."""
    core.send(event)
    (refuse,) = core.answers
    assert isinstance(refuse, Refuse)
    assert not core.machine.put_requests.waiting
    assert not core.machine.admission.blocked
    return f"{type(refuse.error).__name__}: {refuse.error}"


def test_a_value_is_refused_when_its_client_closes() -> None:
    core = Core()
    core.hold("ann", 6)
    core.reserve("bob", 4)
    assert refusal(core, Closed("bob")) == (
        "LostError: put belonged to the client 'bob', which has closed while this waited for memory. "
        "Put it again for another client."
    )


def test_what_lies_on_lost_devices_is_no_longer_in_the_way() -> None:
    core = Core()
    core.hold("ann", 6)
    waits = core.reserve("bob", 4)
    core.send(Removed(DEVICE))
    assert core.answers == [Grant(waits.buffer, 0.0)]


def test_a_value_that_can_never_fit_is_refused_at_once() -> None:
    assert "put needs 9 B on each device of island 0, dev 0, which is more than the 8 B" in refusal(
        Core(), PutRequested(9, "bob", 8, "put", Allocation(DEVICE, 9))
    )


def test_who_no_longer_waits_holds_nobody_up() -> None:
    core = Core()
    core.machine.admission.most_passed = 0
    core.hold("ann", 6)
    waits = core.reserve("bob", 4)
    run = core.call("eve", 1)
    assert run not in core.begun
    assert Free((waits.buffer,)) in core.send(Released((waits.buffer,)))
    assert run in core.begun


# ---- the core: patience


@pytest.mark.parametrize("clients", [2, 3, 6])
def test_clients_that_wait_for_each_other_are_all_told_after_one_patience(clients: int) -> None:
    core = Core()
    for n in range(clients):
        core.hold(f"client {n}", 1)
    runs = [core.call(f"client {n}", BUDGET) for n in range(clients)]
    core.reserve("putter", BUDGET)
    while core.agenda:
        core.step()
    assert core.failed[runs[0]] == PATIENCE_WITH_OTHERS
    assert set(core.failed) == set(runs)
    assert max(core.failed.values()) <= PATIENCE_WITH_OTHERS + PATIENCE
    assert [type(answer) for answer in core.answers] == [Refuse]
    assert core.now <= PATIENCE_WITH_OTHERS + PATIENCE + LASTS


def test_what_the_first_drops_when_it_is_told_serves_the_others() -> None:
    core = Core()
    hers = core.hold("ann", 4)
    core.hold("bob", 4)
    first, second = core.call("ann", 8), core.call("bob", 4)
    while first not in core.failed:
        core.step()
    core.at(core.now + PATIENCE / 2, Released((hers,)))
    while core.agenda:
        core.step()
    assert second in core.begun
    assert second not in core.failed


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_all_that_one_client_has_queued_is_told_at_once(count: int) -> None:
    core = Core()
    core.hold("ann", BUDGET)
    runs = [core.call("bob", 1) for _ in range(count)]
    while core.agenda:
        core.step()
    assert core.failed == dict.fromkeys(runs, PATIENCE_WITH_OTHERS)


def test_a_chain_of_programs_is_told_at_once() -> None:
    core = Core()
    core.hold("ann", BUDGET)
    value = core.call("bob", 1)
    for _ in range(4):
        value = core.call("bob", 1, (value,))
    while core.agenda:
        core.step()
    assert len(core.failed) == 5
    assert max(core.failed.values()) <= PATIENCE_WITH_OTHERS + 5 * LASTS


def test_programs_that_pass_meanwhile_interrupt_a_patience_and_do_not_begin_it_anew() -> None:
    core = Core()
    core.hold("ann", 6)
    waits = core.call("bob", 4)
    for number in range(1, MOST_PASSED):
        while core.agenda and core.agenda[0][0] < number:
            core.step()
        core.now = max(core.now, float(number))
        core.call("ann", 1, keep=False)
    while core.agenda:
        core.step()
    assert PATIENCE_WITH_OTHERS <= core.failed[waits] <= PATIENCE_WITH_OTHERS + MOST_PASSED * LASTS


# ---- the checks of the core's random worlds


def test_a_run_that_overtakes_what_makes_its_argument_is_seen_as_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds check at their end that no orders of enqueues contradict each other: that can fail."""

    def orders() -> Any:
        machine, devices = StateMachine(policy=POLICIES["priority"]), Devices((0,) * 3)
        for name, priority in (("low", 0), ("high", 1)):
            machine.handle(Opened(name, 1, priority))
        tell(Submitted(10, "high", plan_of([2]), (), (10,), (8,)), machine, devices)  # from now on gangs go one by one
        for run, plan in enumerate([*[plan_of([0])] * 8, plan_of([1, 0])]):
            tell(Submitted(run, "low", plan, (), (run,), (8,)), machine, devices)
        tell(Submitted(9, "high", plan_of([0], 1, 1), (8,), (9,), (8,)), machine, devices)
        while launch := next((each for queue in devices.order.values() for each, _ in queue), None):
            devices.order[launch.island] = [each for each in devices.order[launch.island] if each[0] is not launch]
            tell(Completed(launch.run, launch.island, launch.start, launch.stop, 1.0), machine, devices)
        return devices.orders()

    assert find_cycle(orders()) is None
    monkeypatch.setattr(Precedence, "find", lambda self, run: None)
    assert find_cycle(orders())


def tell(event: Any, machine: StateMachine, devices: Devices) -> None:
    if isinstance(event, Submitted):
        devices.submit(event, Sizes((0,) * len(event.plan.slots), {}, {}))
    else:
        order = devices.submitted[event.run].plan.orders[event.island]
        devices.done |= {(event.run, step) for step in order[event.start : event.stop]}
    for instruction in machine.handle(event):
        devices.obey(instruction)


# ---- real devices

"""16 KiB on each of four devices."""
