"""An island of hosts as the controller sees it: links to its hosts, and abstract meshes for what runs there."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
from jax.sharding import AbstractDevice, AbstractMesh

from pathways_nb.errors import LostError
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.runtime.hosts.messages import Drop, HostFacts, Message
from pathways_nb.runtime.hosts.reports import Report
from pathways_nb.util.words import counted

_HEARD = 5.0
"""Seconds at most until the death of a host that did not answer is noticed."""


class HostDied(Exception):  # noqa: N818  (it is what happened)
    """A host's process is gone."""


class Answer(Protocol):
    """What a host, or another thread, will answer."""

    def done(self) -> bool:
        """Return whether there is an answer or an error."""

    def result(self, timeout: float) -> Any:
        """Return the answer, or raise ``TimeoutError`` if there is none within ``timeout`` seconds."""


class Link(Protocol):
    """The way to one host."""

    facts: HostFacts

    def post(self, messages: bytes) -> None:
        """Send pickled messages, in order; does not wait."""

    def ask(self, method: str, *args: Any) -> Answer:
        """Call a method of the host beside its messages; the future's error is ``HostDied`` if it died."""

    def reports(self) -> list[Report]:
        """Wait for reports.

        Raises:
            HostDied: there will be no more.
        """

    def kill(self) -> None:
        """End the host at once."""


@dataclass(frozen=True)
class HostDevice:
    """A device of a host; ``id`` is its number within the island."""

    id: int
    device_kind: str
    host: str

    def memory_stats(self) -> None:
        """Return ``None``: what a host's devices hold is counted by the object store."""


@dataclass(eq=False)
class HostIsland:
    """Hosts that are one failure unit.

    Args:
        index: of the island.
        links: to its hosts, in order.
        per_host: devices of each host.
    """

    index: int
    links: tuple[Link, ...]
    per_host: int
    generation: int = 0
    """How often its hosts were replaced."""
    lost: str = ""
    """Why it has no hosts now."""
    cluster_lost: str = ""
    """Why it will never have any again."""
    silent: str = ""
    """Which of its hosts do not answer, as text that follows its hosts."""
    dropped: list[int] = field(default_factory=list)
    """Buffers that its hosts may forget, at the next message."""
    known: set[str] = field(default_factory=set)
    """Digests of plans that its hosts have."""
    sending: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Held while a message goes to all hosts, so that all get the same order."""

    @property
    def devices(self) -> tuple[HostDevice, ...]:
        """Its devices, numbered from 0."""
        count = len(self.links) * self.per_host
        facts = [link.facts for link in self.links]
        return tuple(
            HostDevice(n, facts[n // self.per_host].kind, facts[n // self.per_host].name) for n in range(count)
        )

    @property
    def about(self) -> str:
        """Its hosts, as text that follows a number of devices."""
        names = ", ".join(f"{link.facts.name} (process {link.facts.process})" for link in self.links)
        rebuilt = "" if self.cluster_lost else ", being rebuilt"
        lost = f"; lost{rebuilt}" if self.lost else self.silent
        return f", {counted(len(self.links), 'host')}: {names}{lost}"

    @property
    def loss(self) -> str:
        """What was lost, as a text that ends without a full stop."""
        return self.cluster_lost or f"island {self.index} lost host {self.lost}"

    def lose(self, link: Link, why: str) -> None:
        """Note that it has no hosts any more, because of one of them."""
        self.lost = f"{link.facts.name}, process {link.facts.process}: {why}"

    def mesh(self, placement: Placement, place: VirtualSlice) -> AbstractMesh:
        """Return the abstract mesh of a virtual slice on this island; the placement names its devices."""
        facts = self.links[0].facts
        device = AbstractDevice(facts.kind, None, facts.platform)
        kinds = (jax.sharding.AxisType.Auto,) * len(place.axes)
        return AbstractMesh(place.shape, place.axes, axis_types=kinds, abstract_device=device)

    def host_of(self, device: int) -> int:
        """Return the number of the host of a device, as events state it; -1 if there is one host only."""
        return device // self.per_host if len(self.links) > 1 else -1

    def begin_life(self) -> None:
        """Note that its hosts are new."""
        with self.sending:
            self.forget()
            self.generation, self.lost, self.silent = self.generation + 1, "", ""

    def forget(self) -> None:
        """Note that its hosts hold nothing any more."""
        self.known.clear()
        self.dropped.clear()

    def post(self, *messages: Message) -> None:
        """Send messages to all hosts, in one order."""
        self.post_each([messages] * len(self.links))

    def post_each(self, messages: Sequence[Sequence[Message]]) -> None:
        """Send each host its messages, with what it may forget before them."""
        with self.sending:
            if self.lost:
                return
            dropped, self.dropped = self.dropped, []
            before: tuple[Message, ...] = (Drop(tuple(dropped)),) if dropped else ()
            packed: dict[int, bytes] = {}
            for link, mine in zip(self.links, messages, strict=True):
                if id(mine) not in packed:
                    packed[id(mine)] = pickle.dumps((*before, *mine), protocol=5)
                link.post(packed[id(mine)])

    def ask_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all hosts and wait.

        Returns:
            What each host returned.

        Raises:
            LostError: the island lost its hosts meanwhile.
        """
        if self.lost:
            raise LostError(self.loss)
        links = self.links
        futures = [link.ask(method, *args) for link in links]
        try:
            return [wait(future) for future in futures]
        except HostDied as died:
            deadline = time.monotonic() + _HEARD
            while not self.lost and links == self.links and time.monotonic() < deadline:
                time.sleep(1e-3)  # whoever listens to the host hears of it, too, and has it replaced
            why = self.cluster_lost or f"island {self.index} lost a host while it was asked to {method}: {died}"
            raise LostError(why) from None


def wait(future: Answer) -> Any:
    """Return what a future brings, waiting in short steps so that an interrupt is heard."""
    while True:
        try:
            return future.result(timeout=0.5)
        except TimeoutError:
            if future.done():
                raise


@dataclass(frozen=True)
class HostAttachment:
    """The islands of one controller on a cluster.

    Args:
        islands: the islands.
        maker: makes further islands, rebuilds lost ones and lets go of the cluster.
    """

    islands: tuple[HostIsland, ...]
    maker: Any
    note: str = ""
    kind: str = "ray"

    def one_more(self, devices: int) -> HostIsland | None:
        """Return a new island with this number of devices; ``None`` if a shared controller makes it."""
        made: HostIsland | None = self.maker.make(len(self.islands), devices)
        return made

    def hosts(self, now: float) -> list[dict[str, Any]]:
        """Return a row for each host at a time of the controller's clock; see ``Controller.hosts``."""
        clocks = self.maker.clocks
        return [
            {
                "island": island.index,
                "host": number,
                "machine": link.facts.name,
                "process": link.facts.process,
                "devices": range(number * island.per_host, (number + 1) * island.per_host),
                "clock_offset": clock.offset if clock is not None else float("nan"),
                "clock_error": clock.error_at(now) if clock is not None else float("nan"),
            }
            for island in self.islands
            if not island.lost  # its hosts are dead, and new ones are not there yet
            for number, link in enumerate(island.links)
            for clock in (clocks.get((island.index, number)),)
        ]

    def release(self) -> None:
        """End all hosts."""
        self.maker.release()
