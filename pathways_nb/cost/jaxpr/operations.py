"""Data types of the cost model: an array, an operation on arrays, a flat list of operations.

``sharded_flat.py`` makes them from a jaxpr; the other modules of this package only read them. They are frozen and
compare by identity, so that arrays and operations serve as keys: two arrays of equal shape are different arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathways_nb.cost.jaxpr.splits import Split
from pathways_nb.jaxpr.flat import FlatJaxpr, Operation


@dataclass(frozen=True, eq=False, slots=True)
class ShardedValue:
    """An array: its global shape, the mesh axes that partition each dimension, and its bytes on one device.

    ``shape`` is global outside ``shard_map``, and the shape of one shard inside. ``itemsize`` is in bytes.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    split: Split
    bytes: int
    """Bytes on one device; 0 for a literal, which is part of the code."""
    known: Any = None
    """The value of a scalar that is known before running, for the trip counts of loops; else ``None``."""
    source: ShardedValue | None = None
    """The array that this one is a view of; ``None`` if it has memory of its own."""

    @property
    def root(self) -> ShardedValue:
        """The array whose memory this one uses; itself unless it is a view."""
        return self if self.source is None else self.source.root

    @property
    def size(self) -> int:
        """Number of elements of the whole array."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class ShardedOperation(Operation[ShardedValue]):
    """An operation with the partitioning of its work, and with the lists that it runs inside itself."""

    ways: int = 1
    """The number of devices among which its work is divided."""
    bodies: tuple[ShardedJaxpr, ...] = ()
    """The condition and body of a ``while``, the body of a ``scan`` or ``shard_map``, the branches of a ``cond``."""
    times: int = 1
    """How often all its bodies run; of the branches of a ``cond``, only one runs."""
    note: str = ""
    """What the walk could not know about it; empty if it knew everything."""


@dataclass(frozen=True, eq=False, slots=True)
class ShardedJaxpr(FlatJaxpr[ShardedOperation, ShardedValue]):
    """A flat list of operations; ``sizes`` are the numbers of devices along the mesh axes that partition its values."""

    sizes: Mapping[str, int]
