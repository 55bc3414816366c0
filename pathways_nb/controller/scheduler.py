"""The gang scheduler: which program's gangs are enqueued next, read from the controller's state (Pathways, 4.4).

What was given up goes first, to be skipped. With sequential dispatch one gang goes at a time, when the one before is
done. A program that nobody competes with goes whole, on all its islands; while clients compete, gang by gang, as the
policy says. Nothing is enqueued far ahead of the devices, or the policy would have nothing left to decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pathways_nb.controller.policies import PolicyState, ReadyGang, ask
from pathways_nb.controller.requests import Lack
from pathways_nb.controller.state import RunState
from pathways_nb.errors import PolicyError
from pathways_nb.plan.plan import Gang

if TYPE_CHECKING:
    from pathways_nb.controller.state_machine import Machine

NEAR, FAR = 5e-3, 0.25
"""Seconds of work enqueued ahead on an island while clients compete, and while one has it to itself."""
CANDIDATES = 8
"""Programs of each client that a policy is shown."""


class Choice(NamedTuple):
    """By island, the gangs of a run that take the next places in the total order."""

    run: RunState
    gangs: Mapping[int, Sequence[Gang]]


class Unchosen(NamedTuple):
    """The policy failed: none of the runs that it was to choose from can go on."""

    runs: Iterable[int]
    error: PolicyError


class Short(NamedTuple):
    """These runs would go on but for memory: note that, and choose again."""

    runs: Mapping[RunState, Lack]


def choose(machine: Machine, now: float) -> Choice | Unchosen | Short | None:
    """What to enqueue next; ``None`` where there is nothing, or no room. Changes nothing."""
    if not machine.waiting:
        return None
    if machine.given_up:
        return _rest(next(iter(machine.given_up.values())))
    short: dict[RunState, Lack] = {}
    if machine.dispatch == "parallel" and not _is_contended(machine):
        run = _next_whole(machine, short)
        return Short(short) if short else _rest(run) if run is not None else None
    ready = _ready_in_sequence(machine, short) if machine.dispatch == "sequential" else _ready_first(machine, short)
    if short:
        return Short(short)
    return _ask(machine, ready, now) if ready else None


def _next_whole(machine: Machine, short: dict[RunState, Lack]) -> RunState | None:
    """The next program of the only client that has any."""
    runs = next(iter(machine.waiting.values()))
    if not _has_room_for(machine, next(iter(runs.values()))):
        return None
    run = next(iter(_candidates(machine, runs, short)), None)
    return run if run is not None and _has_room_for(machine, run) else None


def _rest(run: RunState) -> Choice:
    """All of it that is left, on all islands in one step of the total order."""
    left = {i: gangs[run.next_gang[i] :] for i, gangs in run.plan.gangs.items() if run.next_gang[i] < len(gangs)}
    return Choice(run, left)


def _is_contended(machine: Machine) -> bool:
    """Whether a policy has something to decide."""
    if machine.active > 1:
        return True
    return not machine.in_order and len(machine.runs) > 1


def _candidates(machine: Machine, runs: dict[int, RunState], short: dict[RunState, Lack]) -> Iterator[RunState]:
    """Of one client: programs that may go on or begin; where the policy would take the first, no others.

    Behind one that waits for memory others may begin only when nothing is under way that could give it back. Adds to
    ``short`` those that are found to lack memory.
    """
    for run in itertools.islice(runs.values(), CANDIDATES):
        if not run.behind and machine.admission.may_try(run):
            lack = machine.admission.lack(run)
            if lack is None:
                yield run
                continue
            short[run] = lack
        if machine.in_order and any(lane.in_flight for lane in machine.lanes.values()):
            return


def _ready_first(machine: Machine, short: dict[RunState, Lack]) -> dict[int, Gang]:
    """By run: the gangs that could be enqueued on the first island that has room for any."""
    for island in range(len(machine.devices)):
        if _has_room(machine, island, NEAR) and (ready := _ready(machine, island, short)):
            return ready
    return {}


def _ready(machine: Machine, island: int, short: dict[RunState, Lack]) -> dict[int, Gang]:
    """By run: the gangs that could be enqueued there; of each client one, where the policy would take that."""
    found: dict[int, Gang] = {}
    for runs in machine.waiting.values():
        for run in _candidates(machine, runs, short):
            gang = run.next_on(island)
            if gang is not None:
                found[run.submitted.run] = gang
                if machine.in_order:
                    break
    return found


def _ready_in_sequence(machine: Machine, short: dict[RunState, Lack]) -> dict[int, Gang]:
    """By run: its next gang, once nothing is under way."""
    if any(lane.in_flight for lane in machine.lanes.values()):
        return {}
    return {
        run.submitted.run: run.plan.sequence[sum(run.next_gang.values())]
        for runs in machine.waiting.values()
        for run in _candidates(machine, runs, short)
    }


def _ask(machine: Machine, ready: dict[int, Gang], now: float) -> Choice | Unchosen:
    """One of these gangs (by run); if the policy fails, none."""
    if len(ready) == 1:
        ((serial, gang),) = ready.items()
        return Choice(machine.runs[serial], {gang.island: (gang,)})
    shown = tuple(_show(machine, machine.runs[serial], gang) for serial, gang in ready.items())
    try:
        chosen = ask(machine.policy, shown, PolicyState(now, *machine.of_clients))
    except PolicyError as error:
        return Unchosen(ready, error)
    gang = ready[chosen.serial]
    return Choice(machine.runs[chosen.serial], {gang.island: (gang,)})


def _show(machine: Machine, run: RunState, gang: Gang) -> ReadyGang:
    if run.shown is not None and machine.in_order:
        return run.shown
    graph = run.plan.graph
    name = graph.names.get(gang.node, "")
    expected = run.estimates.seconds[gang.island][run.next_gang[gang.island]]
    event = run.submitted
    run.shown = ReadyGang(event.client, graph.name, name, gang.devices, expected, run.since, event.run)
    return run.shown


def _has_room_for(machine: Machine, run: RunState) -> bool:
    return all(_has_room(machine, island, FAR) for island in run.launched)


def _has_room(machine: Machine, island: int, ahead: float) -> bool:
    """Whether less than ``ahead`` seconds of work are enqueued there."""
    lane = machine.lanes.get(island)
    return lane is None or len(lane.in_flight) < 2 or lane.work < ahead * machine.devices[island]
