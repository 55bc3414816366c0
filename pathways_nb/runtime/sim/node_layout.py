"""The layouts of all values of a node on its mesh, found item by item, and the memory that follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.cost.jaxpr.liveness import peak_bytes
from pathways_nb.cost.jaxpr.node_work import Work, layouts_of, work_of
from pathways_nb.cost.jaxpr.shard_local import is_one_fusion, needs_no_exchange
from pathways_nb.cost.jaxpr.splits import bytes_on_device
from pathways_nb.program.declared_cost import LaunchPlan
from pathways_nb.program.emit import out_shardings
from pathways_nb.program.items import Const, ProgramItem, equations
from pathways_nb.program.specs import trimmed
from pathways_nb.runtime.lowering.executables import CompileRequest
from pathways_nb.runtime.sim.mesh_compiler import is_per_shard, spec_of

_HALVES = (jnp.dtype("bfloat16"), jnp.dtype("float16"))


class NodeLayout:
    """The layouts of all values of a node, found item by item, and the memory that follows from them.

    Args:
        request: the node.
        sizes: devices along each axis; those of the node's mesh if left out.
    """

    def __init__(self, request: CompileRequest, sizes: Mapping[str, int] | None = None):
        self.request, self.sizes = request, dict(sizes or request.mesh.shape)
        self.per_shard = is_per_shard(request.code)
        """Whether its collectives are written in its code, and so need no compiler."""
        self.specs: dict[int, Any] = {
            value: spec_of(sharding)
            for value, sharding in zip(request.code.inputs, request.arriving, strict=True)
        }  # fmt: skip
        self.items: list[tuple[ProgramItem, list[Any]]] = []
        self.resharded = self.rejoined = False
        """Whether an operand or output changes its layout, and whether one that is sharded does."""
        for item in request.code.items:
            given = [self._given(item, at) for at in range(len(item.inputs))]
            self.items.append((item, given))
            found = layouts_of(item.jaxpr, self.sizes, given)
            declared = item.out_specs or (None,) * len(found)
            for value, spec, split in zip(item.outputs, declared, found, strict=True):
                self.specs[value] = split if spec is None else spec
                self._compare(spec, split)

    def _given(self, item: ProgramItem, at: int) -> Any:
        """Return the layout in which an item reads an operand: the declared one, else the operand's own."""
        operand = item.inputs[at]
        declared = item.in_specs[at] if at < len(item.in_specs) else None
        location = None if isinstance(operand, Const) else self.specs.get(operand)
        if not isinstance(operand, Const):
            self._compare(declared, location)
        return location if declared is None else declared

    def _compare(self, declared: Any, location: Any) -> None:
        """Note whether a declared layout differs from that of the value."""
        if declared is not None and not _same(declared, location):
            self.resharded = True
            self.rejoined |= trimmed(location) != PartitionSpec()

    def work(self, planned: bool = True) -> Work:
        """Return the work of all items together.

        Args:
            planned: whether those are among them that know their launches themselves.
        """
        total = Work()
        for item, given in self.items:
            if not planned and isinstance(item.cost, LaunchPlan):
                continue
            total = total + work_of(item.jaxpr, self.sizes, given, item.out_specs or None)
        return total

    def outputs(self, found: Sequence[PartitionSpec | None] = ()) -> tuple[NamedSharding, ...]:
        """Return the sharding of each output.

        Args:
            found: specs chosen by the compiler, by output. A declared sharding comes before them, and where the
                compiler reports none, the layout propagated through the jaxpr is used.
        """
        mesh, code = self.request.mesh, self.request.code
        declared = out_shardings(code, mesh)
        if not code.outputs:
            return tuple(sharding for sharding in declared if sharding is not None)
        chosen = [self.specs.get(value) for value in code.outputs]
        chosen = [ours if theirs is None else theirs for ours, theirs in zip_longest(chosen, found)]
        return tuple(
            NamedSharding(mesh, trimmed(ours)) if sharding is None else sharding
            for ours, sharding in zip(chosen, declared, strict=True)
        )

    def temporary(self) -> int:
        """Return temporary bytes per device by liveness analysis: the largest of any item, since items run in turn."""
        return max((self._item(item, given) for item, given in self.items), default=0)

    def _item(self, item: ProgramItem, given: Sequence[Any]) -> int:
        """Return the peak bytes per device of an item beyond its own inputs and outputs."""
        body = item.jaxpr.jaxpr
        ends = sum(bytes_on_device(var.aval, spec, self.sizes) for var, spec in zip(body.invars, given, strict=True))
        ends += sum(
            bytes_on_device(var.aval, self.specs.get(value), self.sizes)
            for var, value in zip(body.outvars, item.outputs, strict=True)
        )
        return max(peak_bytes(item.jaxpr, self.sizes, given, out_specs=item.out_specs or None) - ends, 0)

    def halves(self) -> float:
        """Return the bytes of intermediates over those that they take on CPU devices; 1 without half precision.

        CPUs compute half precision in float32, so their compiler keeps float32 copies that other chips do not need.
        """
        half, other = 0, 0
        for item, _ in self.items:
            for aval in (var.aval for eqn in equations(item.jaxpr) for var in eqn.outvars):
                size = bytes_on_device(aval, None, self.sizes)
                is_half = getattr(aval, "dtype", None) in _HALVES
                half, other = half + size * is_half, other + size * (not is_half)
        return (half + other) / (2 * half + other) if half else 1.0

    def arguments(self) -> int:
        """Return bytes per device of the node's inputs."""
        return sum(
            bytes_on_device(struct, spec_of(sharding), self.sizes)
            for struct, sharding in zip(self.request.structs, self.request.arriving, strict=True)
        )

    def results(self) -> list[tuple[Any, Any]]:
        """Return type and layout of each output."""
        avals = {
            value: var.aval
            for item in self.request.code.items
            for value, var in zip(item.outputs, item.jaxpr.jaxpr.outvars, strict=True)
        }
        return [(avals[value], self.specs.get(value)) for value in self.request.code.outputs]

    def ends(self) -> int:
        """Return bytes per device of the node's inputs and outputs."""
        return self.arguments() + sum(bytes_on_device(aval, spec, self.sizes) for aval, spec in self.results())

    def whole(self) -> int:
        """Return bytes of the node's inputs and outputs, each once."""
        values = [*self.request.structs, *(aval for aval, _ in self.results())]
        return sum(bytes_on_device(aval, None, self.sizes) for aval in values)

    def is_one_fusion(self) -> bool:
        """Return whether each item compiles to one fusion, which needs no temporary memory."""
        return all(is_one_fusion(item.jaxpr, self.sizes, given) for item, given in self.items)

    def taken_over(self) -> int:
        """Return bytes per device of donated inputs, whose memory outputs may take over."""
        request = self.request
        return sum(
            bytes_on_device(request.structs[at], spec_of(request.arriving[at]), self.sizes) for at in request.donated
        )

    def exchanges(self) -> bool:
        """Return whether the node may contain collectives that only the compiler knows.

        It has none if no value is sharded, and those of per-shard code are in its jaxpr.
        """
        split = any(trimmed(spec) != PartitionSpec() for spec in self.specs.values()) or self.resharded
        if not split or self.per_shard:
            return False
        return self.rejoined or not all(needs_no_exchange(item.jaxpr, self.sizes, given) for item, given in self.items)


def _same(one: Any, other: Any) -> bool:
    """Return whether two partition specs are equal in the form in which JAX writes them."""
    return trimmed(one) == trimmed(other)
