"""The layout in which each argument of a program is brought to its places.

The rule is that of ``jax.jit``. An argument for which a computation declares a spec is brought in that spec. An
argument that only ordinary operations read, such as an optimizer's state, is used in its own layout if it lies on the
devices of the place, and the program is compiled once for each such layout. Otherwise it would be gathered at every
step. If it comes from elsewhere, it gets the layout of the values it is combined with (see ``sharding_propagation``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.program.items import Const
from pathways_nb.program.program_tracer import Traced
from pathways_nb.program.specs import trimmed
from pathways_nb.runtime.lowering.attachment import Island
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.sharding_propagation import Propagation

Targets = Mapping[tuple[int, int], Any]
"""The sharding in which an argument is brought to a place, by argument and place."""


class Undeclared(NamedTuple):
    """An argument for which no computation at a place declares a spec."""

    argument: int
    place: int
    where: Placement
    otherwise: NamedSharding
    """The sharding in which it is brought if it does not lie at the place."""


@dataclass(eq=False)
class Layouts:
    """A program placed on a session's devices, and its compiled plans.

    Args:
        plan: the program with its placements.
        fixed: the targets of arguments whose layout does not depend on the call.
        undeclared: the other arguments.
    """

    plan: Plan
    fixed: Targets
    undeclared: tuple[Undeclared, ...]
    made: dict[Hashable, CompiledPlan] = field(default_factory=dict)
    """Compiled plans, by the layouts of undeclared arguments in a call, and by those in which they are brought."""

    @classmethod
    def of(cls, traced: Traced, plan: Plan, islands: Sequence[Island]) -> Layouts:
        """Find the declared layout of each argument, or guess it.

        Args:
            traced: the program's trace.
            plan: its plan.
            islands: the session's islands, in order.

        Returns:
            The layouts, with no compiled plan yet.
        """
        places = {place.serial: place for place in traced.places}
        brought = [(step.argument, step.place) for step in plan.steps if step.kind == "bring" and not step.on_host]
        declared = _declared(traced, plan)
        guesses: dict[int, Propagation] = {}
        fixed, undeclared = {}, []
        for argument, serial in brought:
            value, where = traced.arguments[plan.leaves[argument]], plan.placements[serial]
            mesh = islands[where.island].mesh(where, places[serial])
            spec = declared.get((value, serial))
            # A scalar, and anything on one device, has one layout only: nothing to guess, and one compilation serves
            # all calls.
            if spec is None and mesh.size > 1 and traced.avals[value].shape:
                if serial not in guesses:
                    guesses[serial] = _propagation(traced, plan, serial, declared)
                otherwise = NamedSharding(mesh, guesses[serial].spec(value))
                undeclared.append(Undeclared(argument, serial, where, otherwise))
            else:
                fixed[argument, serial] = NamedSharding(mesh, trimmed(spec))
        return cls(plan, fixed, tuple(undeclared))

    def targets(self, brought: Sequence[Any]) -> Targets:
        """Return the shardings of all arguments, given those of the undeclared ones."""
        keys = ((one.argument, one.place) for one in self.undeclared)
        return {**self.fixed, **dict(zip(keys, brought, strict=True))}


def on_mesh(sharding: Any, mesh: Any) -> NamedSharding | None:
    """Return the sharding of a value on the devices of ``mesh`` as one of that mesh; ``None`` if its axes differ."""
    if sharding.is_fully_replicated:  # over whatever axes
        return NamedSharding(mesh, PartitionSpec())
    if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
        return NamedSharding(mesh, trimmed(sharding.spec))
    return None


def _declared(traced: Traced, plan: Plan) -> dict[tuple[int, int], PartitionSpec]:
    """Return, by value and place, the first spec that a computation there declares for it as an input or output."""
    found: dict[tuple[int, int], PartitionSpec] = {}
    for step in plan.steps:
        for item in traced.codes[step.node].computations if step.kind == "launch" else ():
            values, declared = (*item.inputs, *item.outputs), (*item.in_specs, *item.out_specs)
            for value, spec in zip(values, declared, strict=True):
                if spec is not None and not isinstance(value, Const):
                    # The first counts: later readers with another spec reshard it in their own executables.
                    found.setdefault((value, step.place), spec)
    return found


def _propagation(
    traced: Traced, plan: Plan, serial: int, declared: Mapping[tuple[int, int], PartitionSpec]
) -> Propagation:
    """Return the layouts of the values at one place."""
    places = {place.serial: place for place in traced.places}
    place = places[serial]
    # What places of the same axes and shape declare for a value means the same here, and is the best guess.
    alike = {s for s, other in places.items() if (other.shape, other.axes) == (place.shape, place.axes) and s != serial}
    elsewhere = {value: spec for (value, other), spec in declared.items() if other in alike}
    found = Propagation(dict(zip(place.axes, place.shape, strict=True)), [aval.shape for aval in traced.avals])
    codes = (traced.codes[step.node] for step in plan.steps if step.kind == "launch" and step.place == serial)
    found.add(codes, elsewhere)
    return found
