"""What crosses when an array moves from M devices to N: index ranges only, no arrays and no devices.

Each target device needs the range of its shard. What it holds already stays; each other part comes from one device of
the source that holds it. ``transfers`` carries the pieces out, and the compiler of plans and the simulator count them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import NamedSharding

from pathways_nb.plan.graph import Value
from pathways_nb.plan.plan import Placement
from pathways_nb.program.specs import axes_of

Box = tuple[tuple[int, int], ...]
"""A half-open range of indices for each dimension."""


@dataclass(frozen=True, eq=False)
class Shards:
    """The devices of a sharding, and the range of an array that each holds.

    ``low`` and ``high`` have one row for each device and one column for each dimension. Shards are the cells of a grid:
    two of them are equal or do not overlap.
    """

    devices: Sequence[Hashable]
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, sharding: Any, shape: tuple[int, ...], devices: Sequence[Hashable] | None = None) -> Shards:
        """Return the shards of an array.

        Args:
            sharding: its sharding.
            shape: its shape.
            devices: names of the devices, in the order of the mesh; needed where the mesh is abstract.
        """
        if isinstance(sharding, NamedSharding):
            low, high = _grid(sharding, shape)
            return cls(tuple(sharding.mesh.devices.flat) if devices is None else devices, low, high)
        where = sharding.devices_indices_map(shape)
        ranges = [[part.indices(n)[:2] for part, n in zip(index, shape, strict=True)] for index in where.values()]
        bounds = np.array(ranges, np.int64).reshape(len(where), len(shape), 2)
        return cls(tuple(where) if devices is None else devices, bounds[..., 0], bounds[..., 1])

    def box(self, position: int) -> Box:
        """Return the range that one device holds."""
        return tuple(zip(self.low[position].tolist(), self.high[position].tolist(), strict=True))


class Located(NamedTuple):
    """A sharding, and the devices in the order of its mesh, which an abstract mesh does not name."""

    sharding: Any
    where: Placement

    def shards(self, shape: tuple[int, ...]) -> Shards:
        """Return the shards of an array of this shape."""
        first = (self.where.island << 32) + self.where.first
        return Shards.of(self.sharding, shape, range(first, first + self.where.count))


class Piece(NamedTuple):
    """A part of one target shard, and the device that it comes from, which may be the target device itself.

    ``source`` and ``target`` are positions in the two ``Shards``.
    """

    source: int
    target: int
    box: Box


def pieces(source: Shards, target: Shards) -> list[Piece]:
    """Return the pieces of all target shards: by target, and within one in row-major order of their indices.

    A piece that the target device holds comes from itself; of other devices that hold a piece, the one that has sent
    least sends it.
    """
    position = {device: at for at, device in enumerate(source.devices)}
    # For each dimension, where the shards of the source begin, and where the last of them ends.
    edges = [sorted(set(column)) for column in source.low.T.tolist()]
    ends = source.high.max(axis=0, initial=0).tolist()
    # By the first corner of a shard, the devices that hold it: several hold a replicated one.
    holders: dict[tuple[int, ...], list[int]] = {}
    for at, corner in enumerate(map(tuple, source.low.tolist())):
        holders.setdefault(corner, []).append(at)
    sent = [0] * len(source.devices)
    found = []
    for to, device in enumerate(target.devices):
        for corner, box in _cells(target.box(to), edges, ends):
            held = holders[corner]
            own = position.get(device)
            # Replicas share the work: sending all from the first would leave the others' links idle.
            at = own if own in held else min(held, key=sent.__getitem__)
            sent[at] += 0 if at == own else volume(box)
            found.append(Piece(at, to, box))
    return found


def elements_crossing(source: Shards | None, target: Shards, hosts: Sequence[int] | None = None) -> int:
    """Return the number of elements in all pieces that come from another device, without making the pieces.

    Args:
        source: the shards that there are; ``None`` for a value that no device holds.
        target: the shards that are wanted.
        hosts: the host of each target device, if devices of one host share what reaches it; the source is elsewhere.
    """
    if hosts is not None:
        # (devices, 1 + 2 × dimensions): devices of one host that want the same range are equal rows, and one of them
        # counts.
        rows = np.column_stack([np.asarray(hosts), target.low, target.high])
        return int(elements_lacking(None, target)[np.unique(rows, axis=0, return_index=True)[1]].sum())
    return int(elements_lacking(source, target).sum())


def elements_lacking(source: Shards | None, target: Shards) -> np.ndarray:
    """Count, for each target device, the elements of its shard that it does not hold already.

    Args:
        source: the shards that there are; ``None`` for a value that no device holds.
        target: the shards that are wanted.

    Returns:
        An integer for each target device.
    """
    lacking = np.prod(target.high - target.low, axis=1)
    if source is None:
        return lacking
    position = {device: at for at, device in enumerate(source.devices)}
    # (target devices,) position among the source's devices; -1, which reads some row, is masked out at the end.
    own = np.array([position.get(device, -1) for device in target.devices])
    # (target devices, dimensions) the overlap of what each wants and what it holds; negative where there is none.
    common = np.minimum(target.high, source.high[own]) - np.maximum(target.low, source.low[own])
    return lacking - np.where(own >= 0, np.prod(np.maximum(common, 0), axis=1), 0)


@lru_cache(maxsize=4096)
def bytes_crossing(
    value: Value, target: Located, source: Located | None = None, devices_per_host: int | None = None
) -> int:
    """Return the bytes that cross when a value is sent to all devices that want a part of it.

    Args:
        value: the value.
        target: where it goes.
        source: where it is; ``None`` if no device of the target holds a part.
        devices_per_host: given if devices of one host share what reaches it.
    """
    wanted = target.shards(value.shape)
    # Devices are numbered within their island: on another one, no device of the target is a device of the source.
    held = None if source is None or source.where.island != target.where.island else source.shards(value.shape)
    hosts = None
    if devices_per_host is not None:
        hosts = [(target.where.first + at) // devices_per_host for at in range(target.where.count)]
    return elements_crossing(held, wanted, hosts) * (value.bytes // max(math.prod(value.shape), 1))


def volume(box: Box) -> int:
    """Return the number of elements in a range of indices."""
    return math.prod(high - low for low, high in box)


def _grid(sharding: NamedSharding, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of each shard, in the order of the mesh; they follow from the device's place on each axis."""
    sizes = sharding.mesh.shape
    # (axes, devices) coordinates of the devices along each axis of the mesh, in the order of the mesh.
    places = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    along = dict(zip(sizes, places, strict=True))
    low = np.zeros((places.shape[1], len(shape)), np.int64)
    high = np.tile(np.array(shape, np.int64), (places.shape[1], 1))
    for dimension, entry in enumerate(sharding.spec):
        # (devices,) which part of this dimension each device holds. The first axis of an entry is the major one.
        index, parts = np.zeros(places.shape[1], np.int64), 1
        for axis in axes_of(entry):
            index, parts = index * sizes[axis] + along[axis], parts * sizes[axis]
        # XLA rounds up: the last parts are shorter, or empty, where the parts do not divide the dimension.
        each = -(-shape[dimension] // parts)
        low[:, dimension] = np.minimum(index * each, shape[dimension])
        high[:, dimension] = np.minimum((index + 1) * each, shape[dimension])
    return low, high


def _cells(box: Box, edges: Sequence[Sequence[int]], ends: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Box]]:
    """Yield the first corner of each cell of a grid that overlaps a box, and their overlap, in row-major order.

    An empty box overlaps one cell, so that an empty shard has a piece, too.
    """
    spans = []
    for (low, high), starts, end in zip(box, edges, ends, strict=True):
        first = max(bisect_right(starts, low) - 1, 0)
        last = max(bisect_left(starts, high), first + 1)
        stops = [*starts[1:], end]
        spans.append([(starts[i], (max(low, starts[i]), min(high, stops[i]))) for i in range(first, last)])
    for cell in product(*spans):
        yield tuple(corner for corner, _ in cell), tuple(part for _, part in cell)
