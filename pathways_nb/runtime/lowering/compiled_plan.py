"""A plan ready to be carried out: a compiled step for each of its steps, and what is known of its values.

It is plain data, made once and read by dispatchers, watchers and the simulator on every run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pathways_nb.plan.footprint import Footprint, Peak
from pathways_nb.plan.plan import Plan
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.signature import Aval
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep, IslandSteps
from pathways_nb.runtime.lowering.pieces import Located, bytes_crossing

_LARGE = 1e6
"""Bytes of an output on a device that are freed as soon as possible."""


class Brings(NamedTuple):
    """The steps of an island that bring arguments.

    Args:
        steps: their numbers in the plan.
        arguments: the argument that each brings.
        slots: the slot that each fills.
        taken: those of these arguments whose memory a node takes over.
        again: steps that bring one of those, as others of the plan do.
    """

    steps: tuple[int, ...] = ()
    arguments: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()
    again: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class CompiledPlan:
    """A plan with a compiled step for each step, and the sharding of each slot.

    It does not refer to the traced program, which refers to it: without a cycle, both are freed as soon as nobody needs
    them.
    """

    plan: Plan
    actions: tuple[CompiledStep, ...]
    shardings: tuple[Any, ...]
    awaited: frozenset[int]
    """Steps whose outputs another island or the user waits for."""
    brought: tuple[int, ...]
    """The argument of each step that brings one."""
    targets: tuple[Any, ...]
    """The sharding to which each of those steps brings it."""
    ranks: tuple[int, ...]
    """The number of dimensions of each of those arguments."""
    taken_over: frozenset[int]
    """Arguments whose memory a node takes over."""
    result_steps: tuple[int, ...]
    """The step that makes each result."""
    results: tuple[Aval, ...]
    result_bytes: tuple[int, ...]
    footprint: Footprint
    slot_bytes: tuple[int, ...]
    """Bytes of each slot, on each of its devices."""
    contexts: Contexts
    """JAX's contexts of its call, under which threads carry it out."""
    lasts: dict[int, float] = field(default_factory=dict)
    """For each launch, the seconds it took when its end was last watched; about, if it never was."""
    _resolved: dict[int, IslandSteps] = field(default_factory=dict, init=False)  # no copy shares it
    _brings: dict[int, Brings] = field(default_factory=dict, init=False)

    def resolved(self, island: int) -> IslandSteps:
        """Return the steps on an island, ready to be carried out there."""
        if (found := self._resolved.get(island)) is None:
            large = frozenset(slot for slot, size in enumerate(self.slot_bytes) if size > _LARGE)
            found = self._resolved[island] = IslandSteps.of(self.plan, self.actions, self.awaited, large, island)
        return found

    def was_short(self, step: int) -> bool:
        """Return whether a launch took less than a millisecond the last time that is known."""
        return self.lasts.get(step, math.inf) < 1e-3

    @cached_property
    def is_opened(self) -> bool:
        """Whether the compiler of a simulated chip has compiled a node of it."""
        return any(action.opened is not None for action in self.actions)

    @cached_property
    def refused(self) -> CompiledStep | None:
        """The first node of which the compiler of the simulated chip says that it does not fit."""
        memories = ((one, one.opened.memory) for one in self.actions if one.opened is not None)
        return next((one for one, memory in memories if memory is not None and memory.refused), None)

    @cached_property
    def brings(self) -> tuple[int, ...]:
        """The steps that bring arguments, in the order of ``brought``."""
        return tuple(index for index, step in enumerate(self.plan.steps) if step.kind == "bring")

    @cached_property
    def bring_positions(self) -> dict[int, int]:
        """Position in ``brings`` of each step that brings an argument."""
        return {step: position for position, step in enumerate(self.brings)}

    @cached_property
    def result_shardings(self) -> tuple[Any, ...]:
        """The sharding of each result."""
        return tuple(self.shardings[slot] for slot in self.plan.results)

    @cached_property
    def sent_results(self) -> tuple[int, ...]:
        """Slots of results that the run itself moves to other places, once for each move."""
        # The user may hold these and donate them to the next call, which must wait until they were sent.
        results = set(self.plan.results)
        moved = (step.inputs[0] for step in self.plan.steps if step.kind == "move")
        return tuple(slot for slot in moved if slot in results)

    @cached_property
    def result_positions(self) -> dict[int, list[int]]:
        """By slot, the positions of the results that it is."""
        found: dict[int, list[int]] = {}
        for at, slot in enumerate(self.plan.results):
            found.setdefault(slot, []).append(at)
        return found

    @cached_property
    def spans(self) -> dict[int, slice]:
        """Of launches whose outputs are results in a row, each of them once: by step, the positions of these."""
        found: dict[int, slice] = {}
        for index, step in enumerate(self.plan.steps if self.plan.distinct else ()):
            positions = [self.result_positions.get(slot, [-1])[0] for slot in step.outputs]
            first = positions[0] if positions else -1
            if step.kind != "bring" and first >= 0 and positions == list(range(first, first + len(positions))):
                found[index] = slice(first, first + len(positions))
        return found

    @cached_property
    def bringing(self) -> dict[int, list[int]]:
        """By argument, the steps that bring it."""
        found: dict[int, list[int]] = {}
        for step, argument in zip(self.brings, self.brought, strict=True):
            found.setdefault(argument, []).append(step)
        return found

    def brings_on(self, island: int) -> Brings:
        """Return the steps of an island that bring arguments, if they all come before its launches; else none."""
        if (found := self._brings.get(island)) is None:
            found = self._brings[island] = _brings(self, island)
        return found

    @cached_property
    def result_avals(self) -> dict[int, Aval]:
        """Shape and type of each slot that is a result."""
        return dict(zip(self.plan.results, self.results, strict=True))

    @cached_property
    def peaks(self) -> tuple[Peak, ...]:
        """The most memory that one run needs, for each placement."""
        return tuple(self.footprint.peaks(self.plan.graph))

    def target(self, index: int) -> Located:
        """Return where a transfer goes, and in which layout."""
        step = self.plan.steps[index]
        return Located(self.shardings[step.outputs[0]], self.plan.placements[step.place])

    def crossing(self, index: int, source: Located | None = None, devices_per_host: int | None = None) -> int:
        """Return the bytes that cross in a transfer; see ``bytes_crossing``."""
        value = self.plan.graph.values[self.plan.slots[self.plan.steps[index].outputs[0]].value]
        if self.plan.steps[index].on_host:
            # A host takes a value as a whole, whatever its layout on devices.
            return value.bytes
        return bytes_crossing(value, self.target(index), source, devices_per_host)

    @property
    def name(self) -> str:
        """The program's name."""
        return self.plan.graph.name


def _brings(compiled_plan: CompiledPlan, island: int) -> Brings:
    """Return the steps of an island that bring arguments; none if others wait for one, or a host brings one."""
    plan, order = compiled_plan.plan, compiled_plan.plan.orders.get(island, ())
    steps = tuple(number for number in order if plan.steps[number].kind == "bring")
    if any(number in compiled_plan.awaited or plan.steps[number].on_host for number in steps):
        return Brings()
    arguments = tuple(plan.steps[number].argument for number in steps)
    taken = compiled_plan.taken_over.intersection(arguments)
    again = {argument for argument in taken if len(compiled_plan.bringing[argument]) > 1}
    return Brings(
        steps,
        arguments,
        tuple(plan.steps[number].outputs[0] for number in steps),
        tuple(sorted(taken)),
        tuple(step for step, argument in zip(steps, arguments, strict=True) if argument in again),
    )
