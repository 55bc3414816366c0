"""What kernels and a shared controller tell each other, beside the core's own events and instructions.

Runs and buffers are numbered so that kernels never collide: a number's upper bits name the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pathways_nb.controller.events_and_instructions import Event, Instruction, Removed
from pathways_nb.errors import PathwaysError
from pathways_nb.plan.footprint import Footprint
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.runtime.cluster.host_events import RangeLost
from pathways_nb.runtime.cluster.run_beginning import Beginning
from pathways_nb.runtime.hosts.channel import Door
from pathways_nb.runtime.hosts.messages import HostFacts, Message
from pathways_nb.runtime.hosts.reports import Report

# ---- from a kernel


@dataclass(frozen=True, slots=True)
class Begin:
    """What hosts are told of a run that is submitted next."""

    run: int
    beginning: Beginning


@dataclass(frozen=True, slots=True)
class Post:
    """Send a message to all hosts of an island."""

    island: int
    message: Message


@dataclass(frozen=True, slots=True)
class Placed:
    """A buffer was put onto an island."""

    buffer: int
    island: int


@dataclass(frozen=True, slots=True)
class Installed:
    """Hosts were given a plan of this kernel's; runs of it are submitted without plan and footprint, by its digest."""

    digest: str
    plan: Plan
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class Ended:
    """A run has ended; ``errors`` says, by buffer, why a result is missing."""

    run: int
    errors: dict[int, PathwaysError]


@dataclass(frozen=True, slots=True)
class Uninstall:
    """Hosts may forget these plans."""

    digests: tuple[str, ...]


FromKernel = Event | Begin | Post | Placed | Installed | Ended | Uninstall

# ---- to a kernel


@dataclass(frozen=True, slots=True)
class IslandView:
    """An island as a kernel sees it: handles of its hosts' actors, and what they said of themselves."""

    index: int
    actors: tuple[Any, ...]
    facts: tuple[HostFacts, ...]
    per_host: int
    generation: int
    lost: str
    budget: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a kernel is told when it joins: its number, the islands, and lost devices."""

    kernel: int
    islands: tuple[IslandView, ...]
    lost_devices: tuple[Placement, ...]
    door: Door
    """Where its channel is taken."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A report about one of the kernel's runs."""

    island: int
    report: Report | RangeLost


@dataclass(frozen=True, slots=True)
class Lost:
    """An island's hosts died in this life of it; ``host`` says which of them, and why."""

    island: int
    generation: int
    host: str


@dataclass(frozen=True, slots=True)
class Silent:
    """For how many seconds hosts of an island have not answered; none if all do again."""

    island: int
    hosts: dict[int, float]


@dataclass(frozen=True, slots=True)
class StandsStill:
    """Hosts have reported nothing for a while, though programs are under way."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An island has all its devices again, mostly on new hosts."""

    view: IslandView


@dataclass(frozen=True, slots=True)
class Renewed:
    """An island whose devices were removed has new hosts."""

    view: IslandView


@dataclass(frozen=True, slots=True)
class Joined:
    """An island was added."""

    view: IslandView


ToKernel = Instruction | Reported | Lost | Silent | StandsStill | Removed | Rebuilt | Renewed | Joined
"""``Removed`` is the core's own event: devices are gone, removed by another kernel or with their hosts."""
