"""Recognises models of Flax NNX and Equinox in trees of arguments.

What is no array in a model of Equinox, such as its activation function, is static, as under ``eqx.filter_jit``: it
becomes a part of the tree that it is in (``with_static_parts``), by which calls are told apart. Of other models an
error says how their arrays are taken out of them. A model is known by the module of its type, so that neither library
is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax

from pathways_nb.errors import UsageError

_SPLIT = {
    ("flax.nnx", False): ("graph, state = nnx.split(model)", "model = nnx.merge(graph, state)"),
    ("flax.nnx", True): ("graph, params, rest = nnx.split(model, nnx.Param, ...)",
                         "model = nnx.merge(graph, params, rest)"),
    ("equinox", False): ("arrays, rest = eqx.partition(model, eqx.is_array)", "model = eqx.combine(arrays, rest)"),
    ("equinox", True): ("params, rest = eqx.partition(model, eqx.is_inexact_array)",
                        "model = eqx.combine(params, rest)"),
}  # fmt: skip
_TITLES = {"flax.nnx": "Flax NNX", "equinox": "Equinox"}


@jax.tree_util.register_static
@dataclass(frozen=True)
class StaticPart:
    """A static leaf of a model, as a part of the tree.

    Args:
        kind: its type, since 1, 1.0 and True are equal.
        value: the leaf.
        text: of a number with a point, since 0.0 and -0.0 are equal.
    """

    kind: type
    value: Any
    text: str = ""


def with_static_parts(tree: Any) -> Any:
    """Return a tree in which what is no array in models of Equinox is a part of the tree.

    Raises:
        UsageError: such a leaf cannot be hashed.
    """
    if not has_model(jax.tree.structure(tree)):
        return tree
    return jax.tree.map(
        lambda node: jax.tree.map(static_part, node) if _is_equinox(node) else node, tree, is_leaf=_is_equinox
    )


@lru_cache(maxsize=1024)
def has_model(structure: Any) -> bool:
    """Return whether a tree of this structure has a model of Equinox in it."""
    return any(_library_of(kind) == "equinox" for kind in _kinds(structure))


def _kinds(structure: Any) -> Iterator[type]:
    """Yield the type of each node of a structure."""
    if (node := structure.node_data()) is not None:
        yield node[0]
        for child in structure.children():
            yield from _kinds(child)


def _is_equinox(node: Any) -> bool:
    return _library(node) == "equinox"


def static_part(leaf: Any) -> Any:
    """Return a leaf of a model: itself if it is an array, else as a part of the tree.

    Raises:
        UsageError: it cannot be hashed.
    """
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return leaf
    try:
        hash(leaf)
    except TypeError:
        raise UsageError(
            f"a model has the leaf {leaf!r}, which is no array and cannot be hashed, so that calls with different ones "
            f"cannot be told apart. Make it a tuple, or declare its field static: eqx.field(static=True)."
        ) from None
    return StaticPart(type(leaf), leaf, repr(leaf) if isinstance(leaf, (float, complex)) else "")


def without_static_parts(tree: Any) -> Any:
    """Return a tree in which static parts of models are leaves again."""
    return jax.tree.map(
        lambda node: node.value if isinstance(node, StaticPart) else node,
        tree,
        is_leaf=lambda node: isinstance(node, StaticPart),
    )


def builder(structure: Any) -> Callable[[Sequence[Any]], Any]:
    """Return a function that puts leaves together to a tree, with static parts of models as leaves."""
    if StaticPart not in _kinds(structure):
        return lambda leaves: jax.tree.unflatten(structure, leaves)
    return lambda leaves: without_static_parts(jax.tree.unflatten(structure, leaves))


def how_to_split(tree: Any, leaf: Any, trained: bool = False) -> str:
    """Return how to take the arrays out of the model that has a leaf, as the end of an error; ``""`` without a model.

    Args:
        tree: of arguments.
        leaf: what is refused, one of its leaves.
        trained: whether only parameters are wanted, not every array.
    """
    for model in jax.tree.leaves(tree, is_leaf=lambda node: bool(_library(node))):
        library = _library(model)
        if library and any(one is leaf for one in jax.tree.leaves(model)):
            outside, inside = _SPLIT[library, trained]
            return (
                f" {type(model).__name__} is a model of {_TITLES[library]}: pass its "
                f"{'parameters' if trained else 'arrays'} alone, and put it together again in the function:\n"
                f"    {outside}\n    {inside}  # in the function"
            )
    return ""


def _library(node: Any) -> str:
    """Return the library whose model, or state of a model, this is; ``""`` of anything else."""
    return _library_of(type(node))


def _library_of(kind: type) -> str:
    homes = [f"{base.__module__}." for base in kind.__mro__ if base.__name__ in ("Module", "State")]
    return next((name for name in _TITLES if any(home.startswith(f"{name}.") for home in homes)), "")
