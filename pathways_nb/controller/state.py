"""What the controller remembers of clients, of the programs they called, and of what is enqueued on islands.

Progress is counted, not listed: a call holds a few numbers for each island (launched, done, next gang), whatever its
number of nodes. ``StateMachine`` owns these objects and applies events to them; memory is in ``held_memory`` and
buffers are in ``store``.

Durations are learnt, since a policy has to weigh gangs before they end: a client is charged the estimate when a gang is
enqueued and the difference when it is done.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pathways_nb.controller.events_and_instructions import Completed, Submitted
from pathways_nb.controller.policies import ReadyGang
from pathways_nb.controller.requests import MemoryReservation, Request, reservations_of
from pathways_nb.controller.store import Store
from pathways_nb.errors import size
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.plan.plan import Gang, Plan

GUESS = 1e-3
"""Seconds that a gang is estimated to take before it has run."""


class GangEstimates:
    """How long each gang of a plan takes, in seconds; learnt while it runs."""

    def __init__(self, plan: Plan):
        self.seconds: dict[int, list[float | None]] = {i: [None] * len(gangs) for i, gangs in plan.gangs.items()}

    def work(self, gangs: Sequence[Gang], first: int) -> float:
        """Return the estimated device-seconds of consecutive gangs of one island.

        Args:
            gangs: the gangs.
            first: number of the first of them on their island.
        """
        expected = self.expected(gangs[0].island, range(first, first + len(gangs)))
        return sum([gang.devices * seconds for gang, seconds in zip(gangs, expected, strict=True)])

    def expected(self, island: int, gangs: range) -> list[float]:
        """Return the estimated seconds of each of ``gangs``, which are numbers of gangs of an island."""
        return [GUESS if seconds is None else seconds for seconds in self.seconds[island][gangs.start : gangs.stop]]

    def learn(self, island: int, gangs: range, seconds: float) -> None:
        """Learn that ``gangs`` together took ``seconds``.

        A completion covers a range, so single durations are unknown: the time is divided in the proportion of the old
        estimates. The first measurement replaces the guess; later ones move the estimate by 30 %, so that one straggler
        does not decide.
        """
        # (gangs of the island,) seconds or ``None``; (gangs of the range,) seconds
        known, before = self.seconds[island], self.expected(island, gangs)
        together = sum(before)
        scale = seconds / (together or 1.0)
        for gang, old in zip(gangs, before, strict=True):
            # All estimates may be 0, once a range took no time: then each gang gets an equal part.
            new = old * scale if together else seconds / len(gangs)
            known[gang] = new if known[gang] is None else old + 0.3 * (new - old)


@dataclass
class ClientState:
    """A client's account: what it was promised, and how many device-seconds it has used.

    Args:
        share: weight under proportional share.
        priority: rank under the priority policy; the highest goes first.
        seconds: device-seconds used or enqueued.
        passed: device-seconds over share, counted only while clients competed; stride takes the client with the least.
        unfinished: number of submitted programs that have not ended.
        closed: whether the client has closed.
    """

    share: float = 1.0
    priority: float = 0.0
    memory: int = 0
    """Limit in bytes per device; 0 means none."""
    seconds: float = 0.0
    passed: float = 0.0
    unfinished: int = 0
    closed: bool = False
    in_flight: int = 0
    """Ranges of its programs that are enqueued and not done."""
    enqueued_at: float = 0.0
    """When a range of it was enqueued last."""
    idle_since: float = 0.0
    """Since when its programs wait with none in flight."""
    left_at: float = -math.inf
    """When its last program ended."""

    def charge(self, seconds: float, contended: bool) -> None:
        """Add device-seconds to the account; negative ones correct an estimate.

        Args:
            seconds: device-seconds.
            contended: whether other clients wanted devices too. Time that nobody else wanted must not count against a
                client later.
        """
        self.seconds += seconds
        # Time over share is the "pass" of stride scheduling: with twice the share it grows half as fast.
        self.passed += seconds / self.share if contended else 0.0

    def catch_up(self, others: Sequence[float], saved: float) -> None:
        """Begin to compete again after a time without work.

        Args:
            others: ``passed`` of each client with unfinished programs.
            saved: device-seconds of its share that it may have left unused until now.
        """
        # Stride: unused share must not be saved up, or a client that comes back would hold the devices alone until the
        # others have waited as long as it was idle. So it continues from the least of the active clients.
        if others:
            self.passed = max(self.passed, min(others) - saved / self.share)


@dataclass(eq=False)
class CallState(Request):
    """One submitted program: what is enqueued and what is done on each island, as counts of that island's order.

    Args:
        submitted: the call.
        estimates: durations of the plan's gangs.
        left: number of gangs that are not enqueued.
        launched: by island, number of steps that are enqueued.
        done: by island, number of steps that are done without a gap.
        next_gang: by island, number of the first gang that is not enqueued.
    """

    submitted: Submitted
    estimates: GangEstimates
    left: int
    """Number of gangs that are not enqueued."""
    launched: dict[int, int]
    done: dict[int, int]
    next_gang: dict[int, int]
    ended: dict[int, dict[int, int]] = field(default_factory=dict)
    """By island: ranges that are done beyond those counted in ``done``, from start to stop. Ranges on different devices
    of an island may complete out of order."""
    cancelled: bool = False
    behind: set[int] = field(default_factory=set)
    """Runs that must be wholly enqueued before it: they produce its arguments, or read what it takes over."""
    ahead_of: list[CallState] = field(default_factory=list, repr=False)
    """Runs that are behind this one; the inverse of ``behind``."""
    shown: ReadyGang | None = None
    """What policies were last shown of it; ``None`` once something of it was enqueued, since then another gang is
    next."""

    @property
    def plan(self) -> Plan:
        """The plan that is run."""
        return self.submitted.plan

    @property
    def client(self) -> str:
        """The client that called it."""
        return self.submitted.client

    def wants(self, store: Store) -> Iterator[MemoryReservation]:
        """Return every reservation that the call needs until it ends."""
        return reservations_of(self.submitted, store)

    def gives_back_on(self, store: Store) -> set[int]:
        """Return the islands on which it runs, and those that hold its arguments."""
        return {*self.plan.orders, *store.islands_of(self.submitted.arguments)}

    def shortage(self, short: int) -> str:
        """Return the beginning of an error's text: which call lacks ``short`` bytes."""
        whose = f" of {self.client}" if self.client else ""
        return f"{self.plan.graph.name}, run {call_number(self.submitted.run)}{whose}, lacks {size(short)}"

    def next_on(self, island: int) -> Gang | None:
        """Return the next gang of an island if its producers on other islands are enqueued; else ``None``.

        Being enqueued is enough, being done is not needed: devices wait for their inputs. This is what makes dispatch
        asynchronous, and what keeps each gang after its producers in the total order.
        """
        gangs = self.plan.gangs.get(island, ())
        position = self.next_gang.get(island, 0)
        if position == len(gangs):
            return None
        gang = gangs[position]
        # ``after`` has one step for each other island, the last that it waits for: an island enqueues its steps in
        # order.
        if gang.after and any(self.launched[other] < stop for other, stop in gang.after):
            return None
        return gang

    def progressed(self, island: int, start: int, stop: int) -> None:
        """Record that steps ``start`` to ``stop`` of an island are done.

        Earlier steps may still run on other devices of the island, so only a range without a gap before it counts as
        ``done``.
        """
        ended = self.ended.setdefault(island, {})
        # A range may end before an earlier one, which runs on other devices of the island. It is kept until there is no
        # gap before it: memory is given back by the number of gangs that are done from the first on.
        ended[start] = stop
        while self.done[island] in ended:
            self.done[island] = ended.pop(self.done[island])

    def learn(self, event: Completed) -> None:
        """Learn from a completed range how long its gangs took, in the proportion of the old estimates."""
        gangs, stops = self.plan.gangs[event.island], self.plan.stops[event.island]
        # ``stops`` rises, (gangs of the island,): a gang belongs to the range if it stops after its start, up to its
        # stop.
        ended = range(bisect_right(stops, event.start), bisect_right(stops, event.stop))
        expected = self.estimates.expected(event.island, ended)
        # The event has device-seconds of the whole range, ``estimates`` takes seconds: divide by the devices, weighted
        # by what each gang was expected to take.
        devices = sum([gangs[i].devices * seconds for i, seconds in zip(ended, expected, strict=True)])
        alone = sum(expected)
        self.estimates.learn(event.island, ended, event.device_seconds * alone / devices if devices else 0.0)

    def gangs_done(self, island: int) -> int:
        """Return how many gangs of an island are done."""
        return bisect_right(self.plan.stops[island], self.done[island])

    @property
    def enqueued(self) -> bool:
        """Whether all of its gangs are enqueued."""
        return not self.left

    @property
    def is_done(self) -> bool:
        """Whether all of its steps are done on every island."""
        return all(self.done[island] == len(order) for island, order in self.plan.orders.items())


_LATELY = 0.125
"""The weight of the newest range in ``IslandQueue.pace``."""


@dataclass
class IslandQueue:
    """What is enqueued on an island and not done.

    Args:
        in_flight: by call and end of the range, its estimated device-seconds, and whether clients competed when it was
            enqueued. Both are needed again when the range completes.
    """

    in_flight: dict[tuple[int, int], tuple[float, bool]] = field(default_factory=dict)
    work: float = 0.0
    """Estimated device-seconds of everything in flight."""
    pace: float = 0.0
    """Seconds between two ends lately: small work takes its hosts longer than its devices."""
    _ended: float | None = None
    """When the last range ended, if others were in flight then."""

    def add(self, call: int, stop: int, work: float, contended: bool) -> None:
        """Record that a range ending at step ``stop`` of a call's order was enqueued."""
        self.in_flight[call, stop] = work, contended
        self.work += work

    def remove(self, call: int, stop: int, now: float) -> tuple[float, bool]:
        """Remove a range that is done, and return its estimated device-seconds and whether clients competed.

        Returns:
            Both values as ``add`` was given them.
        """
        work, contended = self.in_flight.pop((call, stop))
        if self._ended is not None:
            self.pace += (now - self._ended - self.pace) * _LATELY
        self._ended = now if self.in_flight else None
        # Exactly 0 when the queue is empty, so that rounding errors cannot add up.
        self.work = self.work - work if self.in_flight else 0.0
        return work, contended
