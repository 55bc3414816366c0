"""A model cut into stages: its loss and gradients by a schedule, under trace, and its loss in plain JAX.

It makes no program, so that it refers to none: a pipeline of a cell that is run again is then freed at once, and its
places with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from pathways_nb.parallel.pipelines import checks
from pathways_nb.parallel.pipelines.context import Context
from pathways_nb.parallel.pipelines.execution import Execution
from pathways_nb.parallel.pipelines.sharded_stages import StageShards
from pathways_nb.parallel.pipelines.stage_calls import as_call, parameters
from pathways_nb.parallel.pipelines.stage_computations import Placed, StageComputations
from pathways_nb.parallel.pipelines.stage_parts import Inputs, TokenSlice
from pathways_nb.parallel.pipelines.stage_trace import trace_stage
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context, specs
from pathways_nb.program.computation import jit


@dataclass(eq=False)
class StagedModel:
    """The stages of a model on their places.

    Args:
        stages: functions ``(params, x) -> y``, in order.
        on: the place of each device of the schedule.
        schedule: the order of actions.
        loss: ``loss(y, targets)``.
        has_aux: whether it returns auxiliary outputs as well.
        shardings: for each stage a prefix tree of specs of its parameters.
        data: the spec of arrays whose first dimension is the batch.
        token_slices: tokens of each slice; ``None`` if sequences are not sliced.
        tied: groups of parameters that are the same, as stage and path.
        whole_store: whether slices read the whole store, so that one executable serves all of the same length.
        fsdp: the mode in which each stage is split over the devices of its place; ``None`` for none.
    """

    stages: tuple[Callable[..., Any], ...]
    on: tuple[VirtualSlice, ...]
    schedule: Schedule
    loss: Callable[..., Any]
    has_aux: bool
    shardings: Sequence[Any]
    data: PartitionSpec
    token_slices: tuple[int, ...] | None
    tied: Sequence[Sequence[tuple[Any, ...]]]
    whole_store: bool = False
    fsdp: str | None = None
    _made: dict[Any, StageComputations] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._calls = tuple(map(as_call, self.stages))
        named = any("context" in parameters(stage) for stage in self.stages)
        self._uses_context = named or self.token_slices is not None

    def place_of(self, stage: int) -> VirtualSlice:
        """Return the place of a stage."""
        return self.on[int(self.schedule.tasks.device[0, stage])]

    def value_and_grad(self, params: Any, x: Any, targets: Any, key: Any = None) -> Any:
        """Return the loss and the gradients of each stage, while a program is traced."""
        params = checks.params(params, len(self.stages))
        checks.key(key, self.stages)
        slices, count = self._slices(x, targets), self.schedule.size.microbatches
        checks.rows_on_devices(checks.batch(x, targets, count) // count, count, self.data, self.on)
        batches = [
            [_tokens(batch, part) if self.token_slices else batch for part in slices]
            for batch in self._microbatches(x, targets)
        ]
        keys = functools.partial(stage_key, key)
        run = Execution(self.schedule, self._computations, list(params), batches, slices, keys, self.whole_store)
        loss, aux, gradients = run.run()
        gradients = checks.like(params, self._tie(list(params), gradients))
        return ((loss, aux) if self.has_aux else loss), gradients

    def composed(self, params: Sequence[Any], x: Any, targets: Any, key: Any = None) -> Any:
        """Return the loss of the whole model in plain JAX, microbatch by microbatch: what the pipeline must equal.

        Args:
            params: parameters of each stage.
            x: input.
            targets: what the loss compares with.
            key: for dropout.

        Returns:
            The loss, or the loss and auxiliary outputs.
        """
        values, auxes = [], []
        length = checks.tokens(x, None) if self._uses_context else 0
        for number, (part, wanted) in enumerate(self._microbatches(x, targets)):
            y = part
            for stage, call in enumerate(self._calls):
                y = call(params[stage], y, stage_key(key, stage, number), Context(0, length, length, length))
            value, aux = self._loss(y, wanted)
            values.append(value / self.schedule.size.microbatches)
            auxes.append(aux)
        total = sum(values)
        return (total, jax.tree.map(lambda *leaves: jnp.stack(leaves), *auxes)) if self.has_aux else total

    def specs_of(self, stage: int, params: Any) -> tuple[PartitionSpec, ...]:
        """Return the spec of each leaf of a stage's parameters."""
        if (shards := self._shards(stage, params)) is not None:
            return shards.specs
        declared = specs.spread(self.shardings[stage], params, "shardings", f"stage {stage}")
        return tuple(spec or PartitionSpec() for spec in declared)

    def _tie(self, params: list[Any], gradients: list[Any]) -> list[Any]:
        """Return the gradients with those of tied parameters replaced by their sum.

        The sum is made on each place in the same order, so that tied parameters stay equal to the last bit and the
        optimizer's part of each stays on its place.
        """
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        layouts = [spec for stage, tree in enumerate(params) for spec in self.specs_of(stage, tree)]
        leaves, tree = jax.tree.flatten(gradients)
        tied = list(leaves)
        for group in self.tied:
            at = [checks.position(paths, path) for path in group]
            checks.alike(group, [leaves[one] for one in at])
            for one in at:
                place, spec = self.place_of(paths[one][0].idx), layouts[one]
                tied[one] = jit(_sum, on=place, in_shardings=(spec,) * len(at), out_shardings=spec)(
                    *(leaves[other] for other in at)
                )
        return jax.tree.unflatten(tree, tied)

    def _microbatches(self, x: Any, targets: Any) -> list[tuple[Any, Any]]:
        """Return input and targets of each microbatch."""
        count = self.schedule.size.microbatches
        rows = checks.batch(x, targets, count) // count

        def one(number: int) -> Any:
            return jax.tree.map(lambda leaf: leaf[number * rows : (number + 1) * rows], (x, targets))

        return [one(number) for number in range(count)]

    def _slices(self, x: Any, targets: Any) -> list[TokenSlice]:
        length = checks.tokens(x, self.token_slices, targets) if self._uses_context else 0
        slices = self.token_slices or (length,)
        found, offset = list[TokenSlice](), 0
        for index, tokens in enumerate(slices):
            found.append(TokenSlice(index, len(slices), offset, tokens, length))
            offset += tokens
        return found

    def _loss(self, y: Any, targets: Any) -> tuple[Any, Any]:
        value, aux = checks.pair(self.loss(y, targets), self.loss, self.has_aux)
        checks.scalar(value, self.loss)
        return value, aux

    def _computations(self, stage: int, inputs: Inputs, at: TokenSlice) -> StageComputations:
        """Return the computations of a stage for inputs of these shapes, traced once."""
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), inputs)
        trace, place = context.tracing(), self.place_of(stage)
        assert trace is not None, "a pipeline runs inside a program"
        mesh = trace.mesh_of(place)
        leaves, tree = jax.tree.flatten(shapes)
        key = stage, mesh, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves), at
        if key not in self._made:
            self._made[key] = self._trace(stage, shapes, at, mesh)
        return self._made[key]

    def _trace(self, stage: int, shapes: Inputs, at: TokenSlice, mesh: Any) -> StageComputations:
        last, place = stage == len(self.stages) - 1, self.place_of(stage)
        share = (at.tokens / at.length if at.length else 1) / self.schedule.size.microbatches
        shards = self._shards(stage, shapes.params)
        if shards is not None:  # without a mesh: it is the code of one device
            shapes, mesh = shards.local(shapes, stage), AbstractMesh((), ())
        try:
            with context.inside(context.Body(f"stage {stage}", place)), jax.sharding.use_abstract_mesh(mesh):
                parts = trace_stage(self._calls[stage], shapes, at, self._loss if last else None, share, stage > 0)
        except Exception as error:
            checks.explain(error, stage, self.stages, shapes.x)
            raise
        if shards is not None:
            return StageComputations(
                stage, shards.with_collectives(parts), Placed(place, shards.specs, shards.data, shards)
            )
        return StageComputations(stage, parts, Placed(place, self.specs_of(stage, shapes.params), self.data))

    def _shards(self, stage: int, params: Any) -> StageShards | None:
        return None if self.fsdp is None else StageShards.of(self.place_of(stage), self.fsdp, params)


def _sum(*gradients: Any) -> Any:
    return functools.reduce(jnp.add, gradients)


def stage_key(key: Any, stage: int, microbatch: int, token_slice: int = 0) -> Any:
    """Return the key for dropout of one stage, microbatch and token slice, whatever the schedule."""
    if key is None:
        return None
    for number in (stage, microbatch, token_slice):
        key = jax.random.fold_in(key, number)
    return key


def _tokens(batch: tuple[Any, Any], part: TokenSlice) -> tuple[Any, Any]:
    """Return the tokens of a slice, of input and targets."""
    return jax.tree.map(lambda leaf: leaf[:, part.offset : part.offset + part.tokens], batch)
