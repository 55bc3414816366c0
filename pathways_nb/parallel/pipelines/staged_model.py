"""A model cut into stages: its loss and gradients by a schedule, under trace, and its loss in plain JAX.

It makes no program, so that it refers to none: a pipeline of a cell that is run again is then freed at once, and its
places with it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from pathways_nb.parallel import step_checks
from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary
from pathways_nb.parallel.batch_walk.equation_pair import WalkedAxis
from pathways_nb.parallel.batch_walk.examine import Examined, resized
from pathways_nb.parallel.batch_walk.mean import counts_of, refuse_zero, with_counts
from pathways_nb.parallel.batch_walk.parts import of_parts
from pathways_nb.parallel.batch_walk.verdicts import Verdict, on_host
from pathways_nb.parallel.parameter_trees import names_of, require_match, struct_of, truths
from pathways_nb.parallel.pipelines import call_checks
from pathways_nb.parallel.pipelines.examination import Batch, Examination
from pathways_nb.parallel.pipelines.execution import PipelinePass
from pathways_nb.parallel.pipelines.parts_against_whole import Model
from pathways_nb.parallel.pipelines.sharded_stages import StageShards
from pathways_nb.parallel.pipelines.stage_calls import as_call, parameters, stage_key
from pathways_nb.parallel.pipelines.stage_computations import StageComputations, StagePlacement
from pathways_nb.parallel.pipelines.stage_parts import Inputs, TokenSlice
from pathways_nb.parallel.pipelines.stage_trace import trace_stage
from pathways_nb.parallel.pipelines.token_context import Context
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.plan.function_names import function_name
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context, jax_contexts, specs
from pathways_nb.program.computation import jit
from pathways_nb.session import default_controller


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
        aux: how auxiliary outputs are joined, as the user says.
        check: whether the loss must be a mean over what is split.
        unsliced: what of the input token slices get whole, as a function of a name or a tree of truth values.
        frozen: the parameters that are not trained, in the same forms.
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
    aux: Any = None
    check: bool = True
    unsliced: Any = None
    frozen: Any = None
    examined: dict[Any, tuple[Examined, Any]] = field(default_factory=dict)
    """By shapes of parameters and of a microbatch, what is known of the loss."""
    _made: dict[Any, StageComputations] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._calls = tuple(map(as_call, self.stages))
        named = any("context" in parameters(stage) for stage in self.stages)
        self._uses_context = named or self.token_slices is not None
        # With fsdp=, rows are split twice: into microbatches, and each of them over the devices of its place.
        parts = self.schedule.size.microbatches * (self.place_of(0).size if self.fsdp else 1)
        self._examination = Examination(
            self._calls, self._loss, function_name(self.loss), self._inside, parts, self.token_slices, self._explain,
            self.aux, self.check,
        )  # fmt: skip
        self.checked = "not checked yet: nothing was called"
        """What decided last that the parts of a batch have the loss of the whole."""

    def place_of(self, stage: int) -> VirtualSlice:
        """Return the place of a stage."""
        return self.on[int(self.schedule.tasks.device[0, stage])]

    def value_and_grad(self, params: Any, x: Any, targets: Any, key: Any = None) -> Any:
        """Return the loss and the gradients of each stage, while a program is traced."""
        params = call_checks.params(params, len(self.stages), self.trained, self.frozen)
        call_checks.key(key, self.stages)
        count = self.schedule.size.microbatches
        slices = self._slices(x, targets)
        call_checks.rows_on_devices(call_checks.batch(x, targets, count) // count, count, self.data, self.on)
        microbatches = self._microbatches(x, targets)
        batches = [[self._tokens(batch, part) for part in slices] for batch in microbatches]
        found, counts = self._examined(params, *microbatches[0], key)
        counted = self._counted(counts, microbatches)
        run = PipelinePass(
            self.schedule, functools.partial(self._computations, aux=found.aux), list(params), batches, slices,
            functools.partial(stage_key, key), self.whole_store, counted, found.aux,
            [self.trained(*each) for each in enumerate(params)],
        )  # fmt: skip
        loss, aux, gradients = run.run()
        if counted is not None:
            loss = refuse_zero(loss, counted, self.place_of(len(self.stages) - 1))
        gradients = call_checks.like(params, self._tie(list(params), gradients))
        return ((loss, aux) if self.has_aux else loss), gradients

    def composed(self, params: Sequence[Any], x: Any, targets: Any, key: Any = None) -> Any:
        """Return the loss of the whole model for the whole batch, in plain JAX; see ``Pipeline.composed``."""
        length = self._length(x)
        context, made = Context(0, length, length, length), []
        # Each microbatch has keys of its own; without a key, statistics over the batch are those of the whole.
        for number, (y, _) in enumerate([(x, targets)] if key is None else self._microbatches(x, targets)):
            for stage, call in enumerate(self._calls):
                y = call(params[stage], y, stage_key(key, stage, number), context)
            made.append(y)
        value, aux = self._loss(jax.tree.map(_rows_joined, *made), targets)
        return (value, aux) if self.has_aux else value

    def specs_of(self, stage: int, params: Any) -> tuple[PartitionSpec, ...]:
        """Return the spec of each leaf of a stage's parameters."""
        if (shards := self._shards(stage, params)) is not None:
            return shards.specs
        declared = specs.spread(self.shardings[stage], params, "shardings", f"stage {stage}")
        return tuple(spec or PartitionSpec() for spec in declared)

    def _tie(self, params: list[Any], gradients: list[Any]) -> list[Any]:
        """Return the gradients with those of tied parameters replaced by their sum.

        The sum is made on each place in the same order, so that each optimizer gets the same gradient and its part of
        each stays on its place. Each place compiles its own update: tied parameters may differ by rounding.
        """
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        layouts = [spec for stage, tree in enumerate(params) for spec in self.specs_of(stage, tree)]
        leaves, tree = jax.tree.flatten(gradients)
        tied = list(leaves)
        for group in self.tied:
            at = [call_checks.position(paths, path) for path in group]
            call_checks.alike(group, [leaves[one] for one in at])
            for one in at:
                place, spec = self.place_of(paths[one][0].idx), layouts[one]
                add = jit(_sum, on=place, in_shardings=(spec,) * len(at), out_shardings=spec)
                tied[one] = add(*(leaves[other] for other in at))
        return jax.tree.unflatten(tree, tied)

    def _microbatches(self, x: Any, targets: Any) -> list[tuple[Any, Any]]:
        """Return input and targets of each microbatch."""
        count = self.schedule.size.microbatches
        rows = call_checks.batch(x, targets, count) // count

        def one(number: int) -> Any:
            return jax.tree.map(lambda leaf: leaf[number * rows : (number + 1) * rows], (x, targets))

        return [one(number) for number in range(count)]

    def _length(self, x: Any) -> int:
        """Return the tokens of the sequences; 0 if no stage asks for them: inputs then need no such dimension."""
        return call_checks.tokens(x, None, None, self._whole(x)) if self._uses_context else 0

    def _slices(self, x: Any, targets: Any) -> list[TokenSlice]:
        length = call_checks.tokens(x, self.token_slices, targets, self._whole(x)) if self._uses_context else 0
        slices = self.token_slices or (length,)
        offsets = itertools.accumulate(slices, initial=0)
        # One offset is left over: the end of the last slice.
        return [TokenSlice(i, len(slices), *at, length) for i, at in enumerate(zip(offsets, slices, strict=False))]

    def _whole(self, x: Any) -> Any:
        """Return of each array of the input whether token slices get the whole of it."""
        whole = truths("pipeline", "unsliced", "x", x, self.unsliced)
        require_match("pipeline", "unsliced", "x", names_of(x), self.unsliced, whole)
        return jax.tree.unflatten(jax.tree.structure(x), whole)

    def _tokens(self, batch: tuple[Any, Any], part: TokenSlice) -> tuple[Any, Any]:
        """Return the tokens of a slice, of input and targets."""
        if self.token_slices is None:
            return batch
        (x, targets), end = batch, part.offset + part.tokens
        sliced = jax.tree.map(lambda leaf, whole: leaf if whole else leaf[:, part.offset : end], x, self._whole(x))
        return sliced, jax.tree.map(lambda leaf: leaf[:, part.offset : end], targets)

    def trained(self, stage: int, params: Any) -> list[bool]:
        """Return of each parameter of a stage whether it is trained; names begin with the number of the stage."""
        given = self.frozen
        if callable(given):
            frozen: Any = lambda name: self.frozen(f"{stage}.{name}")  # noqa: E731
        else:
            frozen = given[stage] if isinstance(given, (list, tuple)) else given
        return [not one for one in truths("pipeline", "frozen", f"params[{stage}]", params, frozen)]

    def _examined(self, params: Any, x: Any, targets: Any, key: Any) -> tuple[Examined, Any]:
        """Return what is known of the loss for a microbatch, and the shape of the model's output if means are counted.

        Raises:
            UsageError: it is no mean over what is split, or it is unknown how an auxiliary output is joined.
        """
        given = jax.tree.map(struct_of, (list(params), x, targets, key))
        signature = _signature(given)
        # Once for each shape of a microbatch: the walk traces every stage at two sizes.
        if signature not in self.examined:
            batch = Batch(given[0], given[1], given[2], given[3], self._length(x), self._whole(x))
            found = self._examination.examine(batch)
            self.examined[signature] = found, self._examination.output(batch) if found.means else None
        return self.examined[signature]

    def decide(self, params: Any, x: Any, targets: Any, key: Any = None) -> Callable[[], None]:
        """Begin to compare numbers of the first call where the structure of stages and loss does not decide.

        Returns:
            What waits for the numbers, and raises a ``UsageError`` if the parts have another loss than the whole.
        """
        shapes = jax.tree.map(struct_of, (list(params), x, targets, key))
        count = self.schedule.size.microbatches
        rows = call_checks.batch(shapes[1], shapes[2], count) // count
        part = shapes[0], *resized(shapes[1:3], 0, rows), shapes[3]
        found, _ = self.examined[_signature(part)]

        def compare(axis: WalkedAxis, verdict: Verdict) -> Callable[[], Verdict]:
            model = Model(self._calls, self._loss, function_name(self.loss), self._length(shapes[1]), found.means)
            values, inputs, wanted = on_host((params, x, targets))
            if axis.name == "tokens":
                slices = self._slices(shapes[1], shapes[2])
                return model.slices(verdict, values, inputs, wanted, slices, self._tokens)
            batch = inputs, wanted
            return of_parts("pipeline", model.name, verdict.unknown, model.whole, values, batch, count, found.means)

        # Inside another program values are traced, and simulated devices have none.
        real = context.tracing() is None and default_controller.cost_model() is None
        conclude = found.decided("pipeline", function_name(self.loss), compare if real else None)

        def note() -> None:
            self.checked = conclude()

        return note

    def _counted(self, y: Any, microbatches: Sequence[tuple[Any, Any]]) -> list[Any] | None:
        """Return the number by which each ``pw.mean`` of the loss divides, over the whole batch."""
        if y is None:
            return None

        def counts(parts: list[Any]) -> list[Any]:
            found = [counts_of("pipeline", self.loss, 1, y, targets) for targets in parts]
            return [functools.reduce(jnp.add, each) for each in zip(*found, strict=True)]

        # On the last stage's place, where targets are and the loss reads the result; replicated, because it is few
        # numbers.
        call = jit(counts, on=self.place_of(len(self.stages) - 1), out_shardings=PartitionSpec())
        return list(call([targets for _, targets in microbatches]))

    def _part_of_loss(self, y: Any, targets: Any, counts: Any, share: float) -> tuple[Any, Any]:
        """Return the loss of a part of the batch, whose share is known."""
        if counts is None:
            return self._loss(y, targets)
        return self._checked(with_counts(self.loss)(y, targets, [count * share for count in counts]))

    def _loss(self, y: Any, targets: Any) -> tuple[Any, Any]:
        return self._checked(self.loss(y, targets))

    def _checked(self, made: Any) -> tuple[Any, Any]:
        return step_checks.value_and_aux(made, f"{function_name(self.loss)}(y, targets)", self.has_aux, "pipeline")

    def _computations(
        self, stage: int, inputs: Inputs, at: TokenSlice, aux: tuple[Auxiliary, ...]
    ) -> StageComputations:
        """Return the computations of a stage for inputs of these shapes, traced once under the same contexts of JAX."""
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), inputs)
        # All that a trace depends on, contexts of JAX such as ``jax.enable_x64`` included.
        key = stage, self._mesh_of(stage), _signature(shapes), at, jax_contexts.current()
        if key not in self._made:
            self._made[key] = self._trace(stage, shapes, at, aux)
        return self._made[key]

    def _trace(self, stage: int, shapes: Inputs, at: TokenSlice, aux: tuple[Auxiliary, ...]) -> StageComputations:
        last, place = stage == len(self.stages) - 1, self.place_of(stage)
        share = (at.tokens / at.length if at.length else 1) / self.schedule.size.microbatches
        shards, trained = self._shards(stage, shapes.params), self.trained(stage, shapes.params)
        given = shapes if shards is None else shards.local(shapes, stage)
        # Counts are those of the whole batch. A device of a stage with fsdp= has a part of the rows, so a part of them.
        loss = functools.partial(self._part_of_loss, share=share / (1 if shards is None else shards.mode.axes.size))
        try:
            with self._inside(stage):
                # No gradient by the input of the first stage: nothing comes before it.
                parts = trace_stage(self._calls[stage], given, at, loss if last else None, share, stage > 0, trained)
        except Exception as error:
            call_checks.mask_of_other_tokens(error, stage, self.stages[stage], at)
            self._explain(error, stage, given.x)
            raise
        if shards is not None:
            parts = shards.with_collectives(parts, aux if last else ())
            placement = StagePlacement(place, shards.specs, shards.data, trained, shards, aux)
        else:
            placement = StagePlacement(place, self.specs_of(stage, shapes.params), self.data, trained)
        return StageComputations(stage, parts, placement)

    def _explain(self, error: Exception, stage: int, x: Any) -> None:
        call_checks.explain(error, stage, self.stages, x)

    def _mesh_of(self, stage: int) -> AbstractMesh:
        trace = context.tracing()
        assert trace is not None, "a pipeline runs inside a program"
        return trace.mesh_of(self.place_of(stage))

    @contextlib.contextmanager
    def _inside(self, stage: int) -> Iterator[None]:
        """Return a context in which a stage is traced; one that is split over devices is the code of one of them."""
        mesh = self._mesh_of(stage) if self.fsdp is None else AbstractMesh((), ())
        body = context.TracedBody(f"stage {stage}", self.place_of(stage))
        with context.inside(body), jax.sharding.use_abstract_mesh(mesh):
            yield

    def _shards(self, stage: int, params: Any) -> StageShards | None:
        if self.fsdp is None:
            return None
        return StageShards.of(self.place_of(stage), self.fsdp, params, self.trained(stage, params))


def _sum(*gradients: Any) -> Any:
    return functools.reduce(jnp.add, gradients)


def _signature(given: Any) -> Any:
    leaves, tree = jax.tree.flatten(given)
    return tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _rows_joined(*leaves: Any) -> Any:
    return leaves[0] if len(leaves) == 1 or not jnp.ndim(leaves[0]) else jnp.concatenate(leaves)
