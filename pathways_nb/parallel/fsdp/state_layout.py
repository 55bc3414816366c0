"""How an optimizer's state is kept: what has the form of a parameter is split like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pathways_nb.parallel.fsdp.parameters import Parameter


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
        return [self._match(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]

    def _match(self, path: tuple[Any, ...], leaf: Any) -> Parameter | None:
        for start in range(len(path) + 1):
            found = self._of.get(path[start:])
            if found is not None and leaf.shape in (found.shape, found.padded):
                return found
        return None

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
