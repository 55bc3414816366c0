"""The links between the chips of an island: a torus with or without wrap, a switch, and NICs between domains.

``make_topology`` arranges an island; ``Topology.group`` says which part of it the devices of one collective take.
Chips are numbered along the last axis first, and devices within their chip first, as JAX numbers them. The sides of a
torus are found in ``torus_shapes``, formulas of collectives are in ``cost.collectives``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.parameters import is_count
from pathways_nb.cost.hardware.torus_shapes import boxes, chips_of, given_shape, most_cubic, times
from pathways_nb.errors import PlaceError


class Axis(NamedTuple):
    """A row of chips; ``wrap`` says whether its ends are joined."""

    length: int
    wrap: bool = False

    @property
    def hops(self) -> int:
        """Hops from a chip to the farthest one."""
        return self.length // 2 if self.wrap else self.length - 1

    @property
    def ways(self) -> int:
        """Number of links of this axis by which the worst placed chip is reached."""
        return 0 if self.length == 1 else 2 if self.wrap else 1


class DeviceGroup(NamedTuple):
    """The devices of one collective.

    Args:
        axes: of chips, in each domain.
        domains: number of domains, joined by NICs.
        devices: number of devices.
        within: number of devices in one domain.
    """

    axes: tuple[Axis, ...]
    domains: int
    devices: int
    within: int


@dataclass(frozen=True)
class Topology:
    """An island: its chips, the links between them, its hosts and the network between those.

    ``axes`` are those of one *domain*, the chips that links or a switch join; a torus is one domain, an island of
    GPUs has several, joined by ``network``.

    Args:
        chip: of the island.
        devices: number of JAX devices.
        axes: of chips in a domain.
        domains: number of domains.
        devices_per_host: number of devices of a host.
        network: between hosts.
    """

    chip: Chip
    devices: int
    axes: tuple[Axis, ...]
    domains: int
    devices_per_host: int
    network: Network

    @property
    def shape(self) -> tuple[int, ...]:
        """Chips along each axis of a domain."""
        return tuple(axis.length for axis in self.axes)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return math.ceil(self.devices / self.devices_per_host)

    @property
    def domain(self) -> int:
        """Number of devices of a domain."""
        return min(self.devices, math.prod(self.shape) * self.chip.devices_per_chip)

    @property
    def axis_bw(self) -> float:
        """Bytes/s from a chip to its neighbour along an axis, one way: the links of one side."""
        return self.chip.link_bw_effective * self.chip.links / (2 * len(self.chip.pod))

    @property
    def switch_bw(self) -> float:
        """Bytes/s from a chip into its switch, one way: all its links."""
        return self.chip.link_bw_effective * self.chip.links

    @property
    def bisection_bw(self) -> float:
        """Bytes/s between two halves of a domain, one way, at its narrowest."""
        chips = math.prod(self.shape)
        if self.chip.interconnect == "switch":
            return chips // 2 * self.switch_bw
        # A cut across an axis severs, in each row of chips along it, the links between two of them, twice in a ring.
        return min((chips / a.length * a.ways * self.axis_bw for a in self.axes if a.ways), default=math.inf)

    def hops(self, first: int, second: int) -> int:
        """Return the links between the chips of two devices of a domain, by the shortest way; a switch is one.

        Args:
            first: device of the domain, from 0.
            second: another one.
        """
        chips = [device // self.chip.devices_per_chip for device in (first, second)]
        if self.chip.interconnect == "switch":
            return int(chips[0] != chips[1])
        # Devices are numbered along the last axis first: a number is read digit by digit, from the end.
        distance = 0
        for axis in reversed(self.axes):
            apart = abs(chips[0] % axis.length - chips[1] % axis.length)
            distance += min(apart, axis.length - apart) if axis.wrap else apart
            chips = [chip // axis.length for chip in chips]
        return distance

    def group(self, size: int | Sequence[int] | None = None) -> DeviceGroup:
        """Return the group of devices of one collective.

        Args:
            size: number of neighbouring devices: a torus gives them whole axes first, then a part of one. Or, for a
                torus, the number of chips along each of its axes; for a switch, (devices of a domain, domains). None:
                all devices.

        Raises:
            PlaceError: the island does not have so many.
        """
        if size is None:
            return DeviceGroup(self.axes, self.domains, self.devices, self.domain)
        if isinstance(size, Sequence):
            return self._box(tuple(size))
        if not is_count(size) or size > self.devices:
            raise PlaceError(f"a group of {size!r} devices: the island has {self.devices}; write 1 to {self.devices}.")
        # A domain is filled before the next one is begun: links are faster than the network between domains.
        within = min(size, self.domain)
        chips = math.ceil(within / self.chip.devices_per_chip)
        return DeviceGroup(_part(self.axes, chips), math.ceil(size / self.domain), size, within)

    def _box(self, box: tuple[int, ...]) -> DeviceGroup:
        """Return the group of a box of chips, or of devices of several domains.

        Raises:
            PlaceError: the island does not have such a box.
        """
        # Chips at a switch have no place relative to each other: only numbers of devices and domains matter.
        switched = self.domains > 1 or self.chip.interconnect == "switch"
        most = (self.domain, self.domains) if switched else self.shape
        if len(box) != len(most) or not all(is_count(n) and n <= limit for n, limit in zip(box, most, strict=True)):
            what = "devices of a domain and domains" if switched else "chips along its axes"
            raise PlaceError(f"a group of {box}: the island has {times(most)} ({what}); write as many, none larger.")
        if switched:
            within, domains = box
            chips = math.ceil(within / self.chip.devices_per_chip)
            return DeviceGroup(_part(self.axes, chips), domains, within * domains, within)
        devices = min(self.devices, math.prod(box) * self.chip.devices_per_chip)
        return DeviceGroup(_cut(self.axes, box), 1, devices, devices)


def make_topology(
    chip: Chip,
    devices: int,
    *,
    topology: Sequence[int] | None = None,
    devices_per_host: int | None = None,
    network: Network | None = None,
) -> Topology:
    """Return the topology of one island.

    Args:
        chip: of the island.
        devices: number of JAX devices.
        topology: chips along each axis of its torus; None for the most nearly square or cubic arrangement that a pod
            holds.
        devices_per_host: None for the chip's own.
        network: between hosts; None for the chip's NICs.

    Raises:
        PlaceError: a number that is none, or an arrangement that does not exist: both numbers and a fix are named.
    """
    per_host = chip.devices_per_host if devices_per_host is None else devices_per_host
    for name, number in (("devices_per_island", devices), ("devices_per_host", per_host)):
        if not is_count(number):
            raise PlaceError(f"{name}={number!r}: write a whole number of at least 1.")
    chips = chips_of(chip, devices)
    # Without another network, hosts are joined by the NICs that the chip's table lists.
    beyond = network or chip.network
    if chip.interconnect == "torus":
        shape = most_cubic(chip, devices, chips) if topology is None else given_shape(chip, devices, chips, topology)
        return Topology(chip, devices, tuple(_axis(chip, n) for n in shape), 1, per_host, beyond)
    # Without rings or rows to arrange, a shape would say nothing.
    if topology is not None:
        joined = f"{chip.name} is joined by a {chip.interconnect} of {times(chip.pod)}, not by a torus"
        raise PlaceError(f"topology={topology!r}: {joined}; leave topology= out.")
    # A switch or a mesh is one domain of at most so many chips; a larger island has several.
    domain = math.prod(chip.pod)
    axes = (_axis(chip, min(chips, domain)),)
    return Topology(chip, devices, axes, math.ceil(chips / domain), per_host, beyond)


def _axis(chip: Chip, length: int) -> Axis:
    """Return an axis, closed to a ring where the chip's links allow it."""
    # Two chips are neighbours already, and a switch has no ends to join.
    rings = chip.interconnect != "switch" and chip.wrap_at is not None
    return Axis(length, rings and length > 2 and length % (chip.wrap_at or 1) == 0)


@cache
def _part(axes: tuple[Axis, ...], chips: int) -> tuple[Axis, ...]:
    """Return the part of a domain that so many neighbouring chips take: whole axes first; a row where no box fits."""
    # Neighbours in the order of numbers need not fill a box; then they are taken as a row.
    found = [_cut(axes, box) for box in boxes(chips, tuple(axis.length for axis in axes))]

    def goodness(part: tuple[Axis, ...]) -> tuple[int, int, int]:
        """Return the order of preference: few cut axes, many ways into a chip, few hops."""
        # An axis that is cut has no wrap any more, so rings become rows.
        cut = sum(1 < one.length < whole.length for one, whole in zip(part, axes, strict=True))
        return cut, -sum(one.ways for one in part), sum(one.hops for one in part)

    return min(found, key=goodness) if found else (Axis(chips),)


def _cut(axes: tuple[Axis, ...], box: Sequence[int]) -> tuple[Axis, ...]:
    """Return a box of a domain; a part of an axis has no wrap."""
    return tuple(Axis(n, axis.wrap and n == axis.length) for axis, n in zip(axes, box, strict=True))
