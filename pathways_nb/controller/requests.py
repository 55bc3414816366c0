"""Requests for memory: what a program needs until it ends, and the space of a value that a client puts onto devices.

Both are admitted by the same rules (see ``admission``), which ask a request only what it wants. A program's request is
a ``CallState``, a value's is a ``PutRequest``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pathways_nb.controller.events_and_instructions import PutRequested, Submitted
from pathways_nb.controller.store import Store
from pathways_nb.errors import size
from pathways_nb.plan.footprint import MemoryProfile, covers
from pathways_nb.plan.memory_categories import Parts
from pathways_nb.plan.memory_parts import added
from pathways_nb.plan.plan import Placement


@dataclass
class MemoryReservation:
    """Memory reserved for one request on devices that need the same for it.

    Args:
        where: the devices.
        profile: bytes needed on them from each gang of the program on.
        inputs: bytes per device and category of arguments that the program brings to them itself.
        needs: reserved now beyond these, per device and category: one of the profile's ``parts``.
    """

    where: Placement
    profile: MemoryProfile
    inputs: Parts
    needs: Parts

    @property
    def parts(self) -> Parts:
        """All that is reserved now, per device and category."""
        return added(self.inputs, self.needs)

    @property
    def bytes(self) -> int:
        """All that is reserved now, per device."""
        return sum(self.inputs.values()) + sum(self.needs.values())

    def shrink(self, done: int) -> Parts:
        """Reserve what is needed once so many gangs are done.

        Returns:
            The change, by category; all together it is never above 0.
        """
        # Parts of the profile are what the rest of the call needs at most, so their sum never grows with ``done``.
        before, self.needs = self.needs, self.profile.parts[done]
        return added(self.needs, before, -1)


class Shortage(NamedTuple):
    """``short`` bytes per device are missing on ``where``."""

    where: Placement
    short: int


@dataclass
class Blocked:
    """Why a request is not admitted, and how long it has waited.

    Args:
        since: when it was first refused, in seconds.
        where: devices with too little memory left.
        reason: which clients hold the memory, in words.
        patience: seconds to wait while nothing is under way on the island; more if another client holds some of the
            memory.
        tried: value of ``DeviceMemory.freed`` when the request was last tried.
        passed: number of requests that were admitted meanwhile.
        alone: seconds waited so far while nothing was under way that could give memory back, without the current
            period.
        alone_since: start of the current such period; ``None`` while something is under way.
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
        """Time at which it will have waited long enough; ``None`` while something is under way."""
        return None if self.alone_since is None else self.alone_since + self.patience - self.alone


@dataclass
class Stall:
    """A period in which requests wait for memory of an island while nothing is under way on it.

    Args:
        since: start of the period; ``None`` while something is under way that could give memory back.
        first: the client whose request failed first.
        others_until: time until which requests of other clients do not fail, since that client may free memory.
    """

    since: float | None = None
    first: str | None = None
    others_until: float = 0.0


@dataclass(eq=False, kw_only=True)
class Request(ABC):
    """A client's request for memory: all at once, on all devices where it needs any."""

    since: float
    """When it was made, in seconds of the controller's clock."""
    admitted: bool = False
    """Whether the memory is reserved."""
    reservations: dict[int, list[MemoryReservation]] = field(default_factory=dict)
    """The memory that is reserved, by island."""
    touches: set[int] = field(default_factory=set)
    """Islands on which it will give memory back, once it is admitted."""

    @property
    @abstractmethod
    def client(self) -> str:
        """Name of the client that made it."""

    @abstractmethod
    def wants(self, store: Store) -> Iterator[MemoryReservation]:
        """Return all reservations that it needs."""

    @abstractmethod
    def gives_back_on(self, store: Store) -> set[int]:
        """Return the islands on which it will give memory back, once it is admitted."""

    @abstractmethod
    def shortage(self, short: int) -> str:
        """Return the beginning of an error's text: what lacks ``short`` bytes."""


@dataclass(eq=False)
class PutRequest(Request):
    """A request for the memory of a value that a client puts onto devices.

    Args:
        event: the client's request.
    """

    event: PutRequested

    @property
    def client(self) -> str:
        """Name of the client that puts the value."""
        return self.event.client

    def wants(self, store: Store) -> Iterator[MemoryReservation]:
        """Yield the one reservation of the value, on its devices."""
        where, count = self.event.allocation.placement, self.event.allocation.bytes
        parts = {self.event.allocation.category: count}
        yield MemoryReservation(where, MemoryProfile(where.first, where.count, (count,), 0, 0, (parts,)), {}, parts)

    def gives_back_on(self, store: Store) -> set[int]:
        """Return no island: a value stays until its holder drops it."""
        return set()

    def shortage(self, short: int) -> str:
        """Return the beginning of an error's text: what lacks ``short`` bytes."""
        return f"{self.event.name} needs {size(self.event.allocation.bytes)} on each device, and lacks {size(short)}"


def reservations_of(event: Submitted, store: Store) -> Iterator[MemoryReservation]:
    """Yield all reservations that a call needs until it ends.

    Args:
        event: the call.
        store: tells which of its arguments cannot be taken over, and must be copied.
    """
    footprint = event.footprint
    # Inputs that lie elsewhere, or that would be overwritten while another buffer is the same array: the call needs its
    # own copies, on top of what its gangs need.
    copied = [footprint.inputs[position] for position in {*event.moved, *_cannot_take(event, store)}]
    for island, profiles in footprint.profiles.items():
        for profile in profiles:
            inputs: Parts = {}
            for held in copied:
                if covers(held.placement, island, profile.first):
                    inputs = added(inputs, {held.category: held.bytes})
            where = Placement(island, profile.first, profile.count)
            yield MemoryReservation(where, profile, inputs, profile.parts[0])


def _cannot_take(event: Submitted, store: Store) -> Iterator[int]:
    """Return positions of inputs that a call would take over but must copy, since another buffer is the same array."""
    # Overwriting it would change the other buffer's value, which a user may still read.
    taken = [a for a in event.footprint.taken if event.arguments[a] in store.shared] if store.shared else ()
    bringing = (step.argument for step in event.plan.steps if step.kind == "bring") if taken else ()
    return (position for position, argument in enumerate(bringing) if argument in taken)
