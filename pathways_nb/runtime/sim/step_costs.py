"""Costs of the steps and launches of a program on simulated islands: seconds, formulas, numbers of hosts.

A launch costs what ``node_estimates`` found when its node was lowered, and a move between places costs what its route
takes. Both are computed once per program. The cost of bringing an argument is computed at each run, because it depends
on where the argument is at that time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from pathways_nb.controller.events_and_instructions import Launch
from pathways_nb.cost.collectives.formulas import FREE, Cost
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError
from pathways_nb.plan.footprint import shared_devices
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.sim.timed_plan import TimedPlan
from pathways_nb.trace.causality.same_decisions import INTERFERENCE
from pathways_nb.trace.rows import Label


class StepCosts:
    """Costs of lowered programs, each computed once.

    Args:
        model: the cost model.
        topology_of: returns the topology of an island, by its index.
    """

    def __init__(self, model: CostModel, topology_of: Callable[[int], Topology]):
        self.model, self.topology_of = model, topology_of
        self._timed: weakref.WeakKeyDictionary[CompiledPlan, TimedPlan] = weakref.WeakKeyDictionary()
        self._reached: weakref.WeakKeyDictionary[CompiledPlan, dict[tuple[int, int, int], int]] = (
            weakref.WeakKeyDictionary()
        )
        """By program and launch: number of hosts that have devices in it."""

    def based(self, compiled_plan: CompiledPlan) -> CompiledPlan:
        """Return the plan with labels of moves that contain the formula of their seconds, their links and latency."""
        labels = [self._based(compiled_plan, index) for index in range(len(compiled_plan.plan.steps))]
        actions = tuple(
            replace(action, label=label) for action, label in zip(compiled_plan.actions, labels, strict=True)
        )
        return replace(compiled_plan, actions=actions)

    def timed(self, compiled_plan: CompiledPlan) -> TimedPlan:
        """Return the plan with the seconds of each step."""
        found = self._timed.get(compiled_plan)
        if found is None:
            seconds = [self._seconds(compiled_plan, index) for index in range(len(compiled_plan.plan.steps))]
            # Results are waited for, and a user's function that says how long host work takes is called when it begins.
            asked = {index for index, action in enumerate(compiled_plan.actions) if callable(action.seconds)}
            found = TimedPlan(compiled_plan.plan, seconds, compiled_plan.awaited | asked)
            self._timed[compiled_plan] = found
        return found

    def hosts_of(self, compiled_plan: CompiledPlan, launch: Launch) -> int:
        """Return the number of hosts that have devices in a launch; each adds to the time of its message."""
        key = launch.island, launch.start, launch.stop
        known = self._reached.setdefault(compiled_plan, {})
        if key not in known:
            plan, each = compiled_plan.plan, self.topology_of(launch.island).devices_per_host
            steps = plan.orders[launch.island][launch.start : launch.stop]
            places = [plan.placements[place] for place in {plan.steps[index].place for index in steps}]
            spans = [range(p.first // each, (p.first + p.count - 1) // each + 1) for p in places]
            known[key] = len({host for span in spans for host in span}) or 1  # host work needs a message, too
        return known[key]

    def move(self, compiled_plan: CompiledPlan, index: int) -> Cost:
        """Return the cost of a step that moves a value between places; any other step is free."""
        plan, step = compiled_plan.plan, compiled_plan.plan.steps[index]
        if step.kind != "move":
            return FREE
        (slot,) = step.inputs
        where = plan.placements[plan.slots[slot].place]
        source = None if where.is_host else Located(compiled_plan.shardings[slot], where)
        return self.transfer(compiled_plan, index, step.route, source)

    def transfer(
        self, compiled_plan: CompiledPlan, index: int, route: str, source: Located | None, copied: bool = False
    ) -> Cost:
        """Return the cost of sending each device of a place what it lacks of a value.

        Over DCN, a part is sent once for each host, whose devices share it.

        Args:
            compiled_plan: the program.
            index: of the step that makes the transfer.
            route: ``host``, ``ICI`` or ``DCN``.
            source: devices that hold the value, and its sharding there; ``None`` for the host.
            copied: whether parts that are where they are wanted are copied, too.
        """
        target = compiled_plan.target(index)
        if target.where.is_host:
            return self._to_host(compiled_plan, index, route, source)
        topology = self.topology_of(target.where.island)
        held = None if copied else source
        size = compiled_plan.crossing(index, held, topology.devices_per_host if route == "DCN" else None)
        if not size and compiled_plan.crossing(index):
            return FREE  # all devices hold their parts
        senders, shared = (source.where.count, shared_devices(source.where, target.where)) if source else (1, 0)
        return self.model.transfer(size, route, topology, senders, target.where.count, shared)

    def _to_host(self, compiled_plan: CompiledPlan, index: int, route: str, source: Located | None) -> Cost:
        """Return the cost of bringing a value to an island's host, over the same way as from there."""
        if source is None:
            return FREE
        topology = self.topology_of(compiled_plan.target(index).where.island)
        sends = max(source.where.count, 1)
        return self.model.transfer(compiled_plan.crossing(index), route, topology, sends, sends)

    def _seconds(self, compiled_plan: CompiledPlan, index: int) -> float:
        action = compiled_plan.actions[index]
        if action.step.kind == "host":
            return action.seconds if isinstance(action.seconds, float) else 0.0
        if action.step.kind == "launch":
            assert action.cost is not None
            return action.cost.seconds
        return self.move(compiled_plan, index).seconds

    def _based(self, compiled_plan: CompiledPlan, index: int) -> Label:
        """Return the label of a step; that of a move gets the formula of its seconds, its links and latency."""
        label, plan, step = compiled_plan.actions[index].label, compiled_plan.plan, compiled_plan.plan.steps[index]
        if step.kind != "move":
            return label
        cost, source = self.move(compiled_plan, index), plan.placements[plan.slots[step.inputs[0]].place]
        links = links_of(label.route, source, plan.placements[step.place]) if cost.seconds else ()
        return replace(label, basis=cost.formula, links=links, latency=cost.latency)


def check_host_work(compiled_plan: CompiledPlan) -> None:
    """Refuse host work without a declared duration.

    Raises:
        UsageError: naming the node and how to declare it.
    """
    for action in compiled_plan.actions:
        if action.step.kind == "host" and action.seconds is None:
            label = action.label
            line = f" ({label.line})" if label.line else ""
            raise UsageError(
                f"{label.name} of {label.program}{line} is host work, whose function simulated devices do not call, "
                f"and nothing says how long it takes. Declare that: "
                f"pw.host(on={label.place}, out=…, seconds=2e-3), or seconds= a function that returns it for each call."
            )


@lru_cache(maxsize=4096)
def beside_others(label: Label) -> Label:
    """Return the label of a node that took longer because all other islands worked."""
    return replace(label, basis=f"{label.basis}, {INTERFERENCE}")


@lru_cache(maxsize=4096)
def brought(label: Label, route: str, size: int, basis: str, links: tuple[str, ...]) -> Label:
    """Return the label of an argument of which ``size`` bytes were transferred on this route."""
    return replace(label, route=route, bytes=size, basis=basis, links=links)


def links_of(route: str, source: Placement | None, target: Placement) -> tuple[str, ...]:
    """Return the names of the links that a transfer occupies.

    Between islands (DCN) these are two, out of the source and into the target, each shared with other transfers of the
    same place. Within an island, or from the host, it is one link for each pair of source and target.
    """
    if route == "DCN":
        return f"out of {source}", f"into {target}"
    sender = source if source is not None and not source.is_host else "host"
    return (f"{route} from {sender} to {target}",)
