"""Calls the computations of a pipeline in the order of its schedule, while a program is traced.

The rows of all devices are merged into one order that respects every dependency: that of the times at which actions
begin if all take equally long. An island carries out what runs on it in this order, so each device's launches are its
row. Sends and receives are the controller's own moves: a value leaves when it is made, and a device waits for one only
at the action that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary
from pathways_nb.parallel.pipelines.stage_computations import StageComputations, sum_dtype
from pathways_nb.parallel.pipelines.stage_parts import Inputs, StageParts, TokenSlice
from pathways_nb.parallel.schedules.actions import Action, actions_of
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.plan.graph import ActionKey
from pathways_nb.program.action_marks import marked

StageOf = Callable[[int, Inputs, TokenSlice], StageComputations]
"""Returns the computations of a stage for inputs of these shapes and this token slice."""


def actions_in_order(schedule: Schedule) -> Iterator[Action]:
    """Yield the actions of all devices in one order that respects every dependency and keeps each device's order."""
    timing = schedule.timing()
    # By start; of equal starts by number, and numbers rise along each device's row. Every action takes time, so
    # what it needs has started before it.
    for cell in np.lexsort((np.arange(len(timing.start)), timing.start)).tolist():
        yield from actions_of(timing.tasks.cells[cell])


def zero_sums(params: Any) -> list[Any]:
    """Return sums of gradients to begin with: one for each leaf of a stage's parameters."""
    return [jnp.zeros(leaf.shape, sum_dtype(leaf.dtype)) for leaf in jax.tree.leaves(params)]


def _zeros(parts: StageParts, values: Sequence[int]) -> list[Any]:
    """Return zeros of the shapes of some values of a stage."""
    avals = [parts.flat.avals[v] for v in values]
    return [jnp.zeros(aval.shape, aval.dtype) for aval in avals]


@dataclass(eq=False)
class PipelinePass:
    """One pass of a batch through a pipeline, under trace.

    Args:
        schedule: the order of actions.
        stage_of: makes the computations of a stage.
        params: parameters of each stage.
        batches: input and targets of each microbatch, by token slice.
        slices: the token slices.
        keys: by stage, microbatch and slice, the key for dropout, or ``None``.
        whole_store: whether slices read the whole store and get their offset as an input.
        counts: the numbers by which the means of the loss divide; ``None`` without such means.
        joins: how each auxiliary output is joined.
        trained: of each parameter of each stage, whether its gradient is wanted; by default of all.
    """

    schedule: Schedule
    stage_of: StageOf
    params: list[Any]
    batches: list[list[tuple[Any, Any]]]
    slices: list[TokenSlice]
    keys: Callable[[int, int, int], Any]
    whole_store: bool = False
    counts: Any = None
    joins: Sequence[Auxiliary] = ()
    trained: Sequence[Sequence[bool]] | None = None
    values: dict[tuple[int, int, int], dict[int, Any]] = field(default_factory=dict)
    """By stage, microbatch and slice, the arrays that are kept for its backward pass, by their numbers."""
    computations: dict[tuple[int, int, int], StageComputations] = field(default_factory=dict)
    outputs: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    """Outputs of stages that their successors have not read yet."""
    gradients: dict[tuple[int, int, int], list[Any]] = field(default_factory=dict)
    """Gradients by the outputs of stages that they have not read yet."""
    stores: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    """By stage and microbatch, keys and values of the tokens so far."""
    store_gradients: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    sums: dict[int, list[Any]] = field(default_factory=dict)
    """By stage, the sums of gradients by its parameters."""
    losses: dict[tuple[int, int], Any] = field(default_factory=dict)
    aux: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    aux_tree: Any = None

    def run(self) -> tuple[Any, Any, list[Any]]:
        """Call every action.

        Returns:
            The loss, the auxiliary outputs of the whole batch, and the gradients by the parameters of each stage.
        """
        for action in actions_in_order(self.schedule):
            key = action.stage, action.microbatch, action.token_slice or 0
            sliced = -1 if action.token_slice is None else action.token_slice
            with marked(ActionKey(action.stage, action.microbatch, sliced)):
                if action.operation == "F":
                    self._forward(*key)
                else:
                    self._backward(action.operation, *key)
        # In one order for all schedules, because the rounding of a sum depends on it.
        loss = sum(self.losses[key] for key in sorted(self.losses))
        aux = jax.tree.unflatten(self.aux_tree, [self._joined(*each) for each in enumerate(self.joins)])
        return loss, aux, [self._finished(stage) for stage in range(len(self.params))]

    def _joined(self, output: int, how: Auxiliary) -> Any:
        """Return one auxiliary output of the whole batch."""
        batches, slices = len(self.batches), len(self.slices)
        parts = [[self.aux[batch, part][output] for part in range(slices)] for batch in range(batches)]
        if how.how == "rows":
            return how.join([jnp.concatenate(row, how.tokens) if slices > 1 else row[0] for row in parts], ())
        length = self.slices[0].length or 1
        # (microbatches · slices,) the parts of batch and tokens that each output stands for.
        shares = [(at.tokens / length if slices > 1 else 1) / batches for at in self.slices] * batches
        return how.join([part for row in parts for part in row], shares)

    def _forward(self, stage: int, microbatch: int, part: int) -> None:
        x, targets = self.batches[microbatch][part]
        inputs = Inputs(
            self.params[stage],
            x if stage == 0 else self.outputs.pop((stage - 1, microbatch, part)),
            targets if stage == len(self.params) - 1 else None,
            self.keys(stage, microbatch, part),
            self.stores.get((stage, microbatch)),
            counts=self.counts if stage == len(self.params) - 1 else None,
        )
        at = self.slices[part]
        if self.whole_store:
            inputs, at = self._with_whole_store(stage, inputs, at)
        made = self.stage_of(stage, inputs, at)
        parts = made.parts
        values: dict[int, Any] = {}
        for name, numbers in parts.inputs.items():
            values.update(zip(numbers, jax.tree.leaves(getattr(inputs, name)), strict=True))
        made.call("F", values)
        key = stage, microbatch, part
        self.computations[key], self.values[key] = made, values
        # F took over the buffers that it was given: from here on only these are valid.
        self.stores[stage, microbatch] = [values[v] for v in parts.outputs["store"]]
        if stage < len(self.params) - 1:
            self.outputs[key] = jax.tree.unflatten(parts.trees["y"], [values[v] for v in parts.outputs["y"]])
        else:
            self.losses[microbatch, part] = values[parts.outputs["loss"][0]]
            self.aux[microbatch, part] = [values[v] for v in parts.outputs["aux"]]
            self.aux_tree = parts.trees["aux"]

    def _with_whole_store(self, stage: int, inputs: Inputs, at: TokenSlice) -> tuple[Inputs, TokenSlice]:
        """Return inputs and slice for an executable that serves every offset: even the first slice gets a store."""
        store = inputs.store
        if store is None:
            parts = self.stage_of(stage, inputs, TokenSlice(0, 2, 0, at.tokens, at.length)).parts
            store = _zeros(parts, parts.outputs["store"])
        # of shape (1,), because a scalar constant would become a part of the executable
        offset = jnp.full(1, at.offset, jnp.int32)
        return replace(inputs, store=store, offset=offset), at.anywhere

    def _backward(self, operation: str, stage: int, microbatch: int, part: int) -> None:
        key = stage, microbatch, part
        made, values = self.computations[key], self.values[key]
        parts = made.parts
        if operation in "BI":
            values.update(zip(parts.arriving["y"], self.gradients.pop(key, []), strict=True))
            arrived = self.store_gradients.pop((stage, microbatch), None)
            if arrived is None:  # this is the last slice
                arrived = _zeros(parts, parts.arriving["store"])
            values.update(zip(parts.arriving["store"], arrived, strict=True))
            # The finished store in place of what this slice's F made, whose memory the next slice has taken over. It
            # has the same keys and values up to the end of this slice; the later ones are not read.
            values.update(zip(parts.outputs["store"], self.stores[stage, microbatch], strict=True))
        if operation == "I":
            made.call("I", values)
        else:
            self.sums[stage] = made.call(operation, values, self._sums(stage)) or []
            # B or W is the last that reads what this microbatch kept.
            del self.values[key], self.computations[key]
        if operation in "BI":
            if stage:
                self.gradients[stage - 1, microbatch, part] = [values[v] for v in parts.outputs["dx"]]
            self.store_gradients[stage, microbatch] = [values[v] for v in parts.outputs["dstore"]]

    def _sums(self, stage: int) -> list[Any]:
        if stage not in self.sums:
            pairs = zip(jax.tree.leaves(self.params[stage]), self._wanted(stage), strict=True)
            self.sums[stage] = zero_sums([leaf for leaf, wanted in pairs if wanted])
        return self.sums[stage]

    def _finished(self, stage: int) -> Any:
        """Return the gradients by a stage's parameters, in the types of the parameters."""
        leaves, tree = jax.tree.flatten(self.params[stage])
        # Sums are kept for trained leaves only, in their order; the others have a gradient of zeros, as from JAX for an
        # argument that is not used.
        sums, wanted = iter(self.sums[stage]), self._wanted(stage)
        found = [next(sums).astype(leaf.dtype) if one else jnp.zeros(leaf.shape, leaf.dtype)
                 for leaf, one in zip(leaves, wanted, strict=True)]  # fmt: skip
        return jax.tree.unflatten(tree, found)

    def _wanted(self, stage: int) -> Sequence[bool]:
        return self.trained[stage] if self.trained else [True] * len(jax.tree.leaves(self.params[stage]))
