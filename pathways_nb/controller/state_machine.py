"""The controller's state machine: one event in, a list of instructions out (Pathways, sections 4.2 to 4.6).

The invariant that everything else rests on: there is one total order of enqueues. Gangs are enqueued one after another,
each after its producers, and a program without competitors is enqueued on all its islands in one step. The order of
each island is a part of the total order, so the orders of any two islands are compatible and gangs cannot deadlock,
whatever a policy chooses. ``invariants`` checks the state in the tests.

With parallel asynchronous dispatch, gangs are enqueued before their inputs exist; with sequential dispatch, one gang at
a time, when the one before it is done. What is left of a cancelled call is enqueued at once; drivers skip it and
complete its ranges, so that every call ends in the same way.

This module applies decisions. ``scheduler`` chooses the next gang, ``admission`` reserves memory, ``store`` counts
references, ``precedence`` keeps producers before consumers. Time comes in with each event; nothing in it reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathways_nb.controller.controller_state import ControllerState
from pathways_nb.controller.events_and_instructions import (
    NOTABLE,
    Added,
    Cancelled,
    Closed,
    Completed,
    Event,
    Fail,
    Finish,
    Instruction,
    Launch,
    Occupied,
    Opened,
    PutRequested,
    Released,
    Removed,
    Skip,
    Stored,
    Submitted,
    Voided,
    Waited,
    Wake,
    Woke,
)
from pathways_nb.controller.held_memory import IslandMemory
from pathways_nb.controller.requests import PutRequest, Request
from pathways_nb.controller.scheduler import SOON, Choice, PolicyFailed, ShortOfMemory, choose, compete
from pathways_nb.controller.state import CallState, ClientState, IslandQueue
from pathways_nb.controller.turns import ContendedTurns
from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.plan.plan import Gang
from pathways_nb.trace.rows import WAITS_ITS_TURN


@dataclass
class StateMachine(ControllerState):
    """The single controller; only ``handle`` changes its state."""

    def handle(self, event: Event, now: float = 0.0) -> list[Instruction]:
        """Apply one event and return the instructions that follow from it.

        Args:
            event: what happened.
            now: time of the event, in seconds of the controller's clock.

        Returns:
            Instructions, to be carried out in this order.
        """
        out = _HANDLERS[type(event)](self, event, now)
        if self.memory.changed:  # last: what went up and back down within one event is not reported
            out += self.memory.changes()
        return out

    # ---- events

    def _opened(self, event: Opened, now: float) -> list[Instruction]:
        client = self._client(event.client)
        client.share, client.priority, client.memory = event.share, event.priority, event.memory
        self.memory.freed += 1  # a higher limit may suffice: let blocked requests try again
        client.closed = False
        return self._pump(now)

    def _closed(self, event: Closed, now: float) -> list[Instruction]:
        client = self._client(event.client)
        client.closed = True
        # Calls first: their buffers are freed when they end, and only what no call needs may be freed now.
        of_client = [serial for serial, call in self.calls.items() if call.submitted.client == event.client]
        out = self._give_up_all(of_client)
        out += self.put_requests.close(event.client)
        # Its buffers become orphans now. Those that a cancelled call still holds are freed when that call has ended.
        out += self.store.disown(event.client)
        self._forget_client(event.client)  # only if no call is left: cancelled ranges still complete and are charged
        return out + self._pump(now)

    def _submitted(self, event: Submitted, now: float) -> list[Instruction]:
        # The client that owned an argument may have closed while this event was under way. The call is registered all
        # the same and then failed, so that its results and its end are accounted for like any other's.
        closed_meanwhile = not all(map(self.store.groups.__contains__, event.arguments))
        if closed_meanwhile:
            known = tuple(buffer for buffer in event.arguments if buffer in self.store.groups)
            event = replace(event, arguments=known, footprint=replace(event.footprint, taken=(), handed_back={}))
        # Before anything else: a call that fails must have results that can be failed and freed.
        self.store.promise(event)
        call = self.calls[event.run] = self._new_call(event, now)
        client = self._client(event.client)
        if not client.unfinished:
            self.active += 1
            saved = SOON * max(self.devices) if now < client.left_at + SOON else 0.0
            client.catch_up([other.passed for other in self.clients.values() if other.unfinished], saved)
        client.unfinished += 1
        # No range will ever complete, so nothing else would end it.
        if not event.plan.steps:
            return self._finish(event.run, now)
        if not closed_meanwhile:
            self.precedence.find(call)
        # A client with other work waits for itself; only from now on may it be waiting for others.
        if not (client.in_flight or self.waiting.get(event.client)):
            client.idle_since = now
        self.waiting.setdefault(event.client, {})[event.run] = call
        out: list[Instruction] = []
        if closed_meanwhile:
            lost = "reads what belonged to a client that closed while it was called. Fetch what you need before it does"
            out += self._fail(call, LostError(f"{event.plan.graph.name}, run {call_number(event.run)}, {lost}."))
        out += self._pump(now)
        # Only a call that still waits can hold up others; most calls were enqueued whole by now and cost nothing.
        if not call.enqueued:
            self.precedence.add(call)
        return out

    def _stored(self, event: Stored, now: float) -> list[Instruction]:
        self.store.put(event)
        return []

    def _put_requested(self, event: PutRequested, now: float) -> list[Instruction]:
        return self.put_requests.ask(event, now) + self._pump(now)

    def _completed(self, event: Completed, now: float) -> list[Instruction]:
        call, island = self.calls[event.run], event.island
        expected, contended = self.queues[island].remove(event.run, event.stop, now)
        client = self._client(call.submitted.client)
        # The estimate was charged when the range was enqueued, so that policies see at once what is under way; charge
        # the difference. A cancelled call teaches no durations: its gangs may have been skipped.
        client.charge(event.device_seconds - expected, contended)
        if contended:
            self.turns[call.submitted.client].seconds += event.device_seconds - expected
        client.in_flight -= 1
        client.idle_since = now
        if event.device_seconds and not call.cancelled:
            call.learn(event)
        call.progressed(island, event.start, event.stop)
        if call.is_done:
            return self._finish(event.run, now) + self._pump(now)
        self.admission.progressed(call, island)
        return self._pump(now)

    def _released(self, event: Released, now: float) -> list[Instruction]:
        withdrawn = self.put_requests.withdraw(event.buffers)
        out = withdrawn + self.store.release(event.buffers)
        # Released buffers give back memory, which matters to blocked requests only: most releases end without a new
        # decision.
        return out + (self._pump(now) if withdrawn or self.admission.blocked else [])

    def _voided(self, event: Voided, now: float) -> list[Instruction]:
        self.store.empty(event.buffers)
        return self._pump(now) if self.admission.blocked else []

    def _woke(self, event: Woke, now: float) -> list[Instruction]:
        self._wake = None
        return self._pump(now)

    def _added(self, event: Added, now: float) -> list[Instruction]:
        # Else its lost devices came back: the ledger of memory was kept, since calls may still have reserved on them.
        if event.island == len(self.memory.islands):
            self.memory.islands.append(IslandMemory(event.devices, event.budget))
            self.devices = (*self.devices, event.devices)
        self.store.restore(event.island)
        return self._pump(now)

    def _removed(self, event: Removed, now: float) -> list[Instruction]:
        return self.store.remove(event.where) + self._pump(now)

    def _occupied(self, event: Occupied, now: float) -> list[Instruction]:
        self.memory.occupy(event.island, event.bytes, event.what)
        return self._pump(now) if self.admission.blocked else []

    def _cancelled(self, event: Cancelled, now: float) -> list[Instruction]:
        return self._give_up_all(event.runs) + self._pump(now)

    # ---- dispatch

    def _pump(self, now: float) -> list[Instruction]:
        """Return the instructions of all decisions that can be made now.

        A request that waits for memory in vain fails. Its failure may let another one go on, so decisions start again.
        """
        out: list[Instruction] = []
        while True:
            while (fresh := self._next(now)) is not None:
                out += fresh
            if not self.admission.blocked:
                return out
            self.admission.note_stalls(now)
            if (hopeless := self.admission.hopeless(now)) is None:
                look = self.admission.next_look(now)
                # An earlier ``Woke`` that is pending leads here again, so one timer is enough.
                if look is not None and (self._wake is None or look < self._wake):
                    self._wake = look
                    out.append(Wake(look))
                return out
            request, error = hopeless
            self.admission.note_failed(request, now)
            out += self._fail(request, error)

    def choose(self, now: float) -> Choice | PolicyFailed | ShortOfMemory | None:
        """Return what to enqueue next, before it is carried out; see ``scheduler.choose``."""
        return choose(self, now)

    def _next(self, now: float) -> list[Instruction] | None:
        """Return the instructions of the next decision; ``None`` if nothing can be decided now."""
        # Values before programs, since a caller is blocked until the answer. ``most_passed`` keeps them from starving
        # programs.
        if self.put_requests.waiting and (answered := self.put_requests.next(now)) is not None:
            return answered
        choice = self.choose(now)
        if choice is None:
            return None
        if isinstance(choice, ShortOfMemory):
            # An empty list is a decision, too: without these calls the scheduler is asked again.
            for call, lack in choice.calls.items():
                self.admission.block(call, lack, now)
            return []
        if isinstance(choice, PolicyFailed):
            return [i for serial in choice.calls for i in self._fail(self.calls[serial], choice.error)]
        return self._enqueue(*choice, now)

    def _enqueue(self, call: CallState, gangs: Mapping[int, Sequence[Gang]], now: float) -> list[Instruction]:
        """Give gangs of one call the next places in the total order.

        Args:
            call: the call. It is admitted with its first gang, to all the memory that it needs until it ends.
            gangs: by island, consecutive gangs from the call's next one on.
            now: seconds of the controller's clock.

        Returns:
            One launch for each island, after a note of how long the call waited, if that is worth recording.
        """
        serial, client, contended = call.submitted.run, self._client(call.submitted.client), self.active > 1
        out, seconds = self._waited(call, client, now), 0.0
        # What is skipped needs no memory, and must not wait for any: its ranges have to complete.
        if not (call.admitted or call.cancelled):
            self.admission.admit(call)
        for island, group in gangs.items():
            first, start, stop = call.next_gang[island], group[0].start, group[-1].stop
            work = call.estimates.work(group, first)
            client.charge(work, compete(self, now))
            seconds += work
            if island not in self.queues:
                self.queues[island] = IslandQueue()
            self.queues[island].add(serial, stop, work, contended)
            call.launched[island], call.next_gang[island] = stop, first + len(group)
            out.append(Launch(serial, island, start, stop))
            call.left -= len(group)
        call.shown = None
        client.in_flight += len(gangs)
        client.enqueued_at = now
        name = call.submitted.client
        if call.enqueued:
            self.given_up.pop(serial, None)
            del self.waiting[name][serial]
            if not self.waiting[name]:
                del self.waiting[name]
            self.precedence.remove(call)
        if contended:
            self.turns.setdefault(name, ContendedTurns()).add(client.share, seconds, more=name in self.waiting)
        return out

    def _waited(self, call: CallState, client: ClientState, now: float) -> list[Instruction]:
        """Return a note of how long a call waited and why, if that is worth recording.

        A wait is not recorded while another range of the same client is in flight, or if no other client went on
        meanwhile: then the client waited for itself.
        """
        if call.cancelled:
            return []
        if call in self.admission.blocked:
            return self.admission.wait_of(call)
        since = client.idle_since
        if client.in_flight or now - since <= NOTABLE:
            return []
        others = (other for other in self.clients.values() if other is not client)
        if not any(other.in_flight or other.enqueued_at > since for other in others):
            return []
        return [Waited(call.submitted.run, since, WAITS_ITS_TURN)]

    # ---- ends

    def _fail(self, request: Request, error: PathwaysError) -> list[Instruction]:
        if isinstance(request, PutRequest):
            return self.put_requests.refuse(request, error)
        assert isinstance(request, CallState)
        out = self.admission.wait_of(request)
        self._give_up(request)
        return [*out, Fail(request.submitted.run, error)]

    def _give_up_all(self, serials: Iterable[int]) -> list[Instruction]:
        """Return a ``Skip`` for each of these calls, except those that have ended or are cancelled already."""
        out: list[Instruction] = []
        for serial in serials:
            call = self.calls.get(serial)
            if call is not None and not call.cancelled:
                out += self.admission.wait_of(call)
                self._give_up(call)
                out.append(Skip(serial))
        return out

    def _give_up(self, call: CallState) -> None:
        call.cancelled = True
        self.admission.excuse(call)
        if not call.enqueued:
            self.given_up[call.submitted.run] = call

    def _finish(self, serial: int, now: float) -> list[Instruction]:
        """Return ``Finish`` and what the end of a call frees, and forget the call."""
        call = self.calls.pop(serial)
        event, client = call.submitted, self._client(call.submitted.client)
        client.unfinished -= 1
        self.active -= not client.unfinished
        if not client.unfinished:
            client.left_at = now
            self.left_at = now if self.active else self.left_at
        self.admission.finish(call)
        # An argument that was taken over holds nothing now. After a cancelled call that is unknown: its node may have
        # been skipped.
        if not call.cancelled:
            self.store.empty(event.arguments[i] for i in event.footprint.taken)
        freed = self.store.finish_run(event)
        self._forget_client(event.client)
        return [Finish(serial), *freed]


_HANDLERS: dict[type, Callable[[Any, Any, float], list[Instruction]]] = {
    Opened: StateMachine._opened, Closed: StateMachine._closed, Submitted: StateMachine._submitted,
    Stored: StateMachine._stored, PutRequested: StateMachine._put_requested, Completed: StateMachine._completed,
    Released: StateMachine._released, Voided: StateMachine._voided, Woke: StateMachine._woke,
    Added: StateMachine._added, Removed: StateMachine._removed, Occupied: StateMachine._occupied,
    Cancelled: StateMachine._cancelled,
}  # fmt: skip
