"""The one cost model: seconds of a node and a transfer, on any chip, simulated or calibrated.

Roofline with a share of the peak for each class of operations, closed forms of collectives over the topology, and
parameters for controller and hosts. Every parameter has an origin, and every result names what decides it. Nothing is
measured here: a calibration builds the same class with measured parameters, so the simulator has one code path for a
data sheet's chip and for this machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from typing import Any, NamedTuple, Self

from pathways_nb.cost.collectives.collective import Collective
from pathways_nb.cost.collectives.formulas import FREE, Cost
from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.collectives.mesh_axes import group_of
from pathways_nb.cost.collectives.pricing import collective, over_dcn, over_links, over_pcie
from pathways_nb.cost.efficiency import EFFICIENCY, Efficiency
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.host_costs import HOST, HostCosts
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.networks import network as network_of
from pathways_nb.cost.hardware.topology import Topology, make_topology
from pathways_nb.cost.jaxpr.node_work import Amount, Work
from pathways_nb.errors import UsageError

__all__ = ["CostModel", "Efficiency", "HostCosts", "NodeCost"]


class NodeCost(NamedTuple):
    """Seconds of one node on its devices, and their parts.

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
    """The costs of one kind of chip: hashable, picklable, cheap to ask again.

    Args:
        chip: of all islands.
        network: between hosts.
        host: costs of the controller and the hosts.
        efficiency: shares of the chip's peaks.
        name: for tables.
    """

    chip: Chip
    network: Network
    host: HostCosts
    efficiency: Efficiency
    name: str
    _known: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Answers given before: a program asks for the same node and topology many times."""

    @classmethod
    def of(
        cls,
        chip: str | PathLike[str] | Chip,
        network: str | PathLike[str] | Network | None = None,
        host: HostCosts | None = None,
        efficiency: Efficiency | None = None,
    ) -> Self:
        """Return the model of a chip, with usual figures for what is not given.

        Args:
            chip: by name, by file, or itself.
            network: by name, by file, or itself; None for the NICs of the chip's hosts.
            host: None for ``HOST``.
            efficiency: None for ``EFFICIENCY``.

        Raises:
            UsageError: an unknown name, or a file that cannot be read or says what no hardware has.
        """
        found = chip_of(chip)
        joined = found.network if network is None else network_of(network)
        return cls(found, joined, host or HOST, efficiency or EFFICIENCY, found.name)

    # Without the answers, which may be many: they are found again.
    def __reduce__(self) -> Any:
        return type(self), (self.chip, self.network, self.host, self.efficiency, self.name)

    def topology(
        self, devices: int, devices_per_host: int | None = None, shape: tuple[int, ...] | None = None
    ) -> Topology:
        """Return the topology of an island.

        Args:
            devices: number of devices.
            devices_per_host: None for the chip's own.
            shape: chips along each axis of a torus; None for the most nearly square or cubic arrangement.

        Raises:
            PlaceError: there is no such island.
        """
        return _topology(self.chip, self.network, devices, devices_per_host, shape)

    def node(self, work: Work, topology: Topology, axis_sizes: Mapping[str, int]) -> NodeCost:
        """Return the seconds of one node.

        Args:
            work: of each of its devices.
            topology: of its island.
            axis_sizes: of its mesh, whose product is the number of its devices; a mesh takes the island's first ones.

        Raises:
            PlaceError: a collective over more devices than the island has.
        """
        sizes = tuple(axis_sizes.items())
        # A plain key of values: equal nodes of different programs share one answer.
        key = work, topology, sizes
        if key not in self._known:
            self._known[key] = self._node(work, topology, sizes)
        return self._known[key]

    def _node(self, work: Work, topology: Topology, sizes: tuple[tuple[str, int], ...]) -> NodeCost:
        """Return the cost of a node that was not asked for before."""
        self._check(topology)
        oversubscription = self.efficiency.oversubscription(math.prod(size for _, size in sizes))
        classes = [self._amount(amount) for amount in work.amounts]
        exchanges = [(one, *self._collective(one, topology, sizes, oversubscription)) for one in work.collectives]
        # Where devices share cores, beginning a node waits for a core as its operations do.
        launch = self.host.device_launch * oversubscription
        # One after another, as one stream of a device executes them; ``fsum``, so that their order does not count.
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
                f"one kind of chip. Make one for each kind, CostModel.of({topology.chip.name!r})."
            )

    def _amount(self, amount: Amount) -> tuple[float, str]:
        """Return the seconds of one class of operations on a device that works alone, and what bounds it."""
        device, kind = self.chip.device, amount.kind
        by_bytes = (amount.read + amount.written) / (device.hbm_bw * self.efficiency.bandwidth(kind))
        # Infinite where only bytes count: then no time is bound by operations.
        rate, said = self._rate(amount)
        # The roofline: operations and bytes overlap, so the slower of the two decides.
        by_flops = amount.flops / rate
        return (by_flops, f"{kind} by FLOP/s{said}") if by_flops > by_bytes else (by_bytes, f"{kind} by bytes/s")

    def _rate(self, amount: Amount) -> tuple[float, str]:
        """Return the FLOP/s that a class reaches on one device, infinite where only bytes count, and a remark."""
        if amount.kind not in ("matmul", "conv"):
            return getattr(self.efficiency, f"{amount.kind}_flops", None) or math.inf, ""
        share = getattr(self.efficiency, amount.kind)
        try:
            return self.chip.device.flops(amount.dtype) * share, ""
        except UsageError:  # integers and float64: data sheets have no rate
            return self.chip.device.flops("fp32") * share, f" of float32, for {amount.dtype}"

    def _collective(
        self, one: Collective, topology: Topology, sizes: tuple[tuple[str, int], ...], oversubscription: float
    ) -> tuple[Cost, str]:
        """Return the cost of one collective, and what had to be assumed of its group."""
        where = group_of(topology, sizes, one.axes, one.group)
        share = getattr(self.efficiency, BY_NAME[one.kind].share)
        # All closed forms have bytes only as bytes over bandwidth, so a share of bandwidth is its inverse of bytes.
        bytes = one.whole_bytes * where.share * oversubscription / share
        return collective(one.kind, bytes, topology, where.group), where.note

    def transfer(
        self, bytes: int, route: str, topology: Topology, source_devices: int, target_devices: int, shared: int = 0
    ) -> Cost:
        """Return the seconds of moving one array to another place, evenly split over its devices.

        Args:
            bytes: of the whole logical array.
            route: as in a plan's steps: ``"host"`` (into devices), ``"local"`` (no move), ``"ICI"`` (within the island;
                the target's chips follow the source's), ``"DCN"`` (from another island of the same kind).
            topology: of the island that it goes to.
            source_devices: number of devices of the source; a host is no device.
            target_devices: number of devices of the target.
            shared: number of devices that are in both.

        Raises:
            UsageError: an unknown route.
        """
        key = bytes, route, topology, source_devices, target_devices, shared
        if key not in self._known:
            self._known[key] = self._transfer(*key)
        return self._known[key]

    def from_host(self, bytes: int, devices: int) -> Cost:
        """Return the cost of moving one array from the host to ``devices`` devices, evenly split over them."""
        return over_pcie(bytes * self.efficiency.oversubscription(devices) / _chips(self.chip, devices), self.chip)

    def _transfer(self, bytes: int, route: str, topology: Topology, source: int, target: int, shared: int) -> Cost:
        """Return the cost of a transfer that was not asked for before."""
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
        # The places do not fit one domain together, so NICs are between them.
        if source + target - shared > topology.domain:
            return over_dcn(bytes, topology.network, hosts=_hosts(topology, devices))
        # The target begins right after the source, so each chip sends as far as the source has chips.
        hops = max(1, topology.hops(0, min(source, topology.devices - 1)))
        part = bytes * self.efficiency.oversubscription(devices) / self.efficiency.permute / _chips(self.chip, devices)
        return over_links(part, topology, hops=hops)


@cache
def _topology(
    chip: Chip, network: Network, devices: int, devices_per_host: int | None, shape: tuple[int, ...] | None
) -> Topology:
    """Return a topology; kept, because finding an arrangement takes a search."""
    return make_topology(chip, devices, topology=shape, devices_per_host=devices_per_host, network=network)


def _chips(chip: Chip, devices: int) -> int:
    """Return the number of chips of so many devices, rounded up."""
    return math.ceil(devices / chip.devices_per_chip)


def _hosts(topology: Topology, devices: int) -> int:
    """Return the number of hosts of so many devices, rounded up."""
    return math.ceil(devices / topology.devices_per_host)
