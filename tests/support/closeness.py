"""The one comparison of values that devices computed: by the measure of a tensor, not of each of its elements.

Another processor's kernels round otherwise, and by that measure: an element near zero, in a sum of large ones, is off
by as much as its neighbours. Integers and Booleans are equal or not. Where a result is exact whatever computes it, as
host arithmetic and copies are, a test compares with ``assert_array_equal``.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import pathways_nb as pw


def close(found: Any, expected: Any, rtol: float = 1e-5, least: float = 0.0) -> None:
    """Assert that two trees are of one structure, and that no element is off by more than ``rtol`` × its leaf's largest.

    Args:
        found: arrays, or futures of them.
        expected: the same of what is right.
        rtol: relative to the largest finite magnitude in a leaf of ``expected``.
        least: the smallest number that counts as largest, for leaves in which larger ones cancel; without it an array
            of zeros is compared exactly.
    """
    found, expected = pw.get((found, expected))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, wanted), got in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True
    ):  # fmt: skip
        got, where = np.asarray(got), jax.tree_util.keystr(path) or "value"
        assert got.shape == np.shape(wanted), f"{where}: {got.shape}, and {np.shape(wanted)} expected"
        exact = np.asarray(wanted).dtype.kind in "iub"
        atol = 0.0 if exact else rtol * max(least, _largest(wanted))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=atol, err_msg=where)


def error(found: Any, expected: Any) -> float:
    """Return the largest difference of any leaf, relative to the largest element of that leaf if it is not 0."""
    pairs = zip(jax.tree.leaves(pw.get(found)), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(np.asarray(a) - b).max()) / (_largest(b) or 1.0) for a, b in pairs)


def _largest(values: Any) -> float:
    magnitudes = np.abs(np.asarray(values, np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0))
