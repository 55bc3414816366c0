"""How one parameter is split over the devices of a data axis, and how shards become the parameter and back.

A parameter is split along one dimension. If no dimension is a multiple of the number of devices, the one that needs
least padding is padded with zeros at its end; a small parameter stays whole on each device instead. Gradients of the
padding are zero. Outside the step nobody sees the padding: a value in a program and a future have the true shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.program.specs import axes_of


@dataclass(frozen=True)
class Parameter:
    """One leaf of the parameters.

    Args:
        name: its path, such as ``layers.0.wq``.
        shape: of the whole array.
        dtype: in which it is kept between steps.
        parts: number of shards.
        dim: the dimension that is split; ``None`` if each device keeps the whole.
        trainable: whether it has a gradient.
        stacked: whether it is a stack of layers over which the loss scans; see ``scan_gathers``.
        others: its partition over axes that do not split the batch; see ``other_axes``.
        other_sizes: the axes of the place that do not split the batch, and the number of devices of each.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    parts: int
    dim: int | None
    trainable: bool = True
    stacked: bool = False
    others: PartitionSpec = PartitionSpec()  # noqa: RUF009  (immutable)
    other_sizes: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """Number of elements, without padding."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the whole array as it is kept between steps, without padding."""
        return self.size * int(self.dtype.itemsize)

    @property
    def padded(self) -> tuple[int, ...]:
        """The shape of the whole array with its padding."""
        return (
            self._with_dim(-(-self.shape[self.dim] // self.parts) * self.parts) if self.dim is not None else self.shape
        )

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of one shard."""
        return self._with_dim(self.padded[self.dim] // self.parts) if self.dim is not None else self.shape

    def _with_dim(self, size: int) -> tuple[int, ...]:
        assert self.dim is not None
        return (*self.shape[: self.dim], size, *self.shape[self.dim + 1 :])

    def spec(self, axis: str) -> PartitionSpec:
        """Return its partition over an axis."""
        return PartitionSpec() if self.dim is None else PartitionSpec(*[None] * self.dim, axis)

    @property
    def whole(self) -> Parameter:
        """The same parameter, of which each device keeps the whole."""
        return replace(self, dim=None)

    @property
    def piece(self) -> Parameter:
        """Its part on one device of the other axes."""
        return self if not self.others else replace(self, shape=self.piece_of(self.shape), others=PartitionSpec())

    def piece_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape on one device of the other axes of an array that they split like this parameter."""
        sizes = dict(self.other_sizes)
        parts = [math.prod(sizes[axis] for axis in axes_of(entry)) for entry in self.others]
        return tuple(size // by for size, by in zip_longest(shape, parts, fillvalue=1))

    @property
    def layer(self) -> Parameter:
        """One layer of a stack that is not split along its first dimension."""
        assert self.dim
        return replace(self, shape=self.shape[1:], dim=self.dim - 1, others=PartitionSpec(*self.others[1:]))

    def with_others(self, spec: PartitionSpec) -> PartitionSpec:
        """Return a partition over the axes of the batch joined with that over the others."""
        if not self.others:
            return spec
        both = [mine or other for mine, other in zip_longest(spec, self.others)]
        return PartitionSpec(*both)

    def pad(self, array: Any) -> Any:
        """Return a whole array with its padding."""
        if array.shape == self.padded:
            return array
        return jnp.pad(array, [(0, wide - size) for wide, size in zip(self.padded, array.shape, strict=True)])

    def crop(self, array: Any) -> Any:
        """Return a whole array without its padding."""
        return array if array.shape == self.shape else array[tuple(map(slice, self.shape))]

    def rows(self, array: Any) -> Any:
        """Return a whole array without padding as one row of elements for each device, of shape (parts, elements)."""
        assert self.dim is not None
        local = self.local[self.dim]
        split = self.pad(array).reshape(*self.shape[: self.dim], self.parts, local, *self.shape[self.dim + 1 :])
        return jnp.moveaxis(split, self.dim, 0).reshape(self.parts, -1)

    def from_rows(self, rows: Any) -> Any:
        """Return the whole array without padding from one row for each device; the inverse of ``rows``."""
        assert self.dim is not None
        shards = jnp.moveaxis(rows.reshape(self.parts, *self.local), 0, self.dim)
        return self.crop(shards.reshape(self.padded))


def split_dimension(shape: Sequence[int], parts: int, first: int = 0, taken: Sequence[Any] = ()) -> int | None:
    """Return the dimension to split: the first multiple of ``parts``, else the one with the least padding.

    Args:
        shape: of the whole array.
        parts: number of shards.
        first: dimensions before this one are not split.
        taken: of each dimension, what splits it already.

    Returns:
        The dimension; ``None`` if there is none.
    """
    free = [dim for dim in range(first, len(shape)) if shape[dim]]
    dims = [dim for dim in free if dim >= len(taken) or not taken[dim]]
    return min(dims, key=lambda dim: (-(-shape[dim] // parts) * parts / shape[dim], dim), default=None)
