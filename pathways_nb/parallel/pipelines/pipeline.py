"""``pw.pipeline``: a model cut into stages, run by a schedule with exact gradients.

A ``Pipeline`` makes programs: ``value_and_grad``, and ``step`` with an optimizer. Both are traced like any program, so
the controller sees an ordinary graph whose nodes are the schedule's actions, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.parallel import step_checks
from pathways_nb.parallel.batch_walk import auxiliary
from pathways_nb.parallel.parameter_trees import only_trainable
from pathways_nb.parallel.pipelines import argument_checks, call_checks
from pathways_nb.parallel.pipelines.stage_calls import declared_shardings, stage_key
from pathways_nb.parallel.pipelines.staged_model import StagedModel
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.parallel.schedules.schedule import schedule as named_schedule
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import jit
from pathways_nb.session.calls.program import Program, program
from pathways_nb.util.words import counted


class Pipeline:
    """The stages of a model on their places, in the order of a schedule; ``pipeline`` makes it.

    Attributes:
        value_and_grad: the program ``value_and_grad(params, x, targets, key=None)``, which returns the loss and the
            gradients of each stage, as ``jax.value_and_grad`` of the composed model would.
    """

    stage_key = staticmethod(stage_key)

    def __init__(self, model: StagedModel):
        self._model = model
        self.value_and_grad: Program = program(model.value_and_grad, name=f"{model.schedule.name} pipeline")
        self.value_and_grad.decide = model.decide

    def __repr__(self) -> str:
        places = ", ".join(place.label for place in self.on)
        return f"<pipeline of {len(self.stages)} stages on {places}: {self.schedule!r}>"

    @property
    def schedule(self) -> Schedule:
        """The order of actions, as it is carried out: an overlapped pair is two cells, one after the other."""
        return self._model.schedule

    @property
    def stages(self) -> tuple[Callable[..., Any], ...]:
        """The functions of the stages, in order."""
        return self._model.stages

    @property
    def on(self) -> tuple[VirtualSlice, ...]:
        """The place of each device of the schedule."""
        return self._model.on

    @property
    def checked(self) -> str:
        """What decided that the parts of a batch have the loss of the whole: structure, numbers or nothing."""
        return self._model.checked

    def place_of(self, stage: int) -> VirtualSlice:
        """Return the place of a stage."""
        return self._model.place_of(stage)

    def composed(self, params: Sequence[Any], x: Any, targets: Any, key: Any = None) -> Any:
        """Return the loss of the whole model for the whole batch, in plain JAX: what the pipeline must equal.

        With a key, each microbatch goes through the stages by itself, because it has a key of its own. With dropout and
        token slices the two differ, because each slice has a key of its own.

        Args:
            params: parameters of each stage.
            x: input.
            targets: what the loss compares with.
            key: for dropout.

        Returns:
            The loss, or the loss and auxiliary outputs.
        """
        return self._model.composed(params, x, targets, key)

    def init(self, optimizer: Any, params: Sequence[Any]) -> Any:
        """Return the state of an Optax optimizer for all stages, each part where its parameters are, in their layout.

        Args:
            optimizer: such as ``optax.adam(1e-3)``.
            params: parameters of each stage, as a list or a tuple.

        Raises:
            UsageError: there is not one tree of parameters for each stage.
        """
        step_checks.optimizer(optimizer, "pipeline")
        model = self._model
        return program(lambda params: _init(model, optimizer, params), name="init")(params)

    def step(self, optimizer: Any) -> Program:
        """Return a program that trains for one step.

        Call it as ``params, state, value = step(params, state, x, targets, key=None)``. Each part of the optimizer
        runs where its parameters are, after all gradients are known. A transform that needs all of them, such as
        clipping by the global norm, therefore sees those of the whole batch: with zero-bubble schedules, too, the
        update waits for the norm (they do not use post-validation).

        Args:
            optimizer: an Optax optimizer, whose state ``init`` makes.
        """
        step_checks.optimizer(optimizer, "pipeline")
        model = self._model

        def step(params: Any, state: Any, x: Any, targets: Any, key: Any = None) -> tuple[Any, Any, Any]:
            call_checks.params(params, len(model.stages), model.trained, model.frozen)
            state = call_checks.state(optimizer, state, params)
            value, gradients = model.value_and_grad(params, x, targets, key)
            updates, state = optimizer.update(gradients, state, params)
            # An update may be of a wider type than its parameter; the parameter keeps its own.
            new = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
            wanted = [one for stage, tree in enumerate(params) for one in model.trained(stage, tree)]
            return only_trainable(params, new, wanted), state, value

        made: Program = program(step, name=f"{self.schedule.name} step")
        # The loss does not depend on the optimizer's state.
        made.decide = lambda params, _, *batch, **rest: model.decide(params, *batch, **rest)
        return made


@dataclass(frozen=True)
class _Where:
    """The stage and the layout of a parameter; a leaf of a tree."""

    stage: int
    spec: PartitionSpec


def _init(model: StagedModel, optimizer: Any, params: Any) -> Any:
    """Return the state of an optimizer, with what has the form of parameters placed like them."""
    from optax import tree_utils

    def where(stage: int, tree: Any) -> Any:
        return jax.tree.unflatten(jax.tree.structure(tree), [_Where(stage, s) for s in model.specs_of(stage, tree)])

    params = call_checks.params(params, len(model.stages), model.trained, model.frozen)
    places = call_checks.like(params, [where(stage, tree) for stage, tree in enumerate(params)])
    state = optimizer.init(params)
    found: list[tuple[Any, _Where]] = []
    try:
        # Optax says which leaves of a state have the form of parameters. The first walk collects them with the places
        # of their parameters, the second puts the placed ones back, in the same order.
        tree_utils.tree_map_params(optimizer, lambda leaf, at: found.append((leaf, at)), state, places)
    except ValueError:  # a transform that masks parameters keeps trees of another form: they stay where they are made
        return state
    placed: dict[int, Iterator[Any]] = {}
    for stage in range(len(params)):
        leaves, layouts = ([pair[n] for pair in found if pair[1].stage == stage] for n in (0, 1))
        layout = [at.spec for at in layouts]
        # An identity on the place of the stage: its results are made there, in the layout of the parameters, so that no
        # step finds a state elsewhere and moves it.
        put = jit(
            lambda *arrays: list(arrays), on=model.place_of(stage), in_shardings=tuple(layout), out_shardings=layout
        )
        placed[stage] = iter(put(*leaves) if leaves else ())
    return tree_utils.tree_map_params(optimizer, lambda _, at: next(placed[at.stage]), state, places)


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
    whole_store: bool = False,
    fsdp: str | None = None,
    aux: Any = None,
    check: bool = True,
    frozen: Any = None,
    unsliced: Any = None,
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
        has_aux: whether ``loss`` returns the loss and auxiliary outputs. What grows with the batch comes back as rows
            in the batch's order, and what is a mean over the batch as the mean.
        shardings: for each stage a tree of ``pw.P``, or a prefix of it, for its parameters; replicated if left out.
        data_sharding: the partition of arrays whose first dimension is the batch; replicated if left out.
        tied: groups of parameters that are the same, each as stage and path, such as ``[(0, "table"), (3, "table")]``.
            Each of a group gets the sum of their gradients, and a global norm counts each of them.
        whole_store: whether each token slice attends over the whole sequence, with later tokens masked. Each length of
            a slice is then compiled once; otherwise each slice is, and skips the later tokens.
        fsdp: ``"zero3"`` splits the parameters, gradients and optimizer state of each stage over the devices of its
            place, as ``pw.fsdp`` does: each action gathers the parameters that it reads. ``"hsdp"`` repeats them over
            the first axis of each place, ``"ddp"`` over all. All of them split the rows of each microbatch.
        aux: how other auxiliary outputs of the parts of a batch are joined, by path: ``{"count": "sum"}``, or
            ``"mean"``, ``"max"`` or ``"min"``; or one word for all.
        check: whether stages and loss must give the loss of the whole batch from its parts. Others, such as statistics
            of the batch, are refused; see ``pw.mean`` and ``Pipeline.checked``.
        frozen: ``frozen(name)`` returns whether a parameter is not trained, such as ``"0.table"`` of stage 0; or a list
            with a tree of truth values for each stage.
        unsliced: in the same forms, the arrays of ``x`` of which every token slice gets the whole, such as the memory
            of cross-attention.

    Raises:
        ScheduleError: the schedule cannot be carried out.
        ShardingError: a sharding names an axis that its place lacks, or one axis twice.
        UsageError: numbers of stages, places and devices do not agree, or the schedule has two directions.
    """
    argument_checks.lists(stages=stages, on=on, shardings=shardings, token_slices=token_slices, tied=tied)
    argument_checks.places(on)
    argument_checks.shardings(shardings, len(stages))
    argument_checks.slices(token_slices)
    argument_checks.groups(tied, len(stages))
    found = _schedule(schedule, len(stages), len(on), microbatches, token_slices)
    argument_checks.sizes(found, stages, on, microbatches, token_slices)
    argument_checks.context(stages, token_slices)
    auxiliary.arguments("pipeline", aux, has_aux)
    argument_checks.sharded(fsdp, on, stages, shardings, data_sharding, token_slices)
    found.check()
    found = found.without_pairs()  # each action is a launch of its own, so that is the plan
    given = shardings or [declared_shardings(stage) for stage in stages]
    model = StagedModel(
        tuple(stages), tuple(on), found, loss, has_aux, given, data_sharding or PartitionSpec(),
        None if token_slices is None else tuple(token_slices), tied, whole_store and token_slices is not None,
        fsdp, aux, check, unsliced, frozen,
    )  # fmt: skip
    # Last: the model says where a stage's parameters lie, whose axes the shardings may name.
    argument_checks.layouts(given, data_sharding, [model.place_of(stage) for stage in range(len(stages))], on)
    return Pipeline(model)


def _schedule(
    given: str | Schedule, stages: int, devices: int, microbatches: int | None, token_slices: Sequence[int] | None
) -> Schedule:
    if isinstance(given, Schedule):
        return given
    if microbatches is None:
        raise UsageError(f"pipeline(schedule={given!r}) needs microbatches=, such as microbatches={2 * devices}.")
    # None leaves it to the schedule, whose default may be one chunk or two.
    chunks = stages // devices if stages > devices else None
    try:
        return named_schedule(given, devices, microbatches, chunks, None if token_slices is None else len(token_slices))
    except PathwaysError as refused:
        # The error speaks of arguments of pw.schedule, which this caller did not write.
        count = f"{counted(stages, 'stage')} on {counted(devices, 'place')} make chunks={chunks}"
        refused.add_note(f"From pw.pipeline: {count}." if chunks else f"From pw.pipeline: {counted(devices, 'place')}.")
        raise
