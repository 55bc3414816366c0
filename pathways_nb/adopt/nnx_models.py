"""Models, optimizers and other objects of Flax NNX among arguments: what they share, and what a step changes in them.

As trees they would lose that two of their parts are one, as tied weights are; so what is shared is kept beside the
tree, and restored in each copy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pathways_nb.errors import UsageError


@dataclass(frozen=True)
class Sharing:
    """What objects of Flax NNX share.

    Args:
        graph: of all objects among the arguments, as Flax describes it.
        state: the tree of their variables, each once.
        positions: of those among the leaves of the arguments.
        repeated: positions of leaves that stand before as well; with those positions.
    """

    graph: Any
    state: Any
    positions: tuple[int, ...]
    repeated: tuple[tuple[int, int], ...]

    def restored(self, tree: Any, leaves: Sequence[Any]) -> Any:
        """Return arguments whose objects share what those of the call do.

        Args:
            tree: of the arguments.
            leaves: of it.
        """
        nnx = sys.modules["flax.nnx"]
        state = jax.tree.unflatten(self.state, [leaves[at] for at in self.positions])
        models = iter(nnx.merge(self.graph, state))
        is_model = _is_model(nnx)
        return jax.tree.map(lambda node: next(models) if is_model(node) else node, tree, is_leaf=is_model)


def sharing_of(tree: Any) -> Sharing | None:
    """Return what the objects in a tree share; None if that is nothing.

    Raises:
        UsageError: they share what is no variable.
    """
    if not (models := models_in(tree)):
        return None
    nnx = sys.modules["flax.nnx"]
    is_model = _is_model(nnx)
    first, positions, repeated, at = dict[int, int](), list[int](), list[tuple[int, int]](), 0
    for node in jax.tree.leaves(tree, is_leaf=is_model):
        # A variable may be an argument itself.
        for part in jax.tree.leaves(node, is_leaf=lambda one: isinstance(one, nnx.Variable)) if is_model(node) else ():
            count = len(jax.tree.leaves(part))
            start = first.setdefault(id(part), at) if isinstance(part, nnx.Variable) else at
            if start == at:
                positions += range(at, at + count)
            else:
                repeated += [(at + number, start + number) for number in range(count)]
            at += count
        at += 0 if is_model(node) else 1
    if not repeated:
        return None
    graph, state = nnx.split(tuple(models))
    leaves, structure = jax.tree.flatten(state)
    if len(leaves) != len(positions):
        raise UsageError("adopt: objects of Flax NNX share arrays that are in no variable. Keep them as nnx.Variable.")
    return Sharing(graph, structure, tuple(positions), tuple(repeated))


def models_in(tree: Any) -> list[Any]:
    """Return the models, optimizers and other objects of Flax NNX in a tree."""
    nnx = sys.modules.get("flax.nnx")  # whoever has a model of it has imported it
    return [] if nnx is None else [*filter(_is_model(nnx), jax.tree.leaves(tree, is_leaf=_is_model(nnx)))]


def _is_model(nnx: Any) -> Any:
    return lambda node: isinstance(node, (nnx.Pytree, nnx.Variable))


def check_models(tree: Any) -> None:
    """Check that what a step changes in place can be changed from here.

    Raises:
        UsageError: it is no object of Flax NNX.
    """
    if not models_in(tree):
        raise UsageError(
            "the step changes its arguments in place, and they are no objects of Flax NNX. Return what it changes."
        )


def give_back(given: Any, changed: Any) -> None:
    """Change objects of Flax NNX as the step has changed their copies."""
    nnx = sys.modules["flax.nnx"]
    for old, new in zip(models_in(given), models_in(changed), strict=True):
        nnx.update(old, nnx.state(new))
