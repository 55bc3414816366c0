"""The devices that ``chip=`` and ``mesh=`` ask for: one island, or several slices of TPUs joined by their hosts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from os import PathLike
from typing import NamedTuple

from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.topology import Topology, make_topology
from pathways_nb.errors import PlaceError
from pathways_nb.util.words import counted

_WRITTEN = re.compile(r"(\d+(?:x\d+)*)(?:\*(\d+))?")


class AskedDevices(NamedTuple):
    """The devices of a step.

    Args:
        topology: of one slice, or of all GPUs.
        slices: equal slices of TPUs; 1 of GPUs.
    """

    topology: Topology
    slices: int


def asked_devices(asked: str | PathLike[str] | Chip, devices: int) -> AskedDevices:
    """Return the devices that are asked for; of more TPUs than a pod has, as few slices as hold them.

    Args:
        asked: a chip, or its name with a topology behind a colon: ``"tpu_v5p:4x4x8"``, of two slices
            ``"tpu_v5p:4x4x8*2"``.
        devices: that the mesh has.

    Raises:
        PlaceError: the topology has another number of devices, or slices would not be equal.
        UsageError: there is no such chip.
    """
    chip, said = asked_chip(asked)
    if said is None:
        slices = _slices(chip, devices)
        return AskedDevices(make_topology(chip, devices // slices), slices)
    found = _WRITTEN.fullmatch(said)
    if found is None or found[2] == "0":
        raise PlaceError(
            f"adopt(chip={asked!r}): write the topology as {chip.name}:4x4x8, or of two slices as {chip.name}:4x4x8*2."
        )
    shape, slices = tuple(map(int, found[1].split("x"))), int(found[2] or 1)
    has = math.prod(shape) * chip.devices_per_chip * slices
    if has != devices:
        raise PlaceError(
            f"adopt(chip={asked!r}): this topology has {has} devices, and the mesh {devices}. Change one of them."
        )
    return AskedDevices(make_topology(chip, devices // slices, topology=shape), slices)


def asked_chip(asked: str | PathLike[str] | Chip) -> tuple[Chip, str | None]:
    """Return the chip that is asked for, and what stands behind a colon after its name; None without a colon.

    Args:
        asked: as of ``asked_devices``.

    Raises:
        UsageError: there is no such chip.
    """
    if not isinstance(asked, str) or ":" not in asked:
        return chip_of(asked), None
    name, _, said = asked.partition(":")
    return chip_of(name), said


def _slices(chip: Chip, devices: int) -> int:
    """Return how many slices so many devices of a chip take.

    Raises:
        PlaceError: they would not be equal.
    """
    most = math.prod(chip.pod) * chip.devices_per_chip
    if chip.interconnect != "torus" or devices <= most:
        return 1
    slices = -(-devices // most)
    if devices % slices:
        raise PlaceError(
            f"adopt(mesh=…): {devices} devices are more than a pod of {chip.name} has ({most}), and "
            f"{counted(slices, 'slice')} of it would not be equal. Write {devices - devices % slices} devices, or the "
            f'topology of a slice: chip="{chip.name}:{"x".join(map(str, chip.pod))}*{slices}".'
        )
    return slices


def nearest_tori(topology: Topology) -> Iterator[tuple[int, ...]]:
    """Yield the tori that TPUs are sold in, those with the nearest number of chips first: sides are powers of two.

    Args:
        topology: that a compiler does not take.
    """
    pod, chips = topology.chip.pod, math.prod(topology.shape)
    sides = [[2**n for n in range(1, length.bit_length()) if 2**n <= length] for length in pod]
    # In rising order, as topologies are written.
    shapes = (one for one in itertools.product(*sides) if list(one) == sorted(one))
    yield from sorted(shapes, key=lambda shape: (abs(math.log(math.prod(shape) / chips)), shape[-1] - shape[0]))
