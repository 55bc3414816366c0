"""Traces a loss for one device and adds the collectives that make it a step of sharded data parallelism.

The loss is differentiated by JAX for one device's part of the batch, with whole parameters. Nothing is differentiated
through a collective: the gather of a parameter and the reduction of its gradient are added to the list afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from pathways_nb.jaxpr.flat import alive, called
from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary
from pathways_nb.parallel.flat_function import FlatFunction, Runnable, RunnableWalk
from pathways_nb.parallel.fsdp.collectives import DataAxes, all_reduce, gather, scatter
from pathways_nb.parallel.fsdp.modes import Mode
from pathways_nb.parallel.fsdp.scan_gathers import gather_in_scans
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter
from pathways_nb.parallel.fsdp.step_graph import StepGraph, barrier, operation
from pathways_nb.parallel.random_keys import is_random_key

KERNEL = "kernel__"
"""How the name of a function begins whose inner arrays never reach memory: it stays one operation."""


@dataclass(frozen=True)
class StepOptions:
    """What a mode and its options mean for a step.

    Args:
        axes: the axes over which the batch is split.
        gathers: whether parameters are kept in shards and gathered where they are used.
        gathers_again: whether the backward pass gathers them again.
        scatters: whether each device keeps only its shard of each gradient.
        param_dtype: in which parameters are gathered and used; ``None`` for that in which they are kept.
        reduce_dtype: in which gradients are added up over devices; ``None`` for that in which they are made.
        accumulate: into how many microbatches each device splits its part of the batch.
        has_aux: whether the loss returns auxiliary outputs.
    """

    axes: DataAxes
    gathers: bool
    gathers_again: bool
    scatters: bool
    param_dtype: Any = None
    reduce_dtype: Any = None
    accumulate: int = 1
    has_aux: bool = False

    @classmethod
    def of(cls, mode: Mode, *options: Any) -> StepOptions:
        """Return what a mode means together with the other options, in their order."""
        return cls(mode.axes, mode.shards_parameters, mode.gathers_again, mode.shards_parameters, *options)

    def in_mode(self, mode: Mode) -> StepOptions:
        """Return the same options with another mode."""
        return self.of(mode, self.param_dtype, self.reduce_dtype, self.accumulate, self.has_aux)


def differentiated(
    loss: Callable[..., Any], params: Any, parameters: tuple[Parameter, ...], batch: Any, options: StepOptions,
    aux: tuple[Auxiliary, ...] = (),
) -> StepGraph:  # fmt: skip
    """Return loss and gradients of one device's part of the batch, without collectives: the same in every mode.

    Args:
        loss: ``loss(params, *batch)``.
        params: tree of ``jax.ShapeDtypeStruct``, as they are kept.
        parameters: the leaves of ``params``.
        batch: one device's part of the batch, as a tuple of trees of ``jax.ShapeDtypeStruct``.
        options: what the mode means.
        aux: how each auxiliary output is joined.
    """
    trainable = [one.trainable for one in parameters]
    used = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, used_dtype(leaf.dtype, options.param_dtype)), params
    )
    # Without a mesh: it is the code of one device, and each equation keeps the mesh under which it is traced.
    # The gradient by the loss is an input, so that every operation of the backward pass depends on it.
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        seed_shape = jax.ShapeDtypeStruct((), jnp.float32)
        closed, shapes = jax.make_jaxpr(_joint(loss, trainable, options, aux), return_shape=True)(
            seed_shape, used, batch
        )
    walk = StepWalk([], {})
    seed, *inputs = (walk.new(var.aval) for var in closed.jaxpr.invars)
    outputs = walk.run(closed, [seed, *inputs])
    count = len(jax.tree.leaves(params))
    wholes, examples = tuple(inputs[:count]), tuple(inputs[count:])
    results = len(jax.tree.leaves(shapes[0]))
    flat = FlatFunction(alive(tuple(walk.ops), outputs), tuple(inputs), tuple(outputs), walk.avals, walk.constants)
    gradients = dict(zip((i for i, t in enumerate(trainable) if t), outputs[results:], strict=True))
    values = len(walk.avals)
    joins = (Auxiliary("mean"), *aux)
    return StepGraph(
        flat, parameters, wholes, examples, tuple(outputs[:results]), gradients, seed, values, joins, wholes
    )  # fmt: skip


def with_collectives(traced: StepGraph, parameters: tuple[Parameter, ...], options: StepOptions) -> StepGraph:
    """Return a step with the collectives that its mode needs: every gather first, every reduction where it can begin.

    Args:
        traced: the step without collectives; it stays as it is.
        parameters: of the model, as they are split.
        options: what the mode means.
    """
    # The seed is 1 / devices: gradients are those of a mean over devices, though collectives add up.
    constants = {**traced.flat.constants, traced.seed: np.ones((), np.float32) / options.axes.size}
    # A list of its own: collectives add values, and other modes share the traced step.
    flat = replace(traced.flat, avals=list(traced.flat.avals), constants=constants)
    graph = added_collectives(replace(traced, flat=flat, parameters=parameters), options)
    return gather_in_scans(graph, gathers=options.gathers_again) if options.scatters else graph


def _joint(
    loss: Callable[..., Any], trainable: Sequence[bool], options: StepOptions, joins: Sequence[Auxiliary]
) -> Callable[..., Any]:
    """Return the function of loss, auxiliary outputs and gradients that is traced."""

    def joint(seed: Any, params: Any, batch: Any) -> Any:
        leaves, tree = jax.tree.flatten(params)
        at = [i for i, wanted in enumerate(trainable) if wanted]

        def called(varied: list[Any], part: Any) -> Any:
            new = dict(zip(at, varied, strict=True))
            value = loss(jax.tree.unflatten(tree, [new.get(i, leaf) for i, leaf in enumerate(leaves)]), *part)
            value, aux = value if options.has_aux else (value, None)
            # As an array: a loss that is constant may be a Python number.
            return jnp.asarray(value) / options.accumulate, jax.tree.leaves(aux)

        # Written out and not as a scan, so that the list has the operations of each microbatch, and gathers among them.
        total: Any = None
        auxes = []
        for part in _microbatches(batch, options.accumulate):
            loss_of = functools.partial(called, part=part)
            value, pull, aux = jax.vjp(loss_of, [leaves[i] for i in at], has_aux=True)
            (gradients,) = pull(seed.astype(value.dtype))
            auxes.append(aux)
            total = (value, gradients) if total is None else jax.tree.map(jnp.add, total, (value, gradients))
        shares = [1 / options.accumulate] * options.accumulate
        whole_aux = [one.join(parts, shares) for one, *parts in zip(joins, *auxes, strict=True)]
        return (total[0], whole_aux), total[1]

    return joint


def _microbatches(batch: Any, count: int) -> list[Any]:
    """Return a batch in parts of equal length along the first dimension; scalars are repeated, a key is folded."""
    if count == 1:
        return [batch]

    def part(array: Any, number: int) -> Any:
        if array.ndim:
            return jnp.split(array, count)[number]
        return jax.random.fold_in(array, number) if is_random_key(array) else array

    return [jax.tree.map(lambda array, number=number: part(array, number), batch) for number in range(count)]


def is_kernel(eqn: Any) -> bool:
    """Return whether an equation is a ``jax.jit`` whose name says that it is one kernel, such as FlashAttention."""
    return eqn is not None and str(eqn.params.get("name", "")).startswith(KERNEL)


@dataclass
class StepWalk(RunnableWalk):
    """The walk that inlines every call; a recomputation keeps the barrier that holds it back until it is needed."""

    def equation(self, eqn: Any, inputs: list[int]) -> Sequence[int]:  # noqa: D102
        if called(eqn) is None or is_kernel(eqn):
            return super().equation(self.whole(eqn), inputs)
        if eqn.primitive.name == "remat2" and eqn.params["differentiated"] and eqn.params["prevent_cse"]:
            # Inlined without a barrier over its inputs, the compiler would merge a recomputation with the first
            # computation, and store what jax.checkpoint was to free.
            distinct = tuple(dict.fromkeys(inputs))
            outputs = {value: self.new(self.avals[value]) for value in distinct}
            self.ops.append(operation("barrier", distinct, tuple(outputs.values()), barrier))
            inputs = [outputs[value] for value in inputs]
        return self.inline(eqn, inputs)


def used_dtype(kept: Any, param_dtype: Any) -> Any:
    """Return the dtype in which a parameter is used."""
    floating = jnp.issubdtype(kept, jnp.floating)
    return param_dtype if param_dtype is not None and floating else kept


_REDUCTIONS = {"max": jax.lax.pmax, "min": jax.lax.pmin}


def added_collectives(graph: StepGraph, options: StepOptions, kept: Sequence[int] = ()) -> StepGraph:
    """Return a graph with a gather of each parameter at the front, and each gradient reduced where it is made.

    Args:
        graph: without collectives.
        options: what the mode means.
        kept: other values that it makes for somebody: each device keeps its own.
    """
    # The step that passes begin with: every gather in front, every reduction behind what makes its gradient.
    shards, first = list(graph.shards), list[Runnable]()
    for param, whole in enumerate(graph.shards):
        shards[param], ops = _gathered(graph, options, param, whole)
        first += ops
    ops, outputs, gradients = [*first, *graph.ops], dict[int, int](), dict[int, int]()
    made = {value: op for op in ops for value in op.outputs}
    after: dict[Runnable | None, list[Runnable]] = {}
    last = list[Runnable]()
    for param, whole in graph.gradients.items():
        gradients[param], reducing = _reduced(graph, options, param, whole)
        after.setdefault(made.get(whole), []).extend(reducing)
    for value, join in zip(graph.results, graph.joins, strict=True):
        total = value
        # What belongs to rows stays with the device that has them.
        for axis in options.axes.names if join.how != "rows" else ():
            before, total = total, graph.new(graph.flat.avals[value])
            reduced = all_reduce(graph, axis, (), before, total, reduction=_REDUCTIONS.get(join.how, jax.lax.psum))
            after.setdefault(made.get(value), []).append(reduced)
        outputs[value] = graph.new(graph.flat.avals[value])
        by = 1 / options.axes.size if join.how == "mean" else 1
        scaled = functools.partial(lambda array, by: [(array * by).astype(array.dtype)], by=by)
        last.append(operation("mul", (total,), (outputs[value],), scaled))
    ordered = [*after.get(None, ()), *(each for op in ops for each in (op, *after.get(op, ()))), *last]
    results = tuple(outputs[value] for value in graph.results)
    flat = FlatFunction(
        tuple(ordered), (*shards, *graph.batch), (*results, *gradients.values(), *kept), graph.flat.avals,
        graph.flat.constants,
    )  # fmt: skip
    return replace(graph, flat=flat, shards=tuple(shards), results=results, gradients=gradients)


def _gathered(graph: StepGraph, options: StepOptions, param: int, whole: int) -> tuple[int, list[Runnable]]:
    """Return the input from which a parameter is made, and the operations that make it."""
    one, used = graph.parameters[param], graph.flat.avals[whole]
    sharded = options.gathers and one.dim is not None
    shape = one.local if sharded else one.shape
    ops, value = list[Runnable](), whole
    if sharded:
        value = graph.new(used, shape)
        ops.append(gather(graph, options.axes.shard[0], param, value, whole))
    if one.dtype != used.dtype:  # converted in front of the gather, so that the collective carries the type of use
        before, after = graph.new(used, shape, one.dtype), value
        ops.insert(0, operation("convert", (before,), (after,), lambda array: [array.astype(used.dtype)]))
        value = before
    return value, ops


def _reduced(graph: StepGraph, options: StepOptions, param: int, value: int) -> tuple[int, list[Runnable]]:
    """Return the value of a gradient that is added up over all devices, and the operations that make it."""
    one, ops = graph.parameters[param], list[Runnable]()
    aval = graph.flat.avals[value]

    def convert(dtype: Any) -> None:
        nonlocal value
        if graph.flat.avals[value].dtype != dtype:
            before, value = value, graph.new(graph.flat.avals[value], dtype=dtype)
            ops.append(operation("convert", (before,), (value,), lambda array: [array.astype(dtype)]))

    # reduce_dtype is that of the sum over devices; parameters are updated in the type in which they are stored.
    convert(options.reduce_dtype or aval.dtype)
    scattered = options.scatters and one.dim is not None
    if scattered:
        before, value = value, graph.new(graph.flat.avals[value], one.local)
        ops.append(scatter(graph, options.axes.shard[0], param, before, value))
    else:
        before, value = value, graph.new(graph.flat.avals[value])
        ops.append(all_reduce(graph, options.axes.shard[0], (param,), before, value, one.others))
    if options.axes.replicate:  # only the shard crosses the axis of replicas, which may be the slower network
        before, value = value, graph.new(graph.flat.avals[value])
        ops.append(all_reduce(graph, options.axes.replicate[0], (param,), before, value, one.others))
    convert(one.dtype)
    return value, ops
