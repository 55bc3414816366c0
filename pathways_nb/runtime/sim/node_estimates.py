"""What stands for an executable on simulated devices: what a node costs, read from its own code.

Operations and bytes come from a walk of the node's jaxpr; so do collectives of per-shard code. Those of whole-array
code, the layouts of results that nobody declares, and memory are the compiler's choice: the node is compiled for CPU
devices laid out like the simulated ones (see ``mesh_compiler``). Where that takes too long, or there is next to nothing
to know, they are estimated from the jaxpr. Nothing is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.hlo.compiled import CompiledFacts, CompiledMemory
from pathways_nb.cost.jaxpr.liveness import peak_bytes
from pathways_nb.cost.jaxpr.node_work import Work, layouts_of, work_of
from pathways_nb.cost.jaxpr.shard_local import is_one_fusion, needs_no_exchange
from pathways_nb.cost.jaxpr.splits import bytes_on_device
from pathways_nb.cost.model import CostModel, NodeCost
from pathways_nb.errors import UsageError
from pathways_nb.program.emit import out_shardings
from pathways_nb.program.items import Const, Item
from pathways_nb.program.specs import trimmed
from pathways_nb.runtime.lowering.executables import CompileRequest, Executable
from pathways_nb.runtime.sim.mesh_compiler import can_compile, compiled, is_per_shard, spec_of
from pathways_nb.trace.record import Record
from pathways_nb.util.words import counted

_SMALL = 1 << 16
"""Bytes of inputs and outputs on a device, below which no node is compiled for its memory alone."""
_MAY_NOT_FIT = 1 / 8
"""Estimated bytes, over a device's memory, from which on the compiler is asked at any rate."""
ESTIMATED = "memory estimated from the jaxpr"


class NodeEstimator:
    """Costs of nodes on islands of one kind of chip.

    Args:
        model: what everything costs. topology_of: an island, by its index.
    """

    def __init__(self, model: CostModel, topology_of: Callable[[int], Topology]):
        self.model, self.topology_of = model, topology_of
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="pathways-estimate")

    def get(self, request: CompileRequest, record: Record) -> Future[Executable]:
        """What stands for an executable: it has a cost, and cannot be called."""
        if request.code.seconds is None:  # the compiler may be asked: whoever waits can say so meanwhile
            return self._pool.submit(self._estimate, request)
        made: Future[Executable] = Future()
        try:
            made.set_result(self._declared(request, request.code.seconds))
        except BaseException as error:
            made.set_exception(error)
        return made

    def _declared(self, request: CompileRequest, seconds: float) -> Executable:
        """Of a node that says how long it lasts."""
        layout = _NodeLayout(request)
        cost = NodeCost(seconds, 0.0, seconds, 0.0, "declared", "declared")
        return Executable(None, layout.outputs(), 0.0, layout.temporary(), layout.taken_over(), None, cost)

    def _estimate(self, request: CompileRequest) -> Executable:
        layout = _NodeLayout(request)
        found = self._compiled(request, layout)
        work = layout.work() + Work((), () if layout.per_shard else found.collectives, found.notes)
        memory, said = _memory(layout, found, work)
        cost = self.model.node(work, self.topology_of(request.label.island), layout.sizes)
        cost = cost._replace(origin=_basis(cost, work, said))
        outputs, flops = layout.outputs(memory.out_specs), work.flops * request.mesh.size
        return Executable(None, outputs, flops, memory.temporary, memory.reused, None, cost)

    def _compiled(self, request: CompileRequest, layout: _NodeLayout) -> CompiledFacts:
        """What the compiler says, where it must be asked or may as well be; else nothing."""
        as_it_is = can_compile(request) or (can_compile(request, may_not_fit=True) and self._may_not_fit(layout))
        if not layout.exchanges() and (layout.ends() < _SMALL or layout.is_one_fusion() or not as_it_is):
            return CompiledFacts((), ())
        try:
            return compiled(request, layout.sizes, as_it_is)
        except UsageError as error:
            return CompiledFacts((), (), (f"collectives unknown: {error}",))
        except Exception as error:  # of code for other chips, such as a Pallas kernel, the CPU's compiler knows nothing
            return CompiledFacts((), (), (f"not compiled for CPU devices: {type(error).__name__}",))

    def _may_not_fit(self, layout: _NodeLayout) -> bool:
        return layout.ends() + layout.temporary() > _MAY_NOT_FIT * self.model.chip.device.hbm_bytes


def _basis(cost: NodeCost, work: Work, memory: str) -> str:
    """Where the seconds come from, how many of them are communication, where memory is from, what was not known."""
    share = f"{cost.collective / cost.seconds:.0%} of it collectives" if cost.collective else ""
    return "; ".join(filter(None, (cost.origin, share, memory, *work.notes)))


def _memory(layout: _NodeLayout, found: CompiledFacts, work: Work) -> tuple[CompiledMemory, str]:
    """What a node needs, and where that is from.

    An estimate for a large mesh is corrected by how far it would be off for the small one that was compiled.
    """
    if found.memory is not None and found.sizes[-1] == layout.sizes:
        return found.memory, f"memory compiled for {counted(layout.request.mesh.size, 'device')}"
    gathered = max((one.bytes for one in work.collectives if one.kind == "all-gather"), default=0)
    temporary = layout.temporary() + gathered
    if found.memory is None:
        return CompiledMemory(temporary, layout.taken_over(), ()), ESTIMATED
    small = _NodeLayout(layout.request, found.sizes[-1])
    by = (small.ends() + found.memory.temporary) / max(small.ends() + small.temporary(), 1)
    corrected = max(by * (layout.ends() + temporary) - layout.ends(), 0)
    count = math.prod(found.sizes[-1].values())
    said = f"{ESTIMATED}, times {by:.2f} as compiled for {counted(count, 'device')}"
    return CompiledMemory(round(corrected), layout.taken_over(), found.memory.out_specs), said


class _NodeLayout:
    """How the values of a node are split, and what follows from that, item by item."""

    def __init__(self, request: CompileRequest, sizes: Mapping[str, int] | None = None):
        self.request, self.sizes = request, dict(sizes or request.mesh.shape)
        self.per_shard = is_per_shard(request.code)
        """Whether its collectives are written in its code."""
        self.specs: dict[int, Any] = {
            value: spec_of(sharding)
            for value, sharding in zip(request.code.inputs, request.arriving, strict=True)
        }  # fmt: skip
        self.items: list[tuple[Item, list[Any]]] = []
        self.resharded = self.rejoined = False
        """Whether anything is taken in another layout than it lies in, and whether anything that is split."""
        for item in request.code.items:
            given = [self._given(item, at) for at in range(len(item.inputs))]
            self.items.append((item, given))
            found = layouts_of(item.jaxpr, self.sizes, given)
            declared = item.out_specs or (None,) * len(found)
            for value, spec, split in zip(item.outputs, declared, found, strict=True):
                self.specs[value] = split if spec is None else spec
                self._compare(spec, split)

    def _given(self, item: Item, at: int) -> Any:
        """The layout in which an item takes an operand: as it declares, else as the operand lies."""
        operand = item.inputs[at]
        declared = item.in_specs[at] if at < len(item.in_specs) else None
        location = None if isinstance(operand, Const) else self.specs.get(operand)
        if not isinstance(operand, Const):
            self._compare(declared, location)
        return location if declared is None else declared

    def _compare(self, declared: Any, location: Any) -> None:
        if declared is not None and not _same(declared, location):
            self.resharded = True
            self.rejoined |= trimmed(location) != PartitionSpec()

    def work(self) -> Work:
        """Of all items."""
        total = Work()
        for item, given in self.items:
            total = total + work_of(item.jaxpr, self.sizes, given, item.out_specs or None)
        return total

    def outputs(self, found: Sequence[PartitionSpec | None] = ()) -> tuple[NamedSharding, ...]:
        """The sharding of each output: as declared, else as the compiler ``found`` it, else as layouts lead to."""
        mesh, code = self.request.mesh, self.request.code
        declared = out_shardings(code, mesh, self.request.replicated)
        if not code.outputs:
            return tuple(sharding for sharding in declared if sharding is not None)
        chosen = [self.specs.get(value) for value in code.outputs]
        chosen = [ours if theirs is None else theirs for ours, theirs in zip_longest(chosen, found)]
        return tuple(
            NamedSharding(mesh, trimmed(ours)) if sharding is None else sharding
            for ours, sharding in zip(chosen, declared, strict=True)
        )

    def temporary(self) -> int:
        """Bytes per device beyond inputs and outputs, as liveness has it."""
        return max((self._item(item, given) for item, given in self.items), default=0)

    def _item(self, item: Item, given: Sequence[Any]) -> int:
        body = item.jaxpr.jaxpr
        ends = sum(bytes_on_device(var.aval, spec, self.sizes) for var, spec in zip(body.invars, given, strict=True))
        ends += sum(
            bytes_on_device(var.aval, self.specs.get(value), self.sizes)
            for var, value in zip(body.outvars, item.outputs, strict=True)
        )
        return max(peak_bytes(item.jaxpr, self.sizes, given, out_specs=item.out_specs or None) - ends, 0)

    def ends(self) -> int:
        """Bytes per device of inputs and outputs."""
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
        """Whether no memory is needed in between."""
        return all(is_one_fusion(item.jaxpr, self.sizes, given) for item, given in self.items)

    def taken_over(self) -> int:
        """Bytes per device of inputs whose memory outputs may take."""
        request = self.request
        return sum(
            bytes_on_device(request.structs[at], spec_of(request.arriving[at]), self.sizes) for at in request.donated
        )

    def exchanges(self) -> bool:
        """Whether devices may exchange what only the compiler knows; nothing where no axis splits anything."""
        split = any(trimmed(spec) != PartitionSpec() for spec in self.specs.values()) or self.resharded
        if not split or self.per_shard:
            return False
        return self.rejoined or not all(needs_no_exchange(item.jaxpr, self.sizes, given) for item, given in self.items)


def _same(one: Any, other: Any) -> bool:
    return trimmed(one) == trimmed(other)
