"""Trees of parameters: names and shapes of their leaves, and which of them an argument such as ``frozen=`` names.

Pipelines, SimpleFSDP and their optimizers' states share it; ``fsdp.sharded_parameter`` says how one is split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves_with_path

from pathways_nb.errors import UsageError, did_you_mean

_SHOWN = 8
"""Names in the text of an error."""


def name_of(path: Sequence[Any]) -> str:
    """Return the name of a leaf from its path in a tree, such as ``layers.0.wq``."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator=".") or "params"


def names_of(tree: Any) -> list[str]:
    """Return the names of the leaves of a tree, in order."""
    return [name_of(path) for path, _ in tree_leaves_with_path(tree)]


def struct_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and type of an array, a number or a future."""
    # Canonical, as JAX would make it: a NumPy array of float64 is float32 to a program, unless x64 is enabled.
    return jax.ShapeDtypeStruct(
        jnp.shape(leaf), jax.dtypes.canonicalize_dtype(jnp.result_type(leaf), allow_extended_dtype=True)
    )


def truths(where: str, argument: str, of: str, tree: Any, given: Any) -> list[bool]:
    """Return a truth value of each leaf of a tree, from a function of its name or a tree; without either, false.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        argument: name of the argument.
        of: name of the tree.
        tree: parameters or another tree.
        given: the argument.

    Raises:
        UsageError: it is of neither form.
    """
    if given is None:
        return [False] * len(jax.tree.leaves(tree))
    if callable(given):
        return [bool(given(name)) for name in names_of(tree)]
    usage = f'Give a tree of truth values like {of}, or a function of a name: lambda name: "embed" in name.'
    for leaf in jax.tree.leaves(given):
        if np.asarray(leaf).dtype != bool:
            raise UsageError(f"{where}: {argument}={given!r} has {leaf!r}, which is no truth value. {usage}")
    try:
        # A prefix says it of everything below: frozen={"encoder": True, "head": False}.
        return [bool(one) for one in jax.tree.leaves(jax.tree.broadcast(given, tree))]
    except ValueError:
        raise UsageError(
            f"{where}: {argument} has the form {jax.tree.structure(given)}, but {of} has {jax.tree.structure(tree)}. "
            f"{usage}"
        ) from None


def require_match(where: str, argument: str, of: str, names: Sequence[str], given: Any, chosen: Iterable[bool]) -> None:
    """Require that a function of a name chooses at least one leaf.

    Args:
        where: ``"fsdp"`` or ``"pipeline"``, for errors.
        argument: name of the argument.
        of: name of the tree.
        names: of its leaves.
        given: the argument; of other forms nothing is required.
        chosen: for each leaf whether it is chosen.

    Raises:
        UsageError: it chooses none; leaves with names like those in the function's code are named.
    """
    if not callable(given) or not names or any(chosen):
        return
    # What the function compares with is most likely a name that was misspelt.
    parts = list(dict.fromkeys([*names, *(part for name in names for part in name.split("."))]))
    near = next(filter(None, (did_you_mean(word, parts) for word in _words(given))), "")
    raise UsageError(
        f"{where}: {argument}= is true of no name in {of}, so it has no effect.{near} The names are "
        f"{', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}. Compare with these, or leave it out."
    )


def _words(given: Callable[..., Any]) -> list[str]:
    """Return the texts with which a function may compare a name."""
    code = getattr(given, "__code__", None)
    consts: Iterable[Any] = code.co_consts if code is not None else ()
    cells = (cell.cell_contents for cell in getattr(given, "__closure__", None) or ())
    return [word for word in (*consts, *cells) if isinstance(word, str)]


def only_trainable(old: Any, new: Any, wanted: Sequence[bool]) -> Any:
    """Return the new parameters, with the old ones of those that are not trained."""
    leaves, tree = jax.tree.flatten(old)
    pairs = zip(leaves, jax.tree.leaves(new), wanted, strict=True)
    return jax.tree.unflatten(tree, [after if trained else before for before, after, trained in pairs])
