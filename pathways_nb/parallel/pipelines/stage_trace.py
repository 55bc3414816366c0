"""Traces a stage with its backward pass, as one flat list of operations that ``stage_parts`` cuts.

JAX differentiates it (``jax.vjp``). The last stage contains the loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.parallel.flat_function import FlatFunction
from pathways_nb.parallel.pipelines.stage_parts import Inputs, StageParts, TokenSlice
from pathways_nb.parallel.pipelines.stored_context import with_store
from pathways_nb.parallel.pipelines.token_context import Context


def trace_stage(
    call: Callable[..., Any], shapes: Inputs, at: TokenSlice, loss: Callable[..., Any] | None, share: float,
    by_input: bool, trained: Sequence[bool] | None = None,
) -> StageParts:  # fmt: skip
    """Trace a stage with its backward pass.

    Args:
        call: ``call(params, x, key, context)`` returns the stage's output.
        shapes: what it reads, as ``jax.ShapeDtypeStruct``.
        at: its token slice.
        loss: of the last stage, ``loss(y, targets, counts)``, which returns the loss and auxiliary outputs; else
            ``None``.
        share: weight of this microbatch and slice in the loss.
        by_input: whether the gradient by the stage's input is wanted.
        trained: of each parameter whether its gradient is wanted; by default of all.

    Returns:
        The stage's parts.
    """
    stage = _Stage(call, at, loss, share, by_input, trained)
    # Shapes first: the gradients that arrive are inputs of the trace, and have the shapes of output and store.
    y, made, value, _ = jax.eval_shape(stage.forward, shapes)
    seed = jax.ShapeDtypeStruct((), jnp.float32 if value is None else value.dtype)
    # No slice follows the last one, so no gradient of its keys and values arrives.
    arriving = (seed, _varied(y)[0], [] if at.is_last else made)
    closed, outputs = jax.make_jaxpr(stage.both, return_shape=True)(shapes, *arriving)
    return _numbered(FlatFunction.of(closed), shapes, arriving, outputs, stage.trees)


@dataclass(frozen=True)
class _Stage:
    """A stage as functions of its inputs; the arguments are those of ``trace_stage``."""

    call: Callable[..., Any]
    at: TokenSlice
    loss: Callable[..., Any] | None
    share: float
    by_input: bool
    trained: Sequence[bool] | None = None
    trees: dict[str, Any] = field(default_factory=dict)
    """What the last trace found; see ``StageParts``."""

    def forward(self, inputs: Inputs) -> tuple[Any, list[Any], Any, Any]:
        """Return the output, the store, the loss and the auxiliary outputs."""
        y, store, depths = _called(self.call, inputs, self.at)
        value, aux = (None, None) if self.loss is None else self.loss(y, inputs.targets, inputs.counts)
        y, value = (y, None) if value is None else (None, value * self.share)
        self.trees.update(y=jax.tree.structure(y), aux=jax.tree.structure(aux), store=depths)
        return y, store, value, aux

    def both(self, inputs: Inputs, seed: Any, dy: list[Any], dstore: list[Any]) -> dict[str, list[Any]]:
        """Return the results of both passes, by name; those of the backward pass from the gradients that arrive."""
        params, join_params = _varied(inputs.params, self.trained)
        x, join_x = _varied(inputs.x) if self.by_input else ([], lambda _: inputs.x)

        def primal(params: list[Any], x: list[Any], store: Any) -> Any:
            given = replace(inputs, params=join_params(params), x=join_x(x), store=store)
            y, made, value, aux = self.forward(given)
            return (_varied(y)[0], made, [] if value is None else [value]), (y, aux)

        (_, made, value), pull, (y, aux) = jax.vjp(primal, params, x, inputs.store, has_aux=True)
        # One backward pass for all three gradients: the parts are cut from it, so that none is computed twice.
        dparams, dx, dstore_in = pull((dy, dstore or list(map(jnp.zeros_like, made)), [seed] if value else []))
        found = {"y": y, "store": made, "loss": value, "aux": aux, "dx": dx, "dstore": dstore_in, "dparams": dparams}
        return {name: jax.tree.leaves(tree) for name, tree in found.items()}


def _numbered(
    flat: FlatFunction, shapes: Inputs, arriving: Sequence[Any], outputs: dict[str, Any], trees: dict[str, Any]
) -> StageParts:
    """Return the parts of a trace, whose inputs and outputs are known by name."""
    names = [one.name for one in fields(Inputs)]
    *given, (one,), dy, dstore = _grouped(flat.inputs, (*(getattr(shapes, name) for name in names), *arriving))
    # The gradient of the loss by itself: a constant, so that no executable has it as an input.
    flat.constants[one] = np.ones((), arriving[0].dtype)
    # JAX returns dictionaries in the order of their keys.
    results = sorted(outputs)
    made = dict(zip(results, _grouped(flat.outputs, [outputs[name] for name in results]), strict=True))
    given_by_name = dict(zip(names, given, strict=True))
    return StageParts(flat, given_by_name, {"loss": (one,), "y": dy, "store": dstore}, made, trees)


def _called(call: Callable[..., Any], inputs: Inputs, at: TokenSlice) -> tuple[Any, list[Any], list[int]]:
    """Return the output of a stage, its store, and the number of dimensions before the batch of each array in it."""
    if at.count == 1:
        return call(inputs.params, inputs.x, inputs.key, Context(0, at.length, at.length, at.length)), [], []

    def sliced(params: Any, x: Any, key: Any, offset: Any) -> Any:
        if offset is None:
            return call(params, x, key, Context(at.offset, at.tokens, at.offset + at.tokens, at.length))
        return call(params, x, key, Context(offset[0], at.tokens, at.length, at.length))

    arguments = inputs.params, inputs.x, inputs.key, inputs.offset
    return with_store(sliced, arguments, None if at.is_first else inputs.store)


def _varied(tree: Any, wanted: Sequence[bool] | None = None) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the leaves of a tree that have gradients, and a function that puts others in their place."""
    leaves, structure = jax.tree.flatten(tree)
    # Integers, such as tokens and positions, have no gradient, and ``jax.vjp`` refuses to differentiate by them.
    inexact = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    at = inexact if wanted is None else [i for i in inexact if wanted[i]]

    def join(varied: list[Any]) -> Any:
        new = dict(zip(at, varied, strict=True))
        return jax.tree.unflatten(structure, [new.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [leaves[i] for i in at], join


def _grouped(values: Sequence[int], trees: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return values in groups of as many as each tree has leaves."""
    left = iter(values)
    return [tuple(itertools.islice(left, len(jax.tree.leaves(tree)))) for tree in trees]
