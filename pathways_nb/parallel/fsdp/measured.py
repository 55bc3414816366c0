"""Where the collectives of a plan ran inside the launch of a step: the ops of a profile joined with the plan by name.

``lowering`` runs each collective under its label, and the compiler keeps this name where it moves the operation. Of
collectives that it merges, one name is left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.parallel.fsdp.step_graph import StepGraph
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
        rows = [(one.name, *_times(one), " ".join(one.ops)) for one in self.collectives]
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
            found.setdefault(min(sources[row]), []).append(row)
        else:
            others[ops["name"][row]] = others.get(ops["name"][row], 0.0) + float(takes[row])

    def joined(name: str) -> MeasuredCollective:
        rows = found.get(name, [])
        if not rows:
            return MeasuredCollective(name)
        start, end = float(ops["start"][rows].min()) - began, float(ops["end"][rows].max()) - began
        return MeasuredCollective(name, tuple(dict.fromkeys(ops["name"][rows])), start, end, float(takes[rows].sum()))

    made = tuple(map(joined, labels))
    return MeasuredStep(made, _moved(made), others)


def _moved(collectives: tuple[MeasuredCollective, ...]) -> tuple[str, ...]:
    """Return the fewest names without which the others ran in the planned order."""
    there = [(one.start, one.name) for one in collectives if one.start is not None]
    chains: list[tuple[float, tuple[str, ...]]] = []  # by length, the rising chain that ends first
    for start, name in there:
        at = bisect_right(chains, start, key=itemgetter(0))
        chains[at : at + 1] = [(start, (*(chains[at - 1][1] if at else ()), name))]
    same = set(chains[-1][1]) if chains else set()
    return tuple(name for _, name in there if name not in same)


def _times(one: MeasuredCollective) -> tuple[str, str]:
    return (duration(one.start), duration(one.busy)) if one.start is not None else ("", "")
