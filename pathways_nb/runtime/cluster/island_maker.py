"""Makes islands of hosts on a Ray cluster: actors, their JAX, how they reach each other, and their clocks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pathways_nb.errors import PlaceError
from pathways_nb.runtime.cluster.host_island import HostDied, HostIsland, Link, wait
from pathways_nb.runtime.cluster.ray_link import RayLink
from pathways_nb.runtime.hosts.host_actor import GROUPS, HostActor
from pathways_nb.util.host_info import versions

_PINGS = 8
"""Questions for one estimate of a clock."""
_BESIDE = ("ask", "stamp", "set_clock", "pull")
_GROUPS = {"reports": "reports", "arrive": "arrivals", **dict.fromkeys(_BESIDE, "beside")}
RESOURCES = {"cuda": "GPU", "tpu": "TPU"}
"""Ray's names of accelerators, by platform as JAX calls it."""
_DRIFT = 5e-5
"""Seconds by which two clocks may drift apart in a second; crystals are made to half of that."""


class ClockEstimate(NamedTuple):
    """How far a host's clock is from the controller's.

    Args:
        offset: seconds to be added to it.
        error: by how many seconds that may be wrong.
        at: when it was estimated, on the controller's clock.
    """

    offset: float
    error: float
    at: float

    def error_at(self, now: float) -> float:
        """Return the error by now, in seconds: it grows, because clocks drift."""
        return self.error + _DRIFT * max(now - self.at, 0.0)


@dataclass(eq=False)
class IslandMaker:
    """Makes, rebuilds and releases islands.

    Args:
        ray: Ray's module, connected to a cluster.
        per_host: devices of each host.
        platform: of the devices, as JAX calls it.
        cores: for each host, in the order in which hosts are made, the cores it is pinned to.
        by_device: whether values go to other hosts from device to device, where JAX can do that.
        say: shows a line of progress.
        clock: the controller's clock, in seconds.
    """

    ray: Any
    per_host: int
    platform: str = "cpu"
    cores: Callable[[int], Sequence[int]] = lambda host: ()
    by_device: bool = False
    say: Callable[[str], object] = lambda line: None
    clock: Callable[[], float] = time.perf_counter
    islands: dict[int, HostIsland] = field(default_factory=dict)
    clocks: dict[tuple[int, int], ClockEstimate] = field(default_factory=dict)
    """By island and number of the host."""
    _lasting: frozenset[int] = frozenset()
    """The islands that were made first, which a reset keeps."""
    _making: threading.RLock = field(default_factory=threading.RLock)
    """Held while islands are made, and while all are gone through."""

    def make(self, index: int, devices: int) -> HostIsland:
        """Return a new island with this many devices.

        Raises:
            PlaceError: they do not divide into hosts, or a host runs other versions than this process.
        """
        if devices % self.per_host:
            raise PlaceError(
                f"an island of {devices} devices does not divide into hosts of {self.per_host}: make "
                f"devices_per_island a multiple of devices_per_host."
            )
        return self.make_all({index: devices})[0]

    def make_all(self, sizes: dict[int, int]) -> list[HostIsland]:
        """Return new islands, by index and number of devices; their hosts start side by side."""
        with self._making:
            return self._make_all(sizes)

    def _make_all(self, sizes: dict[int, int]) -> list[HostIsland]:
        self._lasting = self._lasting or frozenset(sizes)
        begun = {index: self._actors(index, devices // self.per_host) for index, devices in sizes.items()}
        made = []
        for number, (index, (links, facts)) in enumerate(begun.items(), 1):
            self.say(f"starting hosts of island {number} of {len(begun)} …")
            self._begun(links, [wait(one) for one in facts])
            self.islands[index] = HostIsland(index, tuple(links), self.per_host)
            made.append(self.islands[index])
        self._introduce()
        self.say("")
        return made

    def rebuild(self, island: HostIsland) -> None:
        """Give an island new hosts."""
        self.say(f"island {island.index} lost host {island.lost}; starting {len(island.links)} new hosts …")
        links, facts = self._actors(island.index, len(island.links))
        self._begun(links, [wait(one) for one in facts])
        island.links = tuple(links)
        with self._making:
            for number in range(len(links)):
                self.clocks.pop((island.index, number), None)
            self._introduce()
        self.say("")

    def release(self) -> None:
        """Have all hosts forget everything; they can be used again. Islands that came later end."""
        for index in self.islands.keys() - self._lasting:
            for link in self.islands.pop(index).links:
                link.kill()
        asked = [(island, link.ask("reset")) for island in self.islands.values() for link in island.links]
        for island, one in asked:
            with contextlib.suppress(HostDied):
                wait(one)
            island.forget()

    def end(self) -> None:
        """End all hosts."""
        for island in self.islands.values():
            for link in island.links:
                link.kill()
        self.islands.clear()

    def synchronise(self) -> None:
        """Estimate how far each host's clock is from this process's, and have it correct its stamps."""
        for island in list(self.islands.values()):
            for number, link in enumerate(island.links):
                with contextlib.suppress(HostDied):
                    here = island.index, number
                    self.clocks[here] = _synchronised(link, self.clock, self.clocks.get(here))

    def _actors(self, island: int, hosts: int) -> tuple[list[RayLink], list[Any]]:
        """Start the hosts of an island; return links to them, and futures of what they say of themselves."""
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        if self.platform == "cuda":
            options["num_gpus"] = self.per_host
        elif self.platform in RESOURCES:
            options["resources"] = {RESOURCES[self.platform]: self.per_host}
        actor = self.ray.remote(concurrency_groups=GROUPS)(grouped(self.ray, HostActor, _GROUPS)).options(**options)
        links = [
            RayLink(
                self.ray,
                actor.remote(
                    island,
                    number,
                    hosts,
                    self.per_host,
                    self.platform,
                    self.cores(island * hosts + number),
                    self.by_device,
                ),
            )
            for number in range(hosts)
        ]
        coordinator = None
        if hosts > 1:
            nodes = {wait(one) for one in [link.ask("node") for link in links]}
            coordinator = links[0].meeting = wait(links[0].ask("address", len(nodes) == 1))
        return links, [link.ask("begin", coordinator) for link in links]

    def _begun(self, links: Sequence[RayLink], facts: Sequence[Any]) -> None:
        for link, found in zip(links, facts, strict=True):
            link.facts = found
            _check_versions(found)

    def _introduce(self) -> None:
        """Tell all hosts how to reach all others."""
        peers = {(i.index, n): link.actor for i in self.islands.values() for n, link in enumerate(i.links)}  # type: ignore[attr-defined]
        per_host = {island.index: island.per_host for island in self.islands.values()}
        asked = [link.ask("meet", peers, per_host) for i in self.islands.values() for link in i.links]
        for one in asked:
            with contextlib.suppress(HostDied):  # its own listener notices, and it meets the others when rebuilt
                wait(one)
        self.synchronise()


def grouped(ray: Any, actor: type, groups: Mapping[str, str]) -> type:
    """Return an actor's class with Ray's concurrency group of each method; the others run in order."""
    found = {name: ray.method(concurrency_group=group)(_copied(actor, name)) for name, group in groups.items()}
    return type(actor.__name__, (actor,), found)


def _copied(actor: type, name: str) -> Any:
    method = getattr(actor, name)

    def call(self: Any, *args: Any) -> Any:
        return method(self, *args)

    call.__name__ = name
    return call


def _synchronised(link: Link, clock: Callable[[], float], known: ClockEstimate | None = None) -> ClockEstimate:
    """Set a host's clock by the quickest of a few questions, unless what is known of it is more exact.

    A host answers with its clock's time. It read its clock at some time between question and answer, so the middle of
    both is off by half of their distance at most.

    Returns:
        What is known of the clock now.
    """
    fresh = estimated(lambda: wait(link.ask("stamp")), clock)
    if known is not None and known.error_at(fresh.at) <= fresh.error:
        return known
    wait(link.ask("set_clock", fresh.offset))
    return fresh


def estimated(stamp: Callable[[], float], clock: Callable[[], float]) -> ClockEstimate:
    """Return how far another clock is from this one, by the quickest of a few answers.

    Args:
        stamp: asks for the other clock's time, in seconds.
        clock: this clock, in seconds.
    """
    found = []
    for _ in range(_PINGS):
        began = clock()
        there = stamp()
        ended = clock()
        found.append((ended - began, (began + ended) / 2 - there))
    took, offset = min(found)
    return ClockEstimate(offset, took / 2, ended)


def _check_versions(facts: Any) -> None:
    """Refuse a host that runs other versions than this process.

    Raises:
        PlaceError: naming the first difference.
    """
    for name, ours in versions().items():
        theirs = facts.versions.get(name)
        if theirs != ours:
            raise PlaceError(
                f"host {facts.name} runs {name} {theirs}, and this process {ours}: programs could not travel. Install "
                f"the same version on both."
            )
