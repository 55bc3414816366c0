"""The controller: events in, instructions out (Pathways, sections 4.2 to 4.6). No JAX, threads, clocks or printing.

It keeps one total order of enqueues: gangs are enqueued one after another, each after all that it needs, and a
program that nobody competes with takes its places in all islands' orders in one step. So the orders of any two islands
are compatible and gangs cannot deadlock, whatever a policy chooses. With parallel asynchronous dispatch gangs go out
ahead of their inputs; with sequential dispatch one at a time, each when the one before is done.
"""

from __future__ import annotations

import itertools
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pathways_nb.controller.ledger import Ledger
from pathways_nb.controller.messages import (
    Cancelled,
    Completed,
    Event,
    Fail,
    Finish,
    Free,
    Instruction,
    Launch,
    Opened,
    Released,
    Stop,
    Stored,
    Submitted,
)
from pathways_nb.controller.policies import Policy, PolicyState, ReadyGang, ask, fifo, priority, stride
from pathways_nb.errors import PolicyError
from pathways_nb.program.plan import Gang, Plan

Dispatch = Literal["parallel", "sequential"]
NEAR, FAR = 5e-3, 0.25
"""Seconds of work enqueued ahead on an island while clients compete, and while one has it to itself."""
GUESS = 1e-3
"""Seconds that a gang is taken to last before it has run."""
CANDIDATES = 8
"""Programs of each client that a policy is shown."""
_IN_ORDER: tuple[Policy, ...] = (fifo, stride, priority)
"""Policies that take one client's programs as they were submitted."""


class Estimates:
    """How long each gang of a plan takes, in seconds, learnt as it runs."""

    def __init__(self, plan: Plan):
        self.seconds: dict[int, list[float | None]] = {i: [None] * len(gangs) for i, gangs in plan.gangs.items()}

    def of(self, island: int, gang: int) -> float:
        """The seconds to reckon with."""
        found = self.seconds[island][gang]
        return GUESS if found is None else found

    def learn(self, island: int, gangs: range, seconds: float) -> None:
        """All of ``gangs`` took ``seconds``: share them out as they were expected, and move a part of the way."""
        known = self.seconds[island]
        before = [self.of(island, gang) for gang in gangs]
        scale = seconds / (sum(before) or 1.0)
        for gang, old in zip(gangs, before, strict=True):
            new = old * scale if sum(before) else seconds / len(gangs)
            known[gang] = new if known[gang] is None else old + 0.3 * (new - old)


@dataclass
class ClientState:
    """A tenant: what it was promised, and what it has had, in device-seconds."""

    share: float = 1.0
    priority: float = 0.0
    seconds: float = 0.0
    passed: float = 0.0
    unfinished: int = 0

    def charge(self, seconds: float, contended: bool) -> None:
        """It has had so many more device-seconds; fewer if negative. What nobody else wanted is not held against it."""
        self.seconds += seconds
        self.passed += seconds / self.share if contended else 0.0


@dataclass
class RunState:
    """One submitted program: what is enqueued and what is done on each island, as counts of its order there."""

    submitted: Submitted
    since: float
    estimates: Estimates
    launched: dict[int, int]
    done: dict[int, int]
    next_gang: dict[int, int]
    cancelled: bool = False

    @property
    def plan(self) -> Plan:
        """What is run."""
        return self.submitted.plan

    def next_on(self, island: int) -> Gang | None:
        """The next gang on an island, if what it needs from other islands has been enqueued there."""
        gangs = self.plan.gangs.get(island, ())
        position = self.next_gang.get(island, 0)
        if position == len(gangs) or any(self.launched[other] < stop for other, stop in gangs[position].after):
            return None
        return gangs[position]

    @property
    def enqueued(self) -> bool:
        """Whether all of it is."""
        return all(self.next_gang[island] == len(gangs) for island, gangs in self.plan.gangs.items())


@dataclass
class Lane:
    """What is enqueued on an island and not done.

    By run and end of the range: device-seconds expected, and whether clients competed when it was enqueued.
    """

    in_flight: dict[tuple[int, int], tuple[float, bool]] = field(default_factory=dict)
    work: float = 0.0
    """Device-seconds expected of all."""

    def add(self, run: int, stop: int, work: float, contended: bool) -> None:
        """A range is enqueued."""
        self.in_flight[run, stop] = work, contended
        self.work += work

    def take(self, run: int, stop: int) -> tuple[float, bool]:
        """A range is done; returns what was said of it."""
        work, contended = self.in_flight.pop((run, stop))
        self.work = self.work - work if self.in_flight else 0.0
        return work, contended


@dataclass
class Machine:
    """The whole state of the single controller; ``handle`` is its only door.

    Args:
        dispatch: ``"parallel"`` or ``"sequential"`` (Pathways, Figure 4).
        policy: chooses between programs.
        devices: how many each island has.
    """

    dispatch: Dispatch = "parallel"
    policy: Policy = stride
    devices: tuple[int, ...] = (1, 1, 1)
    ledger: Ledger = field(default_factory=Ledger)
    clients: dict[str, ClientState] = field(default_factory=dict)
    active: int = 0
    """Clients with unfinished programs."""
    runs: dict[int, RunState] = field(default_factory=dict)
    waiting: dict[str, dict[int, RunState]] = field(default_factory=dict)
    """By client: runs that are not wholly enqueued, oldest first."""
    given_up: list[int] = field(default_factory=list)
    """Cancelled runs of which some is still to be enqueued, to be skipped there."""
    lanes: dict[int, Lane] = field(default_factory=dict)
    orders: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """For each island, its unfinished enqueues as (place in the total order, run)."""
    _places: int = 0
    _estimates: weakref.WeakKeyDictionary[Plan, Estimates] = field(default_factory=weakref.WeakKeyDictionary)

    def handle(self, event: Event, now: float = 0.0) -> list[Instruction]:
        """Take an event at a time in seconds, change state, and say what is to be done."""
        return self._handlers[type(event)](self, event, now)

    # ---- events

    def _opened(self, event: Opened, now: float) -> list[Instruction]:
        client = self._client(event.client)
        client.share, client.priority = event.share, event.priority
        return []

    def _submitted(self, event: Submitted, now: float) -> list[Instruction]:
        self.ledger.hold(event.arguments)
        for buffer, size in zip(event.results, event.result_bytes, strict=True):
            self.ledger.add(buffer, event.client, size, references=2)  # the user's handle and the run itself
        none = dict.fromkeys(event.plan.islands, 0)
        estimates = self._estimates.get(event.plan)
        if estimates is None:
            estimates = self._estimates[event.plan] = Estimates(event.plan)
        run = self.runs[event.run] = RunState(event, now, estimates, dict(none), dict(none), dict(none))
        client = self._client(event.client)
        self.active += not client.unfinished
        if not client.unfinished:  # what it left unused is gone: nobody can save up
            others = [c.passed for c in self.clients.values() if c.unfinished]
            client.passed = max([client.passed, *([min(others)] if others else [])])
        client.unfinished += 1
        if not event.plan.steps:
            return self._finish(event.run)
        self.waiting.setdefault(event.client, {})[event.run] = run
        return self._pump(now)

    def _stored(self, event: Stored, now: float) -> list[Instruction]:
        self.ledger.add(event.buffer, event.client, event.bytes, references=1)
        return []

    def _completed(self, event: Completed, now: float) -> list[Instruction]:
        run, island = self.runs[event.run], event.island
        expected, contended = self.lanes[island].take(event.run, event.stop)
        self.orders[island].remove(next(entry for entry in self.orders[island] if entry[1] == event.run))
        if not run.cancelled:
            self._learn(run, island, event)
            self._client(run.submitted.client).charge(event.device_seconds - expected, contended)
        run.done[island] += event.stop - event.start
        out = self._finish(event.run) if self._is_done(event.run) else []
        return out + self._pump(now)

    def _released(self, event: Released, now: float) -> list[Instruction]:
        return _free(self.ledger.drop(event.buffers))

    def _cancelled(self, event: Cancelled, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for serial in event.runs:
            run = self.runs.get(serial)
            if run is not None and not run.cancelled:
                self._give_up(run)
                out.append(Stop(serial))
        return out + self._pump(now)

    # ---- dispatch

    def _pump(self, now: float) -> list[Instruction]:
        """Enqueue what there is room for."""
        out: list[Instruction] = []
        while fresh := self._next(now):
            out += fresh
        return out

    def _next(self, now: float) -> list[Instruction]:
        if not self.waiting:
            return []
        if self.given_up:
            return self._enqueue_rest(self.runs[self.given_up.pop()])
        if self.dispatch == "sequential":
            return self._next_in_sequence(now)
        if self._is_contended():
            return self._next_gang(now)
        run = next(run for runs in self.waiting.values() for run in runs.values())
        if all(self._has_room(island, FAR) for island in run.launched):
            return self._enqueue_rest(run)
        return []

    def _is_contended(self) -> bool:
        """Whether a policy has something to decide."""
        if self.active > 1:
            return True
        return self.policy not in _IN_ORDER and len(self.runs) > 1

    def _next_gang(self, now: float) -> list[Instruction]:
        for island in range(len(self.devices)):
            if self._has_room(island, NEAR) and (ready := self._ready(island)):
                return self._choose(ready, now)
        return []

    def _ready(self, island: int) -> dict[int, Gang]:
        """By run: the gangs that could be enqueued there; of each client one, where the policy would take that."""
        found: dict[int, Gang] = {}
        for runs in self.waiting.values():
            for serial, run in itertools.islice(runs.items(), CANDIDATES):
                gang = run.next_on(island)
                if gang is not None:
                    found[serial] = gang
                    if self.policy in _IN_ORDER:
                        break
        return found

    def _next_in_sequence(self, now: float) -> list[Instruction]:
        if any(lane.in_flight for lane in self.lanes.values()):
            return []
        ready = {
            serial: run.plan.sequence[sum(run.next_gang.values())]
            for runs in self.waiting.values()
            for serial, run in itertools.islice(runs.items(), CANDIDATES)
        }
        return self._choose(ready, now)

    def _choose(self, ready: dict[int, Gang], now: float) -> list[Instruction]:
        """Enqueue one of these gangs (by run); if the policy fails, its candidates do."""
        if len(ready) == 1:
            ((serial, gang),) = ready.items()
            return self._enqueue(self.runs[serial], [gang])
        shown = [self._show(self.runs[serial], gang) for serial, gang in ready.items()]
        try:
            chosen = ask(self.policy, shown, self._policy_state(now))
        except PolicyError as error:
            for serial in ready:
                self._give_up(self.runs[serial])
            return [Fail(serial, error) for serial in ready]
        return self._enqueue(self.runs[chosen.serial], [ready[chosen.serial]])

    def _has_room(self, island: int, ahead: float) -> bool:
        lane = self.lanes.get(island)
        if lane is None or len(lane.in_flight) < 2:
            return True
        return lane.work < ahead * self.devices[island]

    def _enqueue_rest(self, run: RunState) -> list[Instruction]:
        """All of it that is left, on all islands in one step of the total order."""
        left = [gang for island, gangs in run.plan.gangs.items() for gang in gangs[run.next_gang[island] :]]
        return self._enqueue(run, left)

    def _enqueue(self, run: RunState, gangs: Sequence[Gang]) -> list[Instruction]:
        """Give gangs of one run the next place in the total order."""
        serial, client = run.submitted.run, self._client(run.submitted.client)
        out: list[Instruction] = []
        self._places += 1
        for island, parts in itertools.groupby(sorted(gangs, key=lambda g: (g.island, g.start)), lambda g: g.island):
            group = list(parts)
            first = run.next_gang[island]
            work = sum(run.estimates.of(island, first + i) * gang.devices for i, gang in enumerate(group))
            client.charge(work, self.active > 1)
            self.lanes.setdefault(island, Lane()).add(serial, group[-1].stop, work, self.active > 1)
            self.orders.setdefault(island, []).append((self._places, serial))
            run.launched[island], run.next_gang[island] = group[-1].stop, first + len(group)
            out.append(Launch(serial, island, group[0].start, group[-1].stop))
        if run.enqueued:
            self._forget_waiting(run)
        return out

    def _give_up(self, run: RunState) -> None:
        run.cancelled = True
        if not run.enqueued:
            self.given_up.append(run.submitted.run)

    def _forget_waiting(self, run: RunState) -> None:
        runs = self.waiting[run.submitted.client]
        del runs[run.submitted.run]
        if not runs:
            del self.waiting[run.submitted.client]

    # ---- accounts

    def _client(self, name: str) -> ClientState:
        return self.clients.setdefault(name, ClientState())

    def _learn(self, run: RunState, island: int, event: Completed) -> None:
        gangs = run.plan.gangs[island]
        stops = [gang.stop for gang in gangs]
        ended = range(bisect_right(stops, event.start), bisect_right(stops, event.stop))
        devices = sum(gangs[i].devices * run.estimates.of(island, i) for i in ended)
        alone = sum(run.estimates.of(island, i) for i in ended)
        run.estimates.learn(island, ended, event.device_seconds * alone / devices if devices else 0.0)

    def _show(self, run: RunState, gang: Gang) -> ReadyGang:
        graph = run.plan.graph
        name = graph.names.get(gang.node, "")
        expected = run.estimates.seconds[gang.island][run.next_gang[gang.island]]
        event = run.submitted
        return ReadyGang(event.client, graph.name, name, gang.devices, expected, run.since, event.run)

    def _policy_state(self, now: float) -> PolicyState:
        def each(name: str) -> dict[str, float]:
            return {client: getattr(state, name) for client, state in self.clients.items()}

        return PolicyState(now, each("seconds"), each("share"), each("priority"), each("passed"))

    def _is_done(self, serial: int) -> bool:
        run = self.runs[serial]
        return all(run.done[island] == len(order) for island, order in run.plan.orders.items())

    def _finish(self, serial: int) -> list[Instruction]:
        run = self.runs.pop(serial)
        client = self._client(run.submitted.client)
        client.unfinished -= 1
        self.active -= not client.unfinished
        held = (*run.submitted.arguments, *run.submitted.results)
        return [Finish(serial), *_free(self.ledger.drop(held))]

    _handlers: dict[type, Callable[[Any, Any, float], list[Instruction]]] = field(
        default_factory=lambda: {
            Opened: Machine._opened,
            Submitted: Machine._submitted,
            Stored: Machine._stored,
            Completed: Machine._completed,
            Released: Machine._released,
            Cancelled: Machine._cancelled,
        },
        repr=False,
    )


def _free(buffers: tuple[int, ...]) -> list[Instruction]:
    return [Free(buffers)] if buffers else []


def check_invariants(state: Machine) -> None:
    """Raise ``AssertionError`` if the state contradicts itself; the tests call it after every event.

    No buffer without a reference, no count below what the runs hold, no island's order that contradicts another's,
    nothing done that was not launched.
    """
    held: dict[int, int] = {}
    for run in state.runs.values():
        for buffer in (*run.submitted.arguments, *run.submitted.results):
            held[buffer] = held.get(buffer, 0) + 1
        for island, order in run.plan.orders.items():
            assert 0 <= run.done[island] <= run.launched[island] <= len(order), (run, island)
    for buffer, count in held.items():
        assert buffer in state.ledger.buffers, f"buffer {buffer} is freed while a run needs it"
        assert state.ledger.buffers[buffer].references >= count, f"buffer {buffer} has too few references"
    assert all(entry.references > 0 for entry in state.ledger.buffers.values())
    for island, lane in state.lanes.items():
        enqueued = state.orders.get(island, [])
        assert enqueued == sorted(enqueued), "islands' orders contradict the total order"
        assert sorted(run for run, _ in lane.in_flight) == sorted(run for _, run in enqueued), island
    assert all(run in state.runs for enqueued in state.orders.values() for _, run in enqueued)
    for name, client in state.clients.items():
        assert client.unfinished == sum(run.submitted.client == name for run in state.runs.values()), name
    assert state.active == sum(client.unfinished > 0 for client in state.clients.values())
    waiting = {serial for runs in state.waiting.values() for serial in runs}
    assert waiting == {serial for serial, run in state.runs.items() if not run.enqueued}
