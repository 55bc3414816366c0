"""Examines a pipeline: whether its stages and its loss give the whole batch's loss from microbatches and token slices.

The stages are walked one after the other, each traced alone; equal stages share their traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax

from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis
from pathways_nb.parallel.batch_walk.examine import (
    KEY,
    PARAMETER,
    Examined,
    Walked,
    draws,
    judged,
    marks_of,
    resized,
    sizes_of,
    trace_key,
    walked,
)
from pathways_nb.parallel.batch_walk.marks import FIXED, Reason
from pathways_nb.parallel.batch_walk.mean import count_means
from pathways_nb.parallel.pipelines.stored_context import refuse_lost_appends
from pathways_nb.parallel.pipelines.token_context import Context


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
        parts: into how many microbatches, and over how many devices, rows are split.
        slices: tokens of each slice, if there are several.
        explain: adds to an error of a stage what it was given.
        aux: how auxiliary outputs are joined, as the user says.
        check: whether the loss must be a mean over what is split.
    """

    calls: Sequence[Callable[..., Any]]
    loss: Callable[..., Any]
    name: str
    inside: Callable[[int], AbstractContextManager[None]]
    parts: int
    slices: tuple[int, ...] | None
    explain: Callable[[Exception, int, Any], None]
    aux: Any
    check: bool

    def examine(self, batch: Batch) -> Examined:
        """Return what is known of the loss.

        Raises:
            UsageError: it is no mean over what is split, or it is unknown how an auxiliary output is joined.
        """
        rows = next((leaf.shape[0] for leaf in jax.tree.leaves((batch.x, batch.targets)) if leaf.shape), 1)
        axes = [WalkedAxis("rows", sizes_of(rows, self.parts))] if self.parts > 1 else []
        if self.slices is not None and len(self.slices) > 1:
            # The second of four slices at two scales, so with tokens before and after it: offset, length and context
            # all double from one trace to the other.
            tokens = max(2, batch.length // 4)
            axes.append(WalkedAxis("tokens", (tokens, 2 * tokens), (tokens, 2 * tokens)))
        traces: dict[Any, Any] = {}
        found = [self._along(axis, batch, traces) for axis in axes]
        # Walked along rows or tokens, the loss was traced already; else it is traced for its outputs alone.
        shapes = [one.shapes[0] for one in found if isinstance(one, Walked)]
        if shapes:
            outputs = shapes[0]
        else:
            given = self.output(batch), batch.targets
            with self.inside(len(self.calls) - 1):
                trace = jax.make_jaxpr(self.loss, return_shape=True)(*given)
            traces[trace_key(self.loss, given)], outputs = trace, trace[1]
        closed = [trace[0] for trace in traces.values() if not isinstance(trace, Reason)]
        of_loss = [trace[0] for key, trace in traces.items() if key[0] is self.loss and not isinstance(trace, Reason)]
        means, random = max(map(count_means, of_loss)), draws(closed)
        if not axes:
            return Examined.of_one_part(outputs[1], means, random)
        verdicts, joins = judged("pipeline", self.name, axes, found, outputs, self.aux, self.check)
        return Examined(tuple(axes), verdicts, joins, jax.tree.structure(outputs[1]), means, random)

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

    def _along(self, axis: WalkedAxis, batch: Batch, traces: dict[Any, Any]) -> Walked | Reason:
        """Return what is known of the loss and its auxiliary outputs along rows or tokens."""
        at = 0 if axis.name == "rows" else 1
        sliced = jax.tree.map(lambda whole: not whole, batch.unsliced) if at else jax.tree.map(lambda _: True, batch.x)

        def sized(size: int) -> Any:
            return jax.tree.map(lambda leaf, moves: resized(leaf, at, size) if moves else leaf, batch.x, sliced)

        if at:
            contexts = [Context(first, size, 2 * size, 4 * size)
                        for first, size in zip(axis.offsets, axis.sizes, strict=True)]  # fmt: skip
        else:
            contexts = [Context(0, *[batch.length] * 3)] * 2
        made: Any = list(map(sized, axis.sizes))
        marks = jax.tree.map(lambda leaf, moves: marks_of(leaf, at) if moves else FIXED, batch.x, sliced)
        for stage, call in enumerate(self.calls):
            given = [(batch.params[stage], y, batch.key, context) for y, context in zip(made, contexts, strict=True)]
            known = (
                jax.tree.map(lambda _: PARAMETER, batch.params[stage]),
                marks,
                jax.tree.map(lambda _: KEY, batch.key),
            )
            found = walked(call, axis, given, known, self.inside(stage), traces)
            for key, trace in traces.items():
                if at and key[0] is call and not isinstance(trace, Reason):
                    # Only token slices have a store: whole sequences may append anywhere.
                    refuse_lost_appends(trace[0])
            if isinstance(found, Reason):
                return found
            made = found.shapes
            marks = jax.tree.unflatten(jax.tree.structure(made[0]), found.marks)
        compared = [resized(batch.targets, at, size) for size in axis.sizes]
        pairs = list(zip(made, compared, strict=True))
        last = self.inside(len(self.calls) - 1)
        return walked(self.loss, axis, pairs, (marks, marks_of(batch.targets, at)), last, traces)
