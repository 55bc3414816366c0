"""The parts of one stage: F, B, I and W, cut from one trace of its forward and backward pass.

A stage is traced together with its backward pass as one flat list of operations (``stage_trace``). F is what does
not depend on the gradient that arrives, B the rest; I is what the gradient by the stage's input needs of B, and W what
is left. All parts number values alike, so what a part reads is found by its number among what earlier parts made.

The last stage contains the loss. Its gradient begins with 1, and each microbatch and token slice counts by its share of
the batch and of the tokens, so that losses and gradients add up to those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax

from pathways_nb.jaxpr.flat import alive
from pathways_nb.parallel.flat_function import FlatFunction, Runnable, makers, reads
from pathways_nb.parallel.pipelines.cutting import Cutter
from pathways_nb.parallel.pipelines.scan_splitting import split_scans


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
        # Neither first nor last: it reads a store, and gradients of its store arrive.
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
        counts: the number by which each ``pw.mean`` of the loss divides, over the whole batch; only of the last stage.
    """

    params: Any
    x: Any
    targets: Any = None
    key: Any = None
    store: Any = None
    offset: Any = None
    counts: Any = None


class StagePart(NamedTuple):
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
    def forward(self) -> StagePart:
        """F: the output, the loss, and what the backward pass reads."""
        outputs = dict.fromkeys(v for name in ("y", "store", "loss", "aux") for v in self.outputs[name])
        # Of what the backward pass keeps, F returns what it makes; its inputs are there already.
        outputs |= dict.fromkeys(v for v in self._backward_cut.kept if v in makers(self._ops_before))
        return self._part(self._ops_before, tuple(outputs))

    @cached_property
    def backward(self) -> StagePart:
        """B: both gradients at once."""
        return self._part(self._backward_cut.ops, self._first_outputs + self.outputs["dparams"])

    @cached_property
    def input_gradient(self) -> StagePart:
        """I: the gradient by the input, and what W reads of it.

        The first stage has no gradient by its input. Its I passes on the gradient that arrives, so that all its work
        can be delayed until W.
        """
        first, _, cut = self._split
        made = {v for op in first for v in op.outputs}
        outputs = self._first_outputs + tuple(v for v in cut.kept if v in made)
        return self._part(first, tuple(dict.fromkeys(outputs or self.arriving["y"])))

    @cached_property
    def weight_gradient(self) -> StagePart:
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
        # One pass is enough: operations come after those whose results they read.
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
        # A jitted block or a checkpoint is one operation, which would be wholly part of I.
        inlined = list(self.flat.inlined(self._backward_cut.ops))
        return split_scans(self.flat, inlined, self._of_first)

    @cached_property
    def _split(self) -> tuple[list[Runnable], list[Runnable], Any]:
        """The operations of I, those that are left, and the cut between them."""
        # I is only what the gradient by the input needs, so that it leaves the device as soon as possible.
        first = list(alive(self._split_ops, self._of_first))
        chosen = set(first)
        rest = [op for op in self._split_ops if op not in chosen]
        return first, rest, Cutter(self.flat, self._free).cut(first, rest, self.outputs["dparams"])

    def _part(self, ops: Sequence[Runnable], outputs: tuple[int, ...]) -> StagePart:
        used = alive(ops, outputs)
        made = {v for op in used for v in op.outputs}
        wanted = dict.fromkeys([*reads(used), *(v for v in outputs if v not in made)])
        inputs = tuple(v for v in wanted if v not in self.flat.constants)
        return StagePart(self.flat.function(used, inputs, outputs), inputs, outputs)
