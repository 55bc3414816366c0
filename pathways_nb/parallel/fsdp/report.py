"""What a step was planned to exchange beside what the compiler made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathways_nb.cost.hlo.hlo_collectives import hlo_collectives_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.errors import size
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.step_graph import Collective, StepGraph, kind_of


@dataclass(frozen=True)
class CompiledStep:
    """Collectives of a step, planned and compiled.

    Args:
        planned: the number of each kind of collective in the plan.
        compiled: the number that runs in the compiled program; those in a loop count as often as it runs.
        temporary: bytes per device that the compiled program needs beside its arguments and results.
    """

    planned: Mapping[str, int]
    compiled: Mapping[str, int]
    temporary: int

    @property
    def differences(self) -> tuple[str, ...]:
        """What the compiler changed, a sentence for each kind of collective; empty if nothing."""
        return tuple(
            f"{kind}: {self.planned.get(kind, 0)} planned, {self.compiled.get(kind, 0)} compiled"
            for kind in dict.fromkeys([*self.planned, *self.compiled])
            if self.planned.get(kind, 0) != self.compiled.get(kind, 0)
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.compiled.items())) or "no collectives"
        changed = "; ".join(self.differences) or "as planned"
        return f"{counts} ({changed}); {size(self.temporary)} of temporary memory per device"


def planned_collectives(graph: StepGraph) -> dict[str, int]:
    """Return the number of collectives of each kind in a step, those of the loss and those in loops included."""
    found = Counter[str](op.kind for op in graph.ops if isinstance(op, Collective))
    for op in graph.ops:
        if isinstance(op, ShardedScan):
            for one in op.exchanges:
                found[kind_of(one.name)] += op.length
    return dict(found)


def compiled_step(graph: StepGraph, compiled: Any, axes: Mapping[str, int]) -> CompiledStep:
    """Return the collectives of a step beside those of what it was compiled to.

    Args:
        graph: the step as it is run.
        compiled: a ``jax.stages.Compiled``.
        axes: names and sizes of the place's axes.
    """
    found = Counter[str]()
    for exchange in hlo_collectives_of(parse(compiled.as_text()), axes):
        found[exchange.kind] += exchange.times
    memory = compiled.memory_analysis()
    return CompiledStep(planned_collectives(graph), dict(found), int(memory.temp_size_in_bytes))
