"""``pw.Controller``: what a person does with what is attached."""

from __future__ import annotations

from pathways_nb.session import default_controller, elasticity, tenant_scope
from pathways_nb.session.session import Session
from pathways_nb.session.status import as_html, status_of


class Controller(Session):
    """The single controller of a notebook: devices, the order of work on them, and the record of it.

    Made by ``pw.attach``. As a ``with`` block it restores the previous one at the end.
    """

    def remove(self, island: int, first: int = 0, count: int | None = None) -> None:
        """Lose devices while programs run, as by a failure: ``count`` of an island from ``first`` on, by default all.

        Nodes that were to run there fail, with everything that depends on them; data that lay only there is lost, and
        says so by name. Places there move to other devices at the next call, and everything else goes on.

        Raises:
            PlaceError: there are no such devices.
        """
        elasticity.remove(self, island, first, count)

    def add(self, devices: int | None = None, island: int | None = None) -> int:
        """Add an island of ``devices`` virtual devices, or give ``island`` its removed devices back.

        Returns:
            The island's index.

        Raises:
            PlaceError: there is no such island. UsageError: both are given, or accelerators, of which there are no
                more.
        """
        return elasticity.add(self, devices, island)

    def cancel(self, client: str | tenant_scope.Tenant) -> None:
        """Give up a client's programs: nothing more of them is dispatched. The name ``""`` means those of no client.

        Raises:
            UsageError: there is no such client.
        """
        tenant_scope.cancel(self, client)

    def status(self) -> str:
        """Islands, devices, places, clients and memory as text."""
        return status_of(self)

    def _repr_html_(self) -> str:
        return as_html(self.status())

    def __enter__(self) -> Controller:
        default_controller.enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        default_controller.leave(self)
