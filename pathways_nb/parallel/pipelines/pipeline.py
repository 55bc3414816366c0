"""``pw.pipeline``: a model cut into stages, run by a schedule with exact gradients.

A ``Pipeline`` makes programs: ``value_and_grad``, and ``step`` with an optimizer. Both are traced like any program, so
the controller sees an ordinary graph whose nodes are the schedule's actions, in its order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.parallel.pipelines import checks
from pathways_nb.parallel.pipelines.context import Context
from pathways_nb.parallel.pipelines.execution import Execution
from pathways_nb.parallel.pipelines.stage_calls import as_call, declared_shardings, parameters
from pathways_nb.parallel.pipelines.stage_computations import Placed, StageComputations
from pathways_nb.parallel.pipelines.stage_parts import Inputs, TokenSlice, trace_stage
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.parallel.schedules.schedule import schedule as named_schedule
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context, specs
from pathways_nb.program.computation import jit
from pathways_nb.program.program import Program, program


class Pipeline:
    """The stages of a model on their places, in the order of a schedule; ``pipeline`` makes it.

    Attributes:
        schedule: the order of actions.
        value_and_grad: the program ``value_and_grad(params, x, targets, key=None)``, which returns the loss and the
            gradients of each stage, as ``jax.value_and_grad`` of the composed model would.
    """

    def __init__(
        self, stages: Sequence[Callable[..., Any]], on: Sequence[VirtualSlice], schedule: Schedule,
        loss: Callable[..., Any], has_aux: bool, shardings: Sequence[Any], data_sharding: PartitionSpec,
        token_slices: tuple[int, ...] | None, tied: Sequence[Sequence[tuple[Any, ...]]],
    ):  # fmt: skip
        self.schedule, self.stages, self.on, self.loss, self.has_aux = schedule, tuple(stages), tuple(on), loss, has_aux
        self.token_slices, self.tied = token_slices, tied
        self._shardings, self._data = shardings, data_sharding
        self._calls = tuple(map(as_call, stages))
        self._uses_context = token_slices is not None or any("context" in parameters(stage) for stage in stages)
        self._made: dict[Any, StageComputations] = {}
        self.value_and_grad: Program = program(self._value_and_grad, name=f"{schedule.name} pipeline")

    def __repr__(self) -> str:
        return f"<pipeline of {len(self.stages)} stages on {', '.join(p.label for p in self.on)}: {self.schedule!r}>"

    def place_of(self, stage: int) -> VirtualSlice:
        """Return the place of a stage."""
        return self.on[int(self.schedule.tasks.device[0, stage])]

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
                y = call(params[stage], y, self.stage_key(key, stage, number), Context(0, length, length, length, None))
            value, aux = self._loss(y, wanted)
            values.append(value / self.schedule.size.microbatches)
            auxes.append(aux)
        total = sum(values)
        return (total, jax.tree.map(lambda *leaves: jnp.stack(leaves), *auxes)) if self.has_aux else total

    @staticmethod
    def stage_key(key: Any, stage: int, microbatch: int, token_slice: int = 0) -> Any:
        """Return the key for dropout of one stage, microbatch and token slice, whatever the schedule."""
        if key is None:
            return None
        for number in (stage, microbatch, token_slice):
            key = jax.random.fold_in(key, number)
        return key

    def init(self, optimizer: Any, params: Sequence[Any]) -> Any:
        """Return the state of an Optax optimizer for all stages, each part on the place of its parameters.

        Args:
            optimizer: such as ``optax.adam(1e-3)``.
            params: parameters of each stage.
        """
        return program(functools.partial(self._init, optimizer), name="init")(list(params))

    def step(self, optimizer: Any) -> Program:
        """Return a program that trains for one step.

        Call it as ``params, state, value = step(params, state, x, targets, key=None)``. Each part of the optimizer
        runs where its parameters are, after all gradients are known. A transform that needs all of them, such as
        clipping by the global norm, therefore sees those of the whole batch: with zero-bubble schedules, too, the
        update waits for the norm (they do not use post-validation).

        Args:
            optimizer: an Optax optimizer, whose state ``init`` makes.
        """

        def step(params: Any, state: Any, x: Any, targets: Any, key: Any = None) -> tuple[Any, Any, Any]:
            value, gradients = self._value_and_grad(params, x, targets, key)
            updates, state = optimizer.update(gradients, state, params)
            params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
            return params, state, value

        return program(step, name=f"{self.schedule.name} step")

    def _value_and_grad(self, params: Any, x: Any, targets: Any, key: Any = None) -> Any:
        params = checks.params(params, len(self.stages))
        slices = self._slices(x)
        batches = [
            [_tokens(batch, part) if self.token_slices else batch for part in slices]
            for batch in self._microbatches(x, targets)
        ]
        keys = functools.partial(self.stage_key, key)
        run = Execution(self.schedule, self._stage, list(params), batches, slices, keys)
        loss, aux, gradients = run.run()
        gradients = checks.like(params, self._tie(list(params), gradients))
        return ((loss, aux) if self.has_aux else loss), gradients

    def _init(self, optimizer: Any, params: list[Any]) -> Any:
        import optax

        state = optimizer.init(params)
        places = [jax.tree.map(lambda _, at=stage: at, tree) for stage, tree in enumerate(params)]
        found: list[tuple[int, Any]] = []
        optax.tree_utils.tree_map_params(optimizer, lambda leaf, stage: found.append((stage, leaf)), state, places)
        placed = {stage: iter(self._placed(stage, [leaf for at, leaf in found if at == stage])) for stage, _ in found}
        return optax.tree_utils.tree_map_params(optimizer, lambda _, stage: next(placed[stage]), state, places)

    def _placed(self, stage: int, leaves: list[Any]) -> list[Any]:
        return jit(lambda *arrays: list(arrays), on=self.place_of(stage))(*leaves)

    def _tie(self, params: Any, gradients: list[Any]) -> list[Any]:
        """Return the gradients with those of tied parameters replaced by their sum."""
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        leaves, tree = jax.tree.flatten(gradients)
        for group in self.tied:
            at = [checks.position(paths, leaves, path) for path in group]
            checks.alike(group, [leaves[one] for one in at])
            total = sum(leaves[one] for one in at)
            for one in at:
                leaves[one] = total
        return jax.tree.unflatten(tree, leaves)

    def _microbatches(self, x: Any, targets: Any) -> list[tuple[Any, Any]]:
        """Return input and targets of each microbatch."""
        count = self.schedule.size.microbatches
        rows = checks.batch(x, targets, count) // count

        def one(number: int) -> Any:
            return jax.tree.map(lambda leaf: leaf[number * rows : (number + 1) * rows], (x, targets))

        return [one(number) for number in range(count)]

    def _slices(self, x: Any) -> list[TokenSlice]:
        length = checks.tokens(x, self.token_slices) if self._uses_context else 0
        slices = self.token_slices or (length,)
        found, offset = list[TokenSlice](), 0
        for index, tokens in enumerate(slices):
            found.append(TokenSlice(index, len(slices), offset, tokens, length))
            offset += tokens
        return found

    def _loss(self, y: Any, targets: Any) -> tuple[Any, Any]:
        value, aux = self.loss(y, targets) if self.has_aux else (self.loss(y, targets), ())
        checks.scalar(value, self.loss)
        return value, aux

    def _stage(self, stage: int, inputs: Inputs, at: TokenSlice) -> StageComputations:
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
        declared = specs.spread(self._shardings[stage], shapes.params, "shardings", f"stage {stage}")
        leaves = tuple(spec or PartitionSpec() for spec in declared)
        try:
            with context.inside(context.Body(f"stage {stage}", place)), jax.sharding.use_abstract_mesh(mesh):
                parts = trace_stage(self._calls[stage], shapes, at, self._loss if last else None, share, stage > 0)
        except Exception as error:
            checks.explain(error, stage, self.stages, shapes.x)
            raise
        return StageComputations(stage, parts, Placed(place, leaves, self._data))


def pipeline(
    stages: Sequence[Callable[..., Any]],
    *,
    on: Sequence[VirtualSlice],
    schedule: str | Schedule,
    loss: Callable[..., Any],
    microbatches: int | None = None,
    token_slices: Sequence[int] | None = None,
    has_aux: bool = False,
    shardings: Sequence[Any] | None = None,
    data_sharding: PartitionSpec | None = None,
    tied: Sequence[Sequence[tuple[Any, ...]]] = (),
) -> Pipeline:
    """Return a pipeline that runs stages in the order of a schedule, with exact gradients.

    Args:
        stages: functions ``(params, x) -> y`` in order, as many as the schedule has stages. A stage with a parameter
            named ``key`` gets a key for dropout, one named ``context`` the tokens before its token slice; see
            ``Context``.
        on: the place of each device of the schedule.
        schedule: a schedule, or the name of one.
        loss: ``loss(y, targets)``, a scalar and a mean over the batch (with token slices: over batch and tokens).
        microbatches: number of parts of each batch; a schedule of its own says it.
        token_slices: tokens of each slice, for schedules with token slices.
        has_aux: whether ``loss`` returns the loss and auxiliary outputs. They come back with a first dimension over
            microbatches and slices.
        shardings: for each stage a tree of ``pw.P``, or a prefix of it, for its parameters; replicated if left out.
        data_sharding: the partition of arrays whose first dimension is the batch; replicated if left out.
        tied: groups of parameters that are the same, each as stage and path, such as ``[(0, "table"), (3, "table")]``.
            Each of a group gets the sum of their gradients.

    Raises:
        ScheduleError: the schedule cannot be carried out.
        UsageError: numbers of stages, places and devices do not agree, or the schedule has two directions.
    """
    found = _schedule(schedule, len(stages), len(on), microbatches, token_slices)
    checks.sizes(found, stages, on, microbatches, token_slices)
    found.check()
    given = shardings or [declared_shardings(stage) for stage in stages]
    return Pipeline(
        stages, on, found, loss, has_aux, given, data_sharding or PartitionSpec(),
        None if token_slices is None else tuple(token_slices), tied,
    )  # fmt: skip


def _schedule(
    given: str | Schedule, stages: int, devices: int, microbatches: int | None, token_slices: Sequence[int] | None
) -> Schedule:
    if isinstance(given, Schedule):
        return given
    if microbatches is None:
        raise UsageError(f"pipeline(schedule={given!r}) needs microbatches=, such as microbatches={2 * devices}.")
    chunks = stages // devices if stages > devices else None
    return named_schedule(given, devices, microbatches, chunks, None if token_slices is None else len(token_slices))


def _tokens(batch: tuple[Any, Any], part: TokenSlice) -> tuple[Any, Any]:
    """Return the tokens of a slice, of input and targets."""
    return jax.tree.map(lambda leaf: leaf[:, part.offset : part.offset + part.tokens], batch)
