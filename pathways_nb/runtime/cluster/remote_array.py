"""An array whose shards lie on hosts: what the kernel holds of a result until somebody asks for its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import LostError
from pathways_nb.program.signature import ArrayAttributes, Aval
from pathways_nb.runtime.cluster.host_island import HostDied, HostIsland, wait
from pathways_nb.runtime.lowering.pieces import Located


@dataclass(eq=False)
class RemoteArray(ArrayAttributes):
    """A computed array on an island of hosts.

    Args:
        aval: shape and dtype.
        located: layout and devices.
        fetch_shards: returns the shards at some positions of the mesh, and of typed random keys the implementation.
        value: the whole value, if it is known here.
    """

    aval: Aval
    located: Located
    fetch_shards: Callable[[list[int]], tuple[dict[int, np.ndarray], Any]]
    value: Any = None

    @property
    def sharding(self) -> Any:
        """Its layout on an abstract mesh."""
        return self.located.sharding

    def host_value(self) -> Any:
        """Return the values: NumPy's, or a JAX array of typed random keys.

        Raises:
            LostError: the hosts that held it died.
        """
        value = self._fetched() if self.value is None else self.value
        return value if isinstance(value, jax.Array) else np.array(value)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.host_value(), dtype)

    def _fetched(self) -> Any:
        shards = self.located.shards(self.shape)
        boxes: dict[Any, int] = {}
        for at in range(self.located.where.count):
            boxes.setdefault(shards.box(at), at)
        found, key_impl = self.fetch_shards(list(boxes.values()))
        first = next(iter(found.values()))
        tail = first.shape[self.ndim :]
        made = np.empty((*self.shape, *tail), first.dtype)
        for box, at in boxes.items():
            made[tuple(slice(low, high) for low, high in box)] = found[at]
        return made if key_impl is None else jax.random.wrap_key_data(jax.numpy.asarray(made), impl=key_impl)


def remote_array(aval: Any, there: Located, island: HostIsland, buffer: int, value: Any = None) -> RemoteArray:
    """Return what the kernel holds of a logical buffer on an island; see ``RemoteArray``."""
    return RemoteArray(aval, there, partial(_fetch, island, buffer, there), value)


def _fetch(island: HostIsland, buffer: int, there: Located, positions: list[int]) -> tuple[dict[int, np.ndarray], Any]:
    """Return shards of a buffer by their positions in the mesh, and of random keys their implementation."""
    by_host: dict[int, list[int]] = {}
    for at in positions:
        by_host.setdefault((there.where.first + at) // island.per_host, []).append(at)
    if island.lost:
        raise LostError(f"{island.loss}, and with it the value. Run what makes it again.")
    futures = {host: island.links[host].ask("fetch", buffer, mine, there) for host, mine in by_host.items()}
    found: dict[int, np.ndarray] = {}
    key_impl = None
    for host, mine in by_host.items():
        try:
            arrays, key_impl = wait(futures[host])
        except HostDied as died:
            raise LostError(f"a host of island {island.index} died while a value was fetched: {died}") from None
        found.update(zip(mine, arrays, strict=True))
    return found, key_impl


@dataclass(frozen=True, eq=False)
class Placing:
    """A value from this process on its way to hosts.

    Args:
        value: the value.
        sharding: in which it will lie there, on an abstract mesh.
    """

    value: Any
    sharding: Any

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes."""
        return int(self.value.nbytes)
