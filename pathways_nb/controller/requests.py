"""Requests for memory: what a program needs until it ends, and room for a value that a client puts onto devices.

Both wait under one rule (see ``admission``), which asks nothing of a request but what it wants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pathways_nb.controller.messages import PutRequested, Submitted
from pathways_nb.controller.store import Store
from pathways_nb.errors import size
from pathways_nb.plan.footprint import MemoryProfile, covers
from pathways_nb.plan.plan import Placement


@dataclass
class MemoryReservation:
    """Memory for one request on devices that hold the same for it.

    Args:
        where: the devices.
        course: what is needed there as the request goes on.
        inputs: bytes per device of arguments that a program brings there itself.
        bytes: set aside now, per device, including inputs.
    """

    where: Placement
    profile: MemoryProfile
    inputs: int
    bytes: int


class Shortage(NamedTuple):
    """Too little memory is left on ``where``: by ``short`` bytes per device."""

    where: Placement
    short: int


@dataclass
class Blocked:
    """Why a request is not admitted, and how long it has waited.

    Args:
        since: when it first was not, in seconds.
        where: devices on which too little is left.
        reason: who holds the memory, in words.
        patience: seconds to wait while nothing is under way there; more where another client holds some of the memory.
        tried: how often memory had been given back when the request was last tried.
        passed: requests that were admitted meanwhile.
        alone: seconds waited so far while nothing was under way there that could give memory back.
        alone_since: the beginning of those that go on now; ``None`` while something is under way.
    """

    since: float
    where: Placement
    reason: str
    patience: float
    tried: int
    passed: int = 0
    alone: float = 0.0
    alone_since: float | None = None

    @property
    def until(self) -> float | None:
        """When it will have waited long enough; ``None`` while something is under way."""
        return None if self.alone_since is None else self.alone_since + self.patience - self.alone


@dataclass
class Stall:
    """Requests wait for memory of an island.

    Args:
        since: since when nothing is under way there that could give any back; ``None`` while something is.
        first: the client whose request was the first to fail.
        others_until: other clients wait until then, since that client may drop what it holds.
    """

    since: float | None = None
    first: str | None = None
    others_until: float = 0.0


@dataclass(eq=False, kw_only=True)
class Request(ABC):
    """Memory that a client asks for, all at once, on all devices where it needs any."""

    since: float
    """When it was asked for, in seconds."""
    admitted: bool = False
    """Whether the memory is set aside."""
    reservations: dict[int, list[MemoryReservation]] = field(default_factory=dict)
    """The memory that is set aside, by island."""
    touches: set[int] = field(default_factory=set)
    """Islands on which it will give memory back, once it is admitted."""

    @property
    @abstractmethod
    def client(self) -> str:
        """Who asks."""

    @abstractmethod
    def wants(self, store: Store) -> Iterator[MemoryReservation]:
        """All that must be set aside."""

    @abstractmethod
    def gives_back_on(self, store: Store) -> set[int]:
        """Islands on which it will give memory back, once it is admitted."""

    @abstractmethod
    def shortage(self, short: int) -> str:
        """Say in an error's words who lacks ``short`` bytes."""


@dataclass(eq=False)
class PutRequest(Request):
    """Room for a value that a client puts onto devices."""

    event: PutRequested

    @property
    def client(self) -> str:
        """Who puts the value there."""
        return self.event.client

    def wants(self, store: Store) -> Iterator[MemoryReservation]:
        """The value, where it will lie."""
        where, count = self.event.allocation.placement, self.event.allocation.bytes
        yield MemoryReservation(where, MemoryProfile(where.first, where.count, (count,), 0, 0), 0, count)

    def gives_back_on(self, store: Store) -> set[int]:
        """None: a value stays until its holder drops it."""
        return set()

    def shortage(self, short: int) -> str:
        """Say in an error's words what lacks ``short`` bytes."""
        return f"{self.event.name} needs {size(self.event.allocation.bytes)} on each device, and lacks {size(short)}"


def reservations_of(event: Submitted, store: Store) -> Iterator[MemoryReservation]:
    """All memory that a run needs until it ends."""
    footprint = event.footprint
    copied = [footprint.inputs[position] for position in {*event.moved, *_cannot_take(event, store)}]
    for island, profiles in footprint.profiles.items():
        for profile in profiles:
            inputs = sum(h.bytes for h in copied if covers(h.placement, island, profile.first))
            where = Placement(island, profile.first, profile.count)
            yield MemoryReservation(where, profile, inputs, inputs + profile.peaks[0])


def _cannot_take(event: Submitted, store: Store) -> Iterator[int]:
    """Positions of inputs that a run would take over, but must copy: others have the same array."""
    taken = [a for a in event.footprint.taken if store.buffers[event.arguments[a]].shared]
    bringing = (step.argument for step in event.plan.steps if step.kind == "bring") if taken else ()
    return (position for position, argument in enumerate(bringing) if argument in taken)
