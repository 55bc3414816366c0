"""Where values lie when their shardings stand on abstract meshes, which name no devices: with their placements.

Both drivers whose devices are not JAX devices of this process use it: the simulator's and the cluster's.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.layouts import Undeclared, on_mesh
from pathways_nb.runtime.lowering.transfers import lies_at


def location(value: Any) -> tuple[Placement, Any] | None:
    """Return devices and sharding of an entry, or ``None`` for a value from outside."""
    where = value.placement if isinstance(value, Entry) else None
    return None if where is None else (where, value.sharding)


def sharding_for(where: Any, argument: Undeclared) -> Any:
    """Return the argument's own sharding if it is on the place's devices, else the default one.

    Args:
        where: as ``location`` returns it.
        argument: the argument.
    """
    there = where is not None and where[0] == argument.where and where[1] is not None
    return (on_mesh(where[1], argument.otherwise.mesh) if there else None) or argument.otherwise


def is_at(entry: Entry, compiled_plan: CompiledPlan, position: int) -> bool:
    """Return whether an argument lies where the bring at ``position`` among the plan's brings it."""
    where = compiled_plan.plan.placements[compiled_plan.plan.steps[compiled_plan.brings[position]].place]
    at_home = entry.placement == where
    return at_home and lies_at(entry.sharding, compiled_plan.targets[position], compiled_plan.ranks[position])
