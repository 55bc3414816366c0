"""Makes a step a function again: what one device computes, under ``jax.shard_map`` over the axes of the batch.

The compiler would move gathers to the front (measured on CPU), and it keeps an order only where data make it necessary.
So a paced gather reads its shards through a barrier together with a value that the operations in front of it have made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.parallel.flat_function import Runnable
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, barrier, feeders, operation, renamed
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
    return bound.flat.function([*_with_labels(bound)], bound.flat.inputs, bound.flat.outputs)


def _with_labels(graph: StepGraph) -> Iterator[Runnable]:
    """Yield the operations; collectives run under their pass and their label, which tell an op of the compiled step."""

    def under(scope: str, run: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
        def labelled(*arrays: Any) -> Sequence[Any]:
            with jax.named_scope(scope):
                return run(*arrays)

        return labelled

    for op in graph.ops:
        if isinstance(op, CollectiveOp):
            begins = "forward pass" if op.is_gather and not op.again else "backward pass"
            op = replace(op, run=under(f"{begins}/{graph.label(op)}", op.run))
        yield op


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
    # Without check_vma: the equations were traced for one device, so they lack the casts by which JAX would follow what
    # varies between devices.
    return jax.shard_map(
        _with_own_keys(per_device(graph), graph, tuple(axes)), in_specs=(*shards, *batch),
        out_specs=[*results, *gradients], axis_names=set(axes), check_vma=False,
    )  # fmt: skip


def _with_own_keys(run: Callable[..., list[Any]], graph: StepGraph, axes: tuple[str, ...]) -> Callable[..., list[Any]]:
    """Return the step of one device that draws its own numbers from the random keys in the batch, as its rows need."""
    avals = (graph.flat.avals[value] for value in graph.flat.inputs)
    keys = list(map(is_random_key, avals))
    if not any(keys):
        return run

    def folded(*arrays: Any) -> list[Any]:
        # A key is given whole to every device: as it is, each would drop the same elements of its rows.
        at = jax.lax.axis_index(axes)
        own = (jax.random.fold_in(array, at) if key else array for array, key in zip(arrays, keys, strict=True))
        return run(*own)

    return folded


class _Tie(NamedTuple):
    """What binds one gather to its place.

    Args:
        members: the gather, behind the operations that prepare what it sends.
        shards: the values that these read.
        value: a value that is made in front of them and read behind them.
    """

    members: list[Runnable]
    shards: tuple[int, ...]
    value: int


def with_barriers(graph: StepGraph) -> StepGraph:
    """Return the step with the barriers that bind its paced gathers; the last thing that is done before it runs."""
    found = (_tie(graph, op) for op in graph.collectives if op.paced)
    ties = {tie.members[0]: tie for tie in found if tie is not None}
    names: dict[int, int] = {}  # by value, what it is called behind the last barrier
    inside: dict[Runnable, dict[int, int]] = {}
    ops: list[Runnable] = []
    for op in graph.ops:
        if (tie := ties.get(op)) is not None:
            outside = names.get(tie.value, tie.value)
            fresh = {value: graph.new(graph.flat.avals[value]) for value in (*tie.shards, tie.value)}
            ops.append(operation("barrier", (*tie.shards, outside), tuple(fresh.values()), barrier))
            # Later operations read the value behind the barrier: one whose results nobody reads is removed.
            names[tie.value] = fresh.pop(tie.value)
            inside.update(dict.fromkeys(tie.members, fresh))
        ops.append(renamed(renamed(op, inside.get(op, {})), names))
    return graph.with_ops(ops)


def _tie(graph: StepGraph, gather: CollectiveOp) -> _Tie | None:
    """Return what binds a gather; ``None`` if nothing in front of it is read behind it."""
    members: list[Runnable] = [*feeders(graph, gather), gather]
    made = {value for op in members for value in op.outputs}
    shards = tuple(dict.fromkeys(value for op in members for value in op.inputs if value not in made))
    at = graph.positions[members[0]]
    for op in reversed(graph.ops[:at]):
        # What a collective, its copies and its conversions make does not say how far computation has come.
        if not isinstance(op, CollectiveOp) and op.name not in ("pack", "unpack", "convert"):
            for value in op.outputs:
                floating = jnp.issubdtype(graph.flat.avals[value].dtype, jnp.floating)
                if floating and any(graph.positions[r] > at and r not in members for r in graph.readers.get(value, ())):
                    return _Tie(members, shards, value)
    return None
