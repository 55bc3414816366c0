"""What pipelines and sharded steps require alike of a loss, an optimizer, its state, parameters and a batch.

Each check is here once. Where the texts of errors differ, those who call it give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_leaves_with_path

from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.parallel.parameter_trees import name_of
from pathways_nb.parallel.random_keys import random_key_in
from pathways_nb.util.words import a_type_of, counted


def optimizer(given: Any, step: str) -> None:
    """Require an Optax optimizer.

    Args:
        given: the optimizer.
        step: what refuses it, such as ``"fsdp"``.

    Raises:
        UsageError: it is none.
    """
    if not (hasattr(given, "init") and hasattr(given, "update")):
        raise UsageError(
            f"{step}: optimizer={given!r} is {a_type_of(given)}. Give one of Optax, such as optax.adam(1e-3)."
        )


def value_and_aux(made: Any, call: str, has_aux: bool, step: str) -> tuple[Any, Any]:
    """Return a loss, which must be a floating-point scalar, and its auxiliary outputs; ``()`` without ``has_aux``.

    Args:
        made: what the loss returned: arrays or shapes.
        call: how it is called, for errors, such as ``"loss(y, targets)"``.
        has_aux: whether it returns a pair of the loss and auxiliary outputs.
        step: what refuses it, such as ``"fsdp"``.

    Raises:
        UsageError: it returned something else.
    """
    if has_aux and not (isinstance(made, tuple) and len(made) == 2):
        raise UsageError(
            f"{step}: {call} returned {_form(made)}, but has_aux=True. Return a pair of the loss and anything else."
        )
    if not has_aux and isinstance(made, tuple):
        raise UsageError(
            f"{step}: {call} returned {_form(made)}, but has_aux=False. Return the loss alone, or pass has_aux=True."
        )
    value, aux = made if has_aux else (made, ())
    if not _is_scalar_loss(value):
        raise UsageError(
            f"{step}: {call} returned {_form(value)}, not a scalar loss. Return a mean over the batch, such as "
            f"jnp.mean((y - targets) ** 2); with has_aux=True, a pair of it and anything else."
        )
    return value, aux


def _is_scalar_loss(value: Any) -> bool:
    # First what JAX takes for a leaf: of a list of traced values it would ask for the numbers.
    if not jax.tree_util.all_leaves([value]) or isinstance(value, str):  # the text "float32" is the name of a type
        return False
    try:
        return not jnp.shape(value) and jnp.issubdtype(jnp.result_type(value), jnp.floating)
    except TypeError:  # an object that is no array
        return False


def _form(found: Any) -> str:
    if found is None:
        return "None"
    if jax.tree_util.all_leaves([found]):  # first: a variable of Flax is a container that has a shape
        is_array = hasattr(found, "shape") and hasattr(found, "dtype")
        return f"{found.dtype}{list(found.shape)}" if is_array else a_type_of(found)
    leaves = jax.tree.leaves(found)
    return f"{a_type_of(found)} of {counted(len(leaves), 'array')}"


# ---- parameters


def without_gradient(params: Any, trained: Sequence[bool]) -> Iterator[tuple[Any, Any]]:
    """Yield the path and the leaf of each parameter that is to be trained and has a type without gradients.

    Args:
        params: the tree, of arrays or shapes.
        trained: of each leaf, whether it is trained.
    """
    for (path, leaf), wanted in zip(tree_leaves_with_path(params), trained, strict=True):
        if wanted and not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            yield path, leaf


# ---- an optimizer's state


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
    wanted: Any = jax.tree.structure(expected)
    if wanted != jax.tree.structure(given):
        raise UsageError(
            f"{step}: the state {unlike(expected, given)}, but it must be that of the optimizer. Give the state of "
            f"{made_by} or of the step before: params, state, value = step(params, state, *batch)."
        )


def require_same_shapes(expected: Any, given: Any, step: str, made_by: str) -> None:
    """Require that the arrays of a state have the shapes with which its optimizer begins; their trees are the same.

    Raises:
        UsageError: naming the first array that has another shape; the arguments are those of ``require_same_tree``.
    """
    for name, there, wanted in other_shapes(expected, given):
        raise UsageError(
            f"{step}: {name} of the state has the shape {there}, but {wanted} for these parameters. Give the state of "
            f"{made_by}."
        )


def other_shapes(expected: Any, given: Any) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield name, shape and expected shape of each array of a tree that has another shape than expected.

    Args:
        expected: a tree of shapes.
        given: arrays, in the same tree.
    """
    for (path, leaf), one in zip(tree_leaves_with_path(given), jax.tree.leaves(expected), strict=True):
        if jnp.shape(leaf) != one.shape:
            yield name_of(path), list(jnp.shape(leaf)), list(one.shape)


def unlike(expected: Any, given: Any) -> str:
    """Return in what a tree differs from the one that is expected."""
    if given is None:
        return "is None"
    if jax.tree_util.all_leaves([given]):
        return "is one array"
    wanted, there = ({name_of(path) for path, _ in tree_leaves_with_path(one)} for one in (expected, given))
    lacking, more = sorted(wanted - there), sorted(there - wanted)
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


# ---- the rows of a batch


@dataclass(frozen=True)
class BatchRows:
    """How a kind of step divides a batch along its first dimension, and what its errors say.

    Args:
        error: the type of the errors.
        allows_scalars: whether an array may have no dimension, so that every part gets it whole.
        random_key: the text about a random key among arrays that do not fit together, from its path and type.
        unequal: the text about arrays with different numbers of rows, from the path and the rows of each.
        indivisible: the text about a number of rows that the parts do not divide, from the path and the first array,
            and the number of rows that would do.
    """

    error: type[PathwaysError]
    allows_scalars: bool
    random_key: Callable[[str], str]
    unequal: Callable[[Sequence[tuple[str, int]]], str]
    indivisible: Callable[[str, Any, int], str]

    def equal(self, batch: Any) -> tuple[int, str, Any]:
        """Return the number of rows, which all arrays of a batch must have, with the path and the first array.

        Args:
            batch: a tree of arrays or shapes.

        Raises:
            PathwaysError: of the type ``error``, if arrays have different numbers of rows.
        """
        leaves = [(keystr(path), leaf) for path, leaf in tree_leaves_with_path(batch)]
        if self.allows_scalars:
            leaves = [(path, leaf) for path, leaf in leaves if leaf.shape]
        found = [(path, int(leaf.shape[0]) if leaf.shape else 0) for path, leaf in leaves]  # a scalar has no rows
        if len({rows for _, rows in found}) > 1 or not (found or self.allows_scalars):
            # A key of bare numbers has a dimension, which is none of the batch: say so, not that rows are lacking.
            key = random_key_in(batch)
            raise self.error(self.random_key(key) if key else self.unequal(found))
        path, first = leaves[0] if leaves else ("", None)
        return (found[0][1] if found else 0), path, first

    def divided(self, batch: Any, parts: int) -> int:
        """Return the number of rows, which must be equal, and a multiple of the number of parts.

        Args:
            batch: a tree of arrays or shapes.
            parts: into how many it is divided.

        Raises:
            PathwaysError: of the type ``error``, if they are not.
        """
        rows, path, first = self.equal(batch)
        if rows % parts or not (rows or self.allows_scalars):
            raise self.error(self.indivisible(path, first, max(-(-rows // parts), 1) * parts))
        return rows
