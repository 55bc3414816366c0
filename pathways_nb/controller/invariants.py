"""Invariants of the controller's state, which hold after every event.

The tests check them after every test that used a controller, and the fuzzers after events. They recompute from the
calls and buffers what the controller keeps as counters for speed, so a counter that drifts is found where it happens,
not where it is read.
"""

from __future__ import annotations

import itertools
from collections import Counter

from pathways_nb.controller.policies import PolicyState, ReadyGang, ask
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.footprint import covers


def check_invariants(state: StateMachine) -> None:
    """Raise ``AssertionError`` if the state contradicts itself.

    - Every buffer is held by a user or a call, and its count of calls is right.
    - Nothing is done that was not launched.
    - Clients' counters agree with the calls.
    - All memory is accounted for, within the budget, and every admitted program has enough to finish.
    - No request waits for memory though there is enough and it is its turn.
    - A policy that says so takes each client's programs in order of submission.
    """
    _check_buffers(state)
    _check_progress(state)
    _check_clients(state)
    _check_memory(state)
    _check_requests(state)
    _check_order(state)


def _check_buffers(state: StateMachine) -> None:
    held = Counter(b for call in state.calls.values() for b in (*call.submitted.arguments, *call.submitted.results))
    for buffer in held:
        assert buffer in state.store.buffers, f"buffer {buffer} is freed while a run needs it"
    for buffer, entry in state.store.buffers.items():
        assert entry.calls == held[buffer], f"buffer {buffer}: {entry.calls} references, held by {held[buffer]} runs"
        assert entry.held, f"buffer {buffer} is held by nobody"
    for buffer, same in state.store.same.items():
        assert buffer in same <= state.store.buffers.keys(), f"buffer {buffer} is the same as one that is gone"
        assert sum(state.store.buffers[each].allocation is not None for each in same) == 1, f"{same} are one array"


def _check_progress(state: StateMachine) -> None:
    for call in state.calls.values():
        for island, order in call.plan.orders.items():
            assert 0 <= call.done[island] <= call.launched[island] <= len(order), (call, island)
    assert all(call in state.calls for queue in state.queues.values() for call, _ in queue.in_flight)
    waiting = {serial for calls in state.waiting.values() for serial in calls}
    assert waiting == {serial for serial, call in state.calls.items() if not call.enqueued}
    # Else it would wait for ever: only ``Precedence.remove`` ends such a wait, when the other is wholly enqueued.
    assert all(call.behind <= waiting for call in state.calls.values()), "a run waits for one that is enqueued"


def _check_clients(state: StateMachine) -> None:
    for name, client in state.clients.items():
        assert client.unfinished == sum(call.submitted.client == name for call in state.calls.values()), name
    of_client = Counter(
        state.calls[call].submitted.client for queue in state.queues.values() for call, _ in queue.in_flight
    )
    assert {name: client.in_flight for name, client in state.clients.items() if client.in_flight} == of_client
    assert state.active == sum(client.unfinished > 0 for client in state.clients.values())


def _check_memory(state: StateMachine) -> None:
    allocations = [(e.owner, e.allocation) for e in state.store.buffers.values() if e.allocation is not None]
    reservations = [
        (call.submitted.client, reservation)
        for call in state.calls.values()
        for c in call.reservations.values()
        for reservation in c
    ]
    for number, island in enumerate(state.memory.islands):
        for first, _, held in island.ranges:
            expected: Counter[tuple[str, str]] = Counter()
            for owner, allocation in allocations:
                if covers(allocation.placement, number, first):
                    expected[owner, allocation.category] += allocation.bytes
            stored = expected.total()
            for client, reservation in reservations:
                if covers(reservation.where, number, first):
                    expected.update({(client, category): size for category, size in reservation.parts.items()})
            # What is recomputed leaves out zeros, as the ledger does.
            assert held.parts == {whose: size for whose, size in expected.items() if size}, (number, first)
            of_clients: Counter[str] = Counter()
            for (client, _), size in expected.items():
                of_clients[client] += size
            assert held.clients == {client: size for client, size in of_clients.items() if size}, (number, first)
            assert held.total == expected.total(), (number, first)
            assert held.total <= max(island.budget, stored) or not island.budget, "more is set aside than there is"
    for call in state.calls.values():
        for number, of_island in call.reservations.items():
            done = call.gangs_done(number)
            assert all(
                reservation.bytes >= sum(reservation.inputs.values()) + reservation.profile.peaks[done]
                for reservation in of_island
            ), "an admitted run lacks memory to finish"


def _check_requests(state: StateMachine) -> None:
    reserving = state.put_requests.waiting
    assert not reserving.keys() & state.store.buffers.keys(), "a stored buffer waits for memory"
    waiting = {*reserving.values(), *(call for calls in state.waiting.values() for call in calls.values())}
    for request in state.admission.blocked:
        assert request in waiting, "a request that is gone waits for memory"
        assert not request.admitted, "a request waits for memory that it has"
    for request in reserving.values():
        assert not request.reservations, "memory is reserved for a request that waits"
        assert not state.admission.may_try(request), "a request waits though it is its turn"


def _check_order(state: StateMachine) -> None:
    # Asked about the real programs in reverse order, with seconds that differ: one that keeps order must not care.
    for calls in state.waiting.values() if state.in_order else ():
        ready = [
            ReadyGang(call.submitted.client, call.plan.graph.name, "", 1, seconds, call.since, serial)
            for seconds, (serial, call) in zip(itertools.cycle((1.0, None, 0.5)), reversed(calls.items()), strict=False)
        ]
        if len(ready) > 1:
            chosen = ask(state.policy, ready, PolicyState(0.0, *state.of_clients))
            assert chosen is ready[-1], f"the policy says keeps_order=True, but chose run {chosen.serial} of {ready}"
