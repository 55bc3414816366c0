"""Estimated costs of nodes, which take the place of executables on simulated devices. Nothing is run.

Operations and bytes come from a walk of the node's jaxpr; so do collectives of per-shard code, which names them. Three
things are the compiler's choice and cannot be read from a jaxpr: collectives of whole-array code, layouts of results
without a declared sharding, and temporary memory. For these the node is compiled for CPU devices with the same mesh
(see ``mesh_compiler``). They are estimated from the jaxpr where compiling takes too long, or where the node is too
small for it to matter. Where the chip's own compiler is there, a node of some length is compiled by it, and its seconds
are those of the compiled program (see ``chip_estimates``). The label of a node says what was done (``basis``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace

from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.hlo.compiled import CompiledFacts, CompiledMemory
from pathways_nb.cost.jaxpr.node_work import Work
from pathways_nb.cost.model import CostModel, NodeCost
from pathways_nb.errors import UsageError
from pathways_nb.program.declared_cost import together
from pathways_nb.program.items import equations
from pathways_nb.runtime.lowering.executables import CompileRequest, Executable
from pathways_nb.runtime.sim import kept_estimates
from pathways_nb.runtime.sim.chip_compiler import CompilerChoice
from pathways_nb.runtime.sim.chip_estimates import ChipEstimate, ChipEstimator
from pathways_nb.runtime.sim.mesh_compiler import can_compile, compiled
from pathways_nb.runtime.sim.node_layout import NodeLayout
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Record
from pathways_nb.util.waiting import Promise, Workers
from pathways_nb.util.words import counted

_SMALL = 1 << 16
"""Bytes of inputs and outputs per device, below which no node is compiled for its memory alone."""
_MAY_NOT_FIT = 1 / 8
"""Share of a device's memory: above it, the estimate is not enough and the node is compiled if possible."""
_LONG = 500
"""Equations from which on an estimate takes long enough to be kept on disk."""
ESTIMATED = "memory estimated from the jaxpr"


class NodeEstimator:
    """Estimates nodes on islands of one kind of chip.

    Args:
        model: the cost model.
        topology_of: returns the topology of an island, by its index.
        choice: whose compiler nodes are compiled by.
    """

    def __init__(self, model: CostModel, topology_of: Callable[[int], Topology], choice: CompilerChoice = "auto"):
        self.model, self.topology_of = model, topology_of
        self._chip = ChipEstimator.of(model, choice)
        self._pool = Workers("pathways-estimate", 2)

    def of_plan(self) -> PlanEstimates:
        """Return the estimates of one plan, which end together."""
        return PlanEstimates(self)

    def get(self, request: CompileRequest, is_wanted: Callable[[], bool]) -> Promise[Executable]:
        """Return an executable that has a cost and cannot be called; two threads estimate the nodes of a plan.

        Args:
            request: the node.
            is_wanted: whether anybody still waits for it.
        """
        if request.code.seconds is None:  # in another thread: it may compile, and the waiting thread shows progress
            return self._pool.submit(self._estimate, request, is_wanted)
        made: Promise[Executable] = Promise()
        try:
            made.set_result(self._declared(request, request.code.seconds))
        except BaseException as error:
            made.set_exception(error)
        return made

    def _declared(self, request: CompileRequest, seconds: float) -> Executable:
        """Estimate a node with a declared duration, which needs no walk of its jaxpr."""
        layout = NodeLayout(request)
        cost = NodeCost(seconds, 0.0, seconds, 0.0, "declared", "declared")
        return Executable(None, layout.outputs(), 0.0, layout.temporary(), layout.taken_over(), None, cost)

    def _estimate(self, request: CompileRequest, is_wanted: Callable[[], bool]) -> Executable:
        """Estimate a node from its jaxpr, and from a compiler where that is worth its time."""
        topology, plans = self.topology_of(request.label.island), request.code.launch_plans
        count = sum(1 for item in request.code.items for _ in equations(item.jaxpr))
        if plans or self._chip is None or count < _LONG:
            return self._anew(request, topology, is_wanted)
        key = self._chip.key_of(request, topology)
        kept = kept_estimates.digest_of((key, self.model))
        if (found := kept_estimates.read(kept, request)) is not None:
            return found
        made = self._anew(request, topology, is_wanted, key)
        kept_estimates.write(kept, made)
        return made

    def _anew(
        self, request: CompileRequest, topology: Topology, is_wanted: Callable[[], bool], key: Hashable = None
    ) -> Executable:
        """Return the estimate of a node that is not on disk.

        Args:
            request: the node.
            topology: of its island.
            is_wanted: whether anybody still waits for it.
            key: by which the compiler of its chip knows it, if that was made already.
        """
        layout, plans = NodeLayout(request), request.code.launch_plans
        if plans and self._chip is None:
            return self._planned(layout, topology, ChipEstimate())
        work, chip = layout.work(), ChipEstimate()
        if self._chip is not None:
            chip = self._chip.estimate(request, layout, work, topology, is_wanted, key)
        flops = work.flops * request.mesh.size
        if chip.is_scheduled and chip.memory is not None:
            cost = chip.cost(before=self.model.node(work, topology, layout.sizes).launch)
            memory, said = chip.memory, "memory by the same compiler"
            if len(plans) == len(request.code.items) == 1 and chip.launch is not None:
                said += f"; {plans[0].beside(chip.launch, plans[0].launch(self.model, topology).opened)}"
        elif plans:
            return self._planned(layout, topology, chip)
        else:
            found = self._compiled(request, layout)
            work += Work((), () if layout.per_shard else found.collectives, found.notes)
            memory, said = _memory(layout, found, work)
            if chip.memory is not None:
                memory, said = chip.memory, ""
            cost = self.model.node(work, topology, layout.sizes)
        basis = _basis(cost, work, said, "exposed" if chip.is_scheduled else "collectives")
        cost = cost._replace(origin="; ".join(filter(None, (basis, chip.note))))
        outputs = layout.outputs(memory.out_specs)
        return Executable(None, outputs, flops, memory.temporary, memory.reused, None, cost, chip.launch)

    def _planned(self, layout: NodeLayout, topology: Topology, chip: ChipEstimate) -> Executable:
        """Return a node whose computations know their launches; what else is in it takes its time after them.

        Args:
            layout: of the node.
            topology: of its island.
            chip: what the chip's compiler says, if it does not take the node.
        """
        plans, devices = layout.request.code.launch_plans, layout.request.mesh.size
        opened, flops = together([plan.launch(self.model, topology) for plan in plans])
        rest = self.model.node(layout.work(planned=False), topology, layout.sizes)
        cost = ChipEstimate(opened).cost(before=0.0)
        origins = [cost.origin, *opened.notes, chip.note]
        if rest.compute or rest.collective:
            compute, collective = cost.compute + rest.compute, cost.collective + rest.collective
            cost = cost._replace(seconds=compute + collective, compute=compute, collective=collective)
            origins.append(f"{duration(rest.compute + rest.collective)} for what is fused with it: {rest.origin}")
        cost = cost._replace(origin="; ".join(filter(None, origins)))
        reused = layout.taken_over()
        # What the launch needs at most; arguments and results are counted apart.
        peak = 0 if opened.memory is None else opened.memory.peak
        temporary = max(peak - (layout.ends() - reused), 0)
        if chip.memory is not None:
            temporary, reused = chip.memory.temporary, chip.memory.reused
        return Executable(None, layout.outputs(), flops * devices, temporary, reused, None, cost, opened)

    def _compiled(self, request: CompileRequest, layout: NodeLayout) -> CompiledFacts:
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

    def _may_not_fit(self, layout: NodeLayout) -> bool:
        """Return whether a node's estimated memory is a large share of a device's."""
        return layout.ends() + layout.temporary() > _MAY_NOT_FIT * self.model.chip.device.hbm_bytes


class PlanEstimates:
    """Makes the executables of one plan.

    Args:
        estimator: of its nodes.
    """

    def __init__(self, estimator: NodeEstimator):
        self._estimator, self._is_wanted = estimator, True

    def get(self, request: CompileRequest, record: Record) -> Promise[Executable]:
        """See ``runtime.lowering.executables.ExecutableMaker``."""
        return self._estimator.get(request, lambda: self._is_wanted)

    def end(self) -> None:
        """Have no node compiled any more, and the compilers that run ended."""
        self._is_wanted = False


def _basis(cost: NodeCost, work: Work, memory: str, collectives: str) -> str:
    """Return the origin of a node's seconds, its share of collectives, the origin of its memory, and unknowns.

    Args:
        cost: of the node.
        work: of it.
        memory: where its memory comes from.
        collectives: what ``cost.collective`` is called.
    """
    share = f"{cost.collective / cost.seconds:.0%} of it {collectives}" if cost.collective else ""
    return "; ".join(filter(None, (cost.origin, share, memory, *work.notes)))


def _memory(layout: NodeLayout, found: CompiledFacts, work: Work) -> tuple[CompiledMemory, str]:
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
    small = NodeLayout(layout.request, found.sizes[-1])
    by = (small.ends() + found.memory.temporary) / max(small.ends() + small.temporary(), 1)
    corrected = max(by * (layout.ends() + temporary) - layout.ends(), 0)
    count = math.prod(found.sizes[-1].values())
    said = f"{ESTIMATED}, times {by:.2f} as compiled for {counted(count, 'device')}{halves}"
    return CompiledMemory(round(corrected), layout.taken_over(), found.memory.out_specs), said
