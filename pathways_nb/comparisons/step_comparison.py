"""Two adopted steps: what differs between them, and which lines of the user's code take longer in one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathways_nb.adopt.name_stacks import operation_of, scope_of
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.results.run import Run
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.metrics import duration, signed_duration
from pathways_nb.trace.op_matching import KnownOp, matched_ops
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.rows import Label, Row
from pathways_nb.util.text_table import MOST_ROWS, Printed, Table
from pathways_nb.util.words import axes_in_words

_SAME = 1e-9
"""Seconds by which sums of equal operations may differ because of rounding."""


@dataclass(frozen=True)
class LineDifference:
    """What one operation of one line takes in two steps.

    Args:
        line_a: in the first step; empty where it is not there.
        line_b: in the second step; empty where it is not there.
        scope: of the user's modules and named scopes.
        operation: in JAX's words, such as ``"dot_general"``, or the compiler's where those are not known.
        before: seconds in the first step.
        after: seconds in the second step.
    """

    line_a: str
    line_b: str
    scope: str
    operation: str
    before: float
    after: float

    @property
    def longer(self) -> float:
        """Seconds that the second step takes longer for it; 0 where only rounding differs."""
        longer = self.after - self.before
        return longer if abs(longer) >= _SAME else 0.0

    @property
    def line(self) -> str:
        """Both lines in words."""
        if self.line_a == self.line_b:
            return self.line_a or "–"
        return f"{self.line_a or 'nowhere'} → {self.line_b or 'nowhere'}"


@dataclass(frozen=True, repr=False)
class LineDifferences(Printed):
    """What operations take in two steps, by line.

    Args:
        rows: those that became slower most first, those that became faster last.
    """

    rows: tuple[LineDifference, ...]

    def worst(self, count: int) -> list[str]:
        """Return which lines differ most, all of their operations together, in words.

        Args:
            count: number of lines, at most.
        """
        total = defaultdict[str, float](float)
        for row in self.rows:
            if row.line_a or row.line_b:
                total[row.line] += row.longer
        ranked = sorted(((line, longer) for line, longer in total.items() if longer), key=lambda one: -abs(one[1]))
        return [f"{line}: {signed_duration(longer)}" for line, longer in ranked[:count]]

    def _table(self) -> Table:
        title, shown = "lines, the slower ones first", self.rows
        if len(shown) > MOST_ROWS:  # cut in the middle: what became faster is last
            least = sorted(abs(row.longer) for row in shown)[-MOST_ROWS]
            shown = tuple(row for row in shown if abs(row.longer) >= least)[:MOST_ROWS]
            title += f"; the {MOST_ROWS} of {len(self.rows)} that differ most"
        cells = [
            (row.line, row.scope, row.operation, duration(row.before), duration(row.after), signed_duration(row.longer))
            for row in shown
        ]  # fmt: skip
        return Table(title, ("line", "scope", "operation", "a", "b", "longer"), cells)


def changes_of(a: StepAnswers, b: StepAnswers) -> tuple[str, ...]:
    """Return what differs between two steps, in words: chip, mesh, options and versions."""

    def named(what: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
        for name in dict.fromkeys((*first, *second)):
            if name not in second:
                yield f"{what}{name}={first[name]} only in a"
            elif name not in first:
                yield f"{what}{name}={second[name]} only in b"
            elif first[name] != second[name]:
                yield f"{what}{name}={first[name]} in a, {second[name]} in b"

    def said() -> Iterator[str]:
        if a.name != b.name:
            yield f"step {a.name} in a, {b.name} in b"
        if a.chip_name != b.chip_name:
            yield f"chip {a.chip_name} in a, {b.chip_name} in b"
        yield from named("mesh ", a.mesh, b.mesh)
        yield from named("", a.options, b.options)
        # A step of an older file does not say its versions, which is no difference.
        if a.versions and b.versions:
            yield from named("", a.versions, b.versions)

    return tuple(said())


def lines_of(a: Run, b: Run) -> LineDifferences:
    """Return what each operation of each line takes in two steps.

    Operations are matched by scope and order, and by line where no line has moved between the steps.

    Args:
        a: timeline of the first step.
        b: that of the second.
    """
    same_code = a.op_graph.texts.agrees_with(b.op_graph.texts)
    found = matched_ops(a.ops, b.ops, same_code)
    pairs: Sequence[tuple[KnownOp | None, KnownOp | None]] = [
        *found.pairs, *((one, None) for one in found.only_a), *((None, one) for one in found.only_b)
    ]  # fmt: skip
    # One step may run more operations of a line than the other: what has no partner counts for its line all the same.
    shared = set(a.ops["line"].tolist()) & set(b.ops["line"].tolist()) if same_code else set[str]()
    own = {line: line for line in shared}
    there = {one.op.line: other.op.line for one, other in found.pairs} | own
    here = {other.op.line: one.op.line for one, other in found.pairs} | own
    total: dict[tuple[str, str, str, str], tuple[float, float]] = {}
    for one, other in pairs:
        op = (one or other).op  # type: ignore[union-attr]
        alone = op.line if op.line in shared else ""
        lines = one.op.line if one else here.get(op.line, alone), other.op.line if other else there.get(op.line, alone)
        key = *lines, scope_of(op.source), operation_of(op.source, op.name)
        before, after = total.get(key, (0.0, 0.0))
        total[key] = before + (one.takes if one else 0.0), after + (other.takes if other else 0.0)
    rows = (LineDifference(*key, *seconds) for key, seconds in total.items())
    return LineDifferences(tuple(sorted(rows, key=lambda row: -row.longer)))


def median_launch(run: Run, name: str) -> Run:
    """Return a run with only that launch of a step that took the median time; the run itself where none has ops.

    Args:
        run: with ops, of a profile.
        name: of the step.
    """
    events, ops = run.events, run.ops
    profiled = np.unique(ops["run"][ops["launch"] == name]) if len(ops) else np.array([], int)
    rows = events.select(events.is_("kind", "compute") & events.is_("name", name) & np.isin(events["run"], profiled))
    if not len(rows):
        return _median_of_trace(run, ops.of(launch=name), name)
    serial = int(rows["run"][np.argsort(rows["end"] - rows["start"], kind="stable")[len(rows) // 2]])
    chosen = Record.of(rows.select(rows["run"] == serial))
    made = Run(run.name, run.islands, chosen, about=dict(run.about), finished=True)
    made.ops = ops.of(launch=name, run=serial)
    return made


def _median_of_trace(run: Run, ops: Ops, name: str) -> Run:
    """Return a run with the launch that took the median time, of a trace without events of launches.

    Args:
        run: of another tool's trace; it is returned where no launch has the name.
        ops: of its launches of that name.
        name: of the step.
    """
    if not len(ops):
        return run
    serials, of = np.unique(ops["run"], return_inverse=True)
    begin, end = np.full(len(serials), np.inf), np.full(len(serials), -np.inf)
    np.minimum.at(begin, of, ops["start"])
    np.maximum.at(end, of, ops["end"])
    at = int(np.argsort(end - begin, kind="stable")[len(serials) // 2])
    island = int(ops["island"][of == at][0])
    launch = Label("compute", name, name, island=island, devices=run.islands[island])
    rows = [Row(launch, float(begin[at]), float(end[at]), int(serials[at]), "exact")]
    made = Run(run.name, run.islands, Record.of(Events.from_rows(rows)), about=dict(run.about), finished=True)
    made.ops = ops.of(run=int(serials[at]))
    return made


def timeline_beside(step: StepAnswers, other: object) -> Run:
    """Return the timeline of a step, under the name of the place where it is: both steps of two have one name.

    Args:
        step: the step.
        other: what it is compared with; of two steps on equal devices, the name is their mesh alone, and of two
            versions in one place, the step's own.
    """
    run = step.timeline()
    if not isinstance(other, StepAnswers) or other is step:
        run.name = step.where
    elif other.where != step.where:
        alike = (other.devices, other.chip_name) == (step.devices, step.chip_name)
        run.name = axes_in_words(step.mesh) if alike else step.where
    return run
