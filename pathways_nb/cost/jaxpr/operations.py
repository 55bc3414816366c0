"""Data types: an array, an operation on arrays, a flat list of operations.

``flat.py`` makes them of a jaxpr; the other modules of the room read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathways_nb.cost.jaxpr.splits import Split
from pathways_nb.jaxpr.flat import FlatJaxpr, Operation


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An array: its whole shape, which axes split each dimension, and what one device holds of it."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    split: Split
    bytes: int
    """On one device; 0 for constants written into the code."""
    known: Any = None
    """The number itself, of a scalar that is known."""
    source: Value | None = None
    """What it is a view of."""

    @property
    def root(self) -> Value:
        """The array whose memory it lies in."""
        return self if self.source is None else self.source.root

    @property
    def size(self) -> int:
        """Elements of the whole array."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Op(Operation[Value]):
    """One operation, over how many devices its work is divided, and what it runs within itself."""

    ways: int = 1
    bodies: tuple[Flat, ...] = ()
    times: int = 1
    """How often all its bodies run; of a ``cond``'s, one runs."""
    note: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Flat(FlatJaxpr[Op, Value]):
    """A list of operations in order; ``sizes`` are of the mesh axes its values are split over."""

    sizes: Mapping[str, int]
