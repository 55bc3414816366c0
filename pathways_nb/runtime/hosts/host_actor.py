"""The Ray actor around a host: it starts JAX with this host's devices, and gives what comes to the ``Host``.

The controller's messages, reports and small values come and go by channels, everything else by Ray's calls. Ray's calls
of one kind run in threads of their own.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import platform as system
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pathways_nb.runtime.hosts.channel import Channel, Door
from pathways_nb.runtime.hosts.host import Host
from pathways_nb.runtime.hosts.intruders import listening, watch
from pathways_nb.runtime.hosts.meeting import joined, new_meeting
from pathways_nb.runtime.hosts.messages import HostFacts, Parcel
from pathways_nb.runtime.hosts.reports import Broken
from pathways_nb.runtime.interpreter_settings import InterpreterSettings
from pathways_nb.util.host_info import versions
from pathways_nb.util.processes import ProcessId, this_process

GROUPS = {"arrivals": 1, "heartbeat": 1, "beside": 8}
"""Threads for calls that must not wait for others, by group."""
_HEARTBEAT = 20.0
"""Seconds later than the controller that JAX's own service takes a host for dead: it ends the others, not that one."""
_PATIENCE = 5.0
"""Seconds after which an empty batch of reports is sent."""
_SMALL = 64 << 10
"""Bytes up to which a value goes by a channel; Ray gives larger ones to processes of a machine without a copy."""
CONTROLLER, HOST = b"controller", b"host"
"""What the two kinds of processes that connect say first."""


class HostActor:
    """One host of an island, in a process of its own.

    Args:
        island: index of its island.
        number: its number within the island.
        hosts: number of hosts of the island.
        per_host: number of devices of this host.
        platform: as JAX calls it.
        cores: the cores that computing threads are pinned to; empty if they are not pinned.
        by_device: whether values go to other hosts from device to device, where JAX can do that.
        unresponsive_after: seconds of silence after which the controller takes a host for dead.
    """

    def __init__(
        self,
        island: int,
        number: int,
        hosts: int,
        per_host: int,
        platform: str,
        cores: Sequence[int],
        by_device: bool = False,
        unresponsive_after: float = 30.0,
    ):
        self._where, self._hosts, self._count = (island, number), hosts, per_host
        self._per_host = {island: per_host}
        self._peers: dict[tuple[int, int], tuple[Any, Door]] = {}
        self._channels: dict[tuple[int, int], Channel | None] = {}
        """To other hosts; ``None`` to one that does not answer."""
        self._offset = 0.0
        self._platform, self._cores, self._by_device = platform, tuple(cores), by_device
        self._settings, self._unresponsive_after = InterpreterSettings(), unresponsive_after
        os.environ["PJRT_NPROC"] = str(4 * per_host + 2)

    def node(self) -> str:
        """Return the number of the node of the cluster that this process is on."""
        import ray

        found: str = ray.get_runtime_context().get_node_id()
        return found

    def address(self, on_one_machine: bool) -> str:
        """Return an address of this machine at which the processes of an island can meet.

        Args:
            on_one_machine: whether all of them are on this machine.
        """
        import ray

        return new_meeting(ray.util.get_node_ip_address(), on_one_machine)

    def begin(self, coordinator: str | None) -> HostFacts:
        """Start JAX, together with the other hosts of the island if there are any.

        Args:
            coordinator: the address at which they meet.

        Returns:
            What this host is.
        """
        import jax
        import ray

        from pathways_nb.runtime.device_facts import capacity_of
        from pathways_nb.runtime.hosts.device_route import route_of
        from pathways_nb.runtime.local_islands import on_cores

        if self._platform == "cpu":
            jax.config.update("jax_platforms", "cpu")  # JAX was imported before this object could set its environment
            jax.config.update("jax_num_cpu_devices", self._count)
        door = Door.opened(ray.util.get_node_ip_address(), self._serve)
        before, heartbeat = listening(), math.ceil(self._unresponsive_after + _HEARTBEAT)
        meeting = (
            joined(coordinator, self._hosts, self._where[1], heartbeat) if coordinator else contextlib.nullcontext()
        )
        with meeting:
            with on_cores(self._cores):
                devices = jax.devices()
            route = route_of(devices, ray.util.get_node_ip_address()) if self._by_device else None
            per_host = self._per_host.__getitem__
            self.host = Host(*self._where, devices, self._hosts, per_host, self._deliver, self.clock, route)
        if coordinator or route:
            watch(before, self._intruded)
        mine = jax.local_devices()
        return HostFacts(
            system.node(), os.getpid(), versions(), mine[0].platform, mine[0].device_kind, len(mine), capacity_of(mine),
            door,
        )  # fmt: skip

    def _intruded(self, why: str) -> None:
        """Have the controller give up this island."""
        self.host.reports.add(Broken(why))

    def heartbeat(self) -> None:
        """Answer: this process lives."""

    def process_id(self) -> ProcessId:
        """Return this process."""
        return this_process()

    def clock(self) -> float:
        """Return seconds of the controller's clock."""
        return time.perf_counter() + self._offset

    def stamp(self) -> float:
        """Return seconds of this host's own clock."""
        return time.perf_counter()

    def set_clock(self, offset: float) -> None:
        """Add ``offset`` seconds to this host's own clock from now on."""
        self._offset = offset

    def meet(self, peers: Mapping[tuple[int, int], tuple[Any, Door]], per_host: Mapping[int, int]) -> None:
        """Learn how to reach hosts, by island and number, and how many devices the hosts of each island have."""
        for where in [where for where, peer in peers.items() if peer != self._peers.get(where)]:
            if (channel := self._channels.pop(where, None)) is not None:
                channel.close()
        self._peers.update(peers)
        self._per_host.update(per_host)

    def _serve(self, channel: Channel) -> None:
        """Take what comes by a channel until the other side is gone."""
        with contextlib.suppress(EOFError):
            is_controller = channel.receive() == CONTROLLER
            if is_controller:
                threading.Thread(target=self._report, args=(channel,), name="pathways-reports", daemon=True).start()
            while True:
                came = pickle.loads(channel.receive() or b"")
                if is_controller:
                    self.host.receive(came)
                else:
                    self.arrive(came)
                del came  # it must not live until the next comes
        channel.close()

    def _report(self, channel: Channel) -> None:
        """Send reports to the controller, for as long as this process lives."""
        while True:
            channel.send(pickle.dumps(self.host.collect_reports(_PATIENCE), protocol=5))

    def arrive(self, parcel: Parcel) -> None:
        """Take in a value from another host."""
        self.host.arrivals.receive(parcel)

    def pull(self, parcel: bytes) -> None:
        """Pull a value that another host offers; the call ends when it is there."""
        self.host.pull(pickle.loads(parcel))

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the host that is no message."""
        return getattr(self.host, method)(*args)

    def _deliver(self, island: int, host: int, parcel: Parcel, on_taken: Callable[[bool], None]) -> None:
        if parcel.offer is not None:
            pulled = self._peers[island, host][0].pull.remote(pickle.dumps(parcel, protocol=5))
            pulled.future().add_done_callback(lambda answer: on_taken(answer.exception() is None))
        elif sum(array.nbytes for array in parcel.arrays) <= _SMALL and (to := self._channel(island, host)):
            to.send(pickle.dumps(parcel, protocol=5))
        else:
            self._peers[island, host][0].arrive.remote(parcel)

    def _channel(self, island: int, host: int) -> Channel | None:
        """Return the channel to another host; ``None`` if it takes no connection. Only the sender's thread asks."""
        if (island, host) not in self._channels:
            made = None
            with contextlib.suppress(OSError):
                made = self._peers[island, host][1].enter()
                made.send(HOST)
            self._channels[island, host] = made
        return self._channels[island, host]
