"""A training step of sharded data parallelism, as its user calls, plans and measures it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import numpy as np

from pathways_nb.cost.model import CostModel
from pathways_nb.errors import size as size_text
from pathways_nb.parallel.fsdp import fsdp_checks, plans
from pathways_nb.parallel.fsdp.fsdp_plan import FsdpPlan
from pathways_nb.parallel.fsdp.measured import (
    CompiledCollectives,
    MeasuredStep,
    compared_collectives,
    last_launch,
    measured,
)
from pathways_nb.parallel.fsdp.modes import elsewhere
from pathways_nb.parallel.fsdp.passes.pass_registry import pass_of
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter
from pathways_nb.parallel.fsdp.step_functions import StepFunctions, StepSpec, part_of
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.step_launch import StepLaunch, planner_of
from pathways_nb.parallel.fsdp.step_planner import Planner
from pathways_nb.parallel.fsdp.step_program import Form, StepComputation, program_of
from pathways_nb.parallel.fsdp.timeline import StepTimeline
from pathways_nb.parallel.parameter_trees import struct_of
from pathways_nb.plan import source_lines
from pathways_nb.program.signature import Aval, Deferred
from pathways_nb.results.run import Run
from pathways_nb.session import default_controller
from pathways_nb.session.calls.program import Program


class FsdpStep:
    """A training step whose parameters, gradients and optimizer state are split over devices; ``fsdp`` makes it.

    Attributes:
        plan: what is gathered and reduced together.
    """

    def __init__(self, spec: StepSpec, plan: FsdpPlan | None = None, batch: Any = None):
        self._spec = spec
        self.plan = plan if plan is not None else plans.per_block(spec.parameters, spec.mode)
        self.plan.check([one.name for one in spec.parameters])
        self._functions = StepFunctions(
            spec, self.plan, fsdp_checks.default_batch(spec.loss) if batch is None else batch
        )
        self._programs: dict[Any, Program] = {}

    def __repr__(self) -> str:
        size, on = sum(one.size for one in self.parameters), self._spec.on
        compared = f"\n{self._functions.compared}" if self._functions.compared else ""
        return (
            f"<fsdp step of {self.name}, {self.mode} on {on.label} ({on.axes_text}): {size:,} "
            f"parameters in {len(self.parameters)} arrays{self._uneven}, {len(self.plan.buckets)} buckets>{compared}"
        )

    @property
    def _uneven(self) -> str:
        """How many parameters the devices do not divide, and what becomes of them; empty if there are none."""
        kept = self._spec.state_layout.parameters if self._spec.mode.shards_state else ()
        whole = sum(one.dim is None and one.size > 1 for one in kept)
        padded = sum(one.padded != one.shape for one in kept)
        if not whole + padded:
            return ""
        limit = size_text(self.whole_below)
        return f" ({whole + padded} uneven: {whole} below {limit} stay whole, {padded} are padded)"

    @property
    def name(self) -> str:
        """The name of the loss."""
        return self._spec.name

    @property
    def mode(self) -> str:
        """The name of the mode."""
        return self._spec.mode.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, each with the dimension that is split."""
        return self._spec.parameters

    @property
    def whole_below(self) -> float:
        """The bytes below which a parameter stays whole on each device if the devices divide none of its dimensions."""
        return plans.whole_below(self.parameters)

    @source_lines.users_view
    def with_plan(self, plan: FsdpPlan) -> FsdpStep:
        """Return the same step with another plan.

        Raises:
            PlanError: the plan is for another model.
        """
        fsdp_checks.plan(plan)
        return FsdpStep(self._spec, plan, self._functions.batch)

    @source_lines.users_view
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
        spec, parts = self._spec, self._spec.mode.axes.size
        on, chosen = elsewhere(spec.on, spec.mode, mode or self.mode, parts if devices is None else devices)
        sizes = dict(zip(on.axes, on.shape, strict=True))
        batch = jax.tree.map(lambda leaf: part_of(leaf, parts, chosen.axes.size), self._functions.batch)
        parameters = plans.split_again(spec.parameters, chosen, sizes)
        there = replace(spec, on=on, mode=chosen, parameters=parameters, options=spec.options.in_mode(chosen))
        return FsdpStep(there, None, batch)

    # ---- what a user calls

    @source_lines.users_view
    def init(self, params: Any, *args: Any) -> Any:
        """Return the parameters as they are kept and, if there is an optimizer, its state: ``(params, state)``.

        Args:
            params: the parameters, also of a step on other devices, or a function that makes them. With a function no
                device ever holds all of them.
            *args: arguments of that function, such as a key; beside parameters, a state to go on with.

        Raises:
            UsageError: the parameters or the state are those of another model or optimizer.
        """
        if fsdp_checks.makes_parameters(params, self._spec.shapes):
            return self._program("init", params, len(args))(*args)
        fsdp_checks.same_shapes(self._spec.shapes, params)
        # Arrays of the host are padded here; futures and what is traced are padded in the program.
        not_of_host = Deferred, jax.core.Tracer, jax.ShapeDtypeStruct
        leaves = [leaf if isinstance(leaf, not_of_host) else one.pad(np.asarray(leaf))
                  for one, leaf in zip(self._spec.layout.parameters, jax.tree.leaves(params), strict=True)]  # fmt: skip
        whole = jax.tree.unflatten(jax.tree.structure(params), leaves)
        return self._program("lay_out", None, 1 + len(args))(whole, *args)

    @source_lines.users_view
    def __call__(self, params: Any, state: Any, *batch: Any) -> Any:
        """Return new parameters, new state and the loss: ``params, state, value = step(params, state, *batch)``."""
        fsdp_checks.has_optimizer(self._spec.optimizer)
        return self._program("step", None, len(batch))(params, state, *batch)

    @source_lines.users_view
    def value_and_grad(self, params: Any, *batch: Any) -> Any:
        """Return the loss and the gradients, as ``jax.value_and_grad`` of the loss for the whole batch would.

        Args:
            params: the parameters as they are kept.
            *batch: arrays whose first dimension is split over the data axis.
        """
        return self._program("value_and_grad", None, len(batch))(params, *batch)

    @source_lines.users_view
    def whole(self, params: Any) -> Any:
        """Return parameters, or parameters and state, each array whole on every device."""
        return self._program("whole", None, 1)(params)

    @source_lines.users_view
    def graph(self, *batch: Any) -> StepGraph:
        """Return the step as the list of operations that is run, after the passes of its plan.

        Args:
            *batch: arrays or shapes of a whole batch; by default those of the last call.
        """
        return self._functions.graph(self._shapes_of(batch))

    @source_lines.users_view
    def traced(self, *batch: Any) -> StepGraph:
        """Return the step as it was traced, before any pass: all gathers in front.

        Args:
            *batch: arrays or shapes of a whole batch; by default those of the last call.
        """
        return self._functions.traced(self._shapes_of(batch))

    @source_lines.users_view
    def planner(self, batch: Sequence[Any] | None = None, chip: Any = None, streams: Literal[2, 3] = 2) -> Planner:
        """Return what plans, times and searches before the step runs.

        Args:
            batch: arrays or shapes of a whole batch; by default those of the last call, or ``batch=`` of ``pw.fsdp``.
            chip: a chip, its name or a cost model; by default that of the simulated devices.
            streams: 3 for gathers and reductions on streams of their own, 2 for both on one.

        Raises:
            UsageError: neither is known.
        """
        known = self._functions.batch if batch is None else self._shapes_of(tuple(batch))
        fsdp_checks.has_batch(known, self._spec.loss)
        model = chip if isinstance(chip, CostModel) else CostModel.of(chip) if chip else default_controller.cost_model()
        fsdp_checks.has_model(model)
        assert model is not None, "has_model refuses it"
        return planner_of(self._functions, "step", known, model, default_controller.topology(model), streams)

    @source_lines.users_view
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

    @source_lines.users_view
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

    @source_lines.users_view
    def measured(self, run: Run, *batch: Any, device: int = 0) -> MeasuredStep:
        """Return where the collectives of the plan ran inside the last launch of this step in a profiled run.

        Args:
            run: of ``pw.profile``, with a call of the step or of ``value_and_grad``.
            *batch: arrays or shapes of a whole batch; by default those of the last call.
            device: index of the device within its island.

        Raises:
            UsageError: the run has no ops of this step, or no batch is known.
        """
        ops, began = last_launch(run, (f"{self.name} step", f"{self.name} value_and_grad"), device)
        return measured(self.graph(*batch), ops, began)

    @source_lines.users_view
    def compiled(self, *batch: Any) -> CompiledCollectives:
        """Return the collectives of ``value_and_grad`` as they are planned and as they were compiled.

        Args:
            *batch: arrays or shapes of a whole batch; by default those of the last call.

        Raises:
            UsageError: devices are simulated.
        """
        spec, batch = self._spec, self._shapes_of(batch)
        # As the step stores them: of parameters without their padding it is another program.
        shapes = jax.tree.unflatten(
            jax.tree.structure(spec.shapes),
            [Aval(one.shape, one.dtype, padded=None if one.padded == one.shape else one.padded)
             for one in spec.layout.parameters],
        )  # fmt: skip
        call = self._program("value_and_grad", None, len(batch))
        made = call.compiled(shapes, *batch)
        return compared_collectives(self._functions.graph(batch), made[call.name], spec.sizes)

    @property
    def checked(self) -> str:
        """What decided that the loss is a mean over the batch: its structure, numbers or nothing."""
        return self._functions.checked

    def _shapes_of(self, batch: Any) -> Any:
        """Return the shapes of a batch; without one, those known before."""
        if not batch:
            fsdp_checks.has_batch(self._functions.batch, self._spec.loss)
            return self._functions.batch
        return jax.tree.map(struct_of, batch)

    def _program(self, form: Form, init: Any, count: int) -> Program:
        """Return one of the step's programs, for so many arguments."""
        # A pass that was registered again makes another program: the step runs what its graph and timeline show.
        passes = tuple(pass_of(one.name) for one in self.plan.passes)
        key, spec, made = (form, init, count, passes), self._spec, self._functions
        if key not in self._programs:
            fns: dict[Form, Callable[..., Any]] = {
                "init": lambda *args: made.laid_out(init(*args)), "lay_out": made.laid_out, "whole": made.whole,
                "step": made.step, "value_and_grad": made.value_and_grad,
            }  # fmt: skip
            donated = (0, 1) if form == "step" and spec.donate else ()  # never the batch, which may be used again
            layouts = spec.layout, spec.state_layout
            launch_of = functools.partial(StepLaunch, made, form)
            axes = spec.mode.axes.names
            call = StepComputation(fns[form], form, self.name, spec.on, axes, *layouts, donated, launch_of)
            self._programs[key] = program_of(call, form, spec.optimizer is not None, made.check, donated)
            if form in ("step", "value_and_grad"):
                # What decides about the loss runs at a call, when there are numbers, and not in the trace.
                batch = 2 if form == "step" else 1
                self._programs[key].decide = lambda params, *rest: made.decide(params, rest[batch - 1 :])
        return self._programs[key]
