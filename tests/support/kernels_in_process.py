"""Kernels of a shared controller, all in this process: what they say to each other is pickled as it would be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pathways_nb as pw
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.policies import policy_of
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.runtime.cluster.host_island import HostAttachment, HostDied, HostIsland
from pathways_nb.runtime.shared.protocol import IslandView
from pathways_nb.runtime.shared.remote_core import RemoteMachine
from pathways_nb.runtime.shared.shared_controller import SharedController
from pathways_nb.runtime.shared.shared_driver import SharedDriver
from pathways_nb.session import default_controller, elasticity
from pathways_nb.session.attach_options import AttachOptions, ClusterOptions
from tests.support.hosts_in_process import Cluster, travelled


class KernelLink:
    """A kernel's way to a shared controller in this process."""

    offset = 0.0

    def __init__(self, controller: SharedController):
        self.controller, self.kernel = controller, controller.join()
        self.outbox = controller.kernels[self.kernel].outbox

    def send(self, items: list[Any]) -> None:
        self.controller.receive(self.kernel, travelled(items))

    def receive(self) -> list[Any]:
        items = self.outbox.collect(0.05)
        if self.outbox.closed:
            raise HostDied("it has let this kernel go")
        return items

    def look(self, part: str) -> Any:
        return self.controller.look(part)

    def island(self, view: IslandView) -> HostIsland:
        return HostIsland(view.index, view.actors, view.per_host, view.generation, view.lost)

    def leave(self) -> None:
        self.controller.leave(self.kernel)


class Guest:
    """The maker of islands of a kernel: the shared controller makes them."""

    def __init__(self, controller: SharedController, cluster: Cluster):
        self.controller, self.cluster = controller, cluster
        self.clocks: dict[tuple[int, int], Any] = {}

    def make(self, index: int, devices: int) -> None:
        self.controller.add(self.cluster.make(index, devices))

    def rebuild(self, island: HostIsland) -> None:
        raise AssertionError("only the controller rebuilds")

    def synchronise(self) -> None:
        pass

    def release(self) -> None:
        pass


class Lab:
    """A shared controller, its hosts, and its kernels.

    Args:
        islands: number of islands.
        devices: of each island, all on one host.
        policy: of the controller.
        hbm: bytes of each device; 0 for no limit.
    """

    def __init__(self, islands: int, devices: int, policy: Any = "stride", hbm: int = 0):
        self.sizes, self.hbm = (devices,) * islands, hbm
        self.cluster = Cluster(devices)
        self.cluster.may_rebuild.set()
        self.cluster.controller = SimpleNamespace(clock=lambda: self.kernels[0].clock())  # type: ignore[assignment]
        made = [self.cluster.make(index, devices) for index in range(islands)]
        budgets = (hbm,) * islands
        machine = StateMachine("parallel", policy_of(policy), self.sizes, budgets)
        self.shared = SharedController(machine, made, budgets, self.cluster.rebuild, self.cluster.clock, _view)
        self.kernels: list[pw.Controller] = []

    def kernel(self) -> pw.Controller:
        """Return the controller of a new kernel."""
        links: list[KernelLink] = []

        def start(session: Any) -> SharedDriver:
            links.append(KernelLink(self.shared))
            for where in self.shared.lost_devices:
                session.resources.remove(where)
            islands = tuple(links[-1].island(view) for view in self.shared.views())
            return SharedDriver(
                HostAttachment(islands, Guest(self.shared, self.cluster)), session.machine, session.clock, links[-1],
                session.note, partial(elasticity.withdraw, session), partial(elasticity.follow_loss, session),
                partial(elasticity.follow_return, session),
                lambda island, budget: elasticity.follow_joining(session, island, budget), tuple(self.shared.lost_devices),
            )  # fmt: skip

        sizes = tuple(len(island.devices) for island in self.shared.islands)
        budgets = tuple(self.shared.budgets)
        made = pw.Controller(_options(len(sizes), sizes[0]), start, sizes, budgets, machine=RemoteMachine)
        self.kernels.append(made)
        return made

    def is_empty(self) -> bool:
        """Whether neither hosts nor the core hold anything, or expect a value."""
        there = any(h.entries or h.runs or h._waiting or h.arrivals._coming for h in self.cluster.hosts())
        machine, messenger = self.shared.machine, self.shared.messenger
        return not (there or machine.calls or machine.store.buffers or messenger._out or messenger._homes)

    def end(self) -> None:
        for kernel in self.kernels:
            kernel.close()
        self.shared.event_loop.in_turn(lambda: check_invariants(self.shared.machine))
        self.shared.close()
        self.cluster.end()


@contextmanager
def acting(kernel: pw.Controller) -> Iterator[None]:
    """Make the calls inside in this kernel."""
    before, default_controller._state.current = default_controller._state.current, kernel
    try:
        yield
    finally:
        default_controller._state.current = before


def _options(islands: int, devices: int) -> AttachOptions:
    return AttachOptions("ray", islands, devices, "parallel", False, cluster=ClusterOptions(name="lab"))


def _view(island: HostIsland, budget: int) -> IslandView:
    facts = tuple(link.facts for link in island.links)
    return IslandView(island.index, island.links, facts, island.per_host, island.generation, island.lost, budget)
