"""The gang scheduler: which program's gangs are enqueued next, read from the controller's state (Pathways, 4.4).

What was given up goes first, to be skipped. With sequential dispatch one gang goes at a time, when the one before is
done. A program that nobody competes with goes whole, on all its islands; while clients compete, gang by gang, as the
policy says. Nothing is enqueued far ahead of the devices, or the policy would have nothing left to decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from pathways_nb.controller.admission import Admission
from pathways_nb.controller.policies import PerClient, Policy, PolicyState, ReadyGang, ask
from pathways_nb.controller.requests import Shortage
from pathways_nb.controller.state import IslandQueue, RunState
from pathways_nb.errors import PolicyError
from pathways_nb.plan.plan import Gang

Dispatch = Literal["parallel", "sequential"]
NEAR, FAR = 5e-3, 0.25
"""Seconds of work enqueued ahead on an island while clients compete, and while one has it to itself."""
CANDIDATES = 8
"""Programs of each client that a policy is shown."""


class ControllerState(Protocol):
    """The fields of the controller that the scheduler reads; it changes none."""

    dispatch: Dispatch
    in_order: bool
    of_clients: list[PerClient]
    devices: Sequence[int]
    active: int
    runs: dict[int, RunState]
    waiting: dict[str, dict[int, RunState]]
    given_up: dict[int, RunState]
    queues: dict[int, IslandQueue]
    admission: Admission

    @property
    def policy(self) -> Policy:
        """Chooses between programs."""


class Choice(NamedTuple):
    """By island, the gangs of a run that take the next places in the total order."""

    run: RunState
    gangs: Mapping[int, Sequence[Gang]]


class PolicyFailed(NamedTuple):
    """The policy failed: none of the runs that it was to choose from can go on."""

    runs: Iterable[int]
    error: PolicyError


class ShortOfMemory(NamedTuple):
    """These runs would go on but for memory: note that, and choose again."""

    runs: Mapping[RunState, Shortage]


def choose(state: ControllerState, now: float) -> Choice | PolicyFailed | ShortOfMemory | None:
    """What to enqueue next; ``None`` where there is nothing, or no room. Changes nothing."""
    if not state.waiting:
        return None
    if state.given_up:
        return _rest(next(iter(state.given_up.values())))
    short: dict[RunState, Shortage] = {}
    if state.dispatch == "parallel" and not _is_contended(state):
        run = _next_whole(state, short)
        return ShortOfMemory(short) if short else _rest(run) if run is not None else None
    ready = _ready_in_sequence(state, short) if state.dispatch == "sequential" else _ready_first(state, short)
    if short:
        return ShortOfMemory(short)
    return _ask(state, ready, now) if ready else None


def _next_whole(state: ControllerState, short: dict[RunState, Shortage]) -> RunState | None:
    """The next program of the only client that has any."""
    runs = next(iter(state.waiting.values()))
    if not _has_capacity_for(state, next(iter(runs.values()))):
        return None
    run = next(iter(_candidates(state, runs, short)), None)
    return run if run is not None and _has_capacity_for(state, run) else None


def _rest(run: RunState) -> Choice:
    """All of it that is left, on all islands in one step of the total order."""
    left = {i: gangs[run.next_gang[i] :] for i, gangs in run.plan.gangs.items() if run.next_gang[i] < len(gangs)}
    return Choice(run, left)


def _is_contended(state: ControllerState) -> bool:
    """Whether a policy has something to decide."""
    if state.active > 1:
        return True
    return not state.in_order and len(state.runs) > 1


def _candidates(
    state: ControllerState, runs: dict[int, RunState], short: dict[RunState, Shortage]
) -> Iterator[RunState]:
    """Of one client: programs that may go on or begin; where the policy would take the first, no others.

    Behind one that waits for memory others may begin only when nothing is under way that could give it back. Adds to
    ``short`` those that are found to lack memory.
    """
    for run in itertools.islice(runs.values(), CANDIDATES):
        if not run.behind and state.admission.may_try(run):
            lack = state.admission.lack(run)
            if lack is None:
                yield run
                continue
            short[run] = lack
        if state.in_order and any(queue.in_flight for queue in state.queues.values()):
            return


def _ready_first(state: ControllerState, short: dict[RunState, Shortage]) -> dict[int, Gang]:
    """By run: the gangs that could be enqueued on the first island that has room for any."""
    for island in range(len(state.devices)):
        if _has_capacity(state, island, NEAR) and (ready := _ready(state, island, short)):
            return ready
    return {}


def _ready(state: ControllerState, island: int, short: dict[RunState, Shortage]) -> dict[int, Gang]:
    """By run: the gangs that could be enqueued there; of each client one, where the policy would take that."""
    found: dict[int, Gang] = {}
    for runs in state.waiting.values():
        for run in _candidates(state, runs, short):
            gang = run.next_on(island)
            if gang is not None:
                found[run.submitted.run] = gang
                if state.in_order:
                    break
    return found


def _ready_in_sequence(state: ControllerState, short: dict[RunState, Shortage]) -> dict[int, Gang]:
    """By run: its next gang, once nothing is under way."""
    if any(queue.in_flight for queue in state.queues.values()):
        return {}
    return {
        run.submitted.run: run.plan.sequence[sum(run.next_gang.values())]
        for runs in state.waiting.values()
        for run in _candidates(state, runs, short)
    }


def _ask(state: ControllerState, ready: dict[int, Gang], now: float) -> Choice | PolicyFailed:
    """One of these gangs (by run); if the policy fails, none."""
    if len(ready) == 1:
        ((serial, gang),) = ready.items()
        return Choice(state.runs[serial], {gang.island: (gang,)})
    shown = tuple(_show(state, state.runs[serial], gang) for serial, gang in ready.items())
    try:
        chosen = ask(state.policy, shown, PolicyState(now, *state.of_clients))
    except PolicyError as error:
        return PolicyFailed(ready, error)
    gang = ready[chosen.serial]
    return Choice(state.runs[chosen.serial], {gang.island: (gang,)})


def _show(state: ControllerState, run: RunState, gang: Gang) -> ReadyGang:
    if run.shown is not None and state.in_order:
        return run.shown
    graph = run.plan.graph
    name = graph.names.get(gang.node, "")
    expected = run.estimates.seconds[gang.island][run.next_gang[gang.island]]
    event = run.submitted
    run.shown = ReadyGang(event.client, graph.name, name, gang.devices, expected, run.since, event.run)
    return run.shown


def _has_capacity_for(state: ControllerState, run: RunState) -> bool:
    return all(_has_capacity(state, island, FAR) for island in run.launched)


def _has_capacity(state: ControllerState, island: int, ahead: float) -> bool:
    """Whether less than ``ahead`` seconds of work are enqueued there."""
    queue = state.queues.get(island)
    return queue is None or len(queue.in_flight) < 2 or queue.work < ahead * state.devices[island]
