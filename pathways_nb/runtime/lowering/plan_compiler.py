"""Compiles a plan for this process's devices: executables, layouts and labels for every step.

Nodes are compiled in the plan's order, because how a value leaves its producer decides how it arrives. A value moves
to another place in the producer's layout. Where the number of devices differs, or the axes of the other place cannot
express that layout, each device there gets the shard that the first reader wants, in pieces (see ``pieces``). All other
resharding happens inside the consumer's executable, by the compiler's collectives, and never through the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.cost.jaxpr.splits import bytes_on_device
from pathways_nb.plan.footprint import Sizes, footprint_of
from pathways_nb.plan.graph import Node
from pathways_nb.plan.plan import Plan, Step
from pathways_nb.program.build import Code
from pathways_nb.program.emit import out_shardings
from pathways_nb.program.items import Const
from pathways_nb.program.program_tracer import Traced
from pathways_nb.runtime.lowering.attachment import Island
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep
from pathways_nb.runtime.lowering.donations import Donations
from pathways_nb.runtime.lowering.executables import CompileRequest, Executable, ExecutableMaker
from pathways_nb.runtime.lowering.host_steps import HOST, host_call
from pathways_nb.runtime.lowering.layouts import Targets
from pathways_nb.runtime.lowering.pieces import Located, bytes_crossing
from pathways_nb.runtime.lowering.transfers import analogous, translated
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label
from pathways_nb.util.progress import Progress
from pathways_nb.util.waiting import Promise


class PlanCompiler:
    """Compiles one plan.

    Args:
        traced: the program's trace.
        plan: its plan.
        targets: the layouts in which arguments are brought.
        islands: the controller's islands, in order.
        executables: makes executables of nodes.
    """

    def __init__(
        self, traced: Traced, plan: Plan, targets: Targets, islands: Sequence[Island], executables: ExecutableMaker
    ):
        self.traced, self.plan, self.targets, self.executables = traced, plan, targets, executables
        self.nodes: Mapping[int, Node] = {node.id: node for node in traced.graph.nodes}
        self._arguments = {v: node.name for node in traced.graph.nodes if node.kind == "argument" for v in node.outputs}
        self.places = {place.serial: place for place in traced.places}
        placed = ((s, p) for s, p in plan.placements.items() if not p.is_host)
        self.meshes = {s: islands[p.island].mesh(p, self.places[s]) for s, p in placed}
        self.shardings: list[Any] = [None] * len(plan.slots)
        self.repeats: dict[Any, Promise[Executable]] = {}
        self.compiling: dict[int, Promise[Executable]] = {}
        """The executable of each launch, by step."""
        self.waits_for = -1
        """The step whose executable is waited for: of a compilation that fails, the one that failed."""
        self.made_by: dict[int, int] = {}
        """The step that makes each slot."""
        self.labels: dict[int, Label] = {}
        self.readers, self.donations = _first_readers(plan), Donations(traced, plan)
        self.slots = {(slot.value, slot.place): index for index, slot in enumerate(plan.slots)}
        self.brought = tuple(step.argument for step in plan.steps if step.kind == "bring")

    def lower(self, record: Record, say: Callable[[str], object]) -> CompiledPlan:
        """Compile what is not compiled yet.

        Args:
            record: where compiling is recorded.
            say: shows progress once it has taken two seconds.

        Returns:
            The compiled plan.
        """
        with Progress(say) as self.progress:
            for index, step in enumerate(self.plan.steps):
                if step.kind == "launch":
                    self._start(index, step, record)
                elif step.kind == "host":
                    for slot in step.outputs:
                        self.shardings[slot] = HOST
                else:
                    self._transfer(index, step)
            # In a second pass, which waits: by then all nodes are with the compiling threads.
            actions = [self._action(index, step) for index, step in enumerate(self.plan.steps)]
        steps, makers = self.plan.steps, {s: i for i, step in enumerate(self.plan.steps) for s in step.outputs}
        results = tuple(self.traced.avals[self.plan.slots[slot].value] for slot in self.plan.results)
        taken_over = frozenset(steps[makers[slot]].argument for slot in self.donations.slots) - {-1}
        sizes = self._sizes()
        return CompiledPlan(
            self.plan,
            tuple(actions),
            tuple(self.shardings),
            self._awaited(),
            self.brought,
            tuple(action.target for action in actions if action.step.kind == "bring"),
            tuple(len(self.traced.avals[self.traced.arguments[self.plan.leaves[a]]].shape) for a in self.brought),
            taken_over,
            tuple(makers[slot] for slot in self.plan.results),
            results,
            tuple(aval.bytes for aval in results),
            footprint_of(self.plan, sizes, sorted(taken_over)),
            sizes.slots,
            self.traced.contexts,
        )

    def _sizes(self) -> Sizes:
        """Return the bytes that each slot and each launch takes on a device."""
        values = [self.traced.avals[slot.value] for slot in self.plan.slots]
        slots = tuple(
            0 if sharding is HOST else bytes_on_device(aval, sharding)
            for aval, sharding in zip(values, self.shardings, strict=True)
        )
        temporary, reused = {}, {}
        for index, compiling in self.compiling.items():
            executable = compiling.result()
            # XLA reports one number for all that is reused; it counts as memory of arguments first.
            from_arguments = min(executable.reused, sum(slots[slot] for slot in self.donations.of_arguments(index)))
            temporary[index] = executable.temporary
            reused[index] = from_arguments, executable.reused - from_arguments
        return Sizes(slots, temporary, reused)

    def _awaited(self) -> frozenset[int]:
        steps, results = self.plan.steps, set(self.plan.results)
        abroad = {p for step in steps for p in step.producers if steps[p].reader != step.reader}
        return frozenset(abroad | {i for i, step in enumerate(steps) if results.intersection(step.outputs)})

    def _start(self, index: int, step: Step, record: Record) -> None:
        """Lower a node and begin to compile it; only layouts that are the compiler's choice must be waited for."""
        code, mesh = self.traced.codes[step.node], self.meshes[step.place]
        request = CompileRequest(
            code,
            mesh,
            tuple(self.traced.avals[value].struct for value in code.inputs),
            tuple(self._sharding(slot) for slot in step.inputs),
            self.donations.take_over(index, step),
            self._label(step, "compile", 0),
            self.traced.contexts,
        )
        key = request.key()
        # The microbatches of a stage are one node called many times: it is lowered and compiled once.
        if key not in self.repeats:
            self.repeats[key] = self.executables.get(request, record)
            self.progress.tell(lambda: self._under_way(index))
        self.compiling[index] = self.repeats[key]
        for slot, declared in zip(step.outputs, out_shardings(code, mesh), strict=False):
            self.shardings[slot] = declared
            self.made_by[slot] = index

    def _executable(self, index: int) -> Executable:
        """Return the executable of a launch, waiting in short steps so that an interrupt is heard."""
        compiling, self.waits_for = self.compiling[index], index
        while True:
            self.progress.tell(lambda: self._under_way(index))
            try:
                return compiling.result(timeout=0.5)
            except TimeoutError:
                if compiling.done():
                    raise

    def _under_way(self, index: int) -> str:
        # How many launches the plan has is known from the start; those that are not lowered yet are not done.
        done, total = sum(p.done() for p in self.compiling.values()), sum(s.kind == "launch" for s in self.plan.steps)
        return f"compiling {self.nodes[self.plan.steps[index].node].name}: {done} of {total} done"

    def _sharding(self, slot: int) -> Any:
        """Return the layout of a slot, waiting for its producer's executable if the compiler chooses it."""
        if self.shardings[slot] is None:
            index = self.made_by[slot]
            step = self.plan.steps[index]
            mesh = self.meshes[step.place]
            for output, sharding in zip(step.outputs, self._executable(index).out_shardings, strict=False):
                # JAX names single devices and replicas in several ways; equal layouts must compare equal.
                is_plain = not isinstance(sharding, NamedSharding) and sharding.is_fully_replicated
                self.shardings[output] = NamedSharding(mesh, PartitionSpec()) if is_plain else sharding
        return self.shardings[slot]

    def _action(self, index: int, step: Step) -> CompiledStep:
        if step.kind == "host":
            return self._host_action(step)
        if step.kind != "launch":
            target, reader = self._sharding(step.outputs[0]), self.readers.get(index, -1)
            return CompiledStep(step, self.labels[index], target=target, reader=reader)
        for slot in step.outputs:
            self._sharding(slot)
        executable = self._executable(index)
        size = sum(self.traced.avals[self.plan.slots[slot].value].bytes for slot in step.outputs)
        basis = executable.cost.origin if executable.cost is not None else ""
        label = self._label(step, self.traced.codes[step.node].kind, size, executable.flops, basis)
        return CompiledStep(
            step, label,
            call=executable.call,
            may_block=executable.may_block,
            cost=executable.cost,
            opened=executable.opened,
            waits_for=self._waits_for(step),
            witness=self._witness(step),
            reader=self.readers.get(index, -1),
        )  # fmt: skip

    def _host_action(self, step: Step) -> CompiledStep:
        code = self.traced.codes[step.node]
        work = code.host
        assert work is not None
        size = sum(self.traced.avals[self.plan.slots[slot].value].bytes for slot in step.outputs)
        basis = "" if work.seconds is None else "declared"
        label = self._label(step, code.kind, size, basis=basis)
        return CompiledStep(step, label, host=host_call(code), seconds=work.seconds)

    def _transfer(self, index: int, step: Step) -> None:
        (slot,) = step.outputs
        source = None
        if step.on_host:
            target: Any = HOST
        elif step.kind == "bring":
            target = self.targets[step.argument, step.place]
        elif (held := self._sharding(step.inputs[0])) is HOST:
            target = self._from_host(step)
        else:
            source = Located(held, self.plan.placements[self.plan.slots[step.inputs[0]].place])
            target = self._arriving(step, held)
        self.shardings[slot] = target
        value = self.plan.graph.values[self.plan.slots[slot].value]
        where = self.plan.placements[step.place]
        size = value.bytes if target is HOST else bytes_crossing(value, Located(target, where), source)
        self.labels[index] = self._label(step, "transfer", size)

    def _arriving(self, step: Step, held: Any) -> NamedSharding:
        """Return the layout in which a moved value arrives."""
        mesh, value = self.meshes[step.place], self.plan.slots[step.outputs[0]].value
        # Added to a value that lies there: in its layout, nothing needs resharding before the sum.
        if (own := self._own_part(step, value)) is not None:
            return own
        # As it left, if these axes can say that: shards go from device to device, whole.
        if (same := translated(held, mesh)) is not None:
            return same
        # Else pieces must be cut anyway, so they are cut as the first reader wants them.
        if (spec := self._wanted(step.node, value)) is not None:
            return NamedSharding(mesh, spec)
        return analogous(held, mesh, self.traced.avals[value].shape) or NamedSharding(mesh, PartitionSpec())

    def _from_host(self, step: Step) -> NamedSharding:
        """Return the layout in which a host node's output is put onto devices."""
        value, mesh = self.plan.slots[step.outputs[0]].value, self.meshes[step.place]
        (maker,) = step.producers
        node = self.nodes[self.plan.steps[maker].node]
        assert node.place is not None
        declared = self._declared(self.traced.codes[node.id], value) if node.place.serial == step.place else None
        return NamedSharding(mesh, declared or self._wanted(step.node, value) or PartitionSpec())

    @staticmethod
    def _declared(code: Code, value: int) -> PartitionSpec | None:
        """Return the spec in which a host node declares that an output is put onto its place, if any."""
        return next((dict(zip(i.outputs, i.out_specs, strict=True)).get(value) for i in code.computations), None)

    def _own_part(self, step: Step, value: int) -> NamedSharding | None:
        """Return the layout of the value at the step's place to which a moved value is added (``pw.all_reduce``)."""
        code = self.traced.codes.get(step.node)  # the result has none
        for item in code.computations if code is not None else ():
            if item.exchange_sum is not None and value in item.inputs:
                part = item.inputs[item.exchange_sum.own]
                own = None if isinstance(part, Const) else self.slots.get((part, step.place))
                if own is None or (self.shardings[own] is None and own not in self.made_by):
                    return None  # it is brought later, as the first reader wants it
                found = self._sharding(own)
                return found if isinstance(found, NamedSharding) else None
        return None

    def _wanted(self, node: int, value: int) -> PartitionSpec | None:
        """Return the spec that the first node which needs a moved value declares for it, if any."""
        code = self.traced.codes.get(node)  # the result has none
        for item in code.computations if code is not None else ():
            for operand, spec in zip(item.inputs, item.in_specs, strict=True):
                if operand == value and spec is not None:
                    return spec
        return None

    def _label(self, step: Step, kind: str, size: int, flops: float = 0.0, basis: str = "") -> Label:
        node, placement = self.nodes[step.node], self.plan.placements[step.place]
        parents = tuple(sorted({self.plan.steps[p].node for p in step.producers}))
        name = node.name if step.kind in ("launch", "host") else self._transfer_name(step)
        return Label(
            kind,
            name,
            self.traced.name,
            node=step.node,
            place=node.place.label if step.kind == "host" and node.place is not None else self._place_name(step.place),
            island=step.island,
            device=placement.first,
            devices=placement.count,
            bytes=size,
            flops=flops,
            parents=parents,
            route=step.route,
            line=node.line,
            basis=basis,
            **(node.action._asdict() if node.action else {}),
        )

    def _transfer_name(self, step: Step) -> str:
        target = self._place_name(step.place)
        if step.kind == "bring":
            value = self.plan.slots[step.outputs[0]].value
            return f"{self._arguments[value]} → {target}"
        return f"{self._place_name(self.plan.slots[step.inputs[0]].place)} → {target}"

    def _place_name(self, place: int) -> str:
        where = self.plan.placements[place]
        return f"host {where.island}" if where.is_host else self.places[place].label

    def _waits_for(self, step: Step) -> tuple[int, ...]:
        def elsewhere(producer: Step) -> bool:
            # A launch on a device they share is before this one in the device's own queue.
            here, there = self.plan.placements[step.place], self.plan.placements[producer.place]
            apart = there.first >= here.first + here.count or here.first >= there.first + there.count
            return producer.kind != "launch" or apart

        return tuple(p for p in step.producers if elsewhere(self.plan.steps[p]))

    def _witness(self, step: Step) -> int:
        """Return the output to wait on: the smallest whose memory no later step takes over."""

        def cost(index: int) -> tuple[bool, int]:
            slot = step.outputs[index]
            # An output whose memory is taken over is deleted in JAX when its taker is launched, and cannot be waited
            # for.
            return slot in self.donations.slots, self.traced.avals[self.plan.slots[slot].value].bytes

        return min(range(len(step.outputs)), key=cost, default=0)


def _first_readers(plan: Plan) -> dict[int, int]:
    """Return, for each step, the first launch on the same island that reads its outputs."""
    found: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        for producer in step.producers if step.kind == "launch" else ():
            if plan.steps[producer].island == step.island:
                found.setdefault(producer, index)
    return found
