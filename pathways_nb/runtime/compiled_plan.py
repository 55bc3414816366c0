"""A plan made ready to be carried out: an action for each of its steps, and what is known of its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax

from pathways_nb.cost.model import NodeCost
from pathways_nb.plan.footprint import Footprint, Peak
from pathways_nb.plan.plan import Plan, Step
from pathways_nb.program.signature import Aval
from pathways_nb.trace.record import Label


@dataclass(frozen=True, slots=True, eq=False)
class CompiledStep:
    """A step ready to be carried out: what to call (or, simulated, what it costs) or where to send, and its label."""

    step: Step
    label: Label
    call: jax.stages.Compiled | None = None
    cost: NodeCost | None = None
    target: Any = None
    waits_for: tuple[int, ...] = ()
    """Producers whose end does not follow from its devices being free: transfers, and launches on none of them."""
    witness: int = 0
    """Which output to wait on."""
    reader: int = -1
    """The first launch on the same island that reads what it makes; -1 if there is none."""


@dataclass(frozen=True, eq=False)
class CompiledPlan:
    """A plan with an action for each step, and the sharding of each slot.

    It does not hold the traced program, which holds it: both go at once when nobody needs them.
    """

    plan: Plan
    actions: tuple[CompiledStep, ...]
    shardings: tuple[Any, ...]
    awaited: frozenset[int]
    """Steps whose outputs another island or the user waits for."""
    brought: tuple[int, ...]
    """The argument of each step that brings one."""
    targets: tuple[Any, ...]
    """Where each of those steps brings it."""
    ranks: tuple[int, ...]
    """How many dimensions it has."""
    taken_over: frozenset[int]
    """Arguments whose memory a node takes over."""
    result_steps: tuple[int, ...]
    """The step that makes each result."""
    results: tuple[Aval, ...]
    result_bytes: tuple[int, ...]
    footprint: Footprint
    slot_bytes: tuple[int, ...]
    """Of each slot, on each of its devices."""
    lasts: dict[int, float] = field(default_factory=dict)
    """By step that is a launch: the seconds it took when its end was watched last."""

    @cached_property
    def brings(self) -> tuple[int, ...]:
        """The steps that bring arguments, in the order of ``brought``."""
        return tuple(index for index, step in enumerate(self.plan.steps) if step.kind == "bring")

    @cached_property
    def bring_positions(self) -> dict[int, int]:
        """By step that brings an argument: its position in ``brings``."""
        return {step: position for position, step in enumerate(self.brings)}

    @cached_property
    def result_avals(self) -> dict[int, Aval]:
        """By slot that is a result: its shape and type."""
        return dict(zip(self.plan.results, self.results, strict=True))

    @cached_property
    def peaks(self) -> tuple[Peak, ...]:
        """What one run needs at most, for each place."""
        return tuple(self.footprint.peaks(self.plan.graph))

    @property
    def name(self) -> str:
        """The program's name."""
        return self.plan.graph.name
