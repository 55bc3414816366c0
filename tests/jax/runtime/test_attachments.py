"""What islands must offer their driver (``runtime.lowering.attachment``), and that nothing else is asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import pathways_nb as pw
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.runtime.cluster.host_island import HostAttachment
from pathways_nb.runtime.local.local_driver import LocalDriver
from pathways_nb.runtime.local_islands import LocalAttachment, LocalIsland, attach_cpu
from pathways_nb.runtime.lowering.attachment import Attachment, IslandDevice
from pathways_nb.runtime.lowering.executables import Executables
from pathways_nb.runtime.sim.simulated_pod import SimulatedPod
from pathways_nb.session import default_controller
from pathways_nb.session.attach_options import AttachOptions
from tests.support.closeness import close


def accepted(local: LocalAttachment, simulated: SimulatedPod, hosts: HostAttachment) -> tuple[Attachment, ...]:
    """Return the attachment of each backend. It is never called: mypy refuses one that lacks a member."""
    return local, simulated, hosts


@dataclass(frozen=True)
class OwnDevice:
    """A device with the members of the protocol and no others."""

    id: int
    device_kind: str = "made up"

    def memory_stats(self) -> None:
        """It keeps none."""


@dataclass(frozen=True, eq=False)
class OwnIsland:
    """An island with the members of the protocol, and private devices of JAX's for its meshes."""

    index: int
    _behind: LocalIsland
    about: str = ", made up"

    @property
    def devices(self) -> tuple[IslandDevice, ...]:
        return tuple(OwnDevice(number) for number in range(len(self._behind.devices)))

    def mesh(self, placement: Placement, place: VirtualSlice) -> Mesh:
        chosen = self._behind.devices[placement.first : placement.first + placement.count]
        kinds = (jax.sharding.AxisType.Auto,) * len(place.axes)
        return Mesh(np.array(chosen).reshape(place.shape), place.axes, axis_types=kinds)


@dataclass(frozen=True)
class OwnAttachment:
    """Islands that are made from those of CPU devices."""

    islands: tuple[OwnIsland, ...]
    _local: LocalAttachment
    kind: str = "cpu"
    note: str = ""

    def one_more(self, devices: int) -> OwnIsland:
        return OwnIsland(len(self.islands), self._local.one_more(devices))

    def release(self) -> None:
        for island in self.islands:
            island._behind.on_release()


@pytest.fixture
def own() -> Iterator[pw.Controller]:
    """A controller whose local driver has made-up islands."""

    def start(session: Any) -> LocalDriver:
        local = attach_cpu(2, 2, pin=False)
        found = OwnAttachment(tuple(OwnIsland(one.index, one) for one in local.islands), local)
        return LocalDriver(found, session.machine, session.clock, Executables(session.clock))

    controller = pw.Controller(AttachOptions("cpu", 2, 2, "parallel", pin=False), start, (2, 2), (0, 0))
    default_controller.replace(controller)
    with controller:
        yield controller


def test_islands_with_the_members_of_the_protocol_are_enough(own: pw.Controller) -> None:
    left, right = pw.virtual_slice(2, name="left"), pw.virtual_slice(2, name="right")
    double = pw.jit(lambda x: x * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    add = pw.jit(lambda x: x + 1, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    x = np.arange(4, dtype=np.float32)

    @pw.program
    def both(x: Any) -> Any:
        return add(double(x))

    y = both(pw.put(x, on=left, shardings=pw.P("x")))
    close(y.result(), x * 2 + 1)
    assert "2 × made up, ids 0, 1, made up" in own.status()
    assert own.add() == 2
    third = pw.virtual_slice(2, name="third")
    close(pw.jit(lambda x: x - 1, on=third)(y).result(), x * 2)
