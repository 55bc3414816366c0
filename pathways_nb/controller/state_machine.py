"""The controller: events in, instructions out (Pathways, sections 4.2 to 4.6). No JAX, threads, clocks or printing.

It keeps one total order of enqueues: gangs are enqueued one after another, each after all that it needs, and a
program that nobody competes with takes its places in all islands' orders in one step. So the orders of any two islands
are compatible and gangs cannot deadlock, whatever a policy chooses; what was given up is passed over, and waits for
nothing. With parallel asynchronous dispatch gangs go out ahead of their inputs; with sequential dispatch one at a time,
each when the one before is done. A program begins when the memory it needs can be set aside, and a value that a client
puts onto devices waits for its room in the same way (see ``admission``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pathways_nb.controller.admission import Admission
from pathways_nb.controller.held_memory import DeviceMemory, IslandMemory
from pathways_nb.controller.messages import (
    Added,
    Cancelled,
    Closed,
    Completed,
    Event,
    Fail,
    Finish,
    Instruction,
    Launch,
    Opened,
    PutRequested,
    Released,
    Removed,
    Stop,
    Stored,
    Submitted,
    Voided,
    Waited,
    Wake,
    Woke,
)
from pathways_nb.controller.policies import PerClient, Policy, fifo, priority, stride
from pathways_nb.controller.precedence import Precedence
from pathways_nb.controller.put_requests import PutRequests
from pathways_nb.controller.requests import PutRequest, Request
from pathways_nb.controller.scheduler import Dispatch, PolicyFailed, ShortOfMemory, choose
from pathways_nb.controller.state import ClientState, GangEstimates, IslandQueue, RunState
from pathways_nb.controller.store import Store
from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.plan.plan import Gang, Plan

NOTABLE = 1e-3
"""Seconds of waiting that are worth telling."""


@dataclass
class StateMachine:
    """The whole state of the single controller; ``handle`` is its only door.

    Args:
        dispatch: ``"parallel"`` or ``"sequential"`` (Pathways, Figure 4).
        policy: chooses between programs.
        devices: how many each island has.
        budgets: bytes of memory per device of each island; 0, or none given, where there is no limit.
    """

    dispatch: Dispatch = "parallel"
    policy: Policy = stride
    devices: Sequence[int] = (1, 1, 1)
    budgets: Sequence[int] = ()
    clients: dict[str, ClientState] = field(default_factory=dict)
    active: int = 0
    """Clients with unfinished programs."""
    runs: dict[int, RunState] = field(default_factory=dict)
    waiting: dict[str, dict[int, RunState]] = field(default_factory=dict)
    """By client: runs that are not wholly enqueued, oldest first."""
    given_up: dict[int, RunState] = field(default_factory=dict)
    """Cancelled runs of which some is still to be enqueued, to be skipped there: at once, whatever they are behind."""
    queues: dict[int, IslandQueue] = field(default_factory=dict)
    precedence: Precedence = field(default_factory=Precedence)
    _wake: float | None = None
    """The next time at which ``Woke`` will come."""
    _estimates: weakref.WeakKeyDictionary[Plan, GangEstimates] = field(default_factory=weakref.WeakKeyDictionary)

    def __post_init__(self) -> None:
        self.memory = DeviceMemory(self.devices, self.budgets)
        self.store = Store(self.memory)
        self.admission = Admission(self.memory, self.store, self.clients)
        self.put_requests = PutRequests(self.admission, self.store)
        self.in_order = self.policy in (fifo, stride, priority)
        """Whether the policy takes one client's programs as they were submitted, and asks of none how long it lasts."""
        self.of_clients = [PerClient(self.clients, name) for name in ("seconds", "share", "priority", "passed")]

    def handle(self, event: Event, now: float = 0.0) -> list[Instruction]:
        """Take an event at a time in seconds, change state, and say what is to be done."""
        out = _HANDLERS[type(event)](self, event, now)
        if self.memory.changed:
            out += self.memory.changes()
        return out

    # ---- events

    def _opened(self, event: Opened, now: float) -> list[Instruction]:
        client = self._client(event.client)
        client.share, client.priority, client.memory = event.share, event.priority, event.memory
        self.memory.freed += 1  # who waits may have more now
        client.closed = False
        return self._pump(now)

    def _closed(self, event: Closed, now: float) -> list[Instruction]:
        client = self._client(event.client)
        client.closed = True
        mine = [serial for serial, run in self.runs.items() if run.submitted.client == event.client]
        out = self._give_up_all(mine)
        out += self.put_requests.close(event.client)
        out += self.store.disown(event.client)
        self._forget_client(event.client)
        return out + self._pump(now)

    def _submitted(self, event: Submitted, now: float) -> list[Instruction]:
        known = tuple(buffer for buffer in event.arguments if buffer in self.store.buffers)
        closed_meanwhile = len(known) < len(event.arguments)  # a client whose they were, while the call was on its way
        if closed_meanwhile:
            event = replace(event, arguments=known, footprint=replace(event.footprint, taken=(), handed_back={}))
        self.store.promise(event)
        run = self.runs[event.run] = self._run_of(event, now)
        client = self._client(event.client)
        self.active += not client.unfinished
        if not client.unfinished:  # what it left unused is gone: nobody can save up
            others = [c.passed for c in self.clients.values() if c.unfinished]
            client.passed = max([client.passed, *([min(others)] if others else [])])
        client.unfinished += 1
        if not event.plan.steps:
            return self._finish(event.run)
        if not closed_meanwhile:
            self.precedence.find(run)
        if not (client.in_flight or self.waiting.get(event.client)):
            client.idle_since = now
        self.waiting.setdefault(event.client, {})[event.run] = run
        out = self._fail(run, _read_too_late(event)) if closed_meanwhile else []
        out += self._pump(now)
        if not run.enqueued:
            self.precedence.add(run)
        return out

    def _run_of(self, event: Submitted, now: float) -> RunState:
        none = dict.fromkeys(event.plan.orders, 0)
        estimates = self._estimates.get(event.plan)
        if estimates is None:
            estimates = self._estimates[event.plan] = GangEstimates(event.plan)
        left = sum(map(len, event.plan.gangs.values()))
        return RunState(event, estimates, left, none, none.copy(), none.copy(), since=now)

    def _stored(self, event: Stored, now: float) -> list[Instruction]:
        self.store.put(event)
        return []

    def _put_requested(self, event: PutRequested, now: float) -> list[Instruction]:
        return self.put_requests.ask(event, now) + self._pump(now)

    def _completed(self, event: Completed, now: float) -> list[Instruction]:
        run, island = self.runs[event.run], event.island
        expected, contended = self.queues[island].take(event.run, event.stop)
        client = self._client(run.submitted.client)
        client.charge(event.device_seconds - expected, contended)
        client.in_flight -= 1
        client.idle_since = now
        if event.device_seconds and not run.cancelled:
            run.learn(event)
        run.progressed(island, event.start, event.stop)
        if run.is_done:
            return self._finish(event.run) + self._pump(now)
        self.admission.progressed(run, island)
        return self._pump(now)

    def _released(self, event: Released, now: float) -> list[Instruction]:
        withdrawn = self.put_requests.withdraw(event.buffers)
        out = withdrawn + self.store.release(event.buffers)
        return out + (self._pump(now) if withdrawn or self.admission.blocked else [])

    def _voided(self, event: Voided, now: float) -> list[Instruction]:
        self.store.empty(event.buffers)
        return self._pump(now) if self.admission.blocked else []

    def _woke(self, event: Woke, now: float) -> list[Instruction]:
        self._wake = None
        return self._pump(now)

    def _added(self, event: Added, now: float) -> list[Instruction]:
        if event.island == len(self.memory.islands):
            self.memory.islands.append(IslandMemory(event.devices, event.budget))
            self.devices = (*self.devices, event.devices)
        self.store.restore(event.island)
        return self._pump(now)

    def _removed(self, event: Removed, now: float) -> list[Instruction]:
        return self.store.remove(event.where) + self._pump(now)

    def _cancelled(self, event: Cancelled, now: float) -> list[Instruction]:
        return self._give_up_all(event.runs) + self._pump(now)

    # ---- dispatch

    def _pump(self, now: float) -> list[Instruction]:
        """Admit and enqueue what there is room for; fail what waits for memory in vain."""
        out: list[Instruction] = []
        while True:
            while (fresh := self._next(now)) is not None:
                out += fresh
            if not self.admission.blocked:
                return out
            self.admission.note_stalls(now)
            if (hopeless := self.admission.hopeless(now)) is None:
                return out + self._look_again(now)
            request, error = hopeless
            self.admission.note_failed(request, now)
            out += self._fail(request, error)

    def _look_again(self, now: float) -> list[Instruction]:
        """Ask to be woken when the next request will have waited long enough."""
        look = self.admission.next_look(now)
        if look is None or (self._wake is not None and self._wake <= look):
            return []
        self._wake = look
        return [Wake(look)]

    def _next(self, now: float) -> list[Instruction] | None:
        """Carry out the next decision; ``None`` where there is nothing to do now."""
        if self.put_requests.waiting and (answered := self.put_requests.next(now)) is not None:
            return answered
        choice = choose(self, now)
        if choice is None:
            return None
        if isinstance(choice, ShortOfMemory):
            for run, lack in choice.runs.items():
                self.admission.block(run, lack, now)
            return []
        if isinstance(choice, PolicyFailed):
            return [i for serial in choice.runs for i in self._fail(self.runs[serial], choice.error)]
        return self._enqueue(*choice, now)

    def _enqueue(self, run: RunState, gangs: Mapping[int, Sequence[Gang]], now: float) -> list[Instruction]:
        """Give the next gangs of one run, by island, the next place in the total order."""
        serial, client, contended = run.submitted.run, self._client(run.submitted.client), self.active > 1
        out = self._waited(run, client, now)
        if not (run.admitted or run.cancelled):
            self.admission.admit(run)
        for island, group in gangs.items():
            first, start, stop = run.next_gang[island], group[0].start, group[-1].stop
            work = run.estimates.work(group, first)
            client.charge(work, contended)
            if island not in self.queues:
                self.queues[island] = IslandQueue()
            self.queues[island].add(serial, stop, work, contended)
            run.launched[island], run.next_gang[island] = stop, first + len(group)
            out.append(Launch(serial, island, start, stop))
            run.left -= len(group)
        run.shown = None
        client.in_flight += len(gangs)
        client.enqueued_at = now
        if run.enqueued:
            self._forget_waiting(run)
        return out

    def _waited(self, run: RunState, client: ClientState, now: float) -> list[Instruction]:
        """Why a run goes on only now; waiting while something else of its client is under way is no news."""
        if run.cancelled:
            return []
        if run in self.admission.blocked:
            return self._waited_for_memory(run)
        since = client.idle_since
        if client.in_flight or now - since <= NOTABLE or not self._others_progressed(client, since):
            return []
        return [Waited(run.submitted.run, since, "waits its turn")]

    def _others_progressed(self, client: ClientState, since: float) -> bool:
        return any(o.in_flight or o.enqueued_at > since for o in self.clients.values() if o is not client)

    # ---- ends

    def _fail(self, request: Request, error: PathwaysError) -> list[Instruction]:
        if isinstance(request, PutRequest):
            return self.put_requests.refuse(request, error)
        assert isinstance(request, RunState)
        out = self._waited_for_memory(request)
        self._give_up(request)
        return [*out, Fail(request.submitted.run, error)]

    def _waited_for_memory(self, run: RunState) -> list[Instruction]:
        waits = self.admission.blocked.get(run)
        return [Waited(run.submitted.run, waits.since, waits.reason)] if waits is not None else []

    def _give_up_all(self, serials: Iterable[int]) -> list[Instruction]:
        out: list[Instruction] = []
        for serial in serials:
            run = self.runs.get(serial)
            if run is not None and not run.cancelled:
                out += self._waited_for_memory(run)
                self._give_up(run)
                out.append(Stop(serial))
        return out

    def _give_up(self, run: RunState) -> None:
        run.cancelled = True
        self.admission.excuse(run)
        if not run.enqueued:
            self.given_up[run.submitted.run] = run

    def _forget_waiting(self, run: RunState) -> None:
        """It is wholly enqueued."""
        self.given_up.pop(run.submitted.run, None)
        runs = self.waiting[run.submitted.client]
        del runs[run.submitted.run]
        if not runs:
            del self.waiting[run.submitted.client]
        self.precedence.remove(run)

    def _finish(self, serial: int) -> list[Instruction]:
        run = self.runs.pop(serial)
        event, client = run.submitted, self._client(run.submitted.client)
        client.unfinished -= 1
        self.active -= not client.unfinished
        self.admission.finish(run)
        if not run.cancelled:
            self.store.empty(event.arguments[i] for i in event.footprint.taken)
        freed = self.store.finish_run(event)
        self._forget_client(event.client)
        return [Finish(serial), *freed]

    # ---- accounts

    def _client(self, name: str) -> ClientState:
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = ClientState()
        return client

    def _forget_client(self, name: str) -> None:
        if self.clients[name].closed and not self.clients[name].unfinished:
            del self.clients[name]


_HANDLERS: dict[type, Callable[[Any, Any, float], list[Instruction]]] = {
    Opened: StateMachine._opened,
    Closed: StateMachine._closed,
    Submitted: StateMachine._submitted,
    Stored: StateMachine._stored,
    PutRequested: StateMachine._put_requested,
    Completed: StateMachine._completed,
    Released: StateMachine._released,
    Voided: StateMachine._voided,
    Woke: StateMachine._woke,
    Added: StateMachine._added,
    Removed: StateMachine._removed,
    Cancelled: StateMachine._cancelled,
}


def _read_too_late(event: Submitted) -> LostError:
    return LostError(
        f"{event.plan.graph.name}, run {event.run}, reads what belonged to a client that closed while it was called. "
        f"Fetch what you need before it does."
    )
