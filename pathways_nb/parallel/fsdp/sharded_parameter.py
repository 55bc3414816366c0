"""How parameters are split over the devices of a data axis, and an optimizer's state like them; shards and back.

A parameter is split along one dimension. If no dimension is a multiple of the number of devices, the one that needs
least padding is padded with zeros at its end; a small parameter stays whole on each device instead. Gradients of the
padding are zero. Outside the step nobody sees the padding: a value in a program and a future have the true shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import jax
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
        others: its partition over axes that do not split the batch; see ``collectives``.
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

    @property
    def pieces(self) -> int:
        """Number of its parts over the other axes."""
        return self.size // self.piece.size if self.size else 1

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
        # No dimension is split by both: ``split_dimension`` does not choose one that another axis splits.
        return PartitionSpec(*(by_batch or other for by_batch, other in zip_longest(spec, self.others)))

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
        # A shard is contiguous along ``dim`` only, so the devices' dimension is cut out and moved to the front.
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
    free = [dim for dim in range(first, len(shape)) if shape[dim]]  # of an empty dimension there are no parts
    dims = [dim for dim in free if dim >= len(taken) or not taken[dim]]
    return min(dims, key=lambda dim: (-(-shape[dim] // parts) * parts / shape[dim], dim), default=None)


class StateLayout:
    """The layout of a tree of parameters or of an optimizer's state.

    Args:
        params: the tree of parameters, as shapes.
        parameters: its leaves, each with the dimension that is split in this layout.
        axis: over which they are split.
    """

    def __init__(self, params: Any, parameters: Sequence[Parameter], axis: str):
        self.parameters, self._axis = tuple(parameters), axis
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        self._of = dict(zip(paths, self.parameters, strict=True))

    def of(self, state: Any) -> list[Parameter | None]:
        """Return for each leaf the parameter whose form it has; ``None`` of other leaves.

        A leaf has the form of a parameter if its path ends with the parameter's and it has the same shape, padded or
        not. That holds for every transform of Optax, those that mask parameters included.
        """

        def match(path: tuple[Any, ...], leaf: Any) -> Parameter | None:
            # The longest ending first: the transforms of Optax put their own keys in front of a parameter's path.
            for start in range(len(path) + 1):
                found = self._of.get(path[start:])
                if found is not None and leaf.shape in (found.shape, found.padded):
                    return found
            return None

        return [match(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]

    def specs(self, state: Any) -> list[PartitionSpec]:
        """Return the partition of each leaf; a parameter that lacks its padding is not split over the axis."""
        return [
            PartitionSpec() if one is None else self.spec(one) if leaf.shape == one.padded else one.others
            for one, leaf in zip(self.of(state), jax.tree.leaves(state), strict=True)
        ]

    def spec(self, one: Parameter) -> PartitionSpec:
        """Return the partition of a parameter with its padding, over all axes."""
        return one.with_others(one.spec(self._axis))

    def padded(self, state: Any) -> Any:
        """Return a tree with what has the form of parameters padded as they are kept."""
        return self.mapped(state, lambda one, leaf: one.pad(leaf))

    def cropped(self, state: Any) -> Any:
        """Return a tree without the padding of parameters."""
        return self.mapped(state, lambda one, leaf: one.crop(leaf))

    def mapped(self, state: Any, change: Callable[[Parameter, Any], Any]) -> Any:
        """Return a tree in which ``change(parameter, leaf)`` replaces each leaf of the form of a parameter."""
        leaves, tree = jax.tree.flatten(state)
        pairs = zip(leaves, self.of(state), strict=True)
        return jax.tree.unflatten(tree, [leaf if one is None else change(one, leaf) for leaf, one in pairs])
