"""The way from a kernel to a shared controller that is a Ray actor."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

from pathways_nb.errors import PathwaysError, PlaceError
from pathways_nb.runtime.cluster.gate import Gate
from pathways_nb.runtime.cluster.host_island import HostDied, HostIsland, wait
from pathways_nb.runtime.cluster.island_maker import estimated, grouped
from pathways_nb.runtime.cluster.ray_cluster import NAMESPACE
from pathways_nb.runtime.cluster.ray_link import RayLink
from pathways_nb.runtime.shared.controller_actor import GROUPS, ControllerActor, Terms
from pathways_nb.runtime.shared.protocol import FromKernel, IslandView, ToKernel, Welcome

_BESIDE = ("about", "stamp", "join", "batch", "look", "add", "clocks", "synchronise")
_LOOK = 1.0
"""Seconds after which who waits for the controller is given nothing, and may look whether it is still to wait."""
_PREFIX = "controller "
"""Of the names of actors that are shared controllers."""


def find(ray: Any, name: str) -> Any:
    """Return the actor of a shared controller; ``None`` if there is none of that name."""
    try:
        return ray.get_actor(_PREFIX + name, namespace=NAMESPACE)
    except ValueError:
        return None


def others(ray: Any) -> list[str]:
    """Return the names of the shared controllers of a cluster."""
    known = ray.util.list_named_actors(all_namespaces=True)
    names = [one["name"] for one in known if one["namespace"] == NAMESPACE]
    return [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]


def create(ray: Any, name: str, terms: Terms, cores: Callable[[int], Any]) -> Any:
    """Return a new actor, or the one that another kernel has made meanwhile."""
    actor = ray.remote(concurrency_groups=GROUPS)(grouped(ray, ControllerActor, dict.fromkeys(_BESIDE, "beside")))
    options = {"lifetime": "detached", "num_cpus": 0, "max_restarts": 0, "get_if_exists": True}
    return actor.options(name=_PREFIX + name, namespace=NAMESPACE, **options).remote(terms, cores)


def ask(ray: Any, actor: Any, method: str, *args: Any, gate: Gate) -> Any:
    """Call a method of a shared controller's actor and wait, so that an interrupt is heard.

    Returns:
        What it returns.

    Raises:
        HostDied: the actor is gone.
    """

    def translated(error: BaseException) -> BaseException:
        if isinstance(error, ray.exceptions.RayTaskError):
            return error.cause if isinstance(error.cause, PathwaysError) else error
        if isinstance(error, ray.exceptions.RayError):
            return HostDied(f"its process ended ({type(error).__name__}: {error})")
        return error

    return wait(gate.promise(lambda: getattr(actor, method).remote(*args), actor, translated))


class RayControllerLink:
    """A kernel's membership of a shared controller.

    Args:
        ray: Ray's module.
        actor: the controller's handle.
        gate: in front of Ray.
    """

    def __init__(self, ray: Any, actor: Any, gate: Gate):
        self.ray, self.actor, self._gate = ray, actor, gate
        self.welcome: Welcome
        self.welcome = self.ask("join")
        self.kernel = self.welcome.kernel
        try:
            self._channel = self.welcome.door.enter()
        except OSError as error:
            raise PlaceError(f"the shared controller did not take this kernel in ({error}); attach again.") from None
        self._channel.send(b"%d" % self.kernel)
        self.offset = estimated(lambda: self.ask("stamp"), time.perf_counter).offset

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the actor and wait, so that an interrupt is heard.

        Returns:
            What it returns.

        Raises:
            HostDied: the actor is gone.
        """
        return ask(self.ray, self.actor, method, *args, gate=self._gate)

    def send(self, items: list[FromKernel]) -> None:
        """Send items, in order."""
        self._channel.send(pickle.dumps(items, protocol=5))

    def receive(self) -> list[ToKernel]:
        """Wait a while for what the controller says.

        Returns:
            The items, in order.

        Raises:
            HostDied: the controller is gone, or has let this kernel go.
        """
        try:
            found = self._channel.receive(_LOOK)
        except EOFError:
            raise HostDied("its process ended, or it has let this kernel go") from None
        items: list[ToKernel] = []
        if found is not None:
            items = pickle.loads(found) if found else self.ask("batch", self.kernel)
        return items

    def look(self, part: str) -> Any:
        """Return a part of the core's accounts."""
        return pickle.loads(self.ask("look", part))

    def island(self, view: IslandView) -> HostIsland:
        """Return an island as this kernel uses it."""
        links = []
        for actor, facts in zip(view.actors, view.facts, strict=True):
            links.append(RayLink(self.ray, actor, self._gate))
            links[-1].facts = facts
        return HostIsland(view.index, tuple(links), view.per_host, view.generation, view.lost)

    def leave(self) -> None:
        """Leave the controller."""
        self._channel.close()
