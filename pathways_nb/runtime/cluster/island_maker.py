"""Makes islands of hosts on a Ray cluster: actors, their JAX, how they reach each other, and their clocks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pathways_nb.errors import PlaceError
from pathways_nb.runtime.cluster.gate import Gate
from pathways_nb.runtime.cluster.heartbeats import UNRESPONSIVE_AFTER, together, unanswered
from pathways_nb.runtime.cluster.host_island import Answer, HostDied, HostIsland, Link, wait
from pathways_nb.runtime.cluster.ray_link import RayLink
from pathways_nb.runtime.hosts.host_actor import GROUPS, HostActor
from pathways_nb.util.host_info import versions
from pathways_nb.util.words import counted

_PINGS = 8
"""Questions for one estimate of a clock."""
_BESIDE = ("ask", "stamp", "set_clock", "pull", "process_id")
_GROUPS = {"arrive": "arrivals", "heartbeat": "heartbeat", **dict.fromkeys(_BESIDE, "beside")}
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
        gate: in front of Ray.
        unresponsive_after: seconds of silence after which a host counts as dead.
    """

    ray: Any
    per_host: int
    platform: str = "cpu"
    cores: Callable[[int], Sequence[int]] = lambda host: ()
    by_device: bool = False
    say: Callable[[str], object] = lambda line: None
    clock: Callable[[], float] = time.perf_counter
    gate: Gate = field(default_factory=Gate)
    unresponsive_after: float = UNRESPONSIVE_AFTER
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
        actors = {index: self._actors(index, devices // self.per_host) for index, devices in sizes.items()}
        begun = {index: (mine, self._begin(mine)) for index, mine in actors.items()}
        made = []
        for number, (index, (links, facts)) in enumerate(begun.items(), 1):
            self.say(f"starting hosts of island {number} of {len(begun)} …")
            self._begun(links, facts)
            self.islands[index] = HostIsland(index, tuple(links), self.per_host)
            made.append(self.islands[index])
        self._introduce()
        self.say("")
        return made

    def rebuild(self, island: HostIsland) -> None:
        """Give an island new hosts."""
        hosts = counted(len(island.links), "new host")
        self.say(f"island {island.index} lost host {island.lost}; starting {hosts} …")
        links = self._actors(island.index, len(island.links))
        self._begun(links, self._begin(links))
        island.links = tuple(links)
        with self._making, _ended_if_one_fails(links):
            for number in range(len(links)):
                self.clocks.pop((island.index, number), None)
            self._introduce(links)
        self.say("")

    def release(self) -> None:
        """Have all hosts forget everything; they can be used again. Islands that came later end."""
        for index in self.islands.keys() - self._lasting:
            for link in self.islands.pop(index).links:
                link.kill()
        asked = [(island, link, link.ask("reset")) for island in self.islands.values() for link in island.links]
        deadline = time.monotonic() + self.unresponsive_after
        for island, link, one in asked:
            try:
                one.result(timeout=max(deadline - time.monotonic(), 0.0))
            except TimeoutError:  # the next driver finds the island lost, and has it rebuilt
                link.kill()
                island.lose(link, "it did not answer when it was reset")
            except HostDied:
                pass
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
                    self.clocks[here] = _synchronised(link, self.clock, self.clocks.get(here), self._answer)

    def _actors(self, island: int, hosts: int) -> list[RayLink]:
        """Start the processes of an island's hosts, and return links to them."""
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        if self.platform == "cuda":
            options["num_gpus"] = self.per_host
        elif self.platform in RESOURCES:
            options["resources"] = {RESOURCES[self.platform]: self.per_host}
        actor = self.ray.remote(concurrency_groups=GROUPS)(grouped(self.ray, HostActor, _GROUPS)).options(**options)
        about = self.per_host, self.platform
        with self.gate.passed():
            made = [
                actor.remote(
                    island, number, hosts, *about, self.cores(island * hosts + number), self.by_device,
                    self.unresponsive_after,
                )
                for number in range(hosts)
            ]  # fmt: skip
        return [RayLink(self.ray, one, self.gate) for one in made]

    def _begin(self, links: Sequence[RayLink]) -> list[Any]:
        """Have hosts that were made begin together; return futures of what they say of themselves."""
        with _ended_if_one_fails(links):
            coordinator = None
            if len(links) > 1:
                nodes = set(together([link.ask("node") for link in links], links, self.unresponsive_after))
                asked = links[0].ask("address", len(nodes) == 1)
                (coordinator,) = together([asked], links, self.unresponsive_after)
                links[0].meeting = coordinator
            return [link.ask("begin", coordinator) for link in links]

    def _begun(self, links: Sequence[RayLink], facts: Sequence[Any]) -> None:
        """Wait until hosts have begun, or one of them cannot: the others would wait for it, and all are ended."""
        with _ended_if_one_fails(links):
            for link, found in zip(links, together(facts, links, self.unresponsive_after), strict=True):
                link.facts = found
                _check_versions(found)
                _connect(link)

    def _introduce(self, new: Sequence[Link] = ()) -> None:
        """Tell all hosts how to reach all others.

        Raises:
            HostDied: one of those that are ``new``, to which nobody listens yet, does not answer.
        """
        all_links: Any = [((i.index, n), link) for i in self.islands.values() for n, link in enumerate(i.links)]
        peers = {where: (link.actor, link.facts.door) for where, link in all_links}
        per_host = {island.index: island.per_host for island in self.islands.values()}
        links = [link for island in self.islands.values() for link in island.links]
        for link, one in [(link, link.ask("meet", peers, per_host)) for link in links]:
            try:
                self._answer(one)
            except HostDied:  # its own listener notices, and it meets the others when rebuilt
                if link in new:
                    raise
        self.synchronise()

    def _answer(self, asked: Answer) -> Any:
        """Return an answer.

        Raises:
            HostDied: there is none within ``unresponsive_after``.
        """
        try:
            return asked.result(timeout=self.unresponsive_after)
        except TimeoutError:
            raise HostDied(unanswered(self.unresponsive_after)) from None


def _connect(link: RayLink) -> None:
    """Open the channel to a host that has begun.

    Raises:
        PlaceError: this process cannot reach it.
    """
    try:
        link.connect()
    except OSError as error:
        raise PlaceError(
            f"host {link.facts.name} cannot be reached: {error}. Messages to hosts go by sockets: let the machines of "
            f"the cluster reach each other at all ports, as Ray's own processes must."
        ) from None


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


@contextlib.contextmanager
def _ended_if_one_fails(links: Sequence[Link]) -> Iterator[None]:
    """End hosts that start together if the block fails.

    Yields:
        Nothing.
    """
    try:
        yield
    except BaseException:
        for link in links:
            link.kill()
        raise


def _synchronised(
    link: Link,
    clock: Callable[[], float],
    known: ClockEstimate | None = None,
    answer: Callable[[Answer], Any] = wait,
) -> ClockEstimate:
    """Set a host's clock by the quickest of a few questions, unless what is known of it is more exact.

    A host answers with its clock's time. It read its clock at some time between question and answer, so the middle of
    both is off by half of their distance at most.

    Returns:
        What is known of the clock now.
    """
    fresh = estimated(lambda: answer(link.ask("stamp")), clock)
    if known is not None and known.error_at(fresh.at) <= fresh.error:
        return known
    answer(link.ask("set_clock", fresh.offset))
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
