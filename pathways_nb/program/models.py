"""Recognises models of Flax NNX and Equinox in trees of arguments, to say how their arrays are taken out of them.

A model is known by the module of its type, so that neither library is imported.
"""

from __future__ import annotations

from typing import Any

import jax

_SPLIT = {
    ("flax.nnx", False): ("graph, state = nnx.split(model)", "model = nnx.merge(graph, state)"),
    ("flax.nnx", True): ("graph, params, rest = nnx.split(model, nnx.Param, ...)",
                         "model = nnx.merge(graph, params, rest)"),
    ("equinox", False): ("arrays, rest = eqx.partition(model, eqx.is_array)", "model = eqx.combine(arrays, rest)"),
    ("equinox", True): ("params, rest = eqx.partition(model, eqx.is_inexact_array)",
                        "model = eqx.combine(params, rest)"),
}  # fmt: skip
_TITLES = {"flax.nnx": "Flax NNX", "equinox": "Equinox"}


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
    homes = [f"{base.__module__}." for base in type(node).__mro__ if base.__name__ in ("Module", "State")]
    return next((name for name in _TITLES if any(home.startswith(f"{name}.") for home in homes)), "")
