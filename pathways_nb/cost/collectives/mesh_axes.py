"""The devices of one collective: how the axes of a mesh map to the devices of an island.

A mesh takes the island's devices in order, its last axis fastest, and all groups over the same axes exchange at the
same time. A group is a box of a torus or devices of a switch's domains. The devices of a strided group have others
between them: it is priced as a box without its gaps, of which the other groups take their shares of the links. That is
an approximation, and the origin of the node's cost says so.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from pathways_nb.cost.hardware.topology import Topology

STRIDED = "strided groups are taken as boxes that share their links"
UNKNOWN = "groups that follow no axis are taken as neighbours"


class AxisGroup(NamedTuple):
    """One group of a collective.

    Args:
        group: as ``Topology.group`` takes it.
        share: number of groups that share the links.
        note: what had to be assumed; empty if nothing.
    """

    group: int | tuple[int, ...]
    share: int = 1
    note: str = ""


@cache
def group_of(topology: Topology, sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...], size: int) -> AxisGroup:
    """Return the group of devices of one collective.

    Args:
        topology: of the island; the mesh begins at its first device.
        sizes: the mesh's axes and their sizes, in its order.
        axes: those that the collective goes over, possibly none.
        size: number of devices that exchange.
    """
    members = _members(dict(sizes), axes)
    # A mesh that is larger than the island, or groups that follow no axis: only the number of devices is known.
    if members is None or len(members) != size or members[-1] >= topology.devices:
        return AxisGroup(size, note="" if size == topology.devices else UNKNOWN)
    if topology.chip.interconnect == "torus":
        return _on_torus(topology, members)
    # Devices are numbered domain by domain.
    domains = len(np.unique(members // topology.domain))
    if domains == 1:
        return AxisGroup(size)
    return AxisGroup(size, note=UNKNOWN) if size % domains else AxisGroup((size // domains, domains))


def _members(sizes: dict[str, int], axes: tuple[str, ...]) -> np.ndarray | None:
    """Return the ids of the first group over these axes, ascending; None if they are no axes of the mesh."""
    chosen = set(axes)
    if not chosen or not chosen <= set(sizes):
        return None
    ids = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    # The first group: all along the chosen axes, at 0 along the others.
    return ids[tuple(slice(None) if axis in chosen else 0 for axis in sizes)].ravel()


def _on_torus(topology: Topology, members: np.ndarray) -> AxisGroup:
    """Return the box of chips that a group takes on a torus, or only its number of devices where it is no box."""
    each = topology.chip.devices_per_chip
    chips = np.unique(members // each)
    if len(chips) == 1:
        return AxisGroup(len(members))
    along = [np.unique(coordinate) for coordinate in np.unravel_index(chips, topology.shape)]
    strides = [_stride(coordinates) for coordinates in along]
    # Members that are no product of coordinates along axes, or not evenly spaced, are no box.
    if math.prod(map(len, along)) != len(chips) or not all(strides):
        return AxisGroup(len(members), note=STRIDED)
    # Groups interleave with each other by their strides, and on a chip by the devices that are no members.
    share = math.prod(strides) * each * len(chips) // len(members)
    return AxisGroup(tuple(map(len, along)), share, STRIDED if share > 1 else "")


def _stride(coordinates: np.ndarray) -> int:
    """Return the distance of neighbours of a group along one axis; 0 if distances differ."""
    apart = set(np.diff(coordinates).tolist())
    return apart.pop() if len(apart) == 1 else 0 if apart else 1
