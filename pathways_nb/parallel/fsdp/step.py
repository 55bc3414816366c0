"""``pw.fsdp``: a loss for one device as a step of sharded data parallelism (SimpleFSDP, arXiv 2411.00284)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pathways_nb.cost.model import CostModel
from pathways_nb.parallel.fsdp import checks, loss_checks, plans
from pathways_nb.parallel.fsdp.lowering import over_devices
from pathways_nb.parallel.fsdp.measured import MeasuredStep, last_launch, measured
from pathways_nb.parallel.fsdp.modes import Mode, elsewhere, mode_of
from pathways_nb.parallel.fsdp.other_axes import partitions
from pathways_nb.parallel.fsdp.parameters import Parameter
from pathways_nb.parallel.fsdp.plan import FsdpPlan
from pathways_nb.parallel.fsdp.planner import Planner
from pathways_nb.parallel.fsdp.report import CompiledStep, compiled_step
from pathways_nb.parallel.fsdp.state_layout import StateLayout
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.step_program import Form, StepComputation, batch_spec, program_of
from pathways_nb.parallel.fsdp.timeline import StepTimeline
from pathways_nb.parallel.fsdp.tracing import StepOptions, differentiated, with_collectives
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context
from pathways_nb.program.program import Program
from pathways_nb.program.signature import Deferred
from pathways_nb.results.run import Run


class FsdpStep:
    """A training step whose parameters, gradients and optimizer state are split over devices; ``fsdp`` makes it.

    Attributes:
        plan: what is gathered and reduced together.
    """

    def __init__(
        self, loss: Callable[..., Any], params: Any, on: VirtualSlice, optimizer: Any, mode: Mode,
        parameters: Sequence[Parameter], options: StepOptions, plan: FsdpPlan | None, donate: bool, batch: Any = None,
        differentiated: dict[Any, tuple[StepGraph, Any]] | None = None,
    ):  # fmt: skip
        self._loss, self._on, self._optimizer, self._mode = loss, on, optimizer, mode
        self._options, self._donate = options, donate
        self._shapes = params
        self._graphs: dict[Any, StepGraph] = {}
        self._differentiated_graphs = differentiated if differentiated is not None else {}
        """By shapes of a device's batch, the step without collectives, and the tree of auxiliary outputs."""
        self._batch = batch if batch is not None else checks.default_batch(loss)
        self._programs: dict[Any, Program] = {}
        self.parameters = tuple(parameters)
        self.plan = plan if plan is not None else plans.per_block(self.parameters, mode)
        self.plan.check([one.name for one in self.parameters])
        axis = mode.axes.shard[0]
        split = [one.spec(axis) for one in self.parameters]
        self._kept = split if mode.shards_parameters else [PartitionSpec()] * len(split)
        """Over the axes of the batch; layouts join them with the other axes."""
        self._layout = self._layout_of(self._kept)
        self._state_layout = self._layout_of(split if mode.shards_state else self._kept)

    def _layout_of(self, kept: Sequence[PartitionSpec]) -> StateLayout:
        joined = [one.with_others(spec) for one, spec in zip(self.parameters, kept, strict=True)]
        return StateLayout(self._shapes, self.parameters, joined)

    def __repr__(self) -> str:
        size = sum(one.size for one in self.parameters)
        return (
            f"<fsdp step of {self.name}, {self._mode.name} on {self._on.label} ({self._on.axes_text}): {size:,} "
            f"parameters in {len(self.parameters)} arrays, {len(self.plan.buckets)} buckets>"
        )

    @property
    def name(self) -> str:
        """The name of the loss."""
        return getattr(self._loss, "__name__", type(self._loss).__name__)

    @property
    def mode(self) -> str:
        """The name of the mode."""
        return self._mode.name

    def with_plan(self, plan: FsdpPlan) -> FsdpStep:
        """Return the same step with another plan.

        Raises:
            PlanError: the plan is for another model.
        """
        return FsdpStep(
            self._loss, self._shapes, self._on, self._optimizer, self._mode, self.parameters, self._options, plan,
            self._donate, self._batch, self._differentiated_graphs,
        )  # fmt: skip

    def elsewhere(self, mode: str | None = None, devices: int | None = None) -> FsdpStep:
        """Return the same step in another mode or on other devices, with a bucket for each block; it is traced once.

        Each device keeps as large a part of the batch, so the whole batch grows with the number of devices.

        Args:
            mode: its name; ``None`` for the same.
            devices: number of devices that split the batch; ``None`` for as many. For another number, or to leave
                ``"hsdp"``, it is a place of its own.

        Raises:
            UsageError: the place has too few axes for ``"hsdp"``, or its replicas do not divide the devices.
        """
        parts = self._mode.axes.size
        on, chosen = elsewhere(self._on, self._mode, mode or self.mode, parts if devices is None else devices)
        sizes = dict(zip(on.axes, on.shape, strict=True))
        batch = jax.tree.map(lambda leaf: _part(leaf, parts, chosen.axes.size), self._batch)
        return FsdpStep(
            self._loss, self._shapes, on, self._optimizer, chosen, plans.split_again(self.parameters, chosen, sizes),
            self._options.in_mode(chosen), None, self._donate, batch, self._differentiated_graphs,
        )  # fmt: skip

    # ---- what a user calls

    def init(self, params: Any, *args: Any) -> Any:
        """Return the parameters as they are kept and, if there is an optimizer, its state: ``(params, state)``.

        Args:
            params: the parameters, or a function that makes them. With a function no device ever holds all of them.
            *args: arguments of that function, such as a key.
        """
        if checks.makes_parameters(params, self._shapes):
            return self._program("init", params, len(args))(*args)
        checks.same_shapes(self._shapes, params)
        leaves = [one.pad(np.asarray(leaf)) if _is_host(leaf) else leaf
                  for one, leaf in zip(self._layout_parameters(), jax.tree.leaves(params), strict=True)]  # fmt: skip
        return self._program("lay_out", None, 1)(jax.tree.unflatten(jax.tree.structure(params), leaves))

    def __call__(self, params: Any, state: Any, *batch: Any) -> Any:
        """Return new parameters, new state and the loss: ``params, state, value = step(params, state, *batch)``."""
        checks.has_optimizer(self._optimizer)
        return self._program("step", None, len(batch))(params, state, *batch)

    def value_and_grad(self, params: Any, *batch: Any) -> Any:
        """Return the loss and the gradients, as ``jax.value_and_grad`` of the loss for the whole batch would.

        Args:
            params: the parameters as they are kept.
            *batch: arrays whose first dimension is split over the data axis.
        """
        return self._program("value_and_grad", None, len(batch))(params, *batch)

    def whole(self, params: Any) -> Any:
        """Return parameters without padding, each whole on every device."""
        return self._program("whole", None, 1)(params)

    def graph(self, *batch: Any) -> StepGraph:
        """Return the step as the list of operations that is run, after the passes of its plan.

        Args:
            *batch: arrays or shapes of a whole batch.
        """
        return plans.applied(self.traced(*batch), self.plan, self._mode)

    def traced(self, *batch: Any) -> StepGraph:
        """Return the step as it was traced, before any pass: all gathers in front.

        Args:
            *batch: arrays or shapes of a whole batch.
        """
        return self._traced(jax.tree.map(_struct, batch))

    def planner(self, batch: Sequence[Any] | None = None, chip: Any = None, streams: Literal[2, 3] = 2) -> Planner:
        """Return what plans, times and searches before the step runs.

        Args:
            batch: arrays or shapes of a whole batch; by default those of the last call, or ``batch=`` of ``pw.fsdp``.
            chip: a chip, its name or a cost model; by default that of the simulated devices.
            streams: 3 for gathers and reductions on streams of their own, 2 for both on one.

        Raises:
            UsageError: neither is known.
        """
        known = self._batch if batch is None else tuple(jax.tree.map(_struct, tuple(batch)))
        checks.has_batch(known, self._loss)
        model = chip if isinstance(chip, CostModel) else CostModel.of(chip) if chip else context.runner().cost_model()
        checks.has_model(model)
        sizes = dict(zip(self._on.axes, self._on.shape, strict=True))
        return Planner(self._traced(known), self._mode, model, sizes, self._state_bytes(), streams, self.name)

    def search(
        self, memory: float | None = None, batch: Sequence[Any] | None = None, chip: Any = None,
        streams: Literal[2, 3] = 2, budget: int | None = None,
    ) -> FsdpPlan:  # fmt: skip
        """Return the best plan that a search finds in simulated time; ``with_plan`` uses it.

        Args:
            memory: bytes that a device has; ``None`` for no limit.
            batch: as for ``planner``.
            chip: as for ``planner``.
            streams: as for ``planner``.
            budget: the most plans that are evaluated; by default fewer for more parameters.

        Raises:
            PlanError: no plan fits.
            UsageError: no batch or no chip is known.
        """
        return self.planner(batch, chip, streams).search(memory, budget)

    def timeline(
        self, batch: Sequence[Any] | None = None, chip: Any = None, streams: Literal[2, 3] = 2
    ) -> StepTimeline:
        """Return the step of one device under its plan in simulated time, without running it.

        Args:
            batch: as for ``planner``.
            chip: as for ``planner``.
            streams: as for ``planner``.
        """
        return self.planner(batch, chip, streams).timeline(self.plan)

    def measured(self, run: Run, *batch: Any, device: int = 0) -> MeasuredStep:
        """Return where the collectives of the plan ran inside the last launch of this step in a profiled run.

        Args:
            run: of ``pw.profile``, with a call of the step or of ``value_and_grad``.
            *batch: arrays or shapes of a whole batch; by default those of the last call.
            device: index of the device within its island.

        Raises:
            UsageError: the run has no ops of this step.
        """
        ops, began = last_launch(run, (f"{self.name} step", f"{self.name} value_and_grad"), device)
        return measured(self.graph(*(batch or self._batch)), ops, began)

    def _state_bytes(self) -> int:
        """Return the bytes of the optimizer's state on each device."""
        if self._optimizer is None:
            return 0
        state = jax.eval_shape(self._optimizer.init, self._shapes)
        parts = self._mode.axes.shard[1]
        pairs = zip(jax.tree.leaves(state), self._state_layout.specs(state), strict=True)
        return sum(leaf.size * leaf.dtype.itemsize // (parts if len(spec) else 1) for leaf, spec in pairs)

    def compiled(self, *batch: Any) -> CompiledStep:
        """Return the collectives of ``value_and_grad`` as they are planned and as they were compiled.

        Args:
            *batch: arrays or shapes of a whole batch.

        Raises:
            UsageError: devices are simulated.
        """
        shapes = jax.tree.unflatten(
            jax.tree.structure(self._shapes),
            [jax.ShapeDtypeStruct(one.padded if spec else one.shape, one.dtype)
             for one, spec in zip(self.parameters, self._kept, strict=True)],
        )  # fmt: skip
        call = self._program("value_and_grad", None, len(batch))
        made = call.compiled(shapes, *jax.tree.map(_struct, batch))
        axes = dict(zip(self._on.axes, self._on.shape, strict=True))
        return compiled_step(self.graph(*batch), made[call.name], axes)

    # ---- programs of one computation

    def _program(self, form: Form, init: Any, count: int) -> Program:
        key = form, init, count
        if key not in self._programs:
            makes = {"init": self._initial, "lay_out": self._laid_out, "step": self._stepped,
                     "value_and_grad": self._differentiated, "whole": self._cropped}  # fmt: skip
            fn = makes[form] if init is None else lambda *args: self._laid_out(init(*args))
            donated = (0, 1) if form == "step" and self._donate else ()
            layouts = self._layout, self._state_layout
            made = StepComputation(fn, form, self.name, self._on, self._mode.axes.names, *layouts, donated)
            self._programs[key] = program_of(made, form, self._optimizer is not None, donated)
        return self._programs[key]

    def _initial(self, *args: Any) -> Any:
        raise AssertionError("made by its function")

    def _laid_out(self, params: Any) -> Any:
        params = self._layout.cropped(params)
        checks.same_shapes(self._shapes, params)
        kept = self._constrained(self._layout.padded(params), self._layout)
        if self._optimizer is None:
            return kept
        state = self._state_layout.padded(self._optimizer.init(params))
        return kept, self._constrained(state, self._state_layout)

    def _cropped(self, params: Any) -> Any:
        return jax.tree.map(lambda leaf: _constrain(leaf, PartitionSpec()), self._layout.cropped(params))

    def _differentiated(self, params: Any, *batch: Any) -> Any:
        value, gradients = self._value_and_shards(params, batch)
        return value, self._layout.cropped(gradients)

    def _stepped(self, params: Any, state: Any, *batch: Any) -> Any:
        value, gradients = self._value_and_shards(params, batch)
        if self._mode.shards_state and not self._mode.shards_parameters:  # each device updates its part
            gradients, params = (self._constrained(tree, self._state_layout) for tree in (gradients, params))
        gradients, old, state = map(self._state_layout.cropped, (gradients, params, state))
        updates, state = self._optimizer.update(gradients, state, old)
        new = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), old, updates)
        new = checks.only_trainable(old, new, [one.trainable for one in self.parameters])
        new, state = self._layout.padded(new), self._state_layout.padded(state)
        return self._constrained(new, self._layout), self._constrained(state, self._state_layout), value

    def _value_and_shards(self, params: Any, batch: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the loss and the gradients in the layout of the parameters, with their padding."""
        checks.same_shapes(self._shapes, self._layout.cropped(params))
        graph = plans.applied(self._traced(jax.tree.map(_struct, batch)), self.plan, self._mode)
        axes = self._mode.axes.names
        pieces = [batch_spec(leaf, axes) for leaf in jax.tree.leaves(batch)]
        kept = [self._kept[i] for i in graph.gradients]
        run = over_devices(graph, self._kept, pieces, kept, axes)
        if not self._mode.shards_parameters:  # each device uses them whole, without padding
            params = self._layout.cropped(params)
        made = run(*jax.tree.leaves(params), *jax.tree.leaves(batch))
        results, shards = made[: len(graph.results)], iter(made[len(graph.results) :])
        leaves = [next(shards) if i in graph.gradients else jnp.zeros_like(leaf)
                  for i, leaf in enumerate(jax.tree.leaves(params))]  # fmt: skip
        value = (results[0], jax.tree.unflatten(self._aux_tree, results[1:])) if self._options.has_aux else results[0]
        return value, self._layout.padded(jax.tree.unflatten(jax.tree.structure(params), leaves))

    def _traced(self, batch: Any) -> StepGraph:
        self._batch = batch
        parts = self._mode.axes.size
        local = jax.tree.map(lambda leaf: _part(leaf, parts), batch)
        key = str(jax.tree.structure(local)), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(local))
        if key not in self._graphs:
            if key not in self._differentiated_graphs:
                aux = loss_checks.auxiliary_tree(self._loss, self._shapes, local, self._options.has_aux)
                made = differentiated(self._loss, self._shapes, self.parameters, local, self._options)
                self._differentiated_graphs[key] = made, aux
            made, self._aux_tree = self._differentiated_graphs[key]
            self._graphs[key] = with_collectives(made, self.parameters, self._options)
        return self._graphs[key]

    def _constrained(self, tree: Any, layout: StateLayout) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, list(map(_constrain, leaves, layout.specs(tree))))

    def _layout_parameters(self) -> Sequence[Any]:
        return self.parameters


def _part(leaf: Any, parts: int, times: int = 1) -> jax.ShapeDtypeStruct:
    """Return the shape of some of the equal parts of an array."""
    shape = (leaf.shape[0] // parts * times, *leaf.shape[1:]) if leaf.shape else leaf.shape
    return jax.ShapeDtypeStruct(shape, leaf.dtype)


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.canonicalize_dtype(jnp.result_type(leaf)))


def _is_host(leaf: Any) -> bool:
    return not isinstance(leaf, (Deferred, jax.core.Tracer, jax.ShapeDtypeStruct))


def _constrain(leaf: Any, spec: PartitionSpec) -> Any:
    return jax.lax.with_sharding_constraint(leaf, spec)


def fsdp(
    loss_fn: Callable[..., Any],
    params: Any,
    *,
    on: VirtualSlice,
    optimizer: Any = None,
    mode: str = "zero3",
    plan: FsdpPlan | None = None,
    axis: str | None = None,
    param_dtype: Any = None,
    reduce_dtype: Any = None,
    accumulate: int = 1,
    frozen: Any = None,
    stacked: Any = None,
    shardings: Any = None,
    has_aux: bool = False,
    donate: bool = False,
    batch: Sequence[Any] | None = None,
) -> FsdpStep:
    """Return a training step that splits parameters, gradients and optimizer state over the devices of a place.

    Args:
        loss_fn: ``loss_fn(params, *batch)`` for one device: a mean over the batch, as a scalar.
        params: the parameters or their shapes, as any tree.
        on: the place.
        optimizer: an Optax optimizer; without one, only ``value_and_grad`` can be called.
        mode: what is split, ``"ddp"``, ``"zero1"``, ``"zero2"``, ``"zero3"`` or ``"hsdp"``.
        plan: what is gathered and reduced together; by default a bucket for each block.
        axis: the axis of ``on`` that splits the batch; by default the first. Other axes are left to the compiler.
        param_dtype: dtype in which parameters are gathered and used; by default that in which they are kept.
        reduce_dtype: dtype in which gradients are added up over devices; by default that in which they are made.
        accumulate: number of microbatches into which each device splits its part of the batch.
        frozen: ``frozen(name)`` returns whether a parameter is not trained; or a tree of truth values.
        stacked: in the same forms, whether a parameter is a stack of layers over which ``loss_fn`` scans
            (``jax.lax.scan``): each iteration then gathers its layer. By default those of three and more dimensions.
        shardings: how parameters are split over other axes of ``on``, as in tensor parallelism: a tree of ``pw.P`` or a
            prefix of it.
        has_aux: whether ``loss_fn`` returns the loss and auxiliary outputs, of which the mean over devices is returned.
        donate: whether a step takes over the memory of the parameters and the state it is given.
        batch: arrays or shapes of a whole batch, to plan with before the first call; by default the defaults of
            ``loss_fn``'s arguments, if they are arrays or shapes.

    Raises:
        UsageError: there is no such mode or axis, or an argument has the wrong form.
        PlanError: the plan does not fit the model.
        ShardingError: ``shardings`` does not fit the parameters.
    """
    checks.arguments(loss_fn, optimizer, accumulate)
    chosen = mode_of(mode, on, axis)
    shapes = jax.tree.map(_struct, params)
    trainable, stacks = checks.trainable(shapes, frozen), checks.stacked(shapes, stacked)
    others = partitions(shapes, shardings, on, chosen.axes.names)
    parameters = plans.parameters_of(
        shapes, trainable, stacks, others, chosen, dict(zip(on.axes, on.shape, strict=True))
    )
    given = None if batch is None else tuple(jax.tree.map(_struct, tuple(batch)))
    options = StepOptions.of(chosen, param_dtype, reduce_dtype, accumulate, has_aux)
    return FsdpStep(loss_fn, shapes, on, optimizer, chosen, parameters, options, plan, donate, given)
