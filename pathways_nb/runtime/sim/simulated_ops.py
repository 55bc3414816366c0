"""The ops inside simulated launches: of each launch that the chip's own compiler has compiled, its opened program.

Nothing is kept for a launch while a program runs. What is inside follows from when it began, how long it took and which
node it was, when somebody looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.runtime.lowering.compiled_steps import CompiledStep
from pathways_nb.trace.launch_ops import LateOps, Ops, concatenated
from pathways_nb.trace.op_hiding import exposed_words
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label
from pathways_nb.util.words import counted

MOST_OPS = 500_000
"""Ops of a run; launches that begin after so many are left out."""
_ONE_FOR_ALL = "predicted; one device of each launch stands for all"


def simulated_ops(events: Events, plans: Mapping[int, CompiledPlan]) -> Ops:
    """Return the ops inside the launches of some events, made when they are first looked at.

    Args:
        events: of a run; times in seconds since it began.
        plans: by the serial of a run, its plan; those without opened nodes may be missing.
    """
    # (events,) of launches on devices that took time.
    there = events.is_("kind", "compute", "collective") & (events["end"] > events["start"])
    rows = np.flatnonzero(there & (events["run"] >= 0))
    labels, first = np.unique(events.label[rows], return_index=True)
    found: dict[int, CompiledStep] = {}
    for number, at in zip(labels.tolist(), rows[first].tolist(), strict=True):
        action = _action(plans.get(int(events["run"][at])), events.labels[number])
        if action is not None:
            found[number] = action
    if not found:
        return Ops()
    counts = np.zeros(len(events.labels), np.int64)
    for number, action in found.items():
        counts[number] = len(_of(action).ops)
    rows = rows[np.argsort(events["start"][rows], kind="stable")]
    rows = rows[counts[events.label[rows]] > 0]
    total = np.cumsum(counts[events.label[rows]])
    kept = rows[: int(np.searchsorted(total, MOST_OPS, side="right"))]
    note = _ONE_FOR_ALL
    if len(kept) < len(rows):
        note += f"; those of {counted(len(rows) - len(kept), 'later launch', 'es')} are left out"
    return LateOps(int(counts[events.label[kept]].sum()), lambda: _ops(events, kept, found), note)


def exposed_inside(plans: Mapping[int, CompiledPlan]) -> str:
    """Return in words what communication no computation hides inside the launches of some calls; empty without such.

    Args:
        plans: by the serial of a run, its plan.
    """
    total: dict[str, float] = {}
    for plan, calls in Counter(plans.values()).items():  # a loop may have called one plan a million times
        for action in plan.actions:
            for line, seconds in action.opened.exposed if action.opened is not None else ():
                total[line] = total.get(line, 0.0) + calls * seconds
    return exposed_words(sorted(total.items(), key=lambda one: -one[1])) if total else ""


def _ops(events: Events, rows: np.ndarray, found: Mapping[int, CompiledStep]) -> Ops:
    """Return the ops of the launches at some rows of the events.

    Args:
        events: of a run.
        rows: positions of launches, by their start.
        found: the step of each label.
    """
    parts, order = [], []
    for number, action in found.items():
        own = rows[events.label[rows] == number]
        launch, label, cost = _of(action), events.labels[number], action.cost
        if not len(own) or cost is None:
            continue
        inside = launch.placed(label.name, label.program, label.node, 0, label.island, label.device, 0.0)
        # A launch that took longer, by noise or since others worked, was longer in all its parts.
        factors = (events["end"][own] - events["start"][own]) / cost.seconds
        starts = events["start"][own] + factors * cost.launch
        parts.append(inside.repeated(events["run"][own], starts, factors))
        order.append(np.repeat(own, len(inside)))
    together = concatenated(*parts)
    at = np.concatenate(order) if order else np.zeros(0, np.int64)
    rank = np.empty(len(events), np.int64)
    rank[rows] = np.arange(len(rows))
    return together.select(np.argsort(rank[at], kind="stable"))


def _of(action: CompiledStep) -> OpenedLaunch:
    """Return the opened launch of a step that has one."""
    assert action.opened is not None
    return action.opened


def _action(plan: CompiledPlan | None, label: Label) -> CompiledStep | None:
    """Return the step of an event's label, if it was opened and the text of its program is there."""
    for action in plan.actions if plan is not None else ():
        same = action.label.node == label.node and action.label.island == label.island
        if same and action.step.kind == "launch" and action.opened is not None and len(action.opened.ops):
            return action
    return None
