"""Plain Ray actors that run the chains of ``bench cluster``: one jitted JAX computation for each actor call.

An actor keeps its array on its side. From one call to the next on the same actor a reference passes that stands for it;
a value passes only where the chain goes on to another actor.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Actor:
    """One process with JAX on one CPU device."""

    def __init__(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax

        self._add = jax.jit(lambda x: x + 1.0)
        self._array: Any = None

    def add(self, value: Any, give: bool = False) -> Any:
        """Add one to the array, and return its value or ``None``, which stands for it.

        Args:
            value: what to begin with; ``None`` for the array that is here.
            give: whether the value is to be returned.

        Returns:
            The value if it is to be given.
        """
        import numpy as np

        self._array = self._add(self._array if value is None else value)
        return np.asarray(self._array) if give else None

    def fused(self, value: Any, times: int, give: bool = False) -> Any:
        """Do the same in one computation."""
        import jax
        import numpy as np

        if not hasattr(self, "_loop"):
            self._loop = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y + 1.0, x))
        self._array = self._loop(self._array if value is None else value, times)
        return np.asarray(self._array) if give else None


class ActorChains:
    """The chains of some actors.

    Args:
        ray: Ray's module.
        actors: their handles.
    """

    def __init__(self, ray: Any, actors: list[Any]):
        self.ray, self.actors = ray, actors

    def run(self, turns: list[int], blocking: bool = False, ahead: bool = False) -> float:
        """Return the value after a chain of one call for each computation.

        Args:
            turns: the actor of each computation.
            blocking: whether each call is waited for before the next.
            ahead: whether calls on one actor do not name the call before them, which Ray's order of calls permits.
        """
        found: Any = 0.0
        for at, actor in enumerate(turns):
            last = at + 1 == len(turns)
            found = self.actors[actor].add.remote(found, last or turns[at + 1] != actor)
            if blocking:
                found = self.ray.get(found)
            elif ahead and not last and turns[at + 1] == actor:
                found = None
        return float(found if blocking else self.ray.get(found))

    def fused(self, turns: list[int]) -> float:
        """Return the same value, with one call and one computation for each stay at an actor."""
        found: Any = 0.0
        for actor in dict.fromkeys(turns):
            found = self.actors[actor].fused.remote(found, turns.count(actor), True)
        return float(self.ray.get(found))


@contextmanager
def chains(count: int) -> Iterator[ActorChains]:
    """Yield chains on new actors of the Ray cluster that this process is connected to, and end the actors."""
    import ray

    actor = ray.remote(num_cpus=0)(Actor)
    actors = [actor.remote() for _ in range(count)]
    try:
        made = ActorChains(ray, actors)
        for n in range(count):
            made.run([n, n])
            made.fused([n, n])
        yield made
    finally:
        for one in actors:
            ray.kill(one)
