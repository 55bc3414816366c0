"""What the controller remembers of clients, of the programs they called, and of what is enqueued on islands."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pathways_nb.controller.messages import Completed, Submitted
from pathways_nb.controller.policies import ReadyGang
from pathways_nb.controller.requests import MemoryReservation, Request, reservations_of
from pathways_nb.controller.store import Store
from pathways_nb.errors import size
from pathways_nb.plan.plan import Gang, Plan

GUESS = 1e-3
"""Seconds that a gang is taken to last before it has run."""


class GangEstimates:
    """How long each gang of a plan takes, in seconds, learnt as it runs."""

    def __init__(self, plan: Plan):
        self.seconds: dict[int, list[float | None]] = {i: [None] * len(gangs) for i, gangs in plan.gangs.items()}

    def work(self, gangs: Sequence[Gang], first: int) -> float:
        """Device-seconds to reckon with for an island's gangs from number ``first`` on."""
        expected = self.expected(gangs[0].island, range(first, first + len(gangs)))
        return sum([gang.devices * seconds for gang, seconds in zip(gangs, expected, strict=True)])

    def expected(self, island: int, gangs: range) -> list[float]:
        """The seconds to reckon with, of each of ``gangs``."""
        return [GUESS if seconds is None else seconds for seconds in self.seconds[island][gangs.start : gangs.stop]]

    def learn(self, island: int, gangs: range, seconds: float) -> None:
        """All of ``gangs`` took ``seconds``: share them out as they were expected, and move a part of the way."""
        known, before = self.seconds[island], self.expected(island, gangs)
        together = sum(before)
        scale = seconds / (together or 1.0)
        for gang, old in zip(gangs, before, strict=True):
            new = old * scale if together else seconds / len(gangs)
            known[gang] = new if known[gang] is None else old + 0.3 * (new - old)


@dataclass
class ClientState:
    """A tenant: what it was promised, and what it has had, in device-seconds."""

    share: float = 1.0
    priority: float = 0.0
    memory: int = 0
    """Limit in bytes per device; 0: none."""
    seconds: float = 0.0
    passed: float = 0.0
    unfinished: int = 0
    closed: bool = False
    in_flight: int = 0
    """Ranges of its programs that are enqueued and not done."""
    enqueued_at: float = 0.0
    idle_since: float = 0.0
    """When something of it was enqueued last, and since when nothing is under way though programs of it wait."""

    def charge(self, seconds: float, contended: bool) -> None:
        """It has had so many more device-seconds; fewer if negative. What nobody else wanted is not held against it."""
        self.seconds += seconds
        self.passed += seconds / self.share if contended else 0.0


@dataclass(eq=False)
class RunState(Request):
    """One submitted program: what is enqueued and what is done on each island, as counts of its order there."""

    submitted: Submitted
    estimates: GangEstimates
    left: int
    """Gangs that are not enqueued."""
    launched: dict[int, int]
    done: dict[int, int]
    next_gang: dict[int, int]
    ended: dict[int, dict[int, int]] = field(default_factory=dict)
    """By island: ranges that are done beyond those counted in ``done``, from start to stop."""
    cancelled: bool = False
    behind: set[int] = field(default_factory=set)
    """Runs that must be wholly enqueued before it: they make its arguments, or read what it takes over."""
    ahead_of: list[RunState] = field(default_factory=list, repr=False)
    """Runs that are behind it."""
    shown: ReadyGang | None = None
    """What policies were last shown of it, until something of it is enqueued."""

    @property
    def plan(self) -> Plan:
        """What is run."""
        return self.submitted.plan

    @property
    def client(self) -> str:
        """Who called it."""
        return self.submitted.client

    def wants(self, store: Store) -> Iterator[MemoryReservation]:
        """All memory that it needs until it ends."""
        return reservations_of(self.submitted, store)

    def gives_back_on(self, store: Store) -> set[int]:
        """Where it runs, and where its arguments lie."""
        held = (entry.allocation for b in self.submitted.arguments if (entry := store.buffers.get(b)) is not None)
        return {*self.plan.orders, *(allocation.placement.island for allocation in held if allocation is not None)}

    def shortage(self, short: int) -> str:
        """Say in an error's words who lacks ``short`` bytes."""
        whose = f" of {self.client}" if self.client else ""
        return f"{self.plan.graph.name}, run {self.submitted.run}{whose}, lacks {size(short)}"

    def next_on(self, island: int) -> Gang | None:
        """The next gang on an island, if what it needs from other islands has been enqueued there."""
        gangs = self.plan.gangs.get(island, ())
        position = self.next_gang.get(island, 0)
        if position == len(gangs):
            return None
        gang = gangs[position]
        if gang.after and any(self.launched[other] < stop for other, stop in gang.after):
            return None
        return gang

    def progressed(self, island: int, start: int, stop: int) -> None:
        """Steps ``start`` to ``stop`` are done; those before them on other devices may not be yet."""
        ended = self.ended.setdefault(island, {})
        ended[start] = stop
        while self.done[island] in ended:
            self.done[island] = ended.pop(self.done[island])

    def learn(self, event: Completed) -> None:
        """How long the gangs of a range took together: more or less than was expected of them."""
        gangs, stops = self.plan.gangs[event.island], self.plan.stops[event.island]
        ended = range(bisect_right(stops, event.start), bisect_right(stops, event.stop))
        expected = self.estimates.expected(event.island, ended)
        devices = sum([gangs[i].devices * seconds for i, seconds in zip(ended, expected, strict=True)])
        alone = sum(expected)
        self.estimates.learn(event.island, ended, event.device_seconds * alone / devices if devices else 0.0)

    def gangs_done(self, island: int) -> int:
        """How many gangs of an island are done."""
        return bisect_right(self.plan.stops[island], self.done[island])

    @property
    def enqueued(self) -> bool:
        """Whether all of it is."""
        return not self.left

    @property
    def is_done(self) -> bool:
        """Whether all of it is."""
        return all(self.done[island] == len(order) for island, order in self.plan.orders.items())


@dataclass
class IslandQueue:
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
