"""``pw.Controller``: the methods that a user calls on an attached controller.

It is a subclass of ``Session`` so that the modules which carry these methods out need not know it: they take a
``Session``, and only this module imports them all.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.session import default_controller, elasticity, tenant_scope
from pathways_nb.session.session import Session
from pathways_nb.session.status import as_html, status_of
from pathways_nb.util.words import counted


class AddedIsland(int):
    """The index of an island that was added; shown in a cell with the devices that it has, in place of a bare number.

    Args:
        index: of the island.
        devices: number of its devices.
    """

    devices: int

    def __new__(cls, index: int, devices: int) -> AddedIsland:
        """Return the number; a subclass of ``int`` is made here, not in ``__init__``."""
        made = super().__new__(cls, index)
        made.devices = devices
        return made

    def __repr__(self) -> str:
        return f"island {int(self)} with {counted(self.devices, 'device')}"

    __str__ = int.__repr__  # in a text it stays the number


class Controller(Session):
    """The single controller of a notebook: its devices, the order of work on them, and the record of that work.

    ``pw.attach`` makes it. Used as a ``with`` block it restores the previous controller at the end.
    """

    def remove(self, island: int, first: int = 0, count: int | None = None) -> None:
        """Remove devices while programs run, as a hardware failure would (Pathways, section 4.1).

        Nodes that were to run on these devices fail, with everything that depends on them. Data that only these devices
        held is lost, and its futures say so by name. Virtual slices placed on them move to other devices at their next
        call. Everything else continues. What runs there ends first, and its results are lost; hosts of a cluster that
        lose all devices have a second for that, and are then replaced.

        Args:
            island: index of the island.
            first: first device to remove, counted within the island.
            count: number of devices; by default all from ``first`` on.

        Raises:
            PlaceError: there are no such devices.
        """
        elasticity.remove(self, island, first, count)

    def add(self, devices: int | None = None, island: int | None = None) -> AddedIsland:
        """Add an island of virtual devices, or return an island's removed devices to it.

        Args:
            devices: number of devices of a new island; by default as many as the last island has.
            island: index of an island that gets its own devices back. Give one of the two.

        Returns:
            The island's index, a number that a cell shows as ``island 2 with 4 devices``.

        Raises:
            PlaceError: there is no such island.
            UsageError: both arguments are given, or the devices are accelerators, of which there are no more.
        """
        index = elasticity.add(self, devices, island)
        return AddedIsland(index, self.islands[index])

    def cancel(self, client: str | tenant_scope.Tenant) -> None:
        """Cancel a client's programs: none of their nodes is dispatched any more.

        Args:
            client: a tenant or its name; ``""`` for programs called outside any tenant.

        Raises:
            UsageError: there is no such client.
        """
        tenant_scope.cancel(self, client)

    def hosts(self) -> list[dict[str, Any]]:
        """Return the living hosts of all islands, which are processes of a Ray cluster.

        An island of which a host died has none until it has new ones; ``status`` names it.

        Events of a host are on the controller's clock: its own clock's offset is estimated from the time of a question
        and its answer, again every half minute while programs run.

        Returns:
            For each host: ``island``, ``host`` (its number within the island), ``machine`` (name), ``process`` (id),
            ``devices`` (range within the island), ``clock_offset`` (seconds added to its clock) and ``clock_error``
            (seconds by which that may be wrong, at most).

        Raises:
            UsageError: the islands' devices are of this process, or simulated.

        Example:
            >>> controller = pw.attach("ray", islands=1, devices_per_island=4, devices_per_host=2)  # doctest: +SKIP
            >>> [host["devices"] for host in controller.hosts()]  # doctest: +SKIP
            [range(0, 2), range(2, 4)]
        """
        found = self.driver.hosts()
        if not found and self.attach_options.kind != "ray":
            raise UsageError(
                f"hosts(): {self!r} has no hosts, because its devices are "
                f"{'simulated' if self.attach_options.kind == 'sim' else 'of this process'}. Islands of hosts are made "
                f'by pw.attach("ray", islands=2, devices_per_island=4, devices_per_host=2).'
            )
        return found

    def status(self) -> str:
        """Return islands, devices, places, clients and memory as text."""
        return status_of(self)

    def _repr_html_(self) -> str:
        return as_html(self.status())

    def __enter__(self) -> Controller:
        default_controller.enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        default_controller.leave(self)
