"""Seconds of a collective or a transfer on an island, and between islands: the closed form that fits, evaluated.

Levels: on one chip, over links or a switch, between domains over NICs, between islands over DCN. A collective that
spans several levels is the sum of its parts, each with its own formula. Bytes are those of the *full logical array*,
see ``formulas``. All groups of a computation are assumed to run at the same time, each with its share of a host's NIC.

Each result names the formula that gave it, so that a user can compute it again by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pathways_nb.cost.collectives.formulas import FREE, Cost, in_sequence, summed
from pathways_nb.cost.collectives.kinds import BY_NAME, KINDS, CollectiveKind
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.parameters import is_count
from pathways_nb.cost.hardware.topology import DeviceGroup, Topology
from pathways_nb.errors import UsageError, is_number

COLLECTIVES = tuple(kind.identifier for kind in KINDS)


def collective(
    kind: str,
    bytes: float,
    topology: Topology,
    group: int | Sequence[int] | None = None,
    *,
    islands: int = 1,
    flows: int = 1,
    hops: int = 1,
) -> Cost:
    """Return the seconds of one collective, with the formula that gave them.

    Args:
        kind: one of ``COLLECTIVES``, or the same in HLO's spelling.
        bytes: of the full logical array.
        topology: of the island.
        group: which of its devices take part; see ``Topology.group``.
        islands: number of such islands that take part, each with such a group.
        flows: number of collectives and transfers that share each NIC.
        hops: number of devices by which a permute shifts.

    Raises:
        UsageError: an unknown kind, or a number that is none.
        PlaceError: a group that the island does not have.
    """
    row = BY_NAME.get(kind)
    if row is None:
        raise UsageError(f"collective({kind!r}): choose one of {', '.join(map(repr, COLLECTIVES))}.")
    _check(kind, bytes, islands=islands, flows=flows, hops=hops)
    where = topology.group(group)
    if where.devices * islands == 1:
        return FREE
    if row.switch is None:
        main = _permute(bytes, topology, where, islands, flows, hops)
    else:
        # All NICs of the hosts that have members carry a part each.
        nics = _nics(topology, where.devices, topology.devices) / flows

        def island(part: CollectiveKind, n: float) -> Cost:
            """Return the cost of a part of the collective within one island."""
            return _island(part, n, topology, where, flows)

        main = _levels("islands over DCN", row, bytes, islands, island, nics, topology.network)
    start = topology.chip.start_latency
    return in_sequence(f"start and {main.formula}", summed("start", start, 0.0), main)


def _island(kind: CollectiveKind, n: float, topology: Topology, where: DeviceGroup, flows: int) -> Cost:
    """Return the cost within one island: one domain, or several that NICs join."""
    nics = _nics(topology, where.within, topology.domain) / flows

    def domain(part: CollectiveKind, n: float) -> Cost:
        """Return the cost of a part of the collective within one domain."""
        return _domain(part, n, topology, where)

    return _levels("domains over NICs", kind, n, where.domains, domain, nics, topology.network)


def _levels(
    formula: str,
    kind: CollectiveKind,
    n: float,
    count: int,
    inner: Callable[[CollectiveKind, float], Cost],
    nics: float,
    network: Network,
) -> Cost:
    """Return the cost on equal units, inside them and between them, in turn.

    What every unit begins and ends with is first spread within one, so that every NIC carries a part.

    Args:
        formula: name of the sum.
        kind: of the collective.
        n: bytes of the full logical array.
        count: number of units.
        inner: cost within a unit, by kind and bytes.
        nics: bytes/s that each unit sends to the others.
        network: between units.
    """
    if count == 1:
        return inner(kind, n)
    assert kind.switch is not None
    # Between units the network is a switch: every unit reaches every other one at the bandwidth of its own NICs.
    across = _with_formula(kind.switch(n, count, nics, network.latency), f"{{}} of {count} over NICs")
    if kind.begins_whole and kind.ends_whole:
        # An all-reduce over levels: scatter sums inside, reduce the parts across, gather inside. So each NIC carries
        # one part.
        return in_sequence(formula, inner(BY_NAME["reduce_scatter"], n), across, inner(BY_NAME["all_gather"], n))
    if kind.begins_whole:
        # A reduce-scatter inside first, so that only what is left crosses the NICs.
        return in_sequence(formula, inner(kind, n), across)
    if kind.ends_whole:
        # An all-gather in the other order: shards cross the NICs once, and spread inside.
        return in_sequence(formula, across, inner(kind, n))
    # A unit has 1 / count of the array, of which 1 / count stays within it.
    return in_sequence(formula, across, inner(kind, n / count**2))


def _domain(kind: CollectiveKind, n: float, topology: Topology, where: DeviceGroup) -> Cost:
    """Return the cost over links or a switch.

    Devices of one chip use its memory, which is hidden behind the links where other chips take part.
    """
    chip = topology.chip
    assert kind.switch is not None
    assert kind.torus is not None
    if where.within == 1:
        return FREE
    if where.within <= chip.devices_per_chip:
        # Devices of one chip exchange through its memory, at the rate of a copy and without hops.
        return _with_formula(kind.switch(n, where.within, chip.device.copy_bw, 0.0), "on one chip, {}")
    if chip.interconnect == "switch":
        return kind.switch(n, where.within, topology.switch_bw / chip.devices_per_chip, chip.hop_latency)
    return kind.torus(n, where.axes, topology.axis_bw, chip.hop_latency)


def _permute(n: float, topology: Topology, where: DeviceGroup, islands: int, flows: int, hops: int) -> Cost:
    """Return the cost of a shift: links on the way carry ``hops`` shards; the slower of links and NICs counts."""
    chip, devices = topology.chip, where.devices * islands
    shard, far = n / devices, min(hops, devices - 1)
    if where.within <= chip.devices_per_chip:
        inner = summed("shift on one chip", 0.0, shard / chip.device.copy_bw) if where.within > 1 else FREE
    elif chip.interconnect == "switch":
        inner = summed("shift by a switch", chip.hop_latency, shard * chip.devices_per_chip / topology.switch_bw)
    else:
        # Hops are between chips; each link carries the shards of all devices that pass over it.
        steps = math.ceil(far / chip.devices_per_chip)
        inner = summed(f"shift by {far}", steps * chip.hop_latency, far * shard / topology.axis_bw)
    if where.domains * islands == 1:
        return inner
    # So many of a host's devices send to another host.
    crossing = min(far, where.within, topology.devices_per_host)
    bandwidth = topology.network.host_bw_effective / flows
    over = summed(f"shift by {far} over NICs", topology.network.latency, crossing * shard / bandwidth)
    # Both at the same time: shards that stay inside and shards that leave move over different wires.
    return max(inner, over, key=lambda cost: cost.seconds)


def _nics(topology: Topology, devices: int, of: int) -> float:
    """Return the bytes/s of the NICs of so many devices of an island or domain, evenly spread over hosts."""
    return devices / min(topology.devices_per_host, of) * topology.network.host_bw_effective


def _with_formula(cost: Cost, pattern: str) -> Cost:
    return cost._replace(formula=pattern.format(cost.formula))


def over_links(bytes: float, topology: Topology, *, hops: int = 1, ways: int = 1) -> Cost:
    """Return the cost of sending from one chip to another of its domain without a stop: ``hops · a + n / (ways · W)``.

    Args:
        bytes: to send.
        topology: of the island.
        hops: see ``Topology.hops``; 0 is a copy on the chip.
        ways: number of disjoint ways that share the bytes.
    """
    _check("over_links", bytes, hops=hops or 1, ways=ways)
    chip = topology.chip
    if hops == 0:
        return summed("copy on one chip", 0.0, bytes / chip.device.copy_bw)
    if chip.interconnect == "switch":
        return summed("through a switch", chip.hop_latency, bytes / topology.switch_bw)
    return summed(f"over {hops} links", hops * chip.hop_latency, bytes / (ways * topology.axis_bw))


def over_dcn(bytes: float, network: Network, *, hosts: int = 1, flows: int = 1) -> Cost:
    """Return the cost of sending an array from some hosts to as many others, a part each.

    Args:
        bytes: of the whole array.
        network: between hosts.
        hosts: number of sending hosts.
        flows: number of transfers that share each NIC.
    """
    _check("over_dcn", bytes, hosts=hosts, flows=flows)
    return summed("over DCN", network.latency, bytes * flows / (hosts * network.host_bw_effective))


def over_pcie(bytes: float, chip: Chip, *, flows: int = 1) -> Cost:
    """Return the cost of a copy between a host and one of its chips.

    Args:
        bytes: to copy.
        chip: the chip.
        flows: number of copies that share the chip's PCIe.
    """
    _check("over_pcie", bytes, flows=flows)
    return summed("over PCIe", chip.pcie_latency, bytes * flows / chip.pcie_bw)


def _check(what: str, bytes: float, **numbers: int) -> None:
    """Refuse bytes below 0 and numbers that are no counts.

    Raises:
        UsageError: names the function, the argument and its value.
    """
    if not is_number(bytes) or bytes < 0:
        raise UsageError(f"{what}: bytes is {bytes!r}; write a finite number of bytes, 0 or more.")
    for name, value in numbers.items():
        if not is_count(value):
            raise UsageError(f"{what}: {name} is {value!r}; write a whole number of at least 1.")
