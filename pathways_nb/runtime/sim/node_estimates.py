"""Estimated costs of nodes, which take the place of executables on simulated devices. Nothing is run.

Operations and bytes come from a walk of the node's jaxpr; so do collectives of per-shard code, which names them. Three
things are the compiler's choice and cannot be read from a jaxpr: collectives of whole-array code, layouts of results
without a declared sharding, and temporary memory. For these the node is compiled for CPU devices with the same mesh
(see ``mesh_compiler``). They are estimated from the jaxpr where compiling takes too long, or where the node is too
small for it to matter. The label of a node says which of the two was done (``basis``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.hlo.compiled import CompiledFacts, CompiledMemory
from pathways_nb.cost.jaxpr.liveness import peak_bytes
from pathways_nb.cost.jaxpr.node_work import Work, layouts_of, work_of
from pathways_nb.cost.jaxpr.shard_local import is_one_fusion, needs_no_exchange
from pathways_nb.cost.jaxpr.splits import bytes_on_device
from pathways_nb.cost.model import CostModel, NodeCost
from pathways_nb.errors import UsageError
from pathways_nb.program.emit import out_shardings
from pathways_nb.program.items import Const, ProgramItem, equations
from pathways_nb.program.specs import trimmed
from pathways_nb.runtime.lowering.executables import CompileRequest, Executable
from pathways_nb.runtime.sim.mesh_compiler import can_compile, compiled, is_per_shard, spec_of
from pathways_nb.trace.record import Record
from pathways_nb.util.waiting import Promise, Workers
from pathways_nb.util.words import counted

_SMALL = 1 << 16
"""Bytes of inputs and outputs per device, below which no node is compiled for its memory alone."""
_MAY_NOT_FIT = 1 / 8
"""Share of a device's memory: above it, the estimate is not enough and the node is compiled if possible."""
_HALVES = (jnp.dtype("bfloat16"), jnp.dtype("float16"))
ESTIMATED = "memory estimated from the jaxpr"


class NodeEstimator:
    """Estimates nodes on islands of one kind of chip.

    Args:
        model: the cost model.
        topology_of: returns the topology of an island, by its index.
    """

    def __init__(self, model: CostModel, topology_of: Callable[[int], Topology]):
        self.model, self.topology_of = model, topology_of
        self._pool = Workers("pathways-estimate", 2)

    def get(self, request: CompileRequest, record: Record) -> Promise[Executable]:
        """Return an executable that has a cost and cannot be called; two threads estimate the nodes of a plan."""
        if request.code.seconds is None:  # in another thread: it may compile, and the waiting thread shows progress
            return self._pool.submit(self._estimate, request)
        made: Promise[Executable] = Promise()
        try:
            made.set_result(self._declared(request, request.code.seconds))
        except BaseException as error:
            made.set_exception(error)
        return made

    def _declared(self, request: CompileRequest, seconds: float) -> Executable:
        """Estimate a node with a declared duration, which needs no walk of its jaxpr."""
        layout = _NodeLayout(request)
        cost = NodeCost(seconds, 0.0, seconds, 0.0, "declared", "declared")
        return Executable(None, layout.outputs(), 0.0, layout.temporary(), layout.taken_over(), None, cost)

    def _estimate(self, request: CompileRequest) -> Executable:
        """Estimate a node from its jaxpr, and from the compiler where that is worth its time."""
        layout = _NodeLayout(request)
        found = self._compiled(request, layout)
        work = layout.work() + Work((), () if layout.per_shard else found.collectives, found.notes)
        memory, said = _memory(layout, found, work)
        cost = self.model.node(work, self.topology_of(request.label.island), layout.sizes)
        cost = cost._replace(origin=_basis(cost, work, said))
        outputs, flops = layout.outputs(memory.out_specs), work.flops * request.mesh.size
        return Executable(None, outputs, flops, memory.temporary, memory.reused, None, cost)

    def _compiled(self, request: CompileRequest, layout: _NodeLayout) -> CompiledFacts:
        """Compile a node if the jaxpr does not tell its collectives, or if its memory is worth it.

        Returns:
            What the compiler reports; empty if the node was not compiled, with a note if it could not be.
        """
        as_it_is = can_compile(request) or (can_compile(request, may_not_fit=True) and self._may_not_fit(layout))
        if not layout.exchanges() and (layout.ends() < _SMALL or layout.is_one_fusion() or not as_it_is):
            return CompiledFacts((), ())
        try:
            return compiled(request, layout.sizes, as_it_is)
        except UsageError as error:
            return CompiledFacts((), (), (f"collectives unknown: {error}",))
        except Exception as error:  # the CPU's compiler refuses code for other chips, such as a Pallas kernel
            return CompiledFacts((), (), (f"not compiled for CPU devices: {type(error).__name__}",))

    def _may_not_fit(self, layout: _NodeLayout) -> bool:
        """Return whether a node's estimated memory is a large share of a device's."""
        return layout.ends() + layout.temporary() > _MAY_NOT_FIT * self.model.chip.device.hbm_bytes


def _basis(cost: NodeCost, work: Work, memory: str) -> str:
    """Describe the origin of a node's seconds, its share of collectives, the origin of its memory, and unknowns."""
    share = f"{cost.collective / cost.seconds:.0%} of it collectives" if cost.collective else ""
    return "; ".join(filter(None, (cost.origin, share, memory, *work.notes)))


def _memory(layout: _NodeLayout, found: CompiledFacts, work: Work) -> tuple[CompiledMemory, str]:
    """Return the memory of a node, and a text that says where it comes from.

    If the node was compiled for a small mesh only, the estimate for its own mesh is multiplied by the ratio of compiled
    to estimated memory on the small one.

    Args:
        layout: the node with its layouts.
        found: what the compiler reports, possibly nothing.
        work: the node's operations and collectives.
    """
    less = layout.halves()
    if found.memory is not None and less < 1:
        found = replace(found, memory=replace(found.memory, temporary=round(less * found.memory.temporary)))
    halves = ", where half precision took twice as much" if less < 1 else ""
    if found.memory is not None and found.sizes[-1] == layout.sizes:
        return found.memory, f"memory compiled for {counted(layout.request.mesh.size, 'device')}{halves}"
    gathered = max((one.bytes for one in work.collectives if BY_NAME[one.kind].counts_result), default=0)
    temporary = layout.temporary() + gathered
    if found.memory is None:
        return CompiledMemory(temporary, layout.taken_over(), ()), ESTIMATED
    small = _NodeLayout(layout.request, found.sizes[-1])
    by = (small.ends() + found.memory.temporary) / max(small.ends() + small.temporary(), 1)
    corrected = max(by * (layout.ends() + temporary) - layout.ends(), 0)
    count = math.prod(found.sizes[-1].values())
    said = f"{ESTIMATED}, times {by:.2f} as compiled for {counted(count, 'device')}{halves}"
    return CompiledMemory(round(corrected), layout.taken_over(), found.memory.out_specs), said


class _NodeLayout:
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

    def work(self) -> Work:
        """Return the work of all items together."""
        total = Work()
        for item, given in self.items:
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

    def ends(self) -> int:
        """Return bytes per device of the node's inputs and outputs."""
        request = self.request
        found = sum(
            bytes_on_device(struct, spec_of(sharding), self.sizes)
            for struct, sharding in zip(request.structs, request.arriving, strict=True)
        )
        avals = {
            value: var.aval
            for item in request.code.items
            for value, var in zip(item.outputs, item.jaxpr.jaxpr.outvars, strict=True)
        }
        return found + sum(
            bytes_on_device(avals[value], self.specs.get(value), self.sizes) for value in request.code.outputs
        )

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
