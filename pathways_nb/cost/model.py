"""The one cost model: what a node, a transfer and a message take, on any chip, simulated or calibrated.

Roofline with a share of the peak for each class of operations, closed forms of collectives over the topology, and
parameters for controller and hosts. Every parameter knows its origin. Nothing here measures; ``calibrate`` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from typing import Any, NamedTuple, Self

from pathways_nb.cost.collectives.formulas import FREE, Cost
from pathways_nb.cost.collectives.mesh_axes import group_of
from pathways_nb.cost.collectives.pricing import collective, over_dcn, over_links, over_pcie
from pathways_nb.cost.efficiency import EFFICIENCY, Efficiency
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.host import HOST, Host
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.networks import network as network_of
from pathways_nb.cost.hardware.topology import Topology, make_topology
from pathways_nb.cost.jaxpr.exchange import Collective
from pathways_nb.cost.jaxpr.node_work import Amount, Work
from pathways_nb.errors import UsageError

__all__ = ["CostModel", "Efficiency", "Host", "NodeCost"]


class NodeCost(NamedTuple):
    """Seconds of one node on its devices, and how they come about.

    ``seconds`` is ``launch + compute + collective``: before its own work begins, operations, exchanges, one after
    another. ``formula`` names what decides each class, ``origin`` where the work was read and what was assumed.
    """

    seconds: float
    launch: float
    compute: float
    collective: float
    formula: str
    origin: str


@dataclass(frozen=True)
class CostModel:
    """What everything costs on one kind of chip: hashable, picklable, cheap to ask again.

    All islands that it is asked about are of its chip, and so are all devices of an island (``Topology.chip``): there
    is no faster and no slower device in a mesh. Another kind of chip has a model, and a controller, of its own.

    Args:
        chip, network: hardware. host: the controller and hosts. efficiency: shares of the chip's peaks.
        name: what tables call it.
    """

    chip: Chip
    network: Network
    host: Host
    efficiency: Efficiency
    name: str
    _known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Answers given before."""

    @classmethod
    def of(
        cls,
        chip: str | PathLike[str] | Chip,
        network: str | PathLike[str] | Network | None = None,
        host: Host | None = None,
        efficiency: Efficiency | None = None,
    ) -> Self:
        """The model of a chip, with usual figures for what is not given.

        Args:
            chip, network: by name, by file, or themselves; without a network, the NICs of the chip's hosts.

        Raises:
            UsageError: an unknown name, or a file that cannot be read or says what no hardware has.
        """
        found = chip_of(chip)
        joined = found.network if network is None else network_of(network)
        return cls(found, joined, host or HOST, efficiency or EFFICIENCY, found.name)

    def __reduce__(self) -> Any:
        return type(self), (self.chip, self.network, self.host, self.efficiency, self.name)

    def topology(
        self, devices: int, devices_per_host: int | None = None, shape: tuple[int, ...] | None = None
    ) -> Topology:
        """An island of so many devices.

        Args:
            devices_per_host: by default the chip's. shape: chips along each axis of a torus; by default the most
                nearly square or cubic arrangement.

        Raises:
            PlaceError: there is no such island.
        """
        return _topology(self.chip, self.network, devices, devices_per_host, shape)

    def node(self, work: Work, topology: Topology, axis_sizes: Mapping[str, int]) -> NodeCost:
        """Seconds of one node.

        Args:
            work: what it does on each of its devices. topology: its island.
            axis_sizes: its mesh, whose product is the number of its devices; a mesh lies on the island's first ones.

        Raises:
            PlaceError: a collective over more devices than the island has.
            UsageError: an island of another chip.
        """
        sizes = tuple(axis_sizes.items())
        key = work, topology, sizes
        if key not in self._known:
            self._known[key] = self._node(work, topology, sizes)
        return self._known[key]

    def _node(self, work: Work, topology: Topology, sizes: tuple[tuple[str, int], ...]) -> NodeCost:
        self._check(topology)
        oversubscription = self.efficiency.oversubscription(math.prod(size for _, size in sizes))
        classes = [self._amount(amount) for amount in work.amounts]
        exchanges = [(one, *self._collective(one, topology, sizes, oversubscription)) for one in work.collectives]
        launch = self.host.device_launch * oversubscription
        compute = math.fsum(seconds for seconds, _ in classes) * oversubscription
        exchange = math.fsum(one.count * cost.seconds for one, cost, _ in exchanges)
        texts = [text for seconds, text in classes if seconds]
        texts += [f"{one.count} × {one.kind} of {one.group}: {cost.formula}" for one, cost, _ in exchanges]
        origins = ["roofline", *(one.origin for one in work.collectives), *(note for *_, note in exchanges if note)]
        parts = launch, compute, exchange
        return NodeCost(sum(parts), *parts, "; ".join(texts) or "launch", ", ".join(dict.fromkeys(origins)))

    def _check(self, topology: Topology) -> None:
        if topology.chip != self.chip:
            raise UsageError(
                f"an island of {topology.chip.name} is no island of {self.name}, whose model this is: a model prices "
                f"one kind of chip. Make one for each kind, Model.of({topology.chip.name!r})."
            )

    def _amount(self, amount: Amount) -> tuple[float, str]:
        """Seconds of one class of operations on a device that works alone, and what bounds it."""
        device, kind = self.chip.device, amount.kind
        by_bytes = (amount.read + amount.written) / (device.hbm_bw * self.efficiency.bandwidth(kind))
        rate, said = self._rate(amount)
        by_flops = amount.flops / rate
        return (by_flops, f"{kind} by FLOP/s{said}") if by_flops > by_bytes else (by_bytes, f"{kind} by bytes/s")

    def _rate(self, amount: Amount) -> tuple[float, str]:
        """FLOP/s that a class reaches on one device: infinite where only bytes count."""
        if amount.kind not in ("matmul", "conv"):
            return getattr(self.efficiency, f"{amount.kind}_flops", None) or math.inf, ""
        share = getattr(self.efficiency, amount.kind)
        try:
            return self.chip.device.flops(amount.dtype) * share, ""
        except UsageError:  # whole numbers, float64: no data sheet tells
            return self.chip.device.flops("fp32") * share, f" of float32, for {amount.dtype}"

    def _collective(
        self, one: Collective, topology: Topology, sizes: tuple[tuple[str, int], ...], oversubscription: float
    ) -> tuple[Cost, str]:
        kind = one.kind.replace("-", "_")
        where = group_of(topology, sizes, one.axes, one.group)
        # Every closed form knows bytes only as bytes over bandwidth: a share of the one is the inverse of the other.
        bytes = one.whole_bytes * where.share * oversubscription / getattr(self.efficiency, kind)
        return collective(kind, bytes, topology, where.group), where.note

    def transfer(self, bytes: int, route: str, topology: Topology, source_devices: int, target_devices: int) -> Cost:
        """Seconds of moving one array to another place, evenly split over its devices.

        Args:
            bytes: of the whole logical array. topology: of the island that it goes to.
            route: as in a plan's steps: ``"host"`` (into devices), ``"local"`` (it is there), ``"ICI"`` (within the
                island; the target lies right beside the source), ``"DCN"`` (from another island of the same kind).
            source_devices, target_devices: of the two places; a host is no device.

        Raises:
            UsageError: an unknown route, or an island of another chip.
        """
        key = bytes, route, topology, source_devices, target_devices
        if key not in self._known:
            self._known[key] = self._transfer(*key)
        return self._known[key]

    def from_host(self, bytes: int, devices: int) -> Cost:
        """Seconds of moving one array from the host to so many devices of any island, evenly split over them."""
        return over_pcie(bytes * self.efficiency.oversubscription(devices) / _chips(self.chip, devices), self.chip)

    def _transfer(self, bytes: int, route: str, topology: Topology, source: int, target: int) -> Cost:
        self._check(topology)
        if route == "local":
            return FREE
        if route == "host":
            return self.from_host(bytes, target)
        if route == "DCN":
            return over_dcn(bytes, topology.network, hosts=_hosts(topology, min(source, target)))
        if route != "ICI":
            raise UsageError(f"transfer(route={route!r}): choose one of 'host', 'local', 'ICI', 'DCN'.")
        devices = min(source, target)
        if source + target > topology.domain:
            return over_dcn(bytes, topology.network, hosts=_hosts(topology, devices))
        hops = max(1, topology.hops(0, min(source, topology.devices - 1)))
        part = bytes * self.efficiency.oversubscription(devices) / self.efficiency.permute / _chips(self.chip, devices)
        return over_links(part, topology, hops=hops)


@cache
def _topology(
    chip: Chip, network: Network, devices: int, devices_per_host: int | None, shape: tuple[int, ...] | None
) -> Topology:
    return make_topology(chip, devices, topology=shape, devices_per_host=devices_per_host, network=network)


def _chips(chip: Chip, devices: int) -> int:
    return math.ceil(devices / chip.devices_per_chip)


def _hosts(topology: Topology, devices: int) -> int:
    return math.ceil(devices / topology.devices_per_host)
