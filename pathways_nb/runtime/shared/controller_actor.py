"""The Ray actor in which a shared controller lives, known in the cluster by its name.

It ends with its last kernel, and its hosts with it. Whether a kernel lives is told by the channel by which it tells its
events and is told instructions: the system closes it with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from pathways_nb.controller.policies import policy_of
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.runtime.cluster.heartbeats import UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_island import HostIsland
from pathways_nb.runtime.cluster.island_maker import ClockEstimate, IslandMaker
from pathways_nb.runtime.hosts.channel import Channel, Door
from pathways_nb.runtime.interpreter_settings import InterpreterSettings
from pathways_nb.runtime.shared.protocol import FromKernel, IslandView, Joined, Rebuilt, Renewed, ToKernel, Welcome
from pathways_nb.runtime.shared.shared_controller import SharedController

GROUPS = {"beside": 8}
"""Threads for calls that wait."""
_PATIENCE = 5.0
"""Seconds after which a thread that has nothing to tell looks whether its kernel is still there."""
_GRACE = 2.0
"""Seconds without kernels after which it ends."""


@dataclass(frozen=True)
class Terms:
    """What a shared controller is made with.

    Args:
        islands: number of islands.
        devices: number of devices of each island.
        per_host: number of devices of each host.
        dispatch: ``"parallel"`` or ``"sequential"``.
        policy: as ``travel.by_value`` packs it.
        hbm: bytes of memory of each device; ``None`` takes what they report.
        platform: of the devices, as JAX calls it.
        policy_name: what to call the policy.
        pin: whether hosts are pinned to cores.
        by_device: whether values go to other hosts from device to device.
        unresponsive_after: seconds of silence after which a host counts as dead.
    """

    islands: int
    devices: int
    per_host: int
    dispatch: str
    policy: bytes
    hbm: float | None
    platform: str
    policy_name: str | None
    pin: bool
    by_device: bool
    unresponsive_after: float = UNRESPONSIVE_AFTER


class ControllerActor:
    """A shared controller in a process of its own.

    Args:
        terms: what it is made with.
        cores: the cores of hosts on this machine.
    """

    def __init__(self, terms: Terms, cores: Any):
        import ray

        self.terms, self._ray = terms, ray
        # What kernels say must not wait until the core has nothing left to decide.
        self._settings = InterpreterSettings()
        after = terms.unresponsive_after
        self._maker = IslandMaker(ray, terms.per_host, terms.platform, cores, terms.by_device, unresponsive_after=after)
        self._adding = threading.Lock()
        islands = self._maker.make_all(dict.fromkeys(range(terms.islands), terms.devices))
        budget = int(terms.hbm or min(link.facts.memory for island in islands for link in island.links))
        sizes, budgets = (terms.devices,) * terms.islands, (budget,) * terms.islands
        policy = policy_of(pickle.loads(terms.policy))
        machine = StateMachine(terms.dispatch, policy, sizes, budgets)  # type: ignore[arg-type]
        self._controller = SharedController(
            machine, islands, budgets, self._maker.rebuild, time.perf_counter, _view, after
        )
        self._expected: set[int] = set()
        """Kernels that have not opened their channels."""
        self._by_ray: dict[int, queue.SimpleQueue[list[ToKernel]]] = {}
        """Batches for each kernel that hold handles of actors, which only Ray's calls carry."""
        self._door = Door.opened(ray.util.get_node_ip_address(), self._serve)
        self._end_if_alone()

    def about(self) -> tuple[Terms, tuple[int, ...], tuple[int, ...]]:
        """Return what it was made with, and the sizes and budgets of its islands now."""
        sizes = tuple(len(island.devices) for island in self._controller.islands)
        return self.terms, sizes, tuple(self._controller.budgets)

    def stamp(self) -> float:
        """Return seconds of its clock."""
        return time.perf_counter()

    def join(self) -> Welcome:
        """Take in a kernel, which opens its channel next, and return what it needs to know."""
        number = self._controller.join()
        self._by_ray[number] = queue.SimpleQueue()
        self._expected.add(number)
        threading.Timer(10 * _GRACE, self._expire, (number,)).start()
        return Welcome(number, self._controller.views(), tuple(self._controller.lost_devices), self._door)

    def _expire(self, number: int) -> None:
        """Let a kernel go that has joined and died before its channel was there."""
        if self._takes(number):
            self._let_go(number)

    def _takes(self, number: int) -> bool:
        """Return, once for each kernel, whether its channel was still expected."""
        try:
            self._expected.remove(number)
        except KeyError:
            return False
        return True

    def _let_go(self, number: int) -> None:
        try:
            self._controller.leave(number)
            self._by_ray.pop(number, None)
        finally:
            self._end_if_alone()

    def _serve(self, channel: Channel) -> None:
        """Carry out what a kernel says, in order, until it is gone; then let it go."""
        with contextlib.suppress(EOFError):
            number = int(channel.receive() or b"0")
            if self._takes(number):
                threading.Thread(target=self._tell, args=(number, channel), name="pathways-tell", daemon=True).start()
                try:
                    while True:
                        said: list[FromKernel] = pickle.loads(channel.receive() or b"")
                        self._controller.receive(number, said)
                        del said  # it must not live until the next comes
                finally:
                    self._let_go(number)
        channel.close()

    def _tell(self, number: int, channel: Channel) -> None:
        """Tell a kernel what there is to tell, until it is gone."""
        known = self._controller.kernels.get(number)
        while known is not None and not known.outbox.closed:
            items = known.outbox.collect(_PATIENCE)
            if any(isinstance(item, (Rebuilt, Renewed, Joined)) for item in items):
                self._by_ray[number].put(items)
                channel.send(b"")
            elif items:
                channel.send(pickle.dumps(items, protocol=5))
        channel.close()

    def batch(self, kernel: int) -> list[ToKernel]:
        """Return the next batch for a kernel that holds handles of actors; an empty message has told of it."""
        return self._by_ray[kernel].get()

    def look(self, part: str) -> bytes:
        """Return a part of the core's accounts, pickled."""
        return self._controller.event_loop.in_turn(lambda: pickle.dumps(self._controller.look(part)))

    def clocks(self) -> dict[tuple[int, int], ClockEstimate]:
        """Return how far the hosts' clocks are from this process's, by island and host."""
        return self._maker.clocks

    def synchronise(self) -> None:
        """Compare the hosts' clocks with this process's."""
        self._maker.synchronise()

    def add(self, devices: int) -> int:
        """Add an island for all kernels, and return its index."""
        with self._adding:
            island = self._maker.make(len(self._controller.islands), devices)
            self._controller.add(island)
        return island.index

    def _end_if_alone(self) -> None:
        """End this process if no kernel comes in a while."""

        def end() -> None:
            if not self._controller.kernels:
                self._maker.end()
                os._exit(0)

        threading.Timer(_GRACE if self._controller.kernels or self._expected else 10 * _GRACE, end).start()


def _view(island: HostIsland, budget: int) -> IslandView:
    links: Any = island.links
    return IslandView(
        island.index,
        tuple(link.actor for link in links),
        tuple(link.facts for link in links),
        island.per_host,
        island.generation,
        island.lost,
        budget,
    )
