"""The computations of a step as programs: the layout of their arguments, and what the memory is held for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.parallel.batch_walk.mean import refuse_zero
from pathways_nb.parallel.fsdp import fsdp_checks
from pathways_nb.parallel.fsdp.lowering import KEEP_BARRIERS
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter, StateLayout
from pathways_nb.parallel.parameter_trees import struct_of
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import specs
from pathways_nb.program.computation import Computation
from pathways_nb.program.context import Tracing, tracing
from pathways_nb.program.declared_cost import DeclaredCost, LaunchPlan
from pathways_nb.program.signature import Signature
from pathways_nb.program.static_arguments import Statics
from pathways_nb.session.calls.program import Program, program

Form = Literal["init", "lay_out", "step", "value_and_grad", "whole"]


class StepComputation(Computation):
    """A computation of a step; its arguments are declared in the layout in which they are kept.

    Args:
        fn: what it computes.
        form: which of the step's computations it is.
        loss: name of the loss.
        on: the place.
        axes: names of the axes that split the batch.
        layout: of the parameters.
        state_layout: of the optimizer's state.
        donated: positions of the arguments whose memory it takes over.
        launch_of: for shapes of a whole batch, returns what its launch takes on simulated devices.
    """

    def __init__(
        self, fn: Callable[..., Any], form: Form, loss: str, on: VirtualSlice, axes: Sequence[str],
        layout: StateLayout, state_layout: StateLayout, donated: Sequence[int] = (),
        launch_of: Callable[[Any], LaunchPlan] | None = None,
    ):  # fmt: skip
        super().__init__(fn, "jit", on, None, None, Statics.of(fn, (), (), donated, ()))
        self.name = f"init {loss}" if form in ("init", "lay_out") else f"{loss} {form}"
        self.compiler_options = KEEP_BARRIERS
        self._form_of_step, self._axes, self.layouts = form, axes, (layout, state_layout)
        self._launch_of = launch_of
        self._launches: list[LaunchPlan] = []
        """Of all calls that were traced: nodes find them by their number, which does not keep them."""

    def cost_of(self, call: Signature) -> DeclaredCost:
        """Return what the plan of the step says of a launch."""
        if self._launch_of is None or self._form_of_step not in ("step", "value_and_grad"):
            return None
        batch = call.dynamic_args[2 if self._form_of_step == "step" else 1 :]
        self._launches.append(self._launch_of(jax.tree.map(struct_of, tuple(batch))))
        return self._launches[-1]

    def check_arguments(self, call: Signature, leaf_specs: Sequence[specs.Spec]) -> None:
        """Refuse arguments that cannot be split, by the errors of ``Computation`` and ``fsdp_checks.same_rows``."""
        if self._form_of_step in ("step", "value_and_grad"):
            fsdp_checks.same_rows(call.dynamic_args[2 if self._form_of_step == "step" else 1 :])
        super().check_arguments(call, leaf_specs)

    def _leaf_specs(self, call: Signature) -> list[specs.Spec]:
        args = call.dynamic_args
        if self._form_of_step == "init":  # arguments of the user's function, such as a key
            return [PartitionSpec()] * len(call.leaves)
        found: list[specs.Spec] = list(self.layouts[0].specs(args[0]))
        if self._form_of_step in ("step", "lay_out") and len(args) > 1:
            found += self.layouts[1].specs(args[1])
        rest = call.leaves[len(found) :]
        return [*found, *(batch_spec(leaf, self._axes) for leaf in rest)]

    def padded(self, trace: Tracing, args: Sequence[Any]) -> list[Any]:
        """Return arguments with the padding that they were cropped from, where they are kept with just this padding."""

        def with_padding(one: Parameter, leaf: Any) -> Any:
            # Another step may have padded it for other devices; then it is cropped, and padded anew inside.
            stored = trace.padded_array(leaf)
            return stored if stored.shape == one.padded else leaf

        if self._form_of_step == "init":
            return list(args)
        pairs = zip(self.layouts, args[: 1 if self._form_of_step in ("whole", "value_and_grad") else 2], strict=False)
        found = [layout.mapped(arg, with_padding) for layout, arg in pairs]
        return [*found, *args[len(found) :]]

    def cropped(self, trace: Tracing, made: Any, trains: bool) -> Any:
        """Return what the computation returns without the padding, which ``trace`` knows."""

        def crop(one: Parameter, leaf: Any) -> Any:
            return leaf if leaf.shape == one.shape else trace.cropped(leaf, one.shape)

        params, state = self.layouts
        match self._form_of_step:
            case "whole":
                return made
            case "value_and_grad":
                value, gradients, counts = made
                return self._counted(value, counts), params.mapped(gradients, crop)
            case "step":
                new, new_state, value, counts = made
                return params.mapped(new, crop), state.mapped(new_state, crop), self._counted(value, counts)
        return (params.mapped(made[0], crop), state.mapped(made[1], crop)) if trains else params.mapped(made, crop)

    def _counted(self, value: Any, counts: Sequence[Any]) -> Any:
        """Return a loss, with or without auxiliary outputs, that is refused if one of its means counts nothing."""
        if not counts:
            return value
        if isinstance(value, tuple):
            return refuse_zero(value[0], counts, self.place), value[1]
        return refuse_zero(value, counts, self.place)


_CATEGORIES: dict[Form, dict[str, str]] = {
    "init": {"result[0]": "parameters", "result[1]": "optimizer"},
    "lay_out": {"result[0]": "parameters", "result[1]": "optimizer"},
    "step": {"params": "parameters", "state": "optimizer", "result[0]": "parameters", "result[1]": "optimizer"},
    "value_and_grad": {"params": "parameters", "result[1]": "gradients"},
    "whole": {"params": "parameters"},
}
"""What the memory of arguments and results is held for, by path."""
_SIGNATURES: dict[Form, inspect.Signature] = {
    "init": inspect.signature(lambda *args: None),
    "lay_out": inspect.signature(lambda params, *state: None),
    "step": inspect.signature(lambda params, state, *batch: None),
    "value_and_grad": inspect.signature(lambda params, *batch: None),
    "whole": inspect.signature(lambda params: None),
}
"""The names of arguments in errors."""


def program_of(
    computation: StepComputation, form: Form, trains: bool, check: Callable[..., None], donated: Sequence[int] = ()
) -> Program:
    """Return the program of one computation, which knows what the memory of its arguments and results is held for.

    Args:
        computation: of a step.
        form: which it is.
        trains: whether the step has an optimizer.
        check: called with the form and the arguments, checks them when they are traced.
        donated: as for the computation.
    """

    def call(*args: Any) -> Any:
        trace = tracing()
        assert trace is not None, "a program is called in a trace only"
        check(form, *args)
        return computation.cropped(trace, computation(*computation.padded(trace, args)), trains)

    call.__signature__ = _SIGNATURES[form]  # type: ignore[attr-defined]
    alone = form in ("init", "lay_out") and not trains  # without a state, the result is the parameters, not a pair
    categories = {"result": "parameters"} if alone else _CATEGORIES[form]
    return program(call, donate_argnums=donated, name=computation.name, categories=categories)


def batch_spec(leaf: Any, axes: Sequence[str]) -> PartitionSpec:
    """Return how an array of the batch is split over axes: by its first dimension; a scalar is not."""
    return split_over(axes) if jnp.ndim(leaf) else PartitionSpec()


def split_over(axes: Sequence[str]) -> PartitionSpec:
    """Return the partition of a first dimension over one or several axes."""
    return PartitionSpec(tuple(axes) if len(axes) > 1 else axes[0])
