"""A compiled plan as plain data: what a host needs of it, known by its content.

Shardings name devices by placement, not by JAX's objects, and executables are named by digest. The host makes a
``CompiledPlan`` of it again, with its own devices and executables.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pathways_nb.plan.footprint import NOTHING
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.hosts.messages import PortableNode
from pathways_nb.runtime.hosts.travel import packed_work
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.host_steps import HOST
from pathways_nb.runtime.lowering.pieces import Located

_WHOLE = NamedSharding(AbstractMesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), PartitionSpec())


@dataclass(frozen=True, eq=False)
class PortablePlan:
    """A compiled plan whose shardings stand on abstract meshes.

    Args:
        compiled: the plan, with neither executables nor targets.
        nodes: for each step the digest of what it launches, or an empty text.
        work: by step, what runs on a host (``pw.host``), as ``travel`` packs it.
    """

    compiled: CompiledPlan
    nodes: tuple[str, ...]
    work: dict[int, bytes]

    @classmethod
    def of(cls, compiled: CompiledPlan) -> PortablePlan:
        """Return what travels of a plan that was compiled by ``RemoteCompiler``."""
        nodes = tuple(a.call.digest if isinstance(a.call, PortableNode) else "" for a in compiled.actions)
        work = {step: packed_work(action) for step, action in enumerate(compiled.actions) if action.host is not None}
        actions = tuple(
            replace(action, call=None, target=None, cost=None, host=None, seconds=None) for action in compiled.actions
        )
        graph = Graph(compiled.name, (), compiled.plan.graph.values)
        plan = replace(compiled.plan, graph=graph)
        return cls(replace(compiled, plan=plan, actions=actions, targets=(), footprint=NOTHING, lasts={}), nodes, work)

    def located(self, slot: int) -> Located:
        """Return the layout and the devices of a slot."""
        return located(self.compiled, slot)

    def on(
        self, devices: Sequence[Any], mine: Collection[int], executable: Callable[[int, str], Any]
    ) -> tuple[CompiledPlan, dict[int, tuple[int, ...]]]:
        """Return the plan for one host.

        Args:
            devices: all devices of its island.
            mine: the steps that it takes part in.
            executable: returns what a step launches, given the first device and the digest.

        Returns:
            The plan; and for each of its steps, the moves that send its outputs.
        """
        plan, shardings = self.compiled.plan, list(self.compiled.shardings)
        for slot in {slot for step in mine for slot in plan.steps[step].outputs}:
            if shardings[slot] is not HOST:
                shardings[slot] = concrete(self.located(slot), devices)
        actions = list(self.compiled.actions)
        for index in mine:
            step, digest = plan.steps[index], self.nodes[index]
            call = executable(plan.placements[step.place].first, digest) if digest else None
            target = shardings[step.outputs[0]] if step.kind in ("bring", "move") else None
            work = pickle.loads(self.work[index]) if index in self.work else None
            actions[index] = replace(actions[index], call=call, target=target, host=work)
        sends: dict[int, list[int]] = {}
        for index, step in enumerate(plan.steps):
            if step.kind == "move" and step.producers[0] in mine:
                sends.setdefault(step.producers[0], []).append(index)
        found = replace(self.compiled, actions=tuple(actions), shardings=tuple(shardings))
        return found, {step: tuple(moves) for step, moves in sends.items()}


def located(compiled: CompiledPlan, slot: int) -> Located:
    """Return the layout and the devices of a plan's slot; a value on an island's host is as if on its first device."""
    where = compiled.plan.placements[compiled.plan.slots[slot].place]
    if compiled.shardings[slot] is HOST:
        return Located(_WHOLE, Placement(where.island, 0, 1))
    return Located(compiled.shardings[slot], where)


def concrete(where: Located, devices: Sequence[Any]) -> NamedSharding:
    """Return a layout on an abstract mesh as one on the devices of an island."""
    abstract = where.sharding.mesh
    chosen = np.array(devices[where.where.first : where.where.first + where.where.count], object)
    kinds = (jax.sharding.AxisType.Auto,) * len(abstract.axis_names)
    mesh = Mesh(chosen.reshape(tuple(abstract.shape.values())), abstract.axis_names, axis_types=kinds)
    return NamedSharding(mesh, where.sharding.spec)


def packed(portable: PortablePlan) -> tuple[str, bytes]:
    """Return a digest of a plan's content, and the plan as bytes."""
    data = pickle.dumps(portable, protocol=5)
    return hashlib.sha256(data).hexdigest(), data
