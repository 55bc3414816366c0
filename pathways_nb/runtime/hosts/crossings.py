"""What each host sends to each other host when an array moves between islands: ranges of indices, each once.

Sender and receiver compute the same list, so that nothing but the pieces travels. A piece that several devices of a
host need travels to that host once (no replica on the way), and is cut from the shard of one device that holds it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from pathways_nb.runtime.lowering.pieces import Box, Located, pieces
from pathways_nb.runtime.lowering.transfers import listed


class Cut(NamedTuple):
    """A part of an array that travels from one host to another.

    Args:
        box: the range of indices.
        source: position of the device that it is cut from, in the order of the source's mesh.
        targets: positions of the devices that need it, in the order of the target's mesh.
    """

    box: Box
    source: int
    targets: tuple[int, ...]


Route = tuple[int, int]
"""The number of the host that sends, and of the one that receives, each within its island."""


def host_of(where: Any, position: int, per_host: int) -> int:
    """Return the host, within its island, of a device of a placement.

    Args:
        where: the placement.
        position: of the device in the placement.
        per_host: devices of each host.
    """
    return int(where.first + position) // per_host


@lru_cache(maxsize=4096)
def cuts(source: Located, target: Located, shape: tuple[int, ...], sends: int, takes: int) -> dict[Route, list[Cut]]:
    """Return what each host of the source sends to each host of the target.

    Args:
        source: where the array lies.
        target: where it goes.
        shape: its global shape.
        sends: devices of each host of the source's island.
        takes: devices of each host of the target's island.
    """
    found = pieces(source.shards(shape), target.shards(shape))
    first: dict[tuple[int, Box], int] = {}
    needed: dict[tuple[int, Box], list[int]] = {}
    for at, to, box in found:
        key = host_of(target.where, to, takes), box
        first.setdefault(key, at)
        needed.setdefault(key, []).append(to)
    routes: dict[Route, list[Cut]] = {}
    for (to_host, box), targets in needed.items():
        at = first[to_host, box]
        route = host_of(source.where, at, sends), to_host
        routes.setdefault(route, []).append(Cut(box, at, tuple(targets)))
    return routes


def numbers(array: Any) -> np.ndarray:
    """Return an array's values as NumPy; of typed random keys their numbers, with further dimensions at the end."""
    value = without_keys(array)
    return np.asarray(listed(value) if isinstance(value, jax.Array) else value)


def without_keys(array: Any) -> Any:
    """Return an array, or of typed random keys their numbers."""
    return jax.random.key_data(array) if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def key_impl(value: Any) -> str | None:
    """Return the name of the implementation of typed random keys; ``None`` of other values."""
    is_key = hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(value)) if is_key else None


def part(shard: Any, within: Box, box: Box) -> Any:
    """Return a range of an array, of which ``shard`` holds the range ``within``, where the shard is."""
    if within == box:
        return shard
    return shard[tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, within, strict=True))]
