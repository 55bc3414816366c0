"""How an optimizer's state is kept: what has the form of a parameter is split like it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pathways_nb.parallel.fsdp.parameters import Parameter


class StateLayout:
    """The layout of a tree of parameters or of an optimizer's state.

    Args:
        params: the tree of parameters, as shapes.
        parameters: its leaves.
        specs: the partition of each.
    """

    def __init__(self, params: Any, parameters: Sequence[Parameter], specs: Sequence[PartitionSpec]):
        self.parameters = tuple(parameters)
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        self._of = dict(zip(paths, zip(parameters, specs, strict=True), strict=True))

    def of(self, state: Any) -> list[tuple[Parameter, PartitionSpec] | None]:
        """Return for each leaf the parameter whose form it has, with its partition; ``None`` of other leaves.

        A leaf has the form of a parameter if its path ends with the parameter's and it has the same shape, padded or
        not. That holds for every transform of Optax, those that mask parameters included.
        """
        return [self._match(path, leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]

    def _match(self, path: tuple[Any, ...], leaf: Any) -> tuple[Parameter, PartitionSpec] | None:
        for start in range(len(path) + 1):
            found = self._of.get(path[start:])
            if found is not None and leaf.shape in (found[0].shape, found[0].padded):
                return found
        return None

    def specs(self, state: Any) -> list[PartitionSpec]:
        """Return the partition of each leaf."""
        return [PartitionSpec() if found is None else found[1] for found in self.of(state)]

    def padded(self, state: Any) -> Any:
        """Return a tree with what has the form of parameters padded as they are kept."""
        return self._mapped(state, lambda one, leaf: one.pad(leaf))

    def cropped(self, state: Any) -> Any:
        """Return a tree without the padding of parameters."""
        return self._mapped(state, lambda one, leaf: one.crop(leaf))

    def _mapped(self, state: Any, change: Any) -> Any:
        leaves, tree = jax.tree.flatten(state)
        pairs = zip(leaves, self.of(state), strict=True)
        return jax.tree.unflatten(tree, [leaf if at is None else change(at[0], leaf) for leaf, at in pairs])
