"""The arguments of a call, flattened: arrays and shapes apart from everything else, which stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pathways_nb.adopt.nnx_models import Sharing, sharing_of
from pathways_nb.program.signature import Deferred


class CallArguments(NamedTuple):
    """The arguments of a call, flattened.

    Args:
        tree: of positional arguments and those by name.
        leaves: of it; futures stand as their shapes.
        names: of each leaf.
        arrays: positions of leaves that are arrays or shapes; of those that objects of Flax NNX share, the first.
        sharing: what such objects share; None without any.
    """

    tree: Any
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    arrays: tuple[int, ...]
    sharing: Sharing | None = None

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
        """Return the arguments of a call.

        Args:
            args: positional ones: arrays, futures, shapes with layouts, trees of them.
            kwargs: further ones by name.
        """
        paths, tree = jax.tree_util.tree_flatten_with_path((tuple(args), dict(kwargs)), is_leaf=is_future)
        leaves = tuple(_struct(leaf) if isinstance(leaf, Deferred) else leaf for _, leaf in paths)
        sharing = sharing_of((tuple(args), dict(kwargs)))
        repeated = dict(sharing.repeated) if sharing else {}
        arrays = tuple(at for at, leaf in enumerate(leaves) if is_array(leaf) and at not in repeated)
        return cls(tree, leaves, tuple(_name(path) for path, _ in paths), arrays, sharing)

    def rebuilt(self, arrays: Sequence[Any]) -> Any:
        """Return the arguments as a tree, with other arrays."""
        filled = list(self.leaves)
        for at, array in zip(self.arrays, arrays, strict=True):
            filled[at] = array
        return self.tree_of(filled, self.tree)

    def tree_of(self, leaves: Sequence[Any], tree: Any) -> Any:
        """Return arguments made of leaves, whose objects share what those of the call do."""
        made = jax.tree.unflatten(tree, leaves)
        return made if self.sharing is None else self.sharing.restored(made, leaves)


def is_future(leaf: object) -> bool:
    """Return whether a leaf is a future, which ends a tree."""
    return isinstance(leaf, Deferred)


def is_array(leaf: object) -> bool:
    """Return whether a leaf is an array or its shape; numbers and functions are what they are."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.generic)


def _struct(future: Deferred) -> jax.ShapeDtypeStruct:
    """Return the shape of a future, with the layout that it has."""
    aval, layout = future.aval, future.located()[0]
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=layout, weak_type=aval.weak_type)


def _name(path: Sequence[Any]) -> str:
    """Return the name of an argument: ``args[0]['w']``, ``kwargs['key']``."""
    first, *rest = path
    return ("args", "kwargs")[first.idx] + jax.tree_util.keystr(tuple(rest))
