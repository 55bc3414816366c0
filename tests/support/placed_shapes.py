"""Trees of arrays as shapes with layouts, for steps that are taken over and never run."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def on(mesh: Any, tree: Any, spec: Any) -> Any:
    """A tree whose arrays are shapes with layouts on a mesh; ``spec`` is one, or a function of an array."""

    def placed(leaf: Any) -> Any:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            return leaf
        layout = NamedSharding(mesh, spec(leaf) if callable(spec) else spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout)

    return jax.tree.map(placed, tree)


def columns(leaf: Any) -> PartitionSpec:
    """Columns of a matrix over the model's axis."""
    return PartitionSpec(None, "model") if leaf.ndim == 2 else PartitionSpec()
