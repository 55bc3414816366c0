"""What became of the collectives of a plan: how many were compiled, and where they ran inside the launch of a step.

The ops of a profile are joined with the plan by name. ``lowering`` runs each collective under its label, and the
compiler keeps this name where it moves the operation. Of collectives that it merges, one name is left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.cost.hlo.hlo_collectives import hlo_collectives_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.errors import UsageError, size
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph, kind_of
from pathways_nb.results.run import Run
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.metrics import duration
from pathways_nb.util.text_table import Printed, Table


class MeasuredCollective(NamedTuple):
    """A collective of the plan and what became of it on one device.

    Args:
        name: its label in the plan.
        ops: names of the ops that have this label, in the compiled module.
        start: seconds since the launch began until the first of them began; ``None`` without ops.
        end: seconds until the last of them ended.
        busy: seconds of all of them.
    """

    name: str
    ops: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None
    busy: float = 0.0


@dataclass(frozen=True, repr=False)
class MeasuredStep(Printed):
    """The collectives of a step as they ran on one device.

    Args:
        collectives: in the order of the plan.
        moved: names of those that ran in another order than planned.
        others: ops of collectives that are not in the plan, with their seconds.
    """

    collectives: tuple[MeasuredCollective, ...]
    moved: tuple[str, ...]
    others: dict[str, float]

    @property
    def differences(self) -> tuple[str, ...]:
        """What the compiler changed, a sentence each; empty if nothing."""
        return tuple(self._differences())

    def _differences(self) -> Iterator[str]:
        for one in self.collectives:
            if not one.ops:
                yield f"{one.name} has no op: the compiler merged it with another or removed it"
        for name in self.moved:
            yield f"{name} ran in another order than planned"
        for name, seconds in self.others.items():
            yield f"{name} ({duration(seconds)}) is not in the plan"

    def _table(self) -> Table:
        rows = [
            (one.name, duration(one.start), duration(one.busy), " ".join(one.ops))
            if one.start is not None
            else (one.name, "", "", "")
            for one in self.collectives
        ]
        changed = "; ".join(self.differences) or "each planned collective ran, in the planned order"
        return Table(f"Inside the launch: {changed}", ("collective", "starts", "takes", "ops"), rows)


def last_launch(run: Run, names: Sequence[str], device: int) -> tuple[Ops, float]:
    """Return the ops of the last launch with one of some names on one device, and when it began.

    Raises:
        UsageError: there is none, or nothing was profiled.
    """
    ops = run.ops.of(device=device)
    ops = ops.select(np.isin(ops["launch"], names))
    if not len(ops):
        why = f"it has no launch of {' or '.join(names)}" if len(run.ops) else "it was not profiled"
        raise UsageError(
            f"measured: {run.name} has no ops of this step on device {device}: {why}. Call the step once, and "
            f"again inside `with pw.profile() as run:`."
        )
    ops = ops.select(ops["run"] == ops["run"][-1])
    # A launch's rows are one for each island or device; the first of them to start is the zero of the step.
    launches = run.events.select(run.events.is_("name", *names))
    return ops, float(launches["start"][launches["run"] == ops["run"][-1]].min())


def measured(graph: StepGraph, ops: Ops, began: float) -> MeasuredStep:
    """Return where the collectives of a step ran.

    Args:
        graph: the step as it was run.
        ops: of one launch on one device.
        began: when the launch began, in seconds of the run.
    """
    found: dict[str, list[int]] = {}
    others: dict[str, float] = {}
    labels = [graph.label(op) for op in graph.collectives]
    known = {*labels, "all-reduce the loss"}
    sources = [known.intersection(source.split("/")) for source in ops["source"].tolist()]
    takes = ops["end"] - ops["start"]
    for row in np.flatnonzero(ops["kind"] == "collective").tolist():
        if sources[row]:
            # Nested scopes may give an op several labels; it counts once, and always for the same one.
            found.setdefault(min(sources[row]), []).append(row)
        else:
            others[ops["name"][row]] = others.get(ops["name"][row], 0.0) + float(takes[row])

    def measured_collective(name: str) -> MeasuredCollective:
        rows = found.get(name, [])
        if not rows:
            return MeasuredCollective(name)
        start, end = float(ops["start"][rows].min()) - began, float(ops["end"][rows].max()) - began
        return MeasuredCollective(name, tuple(dict.fromkeys(ops["name"][rows])), start, end, float(takes[rows].sum()))

    collectives = tuple(map(measured_collective, labels))
    return MeasuredStep(collectives, _moved(collectives), others)


def _moved(collectives: tuple[MeasuredCollective, ...]) -> tuple[str, ...]:
    """Return the fewest names without which the others ran in the planned order."""
    there = [(one.start, one.name) for one in collectives if one.start is not None]
    # The longest rising subsequence of starts, by patience sorting: one late collective counts as one that moved, not
    # as many that came before it.
    chains: list[tuple[float, tuple[str, ...]]] = []  # by length, the rising chain that ends first
    for start, name in there:
        at = bisect_right(chains, start, key=itemgetter(0))
        chains[at : at + 1] = [(start, (*(chains[at - 1][1] if at else ()), name))]
    same = set(chains[-1][1]) if chains else set()
    return tuple(name for _, name in there if name not in same)


@dataclass(frozen=True)
class CompiledCollectives:
    """Collectives of a step, planned and compiled.

    Args:
        planned: the number of each kind of collective in the plan.
        compiled: the number that runs in the compiled program; those in a loop count as often as it runs.
        temporary: bytes per device that the compiled program needs besides its arguments and results.
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
    found = Counter[str](op.kind for op in graph.ops if isinstance(op, CollectiveOp))
    for op in graph.ops:
        if isinstance(op, ShardedScan):
            for one in op.exchanges:
                found[kind_of(one.name)] += op.length
    return dict(found)


def compared_collectives(graph: StepGraph, compiled: Any, axes: Mapping[str, int]) -> CompiledCollectives:
    """Return the collectives of a step, and those of what it was compiled to.

    Args:
        graph: the step as it is run.
        compiled: a ``jax.stages.Compiled``.
        axes: names and sizes of the place's axes.
    """
    found = Counter[str]()
    for exchange in hlo_collectives_of(parse(compiled.as_text()), axes):
        found[exchange.kind] += exchange.times
    memory = compiled.memory_analysis()
    return CompiledCollectives(planned_collectives(graph), dict(found), int(memory.temp_size_in_bytes))
