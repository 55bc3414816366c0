"""Makes a step a function again: what one device computes, under ``jax.shard_map`` over the axes of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.passes.barriers import with_barriers
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph
from pathways_nb.parallel.random_keys import is_random_key

_WITHOUT_PASSES = (
    "cse_barrier_expander",  # it drops barriers on CPU; then the second gather of a parameter is merged with the first
    "small-while-loop-hoisting",  # it makes one kernel of a small loop, and a barrier in a kernel ends the process
)
KEEP_BARRIERS = {"cpu:xla_disable_hlo_passes": ",".join(_WITHOUT_PASSES)}
"""Options with which XLA on CPU keeps barriers, our own and those of ``jax.checkpoint`` (measured).

XLA on GPU has a pass of the first name, too, and without it compiles no barrier at all (seen with JAX 0.11 on an H200).
"""


def per_device(graph: StepGraph) -> Callable[..., list[Any]]:
    """Return the step of one device: from its shards and its part of the batch to results and gradients' shards.

    Raises:
        PlanError: an operation stands in front of one whose result it reads.
    """
    graph.check()
    bound = with_barriers(graph)
    return bound.flat.function([*_named(bound)], bound.flat.inputs, bound.flat.outputs)


def _with_own_keys(run: Callable[..., list[Any]], graph: StepGraph, axes: tuple[str, ...]) -> Callable[..., list[Any]]:
    """Return the step of one device that draws its own numbers from the random keys in the batch, as its rows need."""
    avals = (graph.flat.avals[value] for value in graph.flat.inputs)
    keys = list(map(is_random_key, avals))
    if not any(keys):
        return run

    def folded(*arrays: Any) -> list[Any]:
        at = jax.lax.axis_index(axes)
        own = (jax.random.fold_in(array, at) if key else array for array, key in zip(arrays, keys, strict=True))
        return run(*own)

    return folded


def _named(graph: StepGraph) -> Iterator[Runnable]:
    """Yield the operations; collectives run under their label, by which an op of the compiled step is known."""
    for op in graph.ops:
        yield replace(op, run=_under(graph.label(op), op.run)) if isinstance(op, Collective) else op


def _under(name: str, run: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Return a function whose operations have ``name`` in JAX's name stack."""

    def named(*arrays: Any) -> Sequence[Any]:
        with jax.named_scope(name):
            return run(*arrays)

    return named


def over_devices(
    graph: StepGraph, shards: Sequence[PartitionSpec], batch: Sequence[PartitionSpec],
    gradients: Sequence[PartitionSpec], axes: Sequence[str],
) -> Callable[..., list[Any]]:  # fmt: skip
    """Return the step of all devices, to be called on a place.

    Args:
        graph: the step.
        shards: the partition of each parameter over ``axes``.
        batch: the partition of each array of the batch.
        gradients: the partition of each gradient.
        axes: the axes over which the batch is split. Other axes of the place are left to the compiler.
    """
    results = [PartitionSpec(*[None] * one.rows, tuple(axes)) if one.how == "rows" else PartitionSpec()
               for one in graph.joins]  # fmt: skip
    return jax.shard_map(
        _with_own_keys(per_device(graph), graph, tuple(axes)), in_specs=(*shards, *batch),
        out_specs=[*results, *gradients], axis_names=set(axes), check_vma=False,
    )  # fmt: skip
