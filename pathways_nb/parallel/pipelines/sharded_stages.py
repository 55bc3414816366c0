"""Stages whose parameters are split over the devices of their place: sharded data parallelism inside a pipeline.

The stage is traced for one device, and the collectives of ``parallel.fsdp`` are added to its list of operations. The
cut between F and B computes again what depends on parameters only, so each part gathers the parameters that it reads,
and none stays gathered between them. B and W leave each device its shard of the gradients of one microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary
from pathways_nb.parallel.fsdp import plans
from pathways_nb.parallel.fsdp.modes import Mode, mode_of
from pathways_nb.parallel.fsdp.passes import bucket, sink
from pathways_nb.parallel.fsdp.sharded_parameter import Parameter
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.step_program import split_over
from pathways_nb.parallel.fsdp.tracing import StepOptions, added_collectives
from pathways_nb.parallel.pipelines.stage_parts import Inputs, StagePart, StageParts
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.util.words import counted

STAGE_MODES = ("ddp", "zero3", "hsdp")
"""Modes in which the gradients of a microbatch are reduced at once; the optimizer's state is split like parameters."""


@dataclass(frozen=True, eq=False)
class StageShards:
    """How one stage is split.

    Args:
        place: of the stage.
        mode: what is split.
        parameters: the leaves of the stage's parameters.
    """

    place: VirtualSlice
    mode: Mode
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, place: VirtualSlice, mode: str, params: Any, trained: Sequence[bool]) -> StageShards:
        """Return how a stage with these parameters is split.

        A parameter of which no dimension is a multiple of the number of devices stays whole on each device.

        Raises:
            UsageError: the place has too few axes.
        """
        chosen = mode_of(mode, place, None)
        leaves, sizes = jax.tree.leaves(params), dict(zip(place.axes, place.shape, strict=True))
        plain = [False] * len(leaves)
        others = [PartitionSpec()] * len(leaves)
        found = plans.parameters_of(params, list(trained), plain, others, chosen, sizes)
        return cls(place, chosen, tuple(one if one.padded == one.shape else replace(one, dim=None) for one in found))

    @property
    def specs(self) -> tuple[PartitionSpec, ...]:
        """The partition of each leaf of the parameters between steps."""
        if not self.mode.shards_parameters:
            return (PartitionSpec(),) * len(self.parameters)
        return tuple(one.spec(self.mode.axes.shard[0]) for one in self.parameters)

    @property
    def data(self) -> PartitionSpec:
        """The partition of arrays whose first dimension is the batch."""
        return split_over(self.mode.axes.names)

    def local(self, shapes: Inputs, stage: int) -> Inputs:
        """Return what one device reads of a microbatch.

        Raises:
            UsageError: the rows of a microbatch are not a multiple of the devices.
        """
        parts = self.mode.axes.size

        def one(leaf: Any) -> Any:
            if not leaf.shape:
                return leaf
            if leaf.shape[0] % parts:
                raise UsageError(
                    f"pipeline: stage {stage} splits the {counted(leaf.shape[0], 'row')} of a microbatch over {parts} "
                    f"devices of {self.place.label} (fsdp={self.mode.name!r}); take a batch or a number of "
                    f"microbatches that makes them a multiple of {parts}."
                )
            return jax.ShapeDtypeStruct((leaf.shape[0] // parts, *leaf.shape[1:]), leaf.dtype)

        return replace(shapes, x=jax.tree.map(one, shapes.x), targets=jax.tree.map(one, shapes.targets))

    def with_collectives(self, parts: StageParts, aux: Sequence[Auxiliary]) -> StageParts:
        """Return a stage that was traced for one device, with gathers and reductions, each in one bucket per dtype.

        Args:
            parts: the stage.
            aux: how the auxiliary outputs of the last stage are joined.
        """
        options = StepOptions.of(self.mode)
        (seed,) = parts.arriving["loss"]
        results = (*parts.outputs["loss"], *parts.outputs["aux"])
        trained = [i for i, one in enumerate(self.parameters) if one.trainable]
        gradients = dict(zip(trained, parts.outputs["dparams"], strict=True))
        others = [value for value in parts.flat.inputs if value not in {*parts.inputs["params"], seed}]
        # Each device differentiates the loss of its own rows; the loss of the microbatch is their mean, and gradients
        # are added over devices. So the backward pass begins with 1 / devices in place of 1.
        constants = {**parts.flat.constants, seed: np.asarray(parts.flat.constants[seed]) / options.axes.size}
        flat = replace(parts.flat, avals=list(parts.flat.avals), constants=constants)
        graph = StepGraph(
            flat, self.parameters, parts.inputs["params"], tuple(others), results, gradients, seed, len(flat.avals),
            (Auxiliary("mean"), *aux)[: len(results)],
        )  # fmt: skip
        kept = [v for name, values in parts.outputs.items() if name not in ("loss", "aux", "dparams") for v in values]
        # One message has one dtype; parameters that stay whole are reduced, not scattered, so they are apart.
        buckets: dict[Any, list[int]] = {}
        for position, one in enumerate(self.parameters):
            buckets.setdefault((one.dtype, one.dim is None), []).append(position)
        # ``sink`` puts each gather before the first operation that reads the parameter, so that the cut between F and B
        # leaves every part its own gather; ``bucket`` then joins what can travel together.
        graph = bucket(sink(added_collectives(graph, options, kept)), list(buckets.values()))
        made = iter(graph.results)
        outputs = {
            **parts.outputs,
            **{name: tuple(next(made) for _ in parts.outputs[name]) for name in ("loss", "aux")},
        }
        outputs["dparams"] = tuple(graph.gradients[i] for i in trained)
        return StageParts(graph.flat, {**parts.inputs, "params": graph.shards}, parts.arriving, outputs, parts.trees)

    def over_devices(self, part: StagePart, parts: StageParts, aux: Sequence[Auxiliary]) -> Callable[..., list[Any]]:
        """Return a part of one device as a function of whole arrays, to be called on the place.

        What a device keeps for its backward pass is a block of an array that has one block for each device.
        """
        axes, avals = self.mode.axes.names, parts.flat.avals
        known = dict(zip(parts.inputs["params"], self.specs, strict=True))
        trained = [spec for spec, one in zip(self.specs, self.parameters, strict=True) if one.trainable]
        known |= dict(zip(parts.outputs["dparams"], trained, strict=True))
        known |= dict.fromkeys(parts.outputs["loss"], PartitionSpec())
        known |= {v: PartitionSpec(*[None] * one.rows, axes) if one.how == "rows" else PartitionSpec()
                  for v, one in zip(parts.outputs["aux"], aux, strict=False)}  # fmt: skip
        # Scalars of the input are the same on all devices; what is left of them in ``lifted`` is each device's own.
        given = (*parts.inputs["x"], *parts.inputs["targets"], *parts.inputs["counts"])
        known |= dict.fromkeys((v for v in given if not avals[v].shape), PartitionSpec())
        lifted = {v for v in (*part.inputs, *part.outputs) if v not in known and not avals[v].shape}

        def run(*arrays: Any) -> list[Any]:
            made = part.function(*_lifted(arrays, part.inputs, lifted, lambda array: array[0]))
            return _lifted(made, part.outputs, lifted, lambda array: jnp.asarray(array)[None])

        # Values that are not known are split along their first dimension: a device gets back the block it kept.
        return jax.shard_map(
            run, in_specs=tuple(known.get(v, self.data) for v in part.inputs),
            out_specs=[known.get(v, self.data) for v in part.outputs], axis_names=set(axes), check_vma=False,
        )  # fmt: skip


def _lifted(arrays: Sequence[Any], values: Sequence[int], lifted: set[int], change: Callable[[Any], Any]) -> list[Any]:
    """Return arrays of which those of some values are changed: a scalar has a dimension to be split."""
    return [change(array) if value in lifted else array for array, value in zip(arrays, values, strict=True)]
