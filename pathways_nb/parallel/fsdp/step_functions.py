"""What a step computes, as functions that are traced on its place: to lay parameters out, differentiate and update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from pathways_nb.parallel.batch_walk.examine import Examined
from pathways_nb.parallel.batch_walk.mean import counts_of, with_counts
from pathways_nb.parallel.batch_walk.verdicts import on_host
from pathways_nb.parallel.fsdp import fsdp_checks, loss_checks, plans
from pathways_nb.parallel.fsdp.fsdp_plan import FsdpPlan
from pathways_nb.parallel.fsdp.lowering import over_devices
from pathways_nb.parallel.fsdp.modes import Mode
from pathways_nb.parallel.fsdp.optimizer_update import NewParameter, OptimizerUpdate
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter, StateLayout
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.step_program import Form, batch_spec
from pathways_nb.parallel.fsdp.tracing import StepOptions, differentiated, used_dtype, with_collectives
from pathways_nb.parallel.parameter_trees import only_trainable, struct_of
from pathways_nb.plan.function_names import function_name
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context, jax_contexts
from pathways_nb.program.program_tracer import apart
from pathways_nb.program.specs import axes_of
from pathways_nb.session import default_controller


@dataclass(frozen=True, eq=False)
class StepSpec:
    """What a user asked for.

    Args:
        loss: for one device.
        shapes: of the parameters.
        on: the place.
        optimizer: of Optax; ``None`` if there is none.
        mode: what is split.
        parameters: the leaves of ``shapes``, with the dimension that is split.
        options: of the trace.
        donate: whether a step takes over its arguments' memory.
        aux: how auxiliary outputs are joined, as the user says.
        check: whether the loss must be a mean over the batch.
        differentiated: by shapes of a device's batch and JAX's contexts, the step without collectives and what is known
            of the loss. Steps that differ in mode, devices or plan share it.
        traced_updates: the traced update of the optimizer, once it was asked for; shared likewise.
    """

    loss: Callable[..., Any]
    shapes: Any
    on: VirtualSlice
    optimizer: Any
    mode: Mode
    parameters: tuple[Parameter, ...]
    options: StepOptions
    donate: bool = False
    aux: Any = None
    check: bool = True
    differentiated: dict[Any, tuple[StepGraph, Examined]] = field(default_factory=dict)
    traced_updates: list[Any] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the loss."""
        return function_name(self.loss)

    @property
    def sizes(self) -> Mapping[str, int]:
        """The axes of the place and their sizes."""
        return dict(zip(self.on.axes, self.on.shape, strict=True))

    @cached_property
    def stored_specs(self) -> list[PartitionSpec]:
        """The partition of each parameter between steps, over the axes of the batch."""
        return [one.spec(self.mode.axes.shard[0]) for one in self.layout.parameters]

    @cached_property
    def layout(self) -> StateLayout:
        """How parameters are kept, over all axes."""
        return self._layout(self.mode.shards_parameters)

    @cached_property
    def state_layout(self) -> StateLayout:
        """How the optimizer's state is kept."""
        return self._layout(self.mode.shards_state)

    def _layout(self, is_split: bool) -> StateLayout:
        parameters = [one if is_split else one.whole for one in self.parameters]
        return StateLayout(self.shapes, parameters, self.mode.axes.shard[0])

    @cached_property
    def state_bytes(self) -> int:
        """The bytes of the optimizer's state on each device, with its padding."""
        if self.optimizer is None:
            return 0
        state = jax.eval_shape(lambda params: self.state_layout.padded(self.optimizer.init(params)), self.shapes)
        pairs = zip(jax.tree.leaves(state), self.state_layout.specs(state), strict=True)
        return sum(leaf.size * leaf.dtype.itemsize // self._parts(spec) for leaf, spec in pairs)

    @property
    def parameter_bytes(self) -> int:
        """The bytes of the parameters as each device keeps them, with their padding."""
        return sum(
            math.prod(one.padded) * one.dtype.itemsize // self._parts(self.layout.spec(one))
            for one in self.layout.parameters
        )

    def _parts(self, spec: PartitionSpec) -> int:
        return math.prod(self.sizes[axis] for entry in spec for axis in axes_of(entry))

    def updated(self, params: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
        """Return new parameters and new state, of true shapes: some transforms, such as Adafactor's, read them."""
        updates, state = self.optimizer.update(gradients, state, params)
        new = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)
        return only_trainable(params, new, [one.trainable for one in self.parameters]), state

    @cached_property
    def update(self) -> OptimizerUpdate | None:
        """The optimizer's update on each device; ``None`` if there is no optimizer."""
        if self.optimizer is None:
            return None
        state = jax.eval_shape(self.optimizer.init, self.shapes)
        layout, gathers = self.state_layout, list[NewParameter]()
        own = [layout.spec(one) for one in layout.parameters]
        of_state = [PartitionSpec() if one is None else layout.spec(one) for one in layout.of(state)]
        if self.mode.shards_state and not self.mode.shards_parameters:
            gathers = [
                NewParameter(at, math.prod(one.piece.padded) * one.dtype.itemsize)
                for at, one in enumerate(layout.parameters)
                if one.dim is not None and one.trainable
            ]
        kept = (0, 0) if self.donate else (self.parameter_bytes, self.state_bytes)
        specs = [*own, *own, *of_state]
        return OptimizerUpdate(self._traced_update, specs, tuple(gathers), self.mode.axes.shard[0], *kept)

    def _traced_update(self) -> Any:
        """Return the jaxpr of the optimizer's update, which takes as long to trace as a small model."""
        if not self.traced_updates:
            state = jax.eval_shape(self.optimizer.init, self.shapes)
            with apart("sim"), jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
                self.traced_updates.append(jax.make_jaxpr(self.updated)(self.shapes, self.shapes, state))
        return self.traced_updates[0]


class StepFunctions:
    """The functions of a step under one plan.

    Args:
        spec: the step.
        plan: what is gathered and reduced together.
        batch: shapes of a whole batch to plan with, if known.

    Attributes:
        batch: the shapes that were traced last, else those given.
    """

    def __init__(self, spec: StepSpec, plan: FsdpPlan, batch: Any = None):
        self.spec, self.plan, self.batch = spec, plan, batch
        self._graphs: dict[Any, tuple[StepGraph, Examined]] = {}
        self.checked = "not checked yet: nothing was called"
        """What decided last that the loss is a mean over the batch."""
        self.planners: dict[Any, Any] = {}
        """What planned the step last (``step_launch.planner_of``)."""
        self.compared = ""
        """On simulated chips with a compiler of their own: how the compiled launch differs from the plan's timeline."""

    @property
    def parts(self) -> int:
        """Number of parts into which the batch is split: over devices, and into microbatches."""
        return self.spec.mode.axes.size * self.spec.options.accumulate

    def check(self, form: Form, *args: Any) -> None:
        """Check the trees and shapes of the parameters and the state that one of the functions is given.

        Raises:
            UsageError: they are those of another model or optimizer.
        """
        if form in ("step", "value_and_grad"):
            fsdp_checks.same_shapes(self.spec.shapes, args[0])
        if form in ("step", "lay_out") and self.spec.optimizer is not None and len(args) > 1:
            fsdp_checks.same_state(jax.eval_shape(self.spec.optimizer.init, self.spec.shapes), args[1])

    def laid_out(self, params: Any, state: Any = None) -> Any:
        """Return parameters as they are kept and, if there is an optimizer, its state: the given one, or a new one."""
        spec = self.spec
        # Cropped first: they may come from a step on other devices, which pads otherwise.
        params = spec.layout.cropped(params)
        fsdp_checks.same_shapes(spec.shapes, params)
        stored = _constrained(spec.layout.padded(params), spec.layout)
        if spec.optimizer is None:
            return stored
        state = spec.optimizer.init(params) if state is None else spec.state_layout.cropped(state)
        state = spec.state_layout.padded(state)
        return stored, _constrained(state, spec.state_layout)

    def whole(self, params: Any) -> Any:
        """Return parameters without padding, on every device."""
        return jax.tree.map(lambda leaf: _constrain(leaf, PartitionSpec()), self.spec.layout.cropped(params))

    def used(self, params: Any) -> Any:
        """Return parameters on the host as the loss uses them, without padding and in their dtype."""
        dtype = self.spec.options.param_dtype
        return jax.tree.map(lambda leaf: np.asarray(leaf).astype(used_dtype(leaf.dtype, dtype)), on_host(params))

    def value_and_grad(self, params: Any, *batch: Any) -> Any:
        """Return the loss, the gradients in the layout of the parameters, and the counts of the loss's means."""
        value, gradients, counts = self._value_and_shards(params, batch)
        return value, _constrained(gradients, self.spec.layout), counts

    def step(self, params: Any, state: Any, *batch: Any) -> Any:
        """Return new parameters, new state, the loss, and the counts of the loss's means."""
        spec = self.spec
        value, gradients, counts = self._value_and_shards(params, batch)
        # zero1: gradients and parameters are whole on every device. Constrained to the state's layout, each device
        # updates its part only, and the compiler gathers the new parameters: the all-gather of the table in ``modes``.
        if spec.mode.shards_state and not spec.mode.shards_parameters:
            padded = map(spec.state_layout.padded, (gradients, params))
            gradients, params = (_constrained(tree, spec.state_layout) for tree in padded)
        gradients, old, state = map(spec.state_layout.cropped, (gradients, params, state))
        new, state = spec.updated(old, gradients, state)
        new, state = spec.layout.padded(new), spec.state_layout.padded(state)
        return _constrained(new, spec.layout), _constrained(state, spec.state_layout), value, counts

    def traced(self, batch: Any) -> StepGraph:
        """Return the step before any pass, for arrays or shapes of a whole batch."""
        return self._traced(batch)[0]

    def examined(self, batch: Any) -> Examined:
        """Return what is known of the loss, for arrays or shapes of a whole batch."""
        return self._traced(batch)[1]

    def decide(self, params: Any, batch: tuple[Any, ...]) -> Callable[[], None]:
        """Begin to compare numbers of the first call where the structure of the loss does not decide.

        Returns:
            What waits for the numbers, and raises a ``UsageError`` if the loss is no mean over the batch.
        """
        spec, found = self.spec, self.examined(jax.tree.map(struct_of, batch))
        compare = None  # a trace and simulated devices have no numbers
        if context.tracing() is None and default_controller.cost_model() is None:
            compare = lambda *_: loss_checks.compared(  # noqa: E731
                spec.loss, found, self.used(params), batch, self.parts
            )
        conclude = found.decided("fsdp", spec.name, compare)

        def note() -> None:
            self.checked = conclude()

        return note

    def graph(self, batch: Any) -> StepGraph:
        """Return the step after the passes of its plan."""
        return plans.applied(self.traced(batch), self.plan, self.spec.mode)

    def _traced(self, batch: Any) -> tuple[StepGraph, Examined]:
        spec, parts = self.spec, self.parts
        fsdp_checks.whole_batch(batch, spec.mode.axes.size, spec.options.accumulate)
        local = jax.tree.map(lambda leaf: part_of(leaf, spec.mode.axes.size), batch)
        leaves = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(local))
        # JAX's contexts are part of a trace. They are asked for so that they are equal inside and outside a program, on
        # simulated and on real devices: else one step would be traced several times.
        with apart("sim"), jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            contexts = jax_contexts.current()
        key = str(jax.tree.structure(local)), leaves, contexts
        if key not in self._graphs:
            if key not in spec.differentiated:
                part = jax.tree.map(lambda leaf: part_of(leaf, parts), batch)
                found = loss_checks.examined(
                    spec.loss, spec.shapes, part, parts, spec.options.has_aux, spec.aux, spec.check
                )
                loss, given = spec.loss, local
                if found.means:  # of which each divides by a number that it is given
                    loss, given = with_counts(loss), (*local, [jax.ShapeDtypeStruct((), jnp.float32)] * found.means)
                made = differentiated(loss, spec.shapes, spec.parameters, given, spec.options, found.aux)
                spec.differentiated[key] = made, found
            made, found = spec.differentiated[key]
            self._graphs[key] = with_collectives(made, spec.parameters, spec.options), found
        self.batch = batch  # not before: a batch that cannot be traced is forgotten
        return self._graphs[key]

    def _value_and_shards(self, params: Any, batch: tuple[Any, ...]) -> tuple[Any, Any, list[Any]]:
        """Return the loss, the gradients in the layout of the parameters, and the counts of the loss's means."""
        spec = self.spec
        params = spec.layout.padded(params)
        shapes = jax.tree.map(struct_of, batch)
        graph, loss = self.graph(shapes), self.examined(shapes)
        axes = spec.mode.axes.names
        counts = counts_of("fsdp", spec.loss, 1, spec.shapes, *batch) if loss.means else []
        if counts:  # those of all parts, divided by the number of parts: the loss is then a mean over the parts
            batch = (*batch, [count / self.parts for count in counts])
        pieces, stored = [batch_spec(leaf, axes) for leaf in jax.tree.leaves(batch)], spec.stored_specs
        run = over_devices(graph, stored, pieces, [stored[i] for i in graph.gradients], axes)
        made = run(*jax.tree.leaves(params), *jax.tree.leaves(batch))
        results, shards = made[: len(graph.results)], iter(made[len(graph.results) :])
        # A frozen parameter has the gradient 0, so that the tree is that of the parameters.
        leaves = [next(shards) if i in graph.gradients else jnp.zeros_like(leaf)
                  for i, leaf in enumerate(jax.tree.leaves(params))]  # fmt: skip
        value = (results[0], jax.tree.unflatten(loss.tree, results[1:])) if spec.options.has_aux else results[0]
        return value, jax.tree.unflatten(jax.tree.structure(params), leaves), counts


def part_of(leaf: Any, parts: int, times: int = 1) -> jax.ShapeDtypeStruct:
    """Return the shape of some of the equal parts of an array."""
    shape = (leaf.shape[0] // parts * times, *leaf.shape[1:]) if leaf.shape else leaf.shape
    return jax.ShapeDtypeStruct(shape, leaf.dtype)


def _constrained(tree: Any, layout: StateLayout) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, list(map(_constrain, leaves, layout.specs(tree))))


def _constrain(leaf: Any, spec: PartitionSpec) -> Any:
    return jax.lax.with_sharding_constraint(leaf, spec)
