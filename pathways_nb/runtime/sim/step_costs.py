"""What the steps and the launches of a program cost on simulated islands: seconds, formulas, hosts.

A launch costs what was found when its node was lowered (see ``node_estimates``), a move what its route takes; of what
is brought it is known only when it is, for it depends on where an argument lies by then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from pathways_nb.controller.messages import Launch
from pathways_nb.cost.collectives.formulas import FREE, Cost
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.model import CostModel
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.sim.simulated_islands import TimedPlan
from pathways_nb.trace.causality.same_decisions import INTERFERENCE
from pathways_nb.trace.record import Label


class StepCosts:
    """Costs of lowered programs, each found once.

    Args:
        model: what everything costs. topology_of: an island, by its index.
    """

    def __init__(self, model: CostModel, topology_of: Callable[[int], Topology]):
        self.model, self.topology_of = model, topology_of
        self._timed: weakref.WeakKeyDictionary[CompiledPlan, TimedPlan] = weakref.WeakKeyDictionary()
        self._reached: weakref.WeakKeyDictionary[CompiledPlan, dict[tuple[int, int, int], int]] = (
            weakref.WeakKeyDictionary()
        )
        """By program and launch: how many hosts it is for."""

    def based(self, compiled_plan: CompiledPlan) -> CompiledPlan:
        """The same, with labels that say what the seconds of a move come from."""
        labels = [self._based(compiled_plan, index) for index in range(len(compiled_plan.plan.steps))]
        actions = tuple(
            replace(action, label=label) for action, label in zip(compiled_plan.actions, labels, strict=True)
        )
        return replace(compiled_plan, actions=actions)

    def timed(self, compiled_plan: CompiledPlan) -> TimedPlan:
        """Its plan, with the seconds of each step."""
        found = self._timed.get(compiled_plan)
        if found is None:
            seconds = [self._seconds(compiled_plan, index) for index in range(len(compiled_plan.plan.steps))]
            found = self._timed[compiled_plan] = TimedPlan(compiled_plan.plan, seconds)
        return found

    def hosts_of(self, compiled_plan: CompiledPlan, launch: Launch) -> int:
        """How many hosts have devices that a launch is for."""
        key = launch.island, launch.start, launch.stop
        known = self._reached.setdefault(compiled_plan, {})
        if key not in known:
            plan, each = compiled_plan.plan, self.topology_of(launch.island).devices_per_host
            steps = plan.orders[launch.island][launch.start : launch.stop]
            places = [plan.placements[place] for place in {plan.steps[index].place for index in steps}]
            spans = [range(p.first // each, (p.first + p.count - 1) // each + 1) for p in places]
            known[key] = len({host for span in spans for host in span})
        return known[key]

    def move(self, compiled_plan: CompiledPlan, index: int) -> Cost:
        """Of a step that moves a value; nothing of any other."""
        plan, step = compiled_plan.plan, compiled_plan.plan.steps[index]
        if step.kind != "move":
            return FREE
        source, target = plan.placements[plan.slots[step.inputs[0]].place], plan.placements[step.place]
        return self.transfer(compiled_plan, index, step.route, source.count, target)

    def transfer(self, compiled_plan: CompiledPlan, index: int, route: str, sources: int, target: Placement) -> Cost:
        """Of what travels to all devices of a place; over NICs, to each host once what its devices share."""
        step, topology = compiled_plan.plan.steps[index], self.topology_of(target.island)
        each, whole = compiled_plan.slot_bytes[step.outputs[0]], compiled_plan.actions[index].label.bytes
        copies = min(topology.hosts, target.count) if route == "DCN" else target.count
        return self.model.transfer(max(whole, each * copies), route, topology, sources, target.count)

    def _seconds(self, compiled_plan: CompiledPlan, index: int) -> float:
        action = compiled_plan.actions[index]
        if action.step.kind == "launch":
            assert action.cost is not None
            return action.cost.seconds
        return self.move(compiled_plan, index).seconds

    def _based(self, compiled_plan: CompiledPlan, index: int) -> Label:
        """The label of a step; that of a move says what its seconds come from, and what it takes turns on."""
        label, plan, step = compiled_plan.actions[index].label, compiled_plan.plan, compiled_plan.plan.steps[index]
        if step.kind != "move":
            return label
        cost, source = self.move(compiled_plan, index), plan.placements[plan.slots[step.inputs[0]].place]
        links = links_of(label.route, source, plan.placements[step.place]) if cost.seconds else ()
        return replace(label, basis=cost.formula, links=links, latency=cost.latency)


@lru_cache(maxsize=4096)
def beside_others(label: Label) -> Label:
    """The label, as of a node that took longer because all other islands worked."""
    return replace(label, basis=f"{label.basis}, {INTERFERENCE}")


@lru_cache(maxsize=4096)
def brought(label: Label, route: str, basis: str, links: tuple[str, ...]) -> Label:
    """The label, as of an argument that travelled so."""
    return replace(label, route=route, basis=basis, links=links)


def links_of(route: str, source: Placement | None, target: Placement) -> tuple[str, ...]:
    """Between islands the ways out of the source and into the target; else the way from the one to the other."""
    if route == "DCN":
        return f"out of {source}", f"into {target}"
    return (f"{route} from {source or 'host'} to {target}",)
