"""A plan made ready for this process's devices: executables, layouts and labels for every step.

Nodes are compiled in the plan's order, because how a value leaves its producer decides how it arrives. A value moves
to another place in the producer's layout, or whole where the number of devices differs; any resharding happens inside
the consumer's executable, by the compiler's collectives, never through the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways_nb.backends.executables import Executable, Executables, Progress, Request, like_for_like
from pathways_nb.backends.islands import Island
from pathways_nb.program.graph import Node
from pathways_nb.program.plan import Plan, Step
from pathways_nb.program.program import Traced
from pathways_nb.trace.record import Label, Record


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """A step ready to be carried out: what to call or where to send, and how to label it."""

    step: Step
    label: Label
    call: Callable[..., Any] | None = None
    target: Any = None
    devices: tuple[int, ...] = ()
    """Positions of its devices in the island."""
    witness: int = 0
    """Which output to wait on: the smallest that no later step takes over."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A plan with an action for each step, and the sharding of each slot."""

    traced: Traced
    plan: Plan
    actions: tuple[Action, ...]
    shardings: tuple[Any, ...]
    temp_bytes: int
    awaited: frozenset[int]
    """Steps whose outputs another island or the user waits for."""


class Lowering:
    """Turns one plan into actions. ``islands`` are the controller's, in order."""

    def __init__(self, traced: Traced, plan: Plan, islands: tuple[Island, ...], executables: Executables):
        self.traced, self.plan, self.executables = traced, plan, executables
        self.nodes: Mapping[int, Node] = {node.id: node for node in traced.graph.nodes}
        self.places = {place.serial: place for place in traced.graph.places}
        self.meshes = {s: islands[p.island].mesh(p, self.places[s]) for s, p in plan.placements.items()}
        self.shardings: list[Any] = [None] * len(plan.slots)
        self.repeats: dict[Any, Executable] = {}
        self.donated_values = {traced.arguments[i] for i in traced.donated}
        self.argument_values = set(traced.arguments)
        self.replicated = frozenset(self._travelling_whole())
        self.donated_slots: set[int] = set()

    def lower(self, record: Record, say: Callable[[str], None]) -> Lowered:
        """Compile what is not compiled yet; ``say`` tells of progress past two seconds."""
        progress = Progress(sum(step.kind == "launch" for step in self.plan.steps), say)
        actions = []
        temp = 0
        for step in self.plan.steps:
            if step.kind == "launch":
                progress.step(self.nodes[step.node].name)
                executable, action = self._launch(step, record)
                temp = max(temp, executable.temp_bytes)
            else:
                action = self._transfer(step)
            actions.append(action)
        finished = tuple(self._with_witness(action) for action in actions)
        return Lowered(self.traced, self.plan, finished, tuple(self.shardings), temp, self._awaited())

    def _awaited(self) -> frozenset[int]:
        steps, results = self.plan.steps, set(self.plan.results)
        abroad = {p for step in steps for p in step.producers if steps[p].island != step.island}
        return frozenset(abroad | {i for i, step in enumerate(steps) if results.intersection(step.outputs)})

    def _travelling_whole(self) -> set[int]:
        found = set()
        for step in self.plan.steps:
            if step.kind == "move":
                slot = self.plan.slots[step.inputs[0]]
                if self.meshes[slot.place].size != self.meshes[step.place].size:
                    found.add(slot.value)
        return found

    def _launch(self, step: Step, record: Record) -> tuple[Executable, Action]:
        code, mesh = self.traced.codes[step.node], self.meshes[step.place]
        request = Request(
            code,
            mesh,
            tuple(self.traced.avals[value].struct for value in code.inputs),
            tuple(self.shardings[slot] for slot in step.inputs),
            self._donated(step),
            self.replicated,
            self._label(step, "compute", 0),
        )
        key = request.key()
        if key not in self.repeats:
            self.repeats[key] = self.executables.get(request, record)
        executable = self.repeats[key]
        for slot, sharding in zip(step.outputs, executable.out_shardings, strict=False):
            self.shardings[slot] = _named(sharding, mesh)
        size = sum(self.traced.avals[self.plan.slots[slot].value].bytes for slot in step.outputs)
        label = self._label(step, "compute", size, executable.flops)
        return executable, Action(step, label, executable.call, devices=self._devices(step))

    def _donated(self, step: Step) -> tuple[int, ...]:
        """Inputs whose memory the node may take over: donated, read last here, and nobody else's."""
        item = self.traced.codes[step.node].computation
        flags = dict(zip(item.inputs, item.donated, strict=True)) if item is not None else {}
        found = []
        for index, slot in enumerate(step.inputs):
            value = self.plan.slots[slot].value
            allowed = value in self.donated_values or (flags.get(value, False) and value not in self.argument_values)
            if allowed and slot in step.last and slot not in self.plan.readers:
                found.append(index)
                self.donated_slots.add(slot)
        return tuple(found)

    def _transfer(self, step: Step) -> Action:
        mesh = self.meshes[step.place]
        (slot,) = step.outputs
        value = self.plan.slots[slot].value
        if step.kind == "bring":
            target: Any = NamedSharding(mesh, self._wanted(step.node, value))
        else:
            target = like_for_like(self.shardings[step.inputs[0]], mesh) or NamedSharding(mesh, PartitionSpec())
        self.shardings[slot] = target
        label = self._label(step, "transfer", self.traced.avals[value].bytes)
        return Action(step, label, target=target, devices=self._devices(step))

    def _wanted(self, node: int, value: int) -> PartitionSpec:
        """The spec that the node which first needs an argument declares for it; whole if it declares none."""
        code = self.traced.codes.get(node)
        item = code.computation if code is not None else None
        if item is not None:
            for operand, spec in zip(item.inputs, item.in_specs, strict=True):
                if operand == value and spec is not None:
                    return spec
        return PartitionSpec()

    def _label(self, step: Step, kind: str, size: int, flops: float = 0.0) -> Label:
        node, placement = self.nodes[step.node], self.plan.placements[step.place]
        parents = tuple(sorted({self.plan.steps[p].node for p in step.producers}))
        name = node.name if step.kind == "launch" else self._transfer_name(step)
        return Label(
            kind,
            name,
            self.traced.name,
            node=step.node,
            place=self.places[step.place].label,
            island=step.island,
            device=placement.first,
            devices=placement.count,
            bytes=size,
            flops=flops,
            parents=parents,
            route=step.route,
            line=node.line,
        )

    def _transfer_name(self, step: Step) -> str:
        target = self.places[step.place].label
        if step.kind == "bring":
            value = self.traced.arguments[step.argument]
            argument = next(n for n in self.traced.graph.nodes if n.kind == "argument" and value in n.outputs)
            return f"{argument.name} → {target}"
        return f"{self.places[self.plan.slots[step.inputs[0]].place].label} → {target}"

    def _devices(self, step: Step) -> tuple[int, ...]:
        placement = self.plan.placements[step.place]
        return tuple(range(placement.first, placement.first + placement.count))

    def _with_witness(self, action: Action) -> Action:
        outputs = action.step.outputs
        if action.call is None or len(outputs) < 2:
            return action

        def cost(index: int) -> tuple[bool, int]:
            slot = outputs[index]
            return slot in self.donated_slots, self.traced.avals[self.plan.slots[slot].value].bytes

        best = min(range(len(outputs)), key=cost)
        return Action(action.step, action.label, action.call, None, action.devices, best)


def _named(sharding: Any, mesh: Mesh) -> Any:
    """JAX names single devices and replicas in several ways; one is enough to compare and to move."""
    if not isinstance(sharding, NamedSharding) and sharding.is_fully_replicated:
        return NamedSharding(mesh, PartitionSpec())
    return sharding


def reshard(array: Any, target: Any) -> Any:
    """Change an array's layout on its own devices, by a launch rather than through the host."""
    return _resharder(target)(array)


_resharders: dict[Any, Callable[[Any], Any]] = {}


def _resharder(target: Any) -> Callable[[Any], Any]:
    if target not in _resharders:
        _resharders[target] = jax.jit(lambda array: array, out_shardings=target)
    return _resharders[target]
