"""Times the forward and backward pass of one stage on token slices, on the attached devices.

A slice is timed as a pipeline runs it: as a program of its F and its B, with keys and values of the tokens before it
in the shared store. The time is that of its launches in the record, so the host's work for a call does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.parallel.pipelines.execution import zero_sums
from pathways_nb.parallel.pipelines.stage_calls import as_call
from pathways_nb.parallel.pipelines.stage_computations import StageComputations, StagePlacement
from pathways_nb.parallel.pipelines.stage_parts import Inputs, TokenSlice
from pathways_nb.parallel.pipelines.stage_trace import trace_stage
from pathways_nb.plan.graph import ActionKey
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context
from pathways_nb.program.action_marks import marked
from pathways_nb.session.calls.program import Program, program


class SliceTimer:
    """Times slices of one stage; call it with sequences, tokens and context, each a number.

    Args:
        stage: a function ``(params, x, context) -> y``; see ``pipeline``.
        params: its parameters.
        x: its input for whole sequences, (B, L, …): an array, or a tree of arrays.
        on: the place to run on.

    Raises:
        UsageError: an array of ``x`` lacks the dimension of tokens.
    """

    def __init__(self, stage: Callable[..., Any], params: Any, x: Any, on: VirtualSlice):
        self.call, self.params, self.x, self.on = as_call(stage), params, x, on
        shapes = {leaf.shape[:2] for leaf in jax.tree.leaves(x)}
        if len(shapes) != 1 or len(next(iter(shapes))) < 2:
            raise UsageError(f"terapipe.measure: x needs arrays of shape (batch, tokens, …); got {sorted(shapes)}.")
        ((self.batch, self.length),) = shapes
        self._programs: dict[tuple[int, int, int], Program] = {}

    def __call__(self, sequences: int, tokens: int, context: int) -> float:
        """Return the seconds of F and B of one slice."""
        key = sequences, tokens, context
        if sequences > self.batch or context + tokens > self.length:
            raise UsageError(
                f"terapipe.measure: a slice of {sequences} sequences and {tokens} tokens after {context} does not fit "
                f"into x, which has {self.batch} sequences of {self.length} tokens. Give a larger x."
            )
        if key not in self._programs:
            self._programs[key] = program(
                self._run, static_argnums=(2, 3, 4), name=f"slice of {tokens} after {context}"
            )
        run = self._programs[key].run(self.params, self.x, *key)
        events = run.events.of_kind("compute", "collective")
        # Only F and B are marked as actions; cutting x and making zeros is no work of a pipeline.
        of_stage = events["stage"] >= 0
        return float((events["end"] - events["start"])[of_stage].sum())

    def _run(self, params: Any, x: Any, sequences: int, tokens: int, before: int) -> Any:
        # As one of up to three slices: one before it if it has context, one after it unless it ends the sequence.
        at = TokenSlice(
            int(before > 0), 2 + (before > 0) - (before + tokens == self.length), before, tokens, self.length
        )
        part = jax.tree.map(lambda leaf: leaf[:sequences, before : before + tokens], x)
        store = None if at.is_first else [jnp.zeros(one.shape, one.dtype) for one in self._store(params, part)]
        made = self._computations(Inputs(params, part, store=store), at)
        values: dict[int, Any] = {}
        for name, leaves in (("params", params), ("x", part), ("store", store)):
            values.update(zip(made.parts.inputs[name], jax.tree.leaves(leaves), strict=True))
        with marked(ActionKey(0, 0, at.index)):
            made.call("F", values)
        for name in ("y", "store"):
            arriving = made.parts.arriving[name]
            # Gradients that arrive: the time does not depend on their values.
            avals = (made.parts.flat.avals[v] for v in arriving)
            values.update(zip(arriving, [jnp.ones(aval.shape, aval.dtype) for aval in avals], strict=True))
        with marked(ActionKey(0, 0, at.index)):
            sums = made.call("B", values, zero_sums(params)) or []
        return sums, [values[v] for v in (*made.parts.outputs["dx"], *made.parts.outputs["dstore"])]

    def _store(self, params: Any, part: Any) -> list[Any]:
        """Return the shapes of the store, by tracing the first slice."""
        # The store has the length of the sequence whichever slice is traced: one token is the shortest trace.
        first = TokenSlice(0, 2, 0, 1, self.length)
        one = jax.tree.map(lambda leaf: leaf[:, :1], part)
        made = self._computations(Inputs(params, one), first)
        return [made.parts.flat.avals[v] for v in made.parts.outputs["store"]]

    def _computations(self, inputs: Inputs, at: TokenSlice) -> StageComputations:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), inputs)
        trace = context.tracing()
        assert trace is not None, "it runs inside a program"
        # A first stage reads tokens, which are integers and have no gradient.
        by_input = all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(shapes.x))
        with (
            context.inside(context.TracedBody("slice", self.on)),
            jax.sharding.use_abstract_mesh(trace.mesh_of(self.on)),
        ):
            parts = trace_stage(self.call, shapes, at, None, 1.0, by_input)
        specs = tuple(PartitionSpec() for _ in jax.tree.leaves(shapes.params))
        return StageComputations(0, parts, StagePlacement(self.on, specs, PartitionSpec(), [True] * len(specs)))
