"""The parts of a stage as computations on its place: one for each of F, B, I and W and each shape of its inputs.

All microbatches call the same computation, so each part is traced and compiled once. B and W add the gradients by the
parameters to sums that they take over in place, so that a microbatch costs no launch and no memory for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from pathways_nb.parallel.batch_walk.auxiliary import Auxiliary
from pathways_nb.parallel.pipelines.sharded_stages import StageShards
from pathways_nb.parallel.pipelines.stage_parts import StagePart, StageParts
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import Computation
from pathways_nb.program.signature import Signature
from pathways_nb.program.static_arguments import Statics

Spec = PartitionSpec | None
_PARTS = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}
"""The attribute of ``StageParts`` for each operation; each is cut when it is first asked for."""


class PartComputation(Computation):
    """A computation of flat arrays, of which some are declared a sharding and the others are taken as they arrive."""

    def __init__(
        self, fn: Callable[..., list[Any]], name: str, place: VirtualSlice, in_specs: Sequence[Spec],
        out_specs: Sequence[Spec], donated: Sequence[int] = (),
    ):  # fmt: skip
        super().__init__(fn, "jit", place, None, list(out_specs), Statics.of(fn, (), (), tuple(donated), ()))
        self.name = name
        self._specs = list(in_specs)

    def _leaf_specs(self, call: Signature) -> list[Spec]:
        # In place of one spec for each argument's tree: ``None`` takes an array as its producer leaves it.
        return self._specs


class StagePlacement(NamedTuple):
    """How the values of a stage are partitioned on its place."""

    place: VirtualSlice
    params: tuple[Spec, ...]
    """Of each leaf of its parameters."""
    data: Spec
    """Of arrays whose first dimension is the batch."""
    trained: Sequence[bool]
    """Of each leaf of its parameters, whether its gradients are wanted."""
    shards: StageShards | None = None
    """Where its parameters are split as in sharded data parallelism."""
    aux: tuple[Auxiliary, ...] = ()
    """How the auxiliary outputs of the last stage are joined."""

    def function(self, part: StagePart, parts: StageParts) -> Callable[..., list[Any]]:
        """Return what a part computes of whole arrays."""
        return part.function if self.shards is None else self.shards.over_devices(part, parts, self.aux)


class StageComputations:
    """The computations of one traced stage.

    Args:
        stage: its number, for names.
        parts: the traced stage.
        placement: where it runs, and how its values are partitioned.
    """

    def __init__(self, stage: int, parts: StageParts, placement: StagePlacement):
        self.parts, self.placement, self.stage = parts, placement, stage
        self._made: dict[str, PartComputation] = {}

    def call(self, operation: str, values: dict[int, Any], sums: list[Any] | None = None) -> list[Any] | None:
        """Run one part on what earlier parts made, and add what it makes to ``values``.

        Args:
            operation: ``"F"``, ``"B"``, ``"I"`` or ``"W"``.
            values: arrays by the numbers of the stage's values.
            sums: the sums of gradients by the parameters so far; only of B and W.

        Returns:
            The new sums, of B and W.
        """
        part: StagePart = getattr(self.parts, _PARTS[operation])
        if operation not in self._made:
            self._made[operation] = self._make(operation, part, operation in "BW")
        made = self._made[operation](*(values[v] for v in part.inputs), *(sums or ()))
        # B and W add gradients to the sums inside their launch: only the sums come back, last.
        kept = [v for v in part.outputs if sums is None or v not in self._gradients]
        values.update(zip(kept, made[: len(kept)], strict=True))
        return None if sums is None else made[len(kept) :]

    @property
    def _gradients(self) -> tuple[int, ...]:
        return self.parts.outputs["dparams"]

    def _make(self, operation: str, part: StagePart, sums: bool) -> PartComputation:
        name, place = f"{self.stage}{operation}", self.placement.place
        specs, function = self._specs(), self.placement.function(part, self.parts)
        inputs = [specs.get(v) for v in part.inputs]
        # Donated: F adds tokens to the store in place, B and I add to the store's gradients that arrive. Nobody reads
        # either again, and a copy for each slice would undo what a shared store saves.
        given_up = self.parts.inputs["store"] if operation == "F" else self.parts.arriving["store"]
        donated = [at for at, v in enumerate(part.inputs) if v in given_up]
        if not sums:
            return PartComputation(function, name, place, inputs, [specs.get(v) for v in part.outputs], donated)
        kept = [v for v in part.outputs if v not in self._gradients]
        # The sums so far come behind the inputs; the new ones take over their memory.
        donated += range(len(inputs), len(inputs) + len(self._gradients))
        totals = [spec for spec, trained in zip(self.placement.params, self.placement.trained, strict=True) if trained]
        return PartComputation(
            _adding(part._replace(function=function), kept, self._gradients), name, place, inputs + totals,
            [*(specs.get(v) for v in kept), *totals], donated,
        )  # fmt: skip

    def _specs(self) -> dict[int, Spec]:
        """Return the declared partition of values; what is not in it is as its producer leaves it."""
        parts, data = self.parts, self.placement.data
        found: dict[int, Spec] = dict(zip(parts.inputs["params"], self.placement.params, strict=True))
        names = [(parts.inputs, ("x", "targets")), (parts.arriving, ("y",)), (parts.outputs, ("y", "dx"))]
        whole = [v for values, each in names for name in each for v in values[name]]
        batches = [(v, 0) for v in whole]
        for stored in (parts.inputs["store"], parts.arriving["store"], parts.outputs["store"], parts.outputs["dstore"]):
            batches += list(zip(stored, parts.trees["store"], strict=False))  # some slices have no gradients of a store
        for value, before in batches:
            # (…, batch, …): a store that is appended inside scans has their lengths in front of the batch.
            spec = PartitionSpec(*[None] * before, *(data or ()))
            fits = len(spec) <= parts.flat.avals[value].ndim
            # A value may be a scalar, or a parameter that passes through and has its spec already.
            found.setdefault(value, spec if fits else PartitionSpec())
        return found


def _adding(part: StagePart, kept: Sequence[int], gradients: Sequence[int]) -> Callable[..., list[Any]]:
    """Return a part that adds the gradients by the parameters to the sums it is given after its inputs."""

    def run(*arrays: Any) -> list[Any]:
        inputs, sums = arrays[: len(part.inputs)], arrays[len(part.inputs) :]
        made = dict(zip(part.outputs, part.function(*inputs), strict=True))
        added = [total + made[v].astype(total.dtype) for total, v in zip(sums, gradients, strict=True)]
        return [*(made[v] for v in kept), *added]

    return run


def sum_dtype(dtype: Any) -> Any:
    """Return the type in which gradients are summed over microbatches: at least 32 bits."""
    # In bfloat16, with 8 bits of precision, the gradient of one microbatch would vanish in the sum of hundreds.
    return jnp.promote_types(dtype, jnp.float32) if jax.dtypes.issubdtype(dtype, jnp.floating) else dtype
