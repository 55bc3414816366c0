"""``pw.fsdp``: a loss for one device as a step of sharded data parallelism (SimpleFSDP, arXiv 2411.00284)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from pathways_nb.parallel.batch_walk import auxiliary
from pathways_nb.parallel.fsdp import fsdp_checks, plans
from pathways_nb.parallel.fsdp.fsdp_plan import FsdpPlan
from pathways_nb.parallel.fsdp.modes import mode_of
from pathways_nb.parallel.fsdp.step import FsdpStep
from pathways_nb.parallel.fsdp.step_functions import StepSpec
from pathways_nb.parallel.fsdp.tracing import StepOptions
from pathways_nb.parallel.parameter_trees import struct_of
from pathways_nb.plan import source_lines
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.util.option_names import checked_options


@checked_options(on="the virtual slice to train on, such as on=pw.virtual_slice(4)")
@source_lines.users_view
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
    aux: Any = None,
    check: bool = True,
    donate: bool = False,
    batch: Sequence[Any] | None = None,
) -> FsdpStep:
    """Return a training step that splits parameters, gradients and optimizer state over the devices of a place.

    Where the devices divide no dimension of a parameter, it is padded in their memory, or stays whole on each if it is
    small (``FsdpStep.whole_below``). Its shape and every read of it are without padding.

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
        has_aux: whether ``loss_fn`` returns the loss and auxiliary outputs. What grows with the batch comes back as
            rows in the batch's order, and what is a mean over the batch as the mean.
        aux: how other auxiliary outputs of the parts of a batch are joined, by path: ``{"count": "sum"}``, or
            ``"mean"``, ``"max"`` or ``"min"``; or one word for all.
        check: whether ``loss_fn`` must be a mean over the batch. Another loss, such as one with statistics of the
            batch, differs when the batch is split, and is refused; see ``pw.mean`` and ``FsdpStep.checked``.
        donate: whether a step takes over the memory of the parameters and the state it is given.
        batch: arrays or shapes of a whole batch, to plan with before the first call; by default the defaults of
            ``loss_fn``'s arguments, if they are arrays or shapes.

    Raises:
        UsageError: there is no such mode or axis, or an argument has the wrong form.
        PlanError: the plan does not fit the model.
        ShardingError: ``shardings`` does not fit the parameters.
    """
    fsdp_checks.arguments(loss_fn, optimizer, accumulate)
    fsdp_checks.options(plan, param_dtype, reduce_dtype)
    auxiliary.arguments("fsdp", aux, has_aux)
    fsdp_checks.arrays(params)
    chosen = mode_of(mode, on, axis)
    # Shapes from here on: a step that held the first parameters would keep their memory for as long as it lives.
    shapes = jax.tree.map(struct_of, params)
    trainable, stacks = fsdp_checks.trainable(shapes, frozen), fsdp_checks.stacked(shapes, stacked)
    others = fsdp_checks.partitions(shapes, shardings, on, chosen.axes.names)
    parameters = plans.parameters_of(
        shapes, trainable, stacks, others, chosen, dict(zip(on.axes, on.shape, strict=True))
    )
    options = StepOptions.of(chosen, param_dtype, reduce_dtype, accumulate, has_aux)
    spec = StepSpec(loss_fn, shapes, on, optimizer, chosen, parameters, options, donate, aux, check)
    return FsdpStep(spec, plan, None if batch is None else tuple(jax.tree.map(struct_of, tuple(batch))))
