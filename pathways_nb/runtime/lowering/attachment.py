"""What islands must offer: the members that drivers, lowering and sessions use, whatever the devices are.

Three backends implement these protocols: devices of this process (``runtime.local_islands``), simulated ones
(``runtime.sim.simulated_pod``) and hosts of a cluster (``runtime.cluster.host_island``). The file lies in this room,
below the drivers, because lowering needs the mesh of a place on an island.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol

from jax.sharding import AbstractMesh, Mesh

from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice


class IslandDevice(Protocol):
    """One device; a ``jax.Device`` is one."""

    @property
    def id(self) -> int:
        """Its number: unique in the process for JAX's devices, else within its island."""

    @property
    def device_kind(self) -> str:
        """The name of its model, for the user."""

    def memory_stats(self) -> Mapping[str, int] | None:
        """Return bytes by name, such as ``bytes_in_use`` and ``bytes_limit``; ``None`` if it keeps no statistics."""


class Island(Protocol):
    """Devices joined by a fast network, with one order of enqueues (Pathways, section 4)."""

    @property
    def index(self) -> int:
        """Its position among the controller's islands, from 0."""

    @property
    def devices(self) -> tuple[IslandDevice, ...]:
        """Its devices; a placement names them by their positions here."""

    @property
    def about(self) -> str:
        """Further facts for the user, as text that follows a number of devices; may be empty."""

    def mesh(self, placement: Placement, place: VirtualSlice) -> Mesh | AbstractMesh:
        """Return the mesh of a virtual slice, with its axes and all axis types ``Auto``.

        Args:
            placement: which of the devices.
            place: the virtual slice; its shape has as many elements as the placement has devices.

        Returns:
            A mesh of JAX's devices, equal for equal arguments; an abstract one where this process has no such devices.
        """


class Attachment(Protocol):
    """The islands of one controller.

    It is a frozen dataclass: when an island is added, the driver goes on with a copy by ``dataclasses.replace``. The
    original stays as it was attached, because a controller that is reset starts its next driver with it.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def kind(self) -> str:
        """The kind of devices, as in ``pw.attach``; programs traced for one kind are not used on another."""

    @property
    def islands(self) -> tuple[Island, ...]:
        """The islands, in the order of their indices."""

    @property
    def note(self) -> str:
        """A line that is printed to the user when the driver starts; may be empty."""

    def one_more(self, devices: int) -> Island | None:
        """Make an island with this number of devices, whose index is the next one.

        Returns:
            The island; ``None`` if it is another process that makes it and tells this one later.

        Raises:
            PlaceError: such an island cannot be made.
        """

    def release(self) -> None:
        """Release the devices; values on them are lost."""
