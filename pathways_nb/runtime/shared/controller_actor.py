"""The Ray actor in which a shared controller lives, known in the cluster by its name.

It ends with its last kernel, and its hosts with it. Whether a kernel lives is told by a connection that the kernel
holds: the system closes it with the process, however that ends.
"""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from pathways_nb.controller.policies import policy_of
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.runtime.cluster.heartbeats import UNRESPONSIVE_AFTER
from pathways_nb.runtime.cluster.host_island import HostIsland
from pathways_nb.runtime.cluster.island_maker import ClockEstimate, IslandMaker
from pathways_nb.runtime.shared.protocol import FromKernel, IslandView, Joined, Returned, Welcome
from pathways_nb.runtime.shared.shared_controller import SharedController

GROUPS = {"stream": 64, "beside": 8}
"""Threads for calls that wait: of ``stream`` one for each kernel."""
_PATIENCE = 5.0
"""Seconds after which an empty batch is returned."""
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
        self._tokens: dict[str, int] = {}
        """The number of each kernel that has not connected its lifeline."""
        self._server = socket.create_server((ray.util.get_node_ip_address(), 0))
        threading.Thread(target=self._serve, name="pathways-lifelines", daemon=True).start()
        self._end_if_alone()

    def about(self) -> tuple[Terms, tuple[int, ...], tuple[int, ...]]:
        """Return what it was made with, and the sizes and budgets of its islands now."""
        sizes = tuple(len(island.devices) for island in self._controller.islands)
        return self.terms, sizes, tuple(self._controller.budgets)

    def stamp(self) -> float:
        """Return seconds of its clock."""
        return time.perf_counter()

    def join(self) -> tuple[Welcome, str]:
        """Take in a kernel; return what it needs to know, and the word to say on its lifeline."""
        token = secrets.token_hex(16)
        number = self._controller.join()
        self._tokens[token] = number
        threading.Timer(10 * _GRACE, self._expire, (token,)).start()
        address = self._server.getsockname()[:2]
        return Welcome(number, self._controller.views(), tuple(self._controller.gone), address), token

    def _expire(self, token: str) -> None:
        """Let a kernel go that has joined and died before its lifeline was there."""
        if (number := self._tokens.pop(token, None)) is not None:
            self._let_go(number)

    def _let_go(self, number: int) -> None:
        try:
            self._controller.leave(number)
        finally:
            self._end_if_alone()

    def take(self, kernel: int, items: bytes) -> None:
        """Carry out what a kernel says, in order."""
        said: list[FromKernel] = pickle.loads(items)
        self._controller.take(kernel, said)

    def stream(self, kernel: int) -> Any:
        """Return what there is to tell a kernel, waiting a while for something.

        Returns:
            Items, pickled unless they hold handles of actors; ``None`` if there is no such kernel.
        """
        known = self._controller.kernels.get(kernel)
        if known is None:
            return None
        items = known.outbox.take(_PATIENCE)
        views = any(isinstance(item, (Returned, Joined)) for item in items)
        return items if views else pickle.dumps(items, protocol=5)

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

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            threading.Thread(target=self._hold, args=(connection,), name="pathways-lifeline", daemon=True).start()

    def _hold(self, connection: socket.socket) -> None:
        """Wait until a kernel's connection ends, and let the kernel go."""
        with connection:
            connection.settimeout(10 * _GRACE)  # as long as the word holds: who never says it is no kernel
            try:
                number = self._tokens.pop(connection.recv(64).decode(errors="replace"), None)
            except OSError:
                return
            if number is None:
                return
            connection.settimeout(None)
            connection.sendall(b"1")
            try:
                while connection.recv(64):
                    pass
            except OSError:
                pass
        self._let_go(number)

    def _end_if_alone(self) -> None:
        """End this process if no kernel comes in a while."""

        def end() -> None:
            if not self._controller.kernels:
                self._maker.end()
                os._exit(0)

        threading.Timer(_GRACE if self._controller.kernels or self._tokens else 10 * _GRACE, end).start()


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
