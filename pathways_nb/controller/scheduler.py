"""The gang scheduler: which program's gangs are enqueued next (Pathways, sections 4.4 and 4.5).

It only reads the controller's state and returns a choice, so a policy can be changed or tested without knowing how a
choice is carried out; ``state_machine`` does that.

- Cancelled calls go first, to be skipped.
- Sequential dispatch: one gang at a time, when the one before it is done.
- Parallel dispatch without competition: the whole program, on all its islands, in one step.
- Parallel dispatch while clients compete: gang by gang, as the policy says.

Devices run what is enqueued in order, and nothing can be taken back. So little is enqueued ahead of the devices while
clients compete, or the policy would have nothing left to decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pathways_nb.controller.controller_state import ControllerState
from pathways_nb.controller.policies import PolicyState, ReadyGang, ask
from pathways_nb.controller.requests import Shortage
from pathways_nb.controller.state import CallState
from pathways_nb.errors import PolicyError
from pathways_nb.plan.plan import Gang

NEAR, FAR = 5e-3, 0.25
"""Seconds of work that are enqueued ahead on an island: while clients compete (``NEAR``), and while one has it to
itself (``FAR``)."""
SOON = 0.02
"""Seconds in which a client that has nothing to do may come again: until then, the others' work is not enqueued whole,
or one that makes its next calls when it has heard of the last would find all of it before its own; and what the others
get meanwhile is charged to them."""
CANDIDATES = 8
"""Number of each client's programs that are considered."""


class Choice(NamedTuple):
    """Gangs of a call, by island, that take the next places in the total order."""

    call: CallState
    gangs: Mapping[int, Sequence[Gang]]


class PolicyFailed(NamedTuple):
    """The policy failed: every call that it was to choose from fails with ``error``."""

    calls: Iterable[int]
    error: PolicyError


class ShortOfMemory(NamedTuple):
    """Runs that could go on but for memory: the controller blocks them and asks again."""

    calls: Mapping[CallState, Shortage]


def choose(state: ControllerState, now: float) -> Choice | PolicyFailed | ShortOfMemory | None:
    """Return what to enqueue next; change nothing.

    Args:
        state: the controller's state.
        now: seconds of the controller's clock, which policies are shown.

    Returns:
        Gangs to enqueue, or what has to be dealt with before the next call; ``None`` if nothing can be enqueued now.
    """
    if not state.waiting:
        return None
    # Cancelled calls first, whatever memory, policy and capacity say: skipping takes devices no time, and what waits
    # for their memory can go on only when their ranges have completed.
    if state.given_up:
        return _rest(next(iter(state.given_up.values())))
    short: dict[CallState, Shortage] = {}
    # Without competition there is nothing to decide between gangs, so the whole program is enqueued on all its islands
    # in one step: one launch for each island, whatever the number of nodes.
    if state.dispatch == "parallel" and not is_contended(state, now):
        call = _next_whole(state, short)
        # What lacks memory must be blocked first, or it would be tried again at every event and never count as waiting.
        return ShortOfMemory(short) if short else _rest(call) if call is not None else None
    ready = ready_gangs(state, short)
    if short:
        return ShortOfMemory(short)
    return _ask(state, ready, now) if ready else None


def is_contended(state: ControllerState, now: float) -> bool:
    """Return whether programs are enqueued gang by gang, since more than one client or program may come first."""
    # One client: only a policy that looks at what programs take, such as the shortest first, may reorder them.
    return compete(state, now) or (not state.in_order and len(state.calls) > 1)


def compete(state: ControllerState, now: float) -> bool:
    """Return whether several clients have programs, or one of them had some just now."""
    return state.active > 1 or now < state.left_at + SOON


def ready_gangs(state: ControllerState, short: dict[CallState, Shortage]) -> dict[int, Gang]:
    """Return the gangs of which the next one is chosen, by call; ``short`` receives calls that lack memory."""
    return _ready_in_sequence(state, short) if state.dispatch == "sequential" else _ready_first(state, short)


def _next_whole(state: ControllerState, short: dict[CallState, Shortage]) -> CallState | None:
    """Return the next program of the only client that has any, if its islands have capacity.

    Args:
        state: the controller's state.
        short: receives calls that are found to lack memory.
    """
    calls = next(iter(state.waiting.values()))
    # The oldest first: where its islands are full, as they mostly are, admission need not be asked at all.
    if not _has_capacity_for(state, next(iter(calls.values()))):
        return None
    call = next(iter(_candidates(state, calls, short)), None)
    return call if call is not None and _has_capacity_for(state, call) else None


def _rest(call: CallState) -> Choice:
    """Return all gangs that are left of a call, to be enqueued on all its islands in one step."""
    left = {i: gangs[call.next_gang[i] :] for i, gangs in call.plan.gangs.items() if call.next_gang[i] < len(gangs)}
    return Choice(call, left)


def _candidates(
    state: ControllerState, calls: dict[int, CallState], short: dict[CallState, Shortage]
) -> Iterator[CallState]:
    """Yield the programs of one client that may begin or go on; only the first if the policy would take that.

    If the policy takes programs in order, those behind one that waits for memory may begin only when nothing is in
    flight that could give memory back.

    Args:
        state: the controller's state.
        calls: waiting calls of the client, oldest first.
        short: receives calls that are found to lack memory.
    """
    # Only the oldest few: a client may have thousands of calls queued, and this runs at every event.
    for call in itertools.islice(calls.values(), CANDIDATES):
        # A call behind another is not admitted either: it would hold memory that the other may need first.
        if not call.behind and state.admission.may_try(call):
            lack = state.admission.lack(call)
            if lack is None:
                yield call
                continue
            short[call] = lack
        # What is in flight may give back the memory that this call lacks, and the order is kept. With nothing in flight
        # the next one may begin, or a program that waits for users' variables would stop its client.
        if state.in_order and any(queue.in_flight for queue in state.queues.values()):
            return


def _ready_first(state: ControllerState, short: dict[CallState, Shortage]) -> dict[int, Gang]:
    """Return the gangs that could be enqueued on the first island with capacity for any, by call."""
    # The first island with capacity is enough: the controller asks again until nothing can be enqueued.
    for island in range(len(state.devices)):
        if has_capacity(state, island) and (ready := _ready(state, island, short)):
            return ready
    return {}


def _ready(state: ControllerState, island: int, short: dict[CallState, Shortage]) -> dict[int, Gang]:
    """Return the gangs that could be enqueued on an island, by call; one of each client if the policy takes that."""
    found: dict[int, Gang] = {}
    for calls in state.waiting.values():
        for call in _candidates(state, calls, short):
            # ``None`` if it has none left here, or one that waits for a producer on another island to be enqueued.
            gang = call.next_on(island)
            if gang is not None:
                found[call.submitted.run] = gang
                if state.in_order:
                    # The policy would never take a later program of this client, so it need not be shown one.
                    break
    return found


def _ready_in_sequence(state: ControllerState, short: dict[CallState, Shortage]) -> dict[int, Gang]:
    """Return the next gang of each candidate, by call; nothing while anything is in flight."""
    if any(queue.in_flight for queue in state.queues.values()):
        return {}
    return {
        # ``sequence`` is the order of the plan's gangs over all islands, of which a prefix has been enqueued.
        call.submitted.run: call.plan.sequence[sum(call.next_gang.values())]
        for calls in state.waiting.values()
        for call in _candidates(state, calls, short)
    }


def _ask(state: ControllerState, ready: dict[int, Gang], now: float) -> Choice | PolicyFailed:
    """Return one of these gangs (by call), or the policy's failure."""
    # Nothing to choose: a user's policy is not called.
    if len(ready) == 1:
        ((serial, gang),) = ready.items()
        return Choice(state.calls[serial], {gang.island: (gang,)})
    # Frozen values, never the controller's own objects: a user's function must not be able to change its state.
    shown = tuple(_show(state, state.calls[serial], gang) for serial, gang in ready.items())
    try:
        chosen = ask(state.policy, shown, PolicyState(now, *state.of_clients))
    except PolicyError as error:
        return PolicyFailed(ready, error)
    gang = ready[chosen.serial]
    return Choice(state.calls[chosen.serial], {gang.island: (gang,)})


def _show(state: ControllerState, call: CallState, gang: Gang) -> ReadyGang:
    """Return what a policy is shown of a gang; kept while the same gang is next."""
    # Other policies weigh expected seconds, which change while the gang waits.
    if call.shown is None or not state.in_order:
        call.shown = as_shown(call, gang)
    return call.shown


def as_shown(call: CallState, gang: Gang) -> ReadyGang:
    """Return what a policy is shown of a call's next gang."""
    graph, event = call.plan.graph, call.submitted
    expected = call.estimates.seconds[gang.island][call.next_gang[gang.island]]
    name = graph.names.get(gang.node, "")
    return ReadyGang(event.client, graph.name, name, gang.devices, expected, call.since, event.run)


def has_capacity(state: ControllerState, island: int, ahead: float | None = None) -> bool:
    """Return whether less than ``ahead`` seconds of work (default ``NEAR``) are enqueued on an island.

    Two ranges always fit, however long they are estimated to take.
    """
    queue = state.queues.get(island)
    # Two, so that devices have the next range at hand when one ends. ``work`` is in device-seconds, so the limit in
    # seconds is multiplied by the devices.
    if queue is None or len(queue.in_flight) < 2:
        return True
    ahead = NEAR if ahead is None else ahead
    # Where hosts and not devices are the limit, what waits at hosts is out of the policy's reach, too.
    return queue.work < ahead * state.devices[island] and len(queue.in_flight) * queue.pace < ahead


def _has_capacity_for(state: ControllerState, call: CallState) -> bool:
    """Return whether every island of a call has capacity."""
    return all(has_capacity(state, island, FAR) for island in call.launched)
