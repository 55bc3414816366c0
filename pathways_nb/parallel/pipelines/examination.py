"""Examines a pipeline: whether its stages and its loss give the whole batch's loss from microbatches and token slices.

The stages are walked one after the other, each traced alone; equal stages share their traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex

from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary
from pathways_nb.parallel.batch_walk.examine import (
    PARAMETER,
    Examined,
    Walked,
    judged,
    marks_of,
    resized,
    sizes_of,
    walked,
)
from pathways_nb.parallel.batch_walk.marks import FIXED, Reason
from pathways_nb.parallel.batch_walk.mean import count_means
from pathways_nb.parallel.batch_walk.operation import Axis
from pathways_nb.parallel.batch_walk.verdicts import ONE_PART
from pathways_nb.parallel.pipelines.context import Context
from pathways_nb.util.primitives import RANDOM


@dataclass(frozen=True)
class Batch:
    """What a pipeline is called with, as shapes.

    Args:
        params: of each stage.
        x: the input, of one microbatch on one device.
        targets: what the loss compares with.
        key: for dropout, or ``None``.
        length: tokens of the sequences; 0 if no stage asks.
        unsliced: for each leaf of ``x``, whether all slices get the whole of it.
    """

    params: Sequence[Any]
    x: Any
    targets: Any
    key: Any
    length: int
    unsliced: Any


@dataclass(eq=False)
class Examination:
    """What examines the stages and the loss of one pipeline.

    Args:
        calls: the stages, as ``call(params, x, key, context)``.
        loss: ``loss(y, targets)``, which returns the value and the auxiliary outputs.
        name: of the loss.
        inside: returns the context in which a stage is traced.
        rows_split: whether rows are split into microbatches or over devices.
        slices: tokens of each slice, if there are several.
        explain: adds to an error of a stage what it was given.
        aux: how auxiliary outputs are joined, as the user says.
        check: whether the loss must be a mean over what is split.
    """

    calls: Sequence[Callable[..., Any]]
    loss: Callable[..., Any]
    name: str
    inside: Callable[[int], AbstractContextManager[None]]
    rows_split: bool
    slices: tuple[int, ...] | None
    explain: Callable[[Exception, int, Any], None]
    aux: Any
    check: bool
    traces: dict[Any, Any] = field(default_factory=dict)

    def examine(self, batch: Batch) -> Examined:
        """Return what is known of the loss.

        Raises:
            UsageError: it is no mean over what is split, or it is unknown how an auxiliary output is joined.
        """
        rows = next((leaf.shape[0] for leaf in jax.tree.leaves((batch.x, batch.targets)) if leaf.shape), 1)
        axes = [Axis("rows", sizes_of(rows))] if self.rows_split else []
        if self.slices is not None and len(self.slices) > 1:
            tokens = max(2, batch.length // 4)
            axes.append(Axis("tokens", (tokens, 2 * tokens), (tokens, 2 * tokens)))
        if not axes:
            return Examined((ONE_PART,), (Auxiliary("mean"),) * len(jax.tree.leaves(self._outputs(batch)[1])))
        found = [self._along(axis, batch) for axis in axes]
        outputs = next((one.shapes[0] for one in found if isinstance(one, Walked)), None) or self._outputs(batch)
        return judged("pipeline", self.name, axes, found, outputs, self.aux, self.check)

    @property
    def means(self) -> int:
        """How often the loss calls ``pw.mean``."""
        traced = (trace for (fn, *_), trace in self.traces.items() if fn is self.loss and not isinstance(trace, Reason))
        return max((count_means(closed) for closed, _ in traced), default=0)

    def _outputs(self, batch: Batch) -> Any:
        """Return the shapes of the loss and its auxiliary outputs, of one microbatch with whole sequences."""
        y = self.output(batch)
        with self.inside(len(self.calls) - 1):
            return jax.eval_shape(self.loss, y, batch.targets)

    def output(self, batch: Batch) -> Any:
        """Return the shapes of the model's output, of one microbatch with whole sequences."""
        y, context = batch.x, Context(0, *[batch.length] * 3)
        for stage, call in enumerate(self.calls):
            try:
                with self.inside(stage):
                    y = jax.eval_shape(functools.partial(call, tokens=context), batch.params[stage], y, batch.key)
            except Exception as error:
                self.explain(error, stage, y)
                raise
        return y

    def _along(self, axis: Axis, batch: Batch) -> Walked | Reason:
        """Return what is known of the loss and its auxiliary outputs along rows or tokens."""
        at = 0 if axis.name == "rows" else 1
        sliced = jax.tree.map(lambda whole: not whole, batch.unsliced) if at else jax.tree.map(lambda _: True, batch.x)

        def sized(tree: Any, size: int, which: Any) -> Any:
            return jax.tree.map(lambda leaf, moves: resized(leaf, at, size) if moves else leaf, tree, which)

        targets = jax.tree.map(lambda _: True, batch.targets)
        made: Any = [sized(batch.x, size, sliced) for size in axis.sizes]
        marks = jax.tree.map(lambda leaf, moves: marks_of(leaf, at) if moves else FIXED, batch.x, sliced)
        for stage, call in enumerate(self.calls):
            contexts = [self._context(axis, side, batch.length) for side in (0, 1)]
            given = [(batch.params[stage], y, batch.key, context) for y, context in zip(made, contexts, strict=True)]
            known = (
                jax.tree.map(lambda _: PARAMETER, batch.params[stage]),
                marks,
                jax.tree.map(lambda _: FIXED, batch.key),
            )
            found = walked(call, axis, given, known, self.inside(stage), self.traces)
            if isinstance(found, Reason):
                return found
            made = found.shapes
            marks = jax.tree.unflatten(jax.tree.structure(made[0]), found.marks)
        compared = [sized(batch.targets, size, targets) for size in axis.sizes]
        pairs = list(zip(made, compared, strict=True))
        last = self.inside(len(self.calls) - 1)
        return walked(self.loss, axis, pairs, (marks, marks_of(batch.targets, at)), last, self.traces)

    def _context(self, axis: Axis, side: int, length: int) -> Context:
        if axis.name == "rows":
            return Context(0, length, length, length)
        tokens = axis.sizes[side]
        return Context(axis.offsets[side], tokens, 2 * tokens, 4 * tokens)

    @property
    def draws(self) -> bool:
        """Whether a stage or the loss draws random numbers, so that parts draw others than the whole."""
        return any(_draws(trace[0].jaxpr) for trace in self.traces.values() if not isinstance(trace, Reason))


def _draws(jaxpr: Any) -> bool:
    """Return whether a jaxpr draws random numbers, at any depth."""
    return any(
        eqn.primitive.name in RANDOM or any(map(_draws, jex.jaxprs_in_params(eqn.params)))
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns
    )
