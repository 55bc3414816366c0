"""The check that a training step is given a state of its own optimizer, with both sides in the error's text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pathways_nb.errors import UsageError
from pathways_nb.parallel.parameter_trees import name_of


def require_same_tree(expected: Any, given: Any, step: str, made_by: str) -> None:
    """Require that a state has the tree with which its optimizer begins.

    Args:
        expected: the optimizer's first state, as shapes.
        given: the state that a step was called with.
        step: what refuses it, such as ``"fsdp"``.
        made_by: the call that makes a state, such as ``"step.init(params)"``.

    Raises:
        UsageError: it has another tree.
    """
    ours: Any = jax.tree.structure(expected)
    if ours != jax.tree.structure(given):
        raise UsageError(
            f"{step}: the state {unlike(expected, given)}, but it must be that of the optimizer. Give the state of "
            f"{made_by} or of the step before: params, state, value = step(params, state, *batch)."
        )


def require_same_shapes(expected: Any, given: Any, step: str, made_by: str) -> None:
    """Require that the arrays of a state have the shapes with which its optimizer begins; their trees are the same.

    Raises:
        UsageError: naming the first array that has another shape; the arguments are those of ``require_same_tree``.
    """
    pairs = zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(expected), strict=True)
    for (path, leaf), one in pairs:
        if jnp.shape(leaf) != one.shape:
            raise UsageError(
                f"{step}: {name_of(path)} of the state has the shape {list(jnp.shape(leaf))}, but {list(one.shape)} "
                f"for these parameters. Give the state of {made_by}."
            )


def unlike(expected: Any, given: Any) -> str:
    """Return in what a tree differs from the one that is expected."""
    if given is None:
        return "is None"
    if jax.tree_util.all_leaves([given]):
        return "is one array"
    ours, theirs = (
        {name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(one)} for one in (expected, given)
    )
    lacking, more = sorted(ours - theirs), sorted(theirs - ours)
    if lacking and more:
        return f"has {more[0]} and lacks {lacking[0]}"
    if lacking or more:
        return f"lacks {lacking[0]}" if lacking else f"has {more[0]}, which the step does not know"
    # Same arrays, other containers: parts without arrays tell the transforms of Optax apart.
    parts = [", ".join(_parts(one)) for one in (given, expected)]
    if parts[0] != parts[1]:
        return f"consists of {parts[0]}, not of {parts[1]}"
    return f"has the form {jax.tree.structure(given)}"


def _parts(tree: Any) -> Iterator[str]:
    """Yield the names of the named tuples in a tree, in order."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        yield type(tree).__name__
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ():
        yield from _parts(child)
