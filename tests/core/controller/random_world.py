"""A world of random programs, clients, faults and lost devices around the pure controller.

``World`` is a Hypothesis state machine: it plays users, and asks imagined devices (``imagined_devices``) what these
instructions would do. Three islands of four devices, and more that come later; places overlap, so that devices of one
island hold different things.
"""

from __future__ import annotations

import copy
import itertools
import json
import zlib
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pathways_nb.controller.events_and_instructions import (
    Added,
    Cancelled,
    Closed,
    Grant,
    Opened,
    PutRequested,
    Released,
    Removed,
    Stored,
    Submitted,
    Woke,
)
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.log import Logbook, RecordingStart
from pathways_nb.controller.log_text import from_json, to_json
from pathways_nb.controller.orders import find_cycle
from pathways_nb.controller.policies import POLICIES
from pathways_nb.controller.snapshot import Snapshot
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.footprint import Allocation, Footprint, Sizes, footprint_of, overlap
from pathways_nb.plan.memory_categories import PARAMETERS, VALUES
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.util.json_text import Field
from tests.core.controller.imagined_devices import Devices, plan_of

ISLANDS, DEVICES, MOST_ISLANDS = 3, 4, 5
CLIENTS = ("ann", "bob", "eve")
_CUTS = ((0, 4), (0, 2), (2, 2), (1, 2))
PLACES = {
    number: Placement(island, *cut)
    for number, (cut, island) in enumerate(itertools.product(_CUTS, range(MOST_ISLANDS)))
}
"""First all whole islands, then parts of them, some of which overlap."""

plans = st.builds(plan_of, st.lists(st.integers(0, 2), min_size=0, max_size=6), st.integers(0, 3))


seldom = precondition(lambda self: len(self.log) % 4 == 0)
"""Of rules that would otherwise leave little to compete."""


def contrary(ready: Any, state: Any) -> Any:
    """A user's policy that nobody would want."""
    return max(ready, key=lambda gang: (_chance(gang.serial, gang.client, len(ready)), gang.serial))


def moody(ready: Any, state: Any) -> Any:
    """A user's policy that fails at times."""
    if _chance(len(ready), *(gang.serial for gang in ready)) % 5 == 0:
        raise RuntimeError("not now")
    return contrary(ready, state)


def _chance(*what: Any) -> int:
    return zlib.crc32(repr(what).encode())  # ``hash`` of a text differs from process to process


class World(RuleBasedStateMachine):
    """Users of several clients; see the module."""

    dispatch: Any = "parallel"
    twin_every = 1
    """Every so many events a copy of the machine must answer alike; it costs more than all the rest."""

    @initialize(
        policy=st.sampled_from([*POLICIES.values(), contrary, moody]),
        budgets=st.one_of(st.just((0,) * ISLANDS), st.tuples(*[st.integers(4, 12)] * ISLANDS)),
        most_passed=st.sampled_from([0, 1, 4, 16]),
    )
    def begin(self, policy: Any, budgets: tuple[int, ...], most_passed: int) -> None:
        self.policy, self.budgets, self.most_passed = policy, budgets, most_passed
        self.machine, self.devices = self.fresh(), Devices(budgets)
        self.logbook, self.beginnings = Logbook(self.machine, most=50, least=0), list[RecordingStart]()
        self.buffers, self.serials = itertools.count(), itertools.count()
        self.handles: dict[int, str] = {}
        """Buffers that a user holds, and whose they are."""
        self.given: set[int] = set()
        """Of these, those whose memory a program has been given to take over."""
        self.stale: list[int] = []
        """Handles to what is no longer there."""
        self.where: dict[int, Allocation | None] = {}
        """Where each buffer lies, or will."""
        self.too_large = 0
        """Programs refused when they were lowered."""
        self.most_waiting = 0
        """Programs and values that waited for memory at one time."""
        self.log: list[tuple[Any, float]] = []

    def fresh(self) -> StateMachine:
        machine = StateMachine(self.dispatch, self.policy, (DEVICES,) * ISLANDS, self.budgets)
        machine.admission.most_passed = self.most_passed
        return machine

    # ---- messages

    def send(self, event: Any, later: float = 1e-3) -> None:
        self.devices.now += later
        now = self.devices.now
        twin = self.twin() if len(self.log) % self.twin_every == 0 else None
        if len(self.log) % 30 == 0:
            self.beginnings.append(self.logbook.begin())
        out = self.logbook.handle(event, now)
        if twin is not None:
            again = [repr(instruction) for instruction in twin.handle(event, now)]
            assert again == [*map(repr, out)], "the same state and event gave other instructions"
        self.log.append((event, now))
        reserving = dict(self.devices.reserving)
        for instruction in out:
            self.devices.obey(instruction)
            if isinstance(instruction, Grant):
                granted = reserving[instruction.buffer]
                self.handles[granted.buffer], self.where[granted.buffer] = granted.client, granted.allocation
        self.devices.check_order()
        for buffer in self.devices.lost & self.where.keys():
            self.where[buffer] = None

    def twin(self) -> StateMachine:
        """A copy of the machine that shares only what never changes."""
        shared: list[Any] = []
        for event in self.devices.submitted.values():
            shared += (event, event.plan, event.footprint, *event.footprint.results)
            shared += itertools.chain.from_iterable(event.footprint.profiles.values())
        return copy.deepcopy(self.machine, {id(each): each for each in shared})

    def step(self, island: int, seconds: float, fails: bool = False) -> None:
        for event in self.devices.carry_out(island, seconds, fails):
            self.send(event)

    # ---- devices

    @precondition(lambda self: self.devices.runnable())
    @rule(
        data=st.data(),
        steps=st.integers(1, 4),
        seconds=st.sampled_from([0.0, 1e-4, 1e-3, 1.0]),
        fails=st.sampled_from([False] * 7 + [True]),
    )
    def complete(self, data: st.DataObject, steps: int, seconds: float, fails: bool) -> None:
        for _ in range(steps):
            if islands := self.devices.runnable():
                self.step(data.draw(st.sampled_from(islands)), seconds, fails)

    @seldom
    @rule(place=st.sampled_from(sorted(PLACES)))
    def lose(self, place: int) -> None:
        """Devices go: what lay there is lost, and what is to run there fails."""
        where = self.place(place)
        self.devices.lost_devices.append(where)
        waited = set(self.devices.reserving)  # these may be put there yet
        self.send(Removed(where))
        for entry in (entry for buffer, entry in self.machine.store.buffers.items() if buffer not in waited):
            assert not (entry.allocation and overlap(entry.allocation.placement, where))

    @precondition(lambda self: self.devices.lost_devices)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """They are there again, empty."""
        island = data.draw(st.sampled_from(sorted({where.island for where in self.devices.lost_devices})))
        self.devices.lost_devices = [where for where in self.devices.lost_devices if where.island != island]
        self.send(Added(island, DEVICES, self.devices.budgets[island]))

    @precondition(lambda self: len(self.machine.memory.islands) < MOST_ISLANDS)
    @rule(budget=st.sampled_from([0, 8]))
    def more(self, budget: int) -> None:
        """An island more."""
        self.devices.budgets.append(budget)
        self.send(Added(len(self.machine.memory.islands), DEVICES, budget))

    @precondition(lambda self: self.devices.wake is not None)
    @rule(late=st.sampled_from([0.0, 0.5]))
    def wake(self, late: float) -> None:
        at, self.devices.wake = self.devices.wake, None
        assert at is not None
        self.send(Woke(), max(at - self.devices.now, 0.0) + late)

    # ---- users

    def place(self, number: int) -> Placement:
        """One of the places there are."""
        where = PLACES[number]
        return Placement(where.island % len(self.machine.memory.islands), where.first, where.count)

    @rule(client=st.sampled_from(CLIENTS))
    def store(self, client: str) -> None:
        """Keep a value on the host."""
        buffer = next(self.buffers)
        self.handles[buffer], self.where[buffer] = client, None
        self.send(Stored(buffer, client, 8, f"value {buffer}"))

    @rule(size=st.integers(1, 6), place=st.sampled_from(sorted(PLACES)), client=st.sampled_from(CLIENTS))
    def put(self, size: int, place: int, client: str) -> None:
        """Put a value onto devices, as soon as there is room."""
        buffer = next(self.buffers)
        event = PutRequested(
            buffer, client, 8, f"put {buffer}", Allocation(self.place(place), size, (VALUES, PARAMETERS)[size % 2])
        )
        self.devices.reserve(event)
        self.send(event)

    @precondition(lambda self: self.devices.reserving)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """Whoever waits for room is interrupted."""
        buffer = data.draw(st.sampled_from(sorted(self.devices.reserving)))
        self.send(Released((buffer,)))
        assert buffer in self.devices.freed

    @rule(
        client=st.sampled_from(CLIENTS),
        share=st.sampled_from([1.0, 2.0, 8.0]),
        priority=st.integers(0, 2),
        memory=st.sampled_from([0, 0, 5, 8]),
    )
    def open(self, client: str, share: float, priority: int, memory: int) -> None:
        self.send(Opened(client, share, priority, memory))

    @rule(
        places=st.lists(st.sampled_from(sorted(PLACES)), max_size=6),
        reads=st.lists(st.lists(st.integers(0, 7), max_size=2), max_size=6),
        kept=st.lists(st.integers(0, 7), max_size=3),
        client=st.sampled_from(CLIENTS),
        times=st.sampled_from([1, 1, 2, 4]),
        data=st.data(),
    )
    def submit(
        self, places: list[int], reads: list[list[int]], kept: list[int], client: str, times: int, data: st.DataObject
    ) -> None:
        """The same program several times; the last may take its arguments' memory over.

        What it reads may have gone with its client while the call was on its way.
        """
        usable = sorted({*self.handles, *self.stale[-2:]} - self.given)
        known = st.lists(st.sampled_from(usable), max_size=2, unique=True) if usable and places else st.just([])
        arguments = tuple(data.draw(known))
        gone = [buffer for buffer in arguments if buffer not in self.machine.store.buffers]
        count, where = len(places) + len(arguments), {number: self.place(number) for number in places}
        results = [(count - 1 - slot) % count for slot in kept] if count else []  # the last are most often kept
        plan = plan_of(places, results, len(arguments), where, reads)
        sizes = Sizes(
            tuple(data.draw(st.integers(0, 2)) for _ in plan.slots), {i: i % 2 for i in range(len(plan.steps))}, {}
        )
        taken = tuple(i for i in range(len(arguments)) if data.draw(st.booleans()) and i not in plan.results)
        footprint = [footprint_of(plan, sizes, taken if last else ()) for last in [*[False] * (times - 1), True]]
        if self.is_too_large(footprint[0], client):
            self.too_large += 1
            return
        for each in footprint:
            self.submit_once(plan, sizes, each, arguments, client)
            assert not gone or max(self.devices.submitted) in self.devices.stopped
        self.given |= {arguments[i] for i in taken}

    def is_too_large(self, footprint: Footprint, client: str) -> bool:
        """Whether lowering or the call would refuse it."""
        limit = self.machine.clients[client].memory if client in self.machine.clients else 0
        for island, profiles in footprint.profiles.items():
            for profile in profiles:
                assert profile.peaks == tuple(sorted(profile.peaks[:-1], reverse=True)) + profile.peaks[-1:]
                peak = profile.peaks[0] + footprint.input_bytes(island, profile.first)
                if any(0 < most < peak for most in (self.devices.budgets[island], limit)):
                    return True
        return False

    def submit_once(
        self, plan: Plan, sizes: Sizes, footprint: Footprint, arguments: tuple[int, ...], client: str
    ) -> None:
        moved = tuple(i for i, b in enumerate(arguments) if self.where[b] != footprint.inputs[i])
        results = tuple(next(self.buffers) for _ in plan.results)
        event = Submitted(next(self.serials), client, plan, arguments, results, (8,) * len(results), footprint, moved)
        self.devices.submit(event, sizes)
        for buffer, allocation in zip(results, footprint.results, strict=True):
            self.handles[buffer], self.where[buffer] = client, allocation
        self.send(event)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        buffers = data.draw(st.lists(st.sampled_from(sorted(self.handles)), min_size=1, max_size=3, unique=True))
        for buffer in buffers:
            del self.handles[buffer]
        self.send(Released((*buffers, *self.stale[:1])))

    @precondition(lambda self: self.devices.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Also runs that have finished: the news may come late."""
        runs = st.sampled_from(sorted(self.devices.submitted)[-8:])
        self.send(Cancelled(tuple(data.draw(st.lists(runs, min_size=1, max_size=3)))))

    @seldom
    @rule(client=st.sampled_from(CLIENTS))
    def close(self, client: str) -> None:
        own = [buffer for buffer, owner in self.handles.items() if owner == client]
        for buffer in own:
            del self.handles[buffer]
        self.stale += own
        self.send(Closed(client))
        assert not any(event.client == client for event in self.devices.reserving.values())
        left = [number for number, entry in self.machine.store.buffers.items() if entry.owner == client]
        assert all(self.machine.store.buffers[number].calls for number in left), "a closed client still holds memory"

    # ---- what must hold

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "machine"):
            check_invariants(self.machine)

    @invariant()
    def nothing_in_use_is_freed(self) -> None:
        if hasattr(self, "machine"):
            used = {b for r in self.machine.calls.values() for b in (*r.submitted.arguments, *r.submitted.results)}
            assert not self.devices.freed & (used | set(self.handles))
            assert set(self.machine.store.buffers) == used | set(self.handles)
            assert self.devices.freed & set(self.stale) <= self.devices.lost, "freed, and its user does not know why"

    @invariant()
    def never_a_deadlock(self) -> None:
        if hasattr(self, "machine"):
            assert self.devices.runnable() or not self.devices.busy, "every island waits for another"

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        if hasattr(self, "machine") and not self.devices.busy:
            waits = self.machine.admission.blocked
            assert waits or self.devices.finished == set(self.devices.submitted)
            assert waits or not self.devices.reserving
            assert not waits or self.devices.wake is not None, "what waits for handles must be looked at again"

    @invariant()
    def nobody_is_passed_too_often(self) -> None:
        """Beyond the limit, only by those that waited before: as many as ever waited at one time."""
        if hasattr(self, "machine"):
            blocked = self.machine.admission.blocked
            waiting = {*blocked, *self.machine.put_requests.waiting.values()}
            self.most_waiting = max(self.most_waiting, len(waiting))
            most = self.most_passed + self.most_waiting
            assert all(waits.passed <= most for waits in blocked.values())
            assert all(self.devices.passed[buffer] <= most for buffer in self.devices.reserving)

    @invariant()
    def who_waits_for_room_is_known(self) -> None:
        if hasattr(self, "machine"):
            assert self.machine.put_requests.waiting.keys() == self.devices.reserving.keys()

    @invariant()
    def sequential_means_one_gang_at_a_time(self) -> None:
        if hasattr(self, "machine") and self.dispatch == "sequential":
            under_way = {(launch.run, launch.start) for queue in self.devices.order.values() for launch, _ in queue}
            if not any(run in self.devices.stopped for run, _ in under_way):
                assert len(under_way) <= 1

    @invariant()
    def what_is_told_of_memory_is_so(self) -> None:
        if hasattr(self, "machine"):
            for number, island in enumerate(self.machine.memory.islands):
                held = [each.parts for first, after, each in island.ranges for _ in range(after - first)]
                assert self.devices.told_of(number, DEVICES) == held

    @invariant()
    def what_lies_there_is_accounted_for_once(self) -> None:
        if hasattr(self, "machine"):
            for number in range(len(self.machine.memory.islands)):
                for device in range(DEVICES):
                    where = Placement(number, device, 1)
                    held = sum(each for _, each in self.machine.store.at(where))
                    assert held == self.devices.used(number, device), where

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.run_dry()
        for buffer in [*self.handles, *self.stale]:
            self.send(Released((buffer,)))
        check_invariants(self.machine)
        assert not self.machine.calls
        assert not self.machine.store.buffers
        assert not any(any(island.totals) for island in self.machine.memory.islands), "bytes are left"
        assert not self.machine.put_requests.waiting
        assert not any(lane.in_flight for lane in self.machine.queues.values())
        assert find_cycle(self.devices.orders()) is None
        assert not self.machine.precedence.touching
        assert not self.machine.store.same
        again = self.fresh()
        for event, now in self.log:
            again.handle(event, now)
        assert again.store.buffers == self.machine.store.buffers
        assert again.clients == self.machine.clients
        self.play_again()

    def play_again(self) -> None:
        """From any snapshot, and from a file, the same events have the same instructions, and end in the same state."""
        logs = [replace(self.logbook.log(since), why_not="") for since in (None, *self.beginnings)]
        loaded = from_json(Field(json.loads(json.dumps(to_json(logs[0])))))
        with_policy = loaded.snapshot.machine()
        with_policy.policy = self.policy
        for log in (*logs, replace(loaded, snapshot=Snapshot.of(with_policy), why_not="")):
            played = list(log.replay())
            assert [entry for entry, _, _ in played] == list(log.entries)
            if played:
                assert played[-1][2].clients == self.machine.clients

    def run_dry(self) -> None:
        """Everything ends: what waits for memory that only handles hold ends with an error."""
        patience = 2_000
        while self.devices.busy or self.machine.admission.blocked or self.devices.reserving:
            patience -= 1
            assert patience, "something waits for ever"
            if self.devices.busy:
                self.never_a_deadlock()
                self.step(self.devices.runnable()[0], 1e-3)
            else:
                self.wake(0.0)
        assert self.devices.finished == set(self.devices.submitted)


class SequentialWorld(World):
    """The same with sequential dispatch."""

    dispatch = "sequential"
