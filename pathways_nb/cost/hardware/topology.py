"""The links between the chips of an island: a torus with or without wrap, a switch, and NICs between domains.

``make_topology`` arranges an island; ``Topology.group`` says which part of it the devices of one collective take.
Chips are numbered along the last axis first, and devices within their chip first, as JAX numbers them. Formulas of
collectives are in ``cost.collectives``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.parameters import is_count
from pathways_nb.errors import PlaceError
from pathways_nb.util.words import counted, plural


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
    chips = _chips(chip, devices)
    # Without another network, hosts are joined by the NICs that the chip's table lists.
    beyond = network or chip.network
    if chip.interconnect == "torus":
        shape = _cube(chip, devices, chips) if topology is None else _given(chip, devices, chips, topology)
        return Topology(chip, devices, tuple(_axis(chip, n) for n in shape), 1, per_host, beyond)
    # Without rings or rows to arrange, a shape would say nothing.
    if topology is not None:
        joined = f"{chip.name} is joined by a {chip.interconnect} of {times(chip.pod)}, not by a torus"
        raise PlaceError(f"topology={topology!r}: {joined}; leave topology= out.")
    # A switch or a mesh is one domain of at most so many chips; a larger island has several.
    domain = math.prod(chip.pod)
    axes = (_axis(chip, min(chips, domain)),)
    return Topology(chip, devices, axes, math.ceil(chips / domain), per_host, beyond)


def times(shape: Sequence[int]) -> str:
    """Return ``(4, 8)`` as ``4 × 8``."""
    return " × ".join(map(str, shape))


def _axis(chip: Chip, length: int) -> Axis:
    """Return an axis, closed to a ring where the chip's links allow it."""
    # Two chips are neighbours already, and a switch has no ends to join.
    rings = chip.interconnect != "switch" and chip.wrap_at is not None
    return Axis(length, rings and length > 2 and length % (chip.wrap_at or 1) == 0)


def _chips(chip: Chip, devices: int) -> int:
    """Return the number of chips of so many devices.

    Raises:
        PlaceError: a part of a chip is left over.
    """
    each = chip.devices_per_chip
    # Fewer devices than a chip has are a part of one; more have to be whole chips.
    if devices > each and devices % each:
        fix = f"write {devices - devices % each} or {devices - devices % each + each}"
        raise PlaceError(f"devices_per_island={devices}: {chip.name} has {each} devices a chip; {fix}.")
    return math.ceil(devices / each)


def _cube(chip: Chip, devices: int, chips: int) -> tuple[int, ...]:
    """Return the most nearly square or cubic arrangement that a pod holds.

    Raises:
        PlaceError: there is none; the nearest numbers of devices are named.
    """
    most = math.prod(chip.pod) * chip.devices_per_chip
    asked = f"devices_per_island={devices}: {_counted(chip, chips)}"
    if devices > most:
        fix = f"use several islands of up to devices_per_island={most}"
        raise PlaceError(f"{asked}, a pod of {chip.name} has {times(chip.pod)} ({counted(most, 'device')}); {fix}.")
    found = _arrangement(chips, chip.pod)
    if found is None:
        near = [_near(chip.pod, chips, step) for step in (-1, 1)]
        fixes = [
            f"{math.prod(one) * chip.devices_per_chip} ({times(one)} {plural(math.prod(one), 'chip')})"
            for one in near
            if one
        ]
        raise PlaceError(f"{asked}, which fill no torus within {times(chip.pod)}; write {' or '.join(fixes)}.")
    return found


def _near(pod: tuple[int, ...], chips: int, step: int) -> tuple[int, ...] | None:
    """Return the arrangement of the next smaller or larger number of chips that has one; None if none has.

    Args:
        pod: chips along each axis of a pod.
        chips: the number that has none.
        step: -1 for a smaller number, 1 for a larger one.
    """
    # One number after another: those that fill a torus lie close together.
    candidates = range(chips + step, 0 if step < 0 else math.prod(pod) + 1, step)
    return next((found for n in candidates if (found := _arrangement(n, pod))), None)


def _given(chip: Chip, devices: int, chips: int, topology: Sequence[int]) -> tuple[int, ...]:
    """Return the user's arrangement, if it has the right number of chips and fits a pod.

    Raises:
        PlaceError: it does not.
    """
    # One number is a row of chips; whether the chip has such a torus is checked below.
    shape = tuple(topology) if isinstance(topology, Sequence) else (topology,)
    asked = f"topology={topology!r}"
    if not all(map(is_count, shape)):
        raise PlaceError(f"{asked}: write whole numbers of at least 1, such as {chip.pod}.")
    if len(shape) != len(chip.pod):
        axes = "1 axis" if len(shape) == 1 else f"{len(shape)} axes"
        fix = f"write {counted(len(chip.pod), 'number')}, such as {chip.pod}"
        raise PlaceError(f"{asked}: {axes}, but {chip.name} is a torus of {len(chip.pod)}; {fix}.")
    if not _fits(shape, chip.pod):
        limit = f"a pod of {chip.name} has {times(chip.pod)} chips"
        raise PlaceError(f"{asked}: {limit}; use several islands.")
    if math.prod(shape) != chips:
        has = math.prod(shape)
        fix = f"write devices_per_island={has * chip.devices_per_chip}"
        # Two ways out: the number that fits the shape, or a shape that fits the number.
        near = _arrangement(chips, chip.pod)
        fix += f" or topology={near}" if near else ""
        raise PlaceError(
            f"{asked} has {counted(has, 'chip')}, but devices_per_island={devices}: {_counted(chip, chips)}; {fix}."
        )
    return shape


def _counted(chip: Chip, chips: int) -> str:
    """Return a number of chips in words."""
    return (
        f"{counted(chips, 'chip')} of {each} devices" if (each := chip.devices_per_chip) > 1 else counted(chips, "chip")
    )


def _fits(shape: Sequence[int], pod: Sequence[int]) -> bool:
    """Return whether a box fits a pod, turned as needed."""
    return all(n <= limit for n, limit in zip(sorted(shape), sorted(pod), strict=True))


@cache
def _arrangement(chips: int, pod: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the box of so many chips within a pod with the least sum of sides, longest last; None for none."""
    # In any orientation: a pod of 16 × 20 × 28 holds 28 × 4 × 4, whatever the order of its axes.
    found = [shape for shape in _boxes(chips, (max(pod),) * len(pod)) if _fits(shape, pod)]
    # The least sum of sides is the most nearly cubic box, with the fewest hops from end to end.
    return min((tuple(sorted(shape)) for shape in found), key=lambda shape: (sum(shape), shape), default=None)


def _boxes(chips: int, most: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every box of so many chips with no side longer than ``most`` says."""
    # A recursion over the axes: each side divides what the sides before it leave.
    if not most:
        if chips == 1:
            yield ()
        return
    for side in range(1, min(chips, most[0]) + 1):
        if chips % side == 0:
            yield from ((side, *rest) for rest in _boxes(chips // side, most[1:]))


@cache
def _part(axes: tuple[Axis, ...], chips: int) -> tuple[Axis, ...]:
    """Return the part of a domain that so many neighbouring chips take: whole axes first; a row where no box fits."""
    # Neighbours in the order of numbers need not fill a box; then they are taken as a row.
    found = [_cut(axes, box) for box in _boxes(chips, tuple(axis.length for axis in axes))]

    def goodness(part: tuple[Axis, ...]) -> tuple[int, int, int]:
        """Return the order of preference: few cut axes, many ways into a chip, few hops."""
        # An axis that is cut has no wrap any more, so rings become rows.
        cut = sum(1 < one.length < whole.length for one, whole in zip(part, axes, strict=True))
        return cut, -sum(one.ways for one in part), sum(one.hops for one in part)

    return min(found, key=goodness) if found else (Axis(chips),)


def _cut(axes: tuple[Axis, ...], box: Sequence[int]) -> tuple[Axis, ...]:
    """Return a box of a domain; a part of an axis has no wrap."""
    return tuple(Axis(n, axis.wrap and n == axis.length) for axis, n in zip(axes, box, strict=True))
