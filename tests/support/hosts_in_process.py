"""Hosts of a cluster in this process: the cluster driver without Ray and without processes.

What travels is pickled as it would be. Each host has a JAX client of its own. An island of several hosts cannot have one
client in one process; here each of its hosts has a client with all devices of the island and computes everything. So
its arguments must be replicated; what hosts decide, and in which order, is the same.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import pathways_nb as pw
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime import local_islands
from pathways_nb.runtime.cluster.cluster_driver import ClusterDriver
from pathways_nb.runtime.cluster.host_island import HostAttachment, HostDied, HostIsland
from pathways_nb.runtime.cluster.host_watch import HostWatch
from pathways_nb.runtime.hosts.device_route import DeviceRoute
from pathways_nb.runtime.hosts.host import Host
from pathways_nb.runtime.hosts.messages import HostFacts, Message, Parcel
from pathways_nb.runtime.hosts.reports import Report
from pathways_nb.session import default_controller, elasticity
from pathways_nb.session.attach_options import AttachOptions, ClusterOptions

_PATIENCE = 0.05


def travelled(value: Any) -> Any:
    """Return a value as it is after it was pickled."""
    return pickle.loads(pickle.dumps(value, protocol=5))


class LocalLink:
    """A link to a host in this process.

    Args:
        cluster: all hosts.
        island: index of the host's island.
        number: its number within the island.
        hosts: number of hosts of the island.
    """

    def __init__(self, cluster: Cluster, island: int, number: int, hosts: int):
        self.cluster, self.where, self.dead = cluster, (island, number), threading.Event()
        self.attachment = local_islands.attach_cpu(1, hosts * cluster.per_host, pin=False)
        devices = self.attachment.islands[0].devices
        self.facts = HostFacts(f"host-{island}-{number}", os.getpid(), {}, "cpu", "cpu", cluster.per_host, 0)
        route = DeviceRoute(devices, "127.0.0.1") if cluster.by_device else None
        self.host = Host(island, number, devices, hosts, cluster.devices_of, self._deliver, cluster.clock, route)
        self.answering = threading.Event()
        """Cleared while its process stands still."""
        self.answering.set()
        self.taken: list[Message] = []
        """All messages that it has taken."""
        self.change: Callable[[list[Message]], list[Message]] = lambda messages: messages
        """What is done to messages on their way."""
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._beside = ThreadPoolExecutor(4)
        threading.Thread(target=self._take, daemon=True).start()

    def post(self, messages: bytes) -> None:
        self._inbox.put(messages)

    def _take(self) -> None:
        while (packed := self._inbox.get()) is not None:
            if not self.dead.is_set():
                messages = self.change(list(pickle.loads(packed)))
                self.taken += messages
                self.host.receive(messages)

    def ask(self, method: str, *args: Any) -> Future[Any]:
        def answer() -> Any:
            self.answering.wait()
            if self.dead.is_set():
                raise HostDied("its process ended")
            found = None if method == "heartbeat" else travelled(getattr(self.host, method)(*travelled(args)))
            if self.dead.is_set():
                raise HostDied("its process ended")
            return found

        return self._beside.submit(answer)

    def reports(self) -> list[Report]:
        found = self.host.collect_reports(_PATIENCE)
        if self.dead.is_set():
            raise HostDied("its process ended")
        return list(travelled(found))

    def kill(self) -> None:
        if not self.dead.is_set():
            self.dead.set()
            self.answering.set()
            self._inbox.put(None)
            self.host.close()

    def _deliver(self, island: int, number: int, parcel: Parcel, on_taken: Callable[[bool], None]) -> None:
        other = self.cluster.links.get((island, number))
        if other is None or other.dead.is_set() or self.dead.is_set():
            on_taken(False)
        elif parcel.offer is None:
            other.host.arrivals.receive(travelled(parcel))
        else:
            pulled = other._beside.submit(other.host.pull, travelled(parcel))
            pulled.add_done_callback(lambda ended: on_taken(ended.exception() is None))


@dataclass(eq=False)
class Cluster:
    """Hosts, and the maker of their islands.

    Args:
        per_host: devices of each host.
        by_device: whether values travel from device to device.
    """

    per_host: int
    by_device: bool = False
    links: dict[tuple[int, int], LocalLink] = field(default_factory=dict)
    islands: dict[int, HostIsland] = field(default_factory=dict)
    clocks: dict[tuple[int, int], Any] = field(default_factory=dict)
    rebuilds: int = 0
    may_rebuild: threading.Event = field(default_factory=threading.Event)
    """A lost island gets new hosts only when this is set."""
    controller: pw.Controller | None = None

    def devices_of(self, island: int) -> int:
        """Devices of each host of an island."""
        return self.per_host

    def clock(self) -> float:
        """Seconds of the controller's clock."""
        assert self.controller is not None
        return self.controller.clock()

    def make(self, index: int, devices: int) -> HostIsland:
        self.islands[index] = HostIsland(index, self._links(index, devices // self.per_host), self.per_host)
        return self.islands[index]

    def rebuild(self, island: HostIsland) -> None:
        assert self.may_rebuild.wait(60)
        self.rebuilds += 1
        island.links = self._links(island.index, len(island.links))

    def synchronise(self) -> None:
        """Do nothing: all clocks are the controller's."""

    def release(self) -> None:
        for island in self.islands.values():
            for link in island.links:
                with suppress(HostDied):
                    link.ask("reset").result(60)
            island.forget()

    def _links(self, island: int, hosts: int) -> tuple[LocalLink, ...]:
        made = [LocalLink(self, island, number, hosts) for number in range(hosts)]
        self.links.update({link.where: link for link in made})
        return tuple(made)

    @property
    def driver(self) -> ClusterDriver:
        """The driver of the controller."""
        assert self.controller is not None
        found = self.controller.driver
        assert isinstance(found, ClusterDriver)
        return found

    def hosts(self) -> list[Host]:
        """All hosts that live."""
        return [link.host for link in self.links.values() if not link.dead.is_set()]

    def is_empty(self) -> bool:
        """Whether neither hosts nor controller hold a buffer or a run, or expect a value."""
        driver = self.driver
        here = driver.entries or driver.runs or driver.reports.runs or driver.messenger._out or driver.messenger._homes
        there = any(h.entries or h.runs or h._waiting or h.arrivals._coming for h in self.hosts())
        return not here and not there and not driver.machine.store.buffers

    def end(self) -> None:
        for link in self.links.values():
            link.kill()
            link.attachment.release()


@contextmanager
def hosts_in_process(count: int, devices: int, per_host: int, **options: Any) -> Iterator[Cluster]:
    """Attach islands of hosts in this process; nobody looks whether they answer but the test (``HostWatch.look``).

    Args:
        count: of islands.
        devices: of each island.
        per_host: devices of each host.
        **options: of the controller, such as ``dispatch`` or ``hbm``, and ``by_device``.

    Yields:
        The hosts.
    """
    made = Cluster(per_host, options.get("by_device", False))
    made.may_rebuild.set()
    asked = AttachOptions(
        "ray", count, devices, options.get("dispatch", "parallel"), False, hbm=options.get("hbm"),
        cluster=ClusterOptions(devices_per_host=per_host),
    )  # fmt: skip
    attachment = HostAttachment(tuple(made.make(index, devices) for index in range(count)), made)

    def start(session: Any) -> ClusterDriver:
        lost, rebuilt = partial(elasticity.withdraw, session), partial(elasticity.give_back, session)

        def removed(where: Placement) -> None:
            elasticity.lose(session, where.island)

        return ClusterDriver(attachment, session.machine, session.clock, session.note, lost, removed, rebuilt)

    budget = int(asked.hbm or 0)
    controller = pw.Controller(asked, start, (devices,) * count, (budget,) * count)
    made.controller = controller
    controller.on_close = made.end
    default_controller.replace(controller)
    # Silence is counted in looks: those of a clock, on a machine that stands still, would be silence that no test made.
    with controller, patch.object(HostWatch, "run", lambda watch: None):
        yield made
