"""Simulated islands: devices that are only numbers, and the abstract meshes that programs are traced on.

JAX traces and lays out a program on an ``AbstractMesh``, which has axes and sizes but no devices. So an island of any
size exists in any process, and its values are ``Abstract``: a shape, a type and a sharding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import AbstractMesh

from pathways_nb.cost.hardware.topology import Topology, make_topology
from pathways_nb.cost.hardware.torus_shapes import times
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.signature import Aval
from pathways_nb.util.words import counted


@dataclass(frozen=True, eq=False)
class Abstract:
    """An array of a simulated device: a shape, a type and a sharding, no values."""

    aval: Aval
    sharding: Any = None
    anywhere: bool = False
    """Whether it needs no transfer to any place; set for an argument given as a ``jax.ShapeDtypeStruct``."""

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes."""
        return self.aval.bytes


@dataclass(frozen=True)
class SimulatedDevice:
    """One device of an island; ``id`` is its number within the island."""

    id: int
    device_kind: str

    def memory_stats(self) -> None:
        """Return ``None``, as a JAX device without statistics does; the object store accounts for memory."""


@dataclass(frozen=True, eq=False)
class SimulatedIsland:
    """An island of simulated devices of one chip."""

    index: int
    topology: Topology

    @property
    def about(self) -> str:
        """How its chips are connected, as text that follows a number of devices; empty for one device."""
        topology = self.topology
        switched = topology.chip.interconnect == "switch"
        chips = "joined by switches" if switched else f"{times(topology.shape)} {topology.chip.interconnect} of chips"
        joined = f", {chips}, {counted(topology.hosts, 'host')}"
        return joined if topology.devices > 1 else ""

    @cached_property
    def devices(self) -> tuple[SimulatedDevice, ...]:
        """Its devices, numbered from 0."""
        name = self.topology.chip.name
        return tuple(SimulatedDevice(number, f"simulated {name}") for number in range(self.topology.devices))

    def mesh(self, placement: Placement, place: VirtualSlice) -> AbstractMesh:
        """Return the abstract mesh of a virtual slice on this island.

        Args:
            placement: its devices; an abstract mesh does not name them.
            place: the virtual slice, with shape and axes.
        """
        return AbstractMesh(place.shape, place.axes, axis_types=(jax.sharding.AxisType.Auto,) * len(place.axes))


@dataclass(frozen=True)
class SimulatedPod:
    """The simulated islands of one controller, all of one kind of chip (see ``cost.model.CostModel``)."""

    islands: tuple[SimulatedIsland, ...]
    kind: str = "sim"
    note: str = ""

    def one_more(self, devices: int) -> SimulatedIsland:
        """Return a new island like the first one, with this number of devices."""
        like = self.islands[0].topology
        per_host = min(like.devices_per_host, devices)
        topology = make_topology(like.chip, devices, devices_per_host=per_host, network=like.network)
        return SimulatedIsland(len(self.islands), topology)

    def release(self) -> None:
        """Do nothing: simulated devices need no release."""
