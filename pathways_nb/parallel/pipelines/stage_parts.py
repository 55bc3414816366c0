"""The parts of one stage: F, B, I and W, cut from one trace of its forward and backward pass.

The stage is traced together with its backward pass by JAX (``jax.vjp``), as one flat list of operations. F is what does
not depend on the gradient that arrives, B the rest; I is what the gradient by the stage's input needs of B, and W what
is left. All parts number values alike, so what a part reads is found by its number among what earlier parts made.

The last stage contains the loss. Its gradient begins with 1, and each microbatch and token slice counts by its share of
the batch and of the tokens, so that losses and gradients add up to those of the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.jaxpr.flat import alive
from pathways_nb.parallel.pipelines.context import Context
from pathways_nb.parallel.pipelines.cutting import Cutter
from pathways_nb.parallel.pipelines.operations import FlatFunction, Runnable, makers, reads
from pathways_nb.parallel.pipelines.scan_splitting import split_scans
from pathways_nb.parallel.pipelines.stored_context import with_store


@dataclass(frozen=True)
class TokenSlice:
    """Where a token slice lies in its sequence; of sequences that are not sliced, ``index`` is 0 of 1."""

    index: int
    count: int
    offset: int
    tokens: int
    length: int

    @property
    def anywhere(self) -> TokenSlice:
        """A slice of as many tokens whose offset is an input, so that one executable serves all of them."""
        return TokenSlice(1, 3, 0, self.tokens, self.length)

    @property
    def is_first(self) -> bool:
        """Whether no tokens come before it."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether no tokens come after it."""
        return self.index == self.count - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inputs:
    """What a stage reads for one microbatch and slice, each as a tree of arrays or shapes.

    Args:
        params: its parameters.
        x: its input.
        targets: what the loss compares with; only of the last stage.
        key: for dropout, or ``None``.
        store: keys and values of the tokens before.
        offset: of the slice, integers of shape (1,), if its stage reads the whole store; else ``None``.
    """

    params: Any
    x: Any
    targets: Any = None
    key: Any = None
    store: Any = None
    offset: Any = None


class Part(NamedTuple):
    """One of F, B, I, W as a function from the arrays of ``inputs`` to a list of arrays for ``outputs``."""

    function: Callable[..., list[Any]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class StageParts:
    """One traced stage.

    Args:
        flat: all its operations.
        inputs: the values of what it reads.
        arriving: the values of the gradients that arrive: by the stage's output, and by its store.
        outputs: by name, the values of the results: ``y``, ``store``, ``loss``, ``aux`` of the forward pass, ``dx``,
            ``dstore`` and ``dparams`` of the backward pass.
        trees: by name, the trees of ``y`` and ``aux``; of the ``store``, the number of dimensions of each array that
            come before the batch.
    """

    flat: FlatFunction
    inputs: Mapping[str, tuple[int, ...]]
    arriving: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    trees: Mapping[str, Any]

    @cached_property
    def forward(self) -> Part:
        """F: the output, the loss, and what the backward pass reads."""
        outputs = dict.fromkeys(v for name in ("y", "store", "loss", "aux") for v in self.outputs[name])
        outputs |= dict.fromkeys(v for v in self._backward_cut.kept if v in makers(self._ops_before))
        return self._part(self._ops_before, tuple(outputs))

    @cached_property
    def backward(self) -> Part:
        """B: both gradients at once."""
        return self._part(self._backward_cut.ops, self._first_outputs + self.outputs["dparams"])

    @cached_property
    def input_gradient(self) -> Part:
        """I: the gradient by the input, and what W reads of it.

        The first stage has no gradient by its input. Its I passes on the gradient that arrives, so that all its work
        can be delayed until W.
        """
        first, _, cut = self._split
        made = {v for op in first for v in op.outputs}
        outputs = self._first_outputs + tuple(v for v in cut.kept if v in made)
        return self._part(first, tuple(dict.fromkeys(outputs or self.arriving["y"])))

    @cached_property
    def weight_gradient(self) -> Part:
        """W: the gradient by the parameters, from what I left."""
        return self._part(self._split[2].ops, self.outputs["dparams"])

    @property
    def _free(self) -> set[int]:
        """Values that are there whenever a part of the backward pass runs: parameters, and the finished store."""
        return {*self.inputs["params"], *self.outputs["store"]}

    @property
    def _first_outputs(self) -> tuple[int, ...]:
        return self.outputs["dx"] + self.outputs["dstore"]

    @property
    def _of_first(self) -> tuple[int, ...]:
        """What I makes: the gradient by the input; all if the stage is a whole model and neither gets nor sends one."""
        alone = not (self._first_outputs or self.arriving["y"])
        return self.outputs["dparams"] if alone else self._first_outputs

    @cached_property
    def _ops_after(self) -> list[Runnable]:
        """The operations that depend on a gradient that arrives, or on the 1 with which the last stage's begins."""
        found, after = list[Runnable](), {v for values in self.arriving.values() for v in values}
        for op in self.flat.ops:
            if not after.isdisjoint(op.inputs):
                after.update(op.outputs)
                found.append(op)
        return found

    @cached_property
    def _ops_before(self) -> list[Runnable]:
        after = set(self._ops_after)
        return [op for op in self.flat.ops if op not in after]

    @cached_property
    def _backward_cut(self) -> Any:
        outputs = self._first_outputs + self.outputs["dparams"]
        return Cutter(self.flat, self._free).cut(self._ops_before, self._ops_after, outputs)

    @cached_property
    def _split_ops(self) -> list[Runnable]:
        """The backward pass with calls inlined and scans split, so that it can be cut between its operations."""
        inlined = list(self.flat.inlined(self._backward_cut.ops))
        return split_scans(self.flat, inlined, self._of_first)

    @cached_property
    def _split(self) -> tuple[list[Runnable], list[Runnable], Any]:
        """The operations of I, those that are left, and the cut between them."""
        first = list(alive(self._split_ops, self._of_first))
        mine = set(first)
        rest = [op for op in self._split_ops if op not in mine]
        return first, rest, Cutter(self.flat, self._free).cut(first, rest, self.outputs["dparams"])

    def _part(self, ops: Sequence[Runnable], outputs: tuple[int, ...]) -> Part:
        used = alive(ops, outputs)
        made = {v for op in used for v in op.outputs}
        wanted = dict.fromkeys([*reads(used), *(v for v in outputs if v not in made)])
        inputs = tuple(v for v in wanted if v not in self.flat.constants)
        return Part(self.flat.function(used, inputs, outputs), inputs, outputs)


def trace_stage(
    call: Callable[..., Any], shapes: Inputs, at: TokenSlice, loss: Callable[..., Any] | None, share: float,
    by_input: bool,
) -> StageParts:  # fmt: skip
    """Trace a stage with its backward pass.

    Args:
        call: ``call(params, x, key, context)`` returns the stage's output.
        shapes: what it reads, as ``jax.ShapeDtypeStruct``.
        at: its token slice.
        loss: of the last stage, ``loss(y, targets)``, which returns the loss and auxiliary outputs; else ``None``.
        share: weight of this microbatch and slice in the loss.
        by_input: whether the gradient by the stage's input is wanted.

    Returns:
        The stage's parts.
    """
    trees: dict[str, Any] = {}

    def forward(inputs: Inputs) -> tuple[Any, list[Any], Any, Any]:
        """Return the output, the store, the loss and the auxiliary outputs."""
        y, store, depths = _called(call, inputs, at)
        value, aux = (None, None) if loss is None else loss(y, inputs.targets)
        y, value = (y, None) if value is None else (None, value * share)
        trees.update(y=jax.tree.structure(y), aux=jax.tree.structure(aux), store=depths)
        return y, store, value, aux

    def joint(inputs: Inputs, seed: Any, dy: list[Any], dstore: list[Any]) -> dict[str, list[Any]]:
        params, join_params = _varied(inputs.params)
        x, join_x = _varied(inputs.x) if by_input else ([], lambda _: inputs.x)

        def primal(params: list[Any], x: list[Any], store: Any) -> Any:
            given = replace(inputs, params=join_params(params), x=join_x(x), store=store)
            y, made, value, aux = forward(given)
            return (_varied(y)[0], made, [] if value is None else [value]), (y, aux)

        (_, made, value), pull, (y, aux) = jax.vjp(primal, params, x, inputs.store, has_aux=True)
        dparams, dx, dstore_in = pull((dy, dstore or list(map(jnp.zeros_like, made)), [seed] if value else []))
        found = {"y": y, "store": made, "loss": value, "aux": aux, "dx": dx, "dstore": dstore_in, "dparams": dparams}
        return {name: jax.tree.leaves(tree) for name, tree in found.items()}

    y, made, value, _ = jax.eval_shape(forward, shapes)
    seed = jax.ShapeDtypeStruct((), jnp.float32 if value is None else value.dtype)
    arriving = (seed, _varied(y)[0], [] if at.is_last else made)
    closed, outputs = jax.make_jaxpr(joint, return_shape=True)(shapes, *arriving)
    flat = FlatFunction.of(closed)
    names = [field.name for field in fields(Inputs)]
    *given, (one,), dy, dstore = _grouped(flat.inputs, (*(getattr(shapes, name) for name in names), *arriving))
    flat.constants[one] = np.ones((), seed.dtype)
    inputs = dict(zip(names, given, strict=True))
    names = sorted(outputs)
    results = dict(zip(names, _grouped(flat.outputs, [outputs[name] for name in names]), strict=True))
    return StageParts(flat, inputs, {"loss": (one,), "y": dy, "store": dstore}, results, trees)


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


def _varied(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the leaves of a tree that have gradients, and a function that puts others in their place."""
    leaves, structure = jax.tree.flatten(tree)
    at = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]

    def join(varied: list[Any]) -> Any:
        new = dict(zip(at, varied, strict=True))
        return jax.tree.unflatten(structure, [new.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [leaves[i] for i in at], join


def _grouped(values: Sequence[int], trees: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return values in groups of as many as each tree has leaves."""
    left = iter(values)
    return [tuple(itertools.islice(left, len(jax.tree.leaves(tree)))) for tree in trees]
