"""Random keys among the arrays of a batch, whose first dimension would be taken for the batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_RAW = ((2,), (4,))
"""Shapes of keys that ``jax.random.PRNGKey`` makes, by implementation (threefry, rbg)."""


def is_random_key(leaf: Any) -> bool:
    """Return whether an array or a shape is one typed random key."""
    return not leaf.shape and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def random_key_in(batch: Any) -> str:
    """Return the path and the type of the first leaf that is one random key, such as ``"['key'] (uint32[2])"``.

    ``PRNGKey`` makes bare numbers, so an array of its type and shape counts as one: call this only where the arrays of
    a batch do not fit together. An array of typed keys has rows, and is none.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if is_random_key(leaf) or (leaf.dtype == jnp.uint32 and tuple(leaf.shape) in _RAW):
            shape = ",".join(map(str, leaf.shape))
            return f"{jax.tree_util.keystr(path)} ({leaf.dtype}[{shape}])"
    return ""
