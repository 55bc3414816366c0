"""Simulated islands: devices that exist as numbers only, with the meshes that programs are traced and laid out on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import AbstractMesh

from pathways_nb.cost.hardware.topology import Topology, make_topology, times
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.signature import Aval
from pathways_nb.util.words import counted


@dataclass(frozen=True, eq=False)
class Abstract:
    """What a simulated device holds: a shape, a type and a layout, no values."""

    aval: Aval
    sharding: Any = None
    anywhere: bool = False
    """Whether it is taken as already lying wherever a program needs it: an argument that has a shape and no values."""

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes."""
        return self.aval.bytes


@dataclass(frozen=True)
class SimulatedDevice:
    """One device of an island, by its number there."""

    id: int
    device_kind: str

    def memory_stats(self) -> None:
        """Nothing is in use: see the object store."""


@dataclass(frozen=True, eq=False)
class SimulatedIsland:
    """An island of a chip's devices."""

    index: int
    topology: Topology

    @property
    def about(self) -> str:
        """How its chips are joined."""
        topology = self.topology
        joined = f", {times(topology.shape)} {topology.chip.interconnect} of chips, {counted(topology.hosts, 'host')}"
        return joined if topology.devices > 1 else ""

    @cached_property
    def devices(self) -> tuple[SimulatedDevice, ...]:
        """Its devices, as many as it has."""
        name = self.topology.chip.name
        return tuple(SimulatedDevice(number, f"simulated {name}") for number in range(self.topology.devices))

    def mesh(self, placement: Placement, place: VirtualSlice) -> Any:
        """The mesh of a virtual slice placed here: axes and sizes, no devices."""
        return AbstractMesh(place.shape, place.axes, axis_types=(jax.sharding.AxisType.Auto,) * len(place.axes))


@dataclass(frozen=True)
class SimulatedPod:
    """The simulated islands of one controller, all of one kind of chip (see ``cost.model.Model``)."""

    islands: tuple[SimulatedIsland, ...]
    kind: str = "sim"
    note: str = ""

    def one_more(self, devices: int) -> SimulatedIsland:
        """An island like the others, of so many devices."""
        like = self.islands[0].topology
        per_host = min(like.devices_per_host, devices)
        topology = make_topology(like.chip, devices, devices_per_host=per_host, network=like.network)
        return SimulatedIsland(len(self.islands), topology)

    def release(self) -> None:
        """There is nothing to let go."""
