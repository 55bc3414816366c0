"""What if some events had been faster: the record is evaluated again instead of repeating the run.

The order of events and the gaps after what they waited for stay as recorded (see ``happened_before``). For a simulated
run, a new simulation would give the same answer unless it could decide otherwise (see ``same_decisions``); for a real
run the answer is an estimate. The answer says which of both it is. No device is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pathways_nb.errors import UsageError, is_number, nearest
from pathways_nb.timing.timed import Timed
from pathways_nb.trace.causality.critical_path import CriticalPath, path_of
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.causality.same_decisions import doubt
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import counted


@dataclass(frozen=True, repr=False)
class WhatIf(Printed):
    """The makespan as it was and as it would be, in seconds.

    Args:
        what: what is faster, in words.
        faster: how many times as fast it is.
        matched: number of events that are faster.
        before: recorded makespan.
        after: makespan as it would be.
        path: critical path as it would be.
        doubt: why the answer is an estimate, in words; empty if a new simulation would give exactly this answer.
    """

    what: str
    faster: float
    matched: int
    before: float
    after: float
    path: CriticalPath
    doubt: str

    @property
    def exact(self) -> bool:
        """Whether a new simulation with these durations would give exactly this answer."""
        return not self.doubt

    @property
    def speedup(self) -> float:
        """How many times as fast the whole run would be."""
        return self.before / self.after if self.after else 1.0

    def summary_line(self) -> str:
        """Return the answer and what it rests on, in plain text."""
        rests = f"an estimate: {self.doubt}" if self.doubt else "exact: a new simulation would keep them"
        return (
            f"if {self.what} ({counted(self.matched, 'event')}) were {self.faster:g} times as fast: makespan "
            f"{duration(self.before)} → {duration(self.after)}, {self.speedup:.3g} times as fast. Order and gaps as "
            f"recorded; {rests}."
        )

    def _table(self) -> Table:
        path = self.path._table()
        return Table(f"{self.summary_line()}\nThen the {path.title}", path.columns, path.rows)


def what_if(
    events: Events,
    node: str | None = None,
    program: str | None = None,
    kind: str | None = None,
    client: str | None = None,
    *,
    faster: float,
) -> WhatIf:
    """Return the makespan of ``events`` if those that match took 1/``faster`` of their time; see ``Run.what_if``.

    Args:
        events: of a run.
        node: name of a node.
        program: name of a program.
        kind: kind of event; ``None`` means all events on devices.
        client: name of a client.
        faster: how many times as fast, above 0.

    Raises:
        UsageError: nothing matches, or ``faster`` is no number above 0.
    """
    if not (is_number(faster) and faster > 0):
        raise UsageError(f"what_if(faster={faster!r}): write how many times as fast, a number above 0.")
    columns = {"name": node, "program": program, "kind": kind, "client": client}
    asked = {column: value for column, value in columns.items() if value is not None}
    dag = Dag.of(events)
    matched = _matching(dag.events, dag.on_devices if kind is None else np.ones(len(dag.events), bool), asked)
    then = with_faster(dag, matched, faster)
    path = path_of(dag, then)
    what = " ".join(str(value) for value in asked.values())
    before, why = dag.span[1] - dag.span[0], doubt(dag, then)
    return WhatIf(what, float(faster), int(matched.sum()), before, path.length, path, why)


def with_faster(dag: Dag, matched: np.ndarray, faster: float) -> Timed:
    """Return the events of a graph as they would run if those that match took 1/``faster`` of their time."""
    # Only durations change: edges and gaps stay, so the order stays too. ``doubt`` says where that may be wrong.
    return dag.timed.with_durations(np.where(matched, dag.durations / faster, dag.durations))


def _matching(events: Events, among: np.ndarray, asked: dict[str, str]) -> np.ndarray:
    if not asked:
        raise UsageError(
            "what_if: nothing is named that is faster. Write node='name', program='name', client='name' or "
            "kind='transfer', for instance what_if(kind='transfer', faster=2)."
        )
    # Names are checked against what the run has, so that a typing error is no silent "nothing changes".
    labels = [events.labels[number] for number in np.unique(events.label[among]).tolist()]
    matched = among.copy()
    for column, value in asked.items():
        _check(column, value, (str(getattr(label, column)) for label in labels))
        matched &= events.is_(column, value)
    if not matched.any():
        given = ", ".join(f"{_ARGUMENT.get(column, column)}={value!r}" for column, value in asked.items())
        raise UsageError(f"what_if({given}): there are such events, but none that is all of this at once.")
    return matched


_ARGUMENT = {"name": "node"}


def _check(column: str, value: str, present: Iterable[str]) -> None:
    known = list(dict.fromkeys(filter(None, present)))
    if value not in known:
        near = nearest(value, known) if isinstance(value, str) else []
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
        there = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")
        raise UsageError(
            f"what_if({_ARGUMENT.get(column, column)}={value!r}): nothing in this run matches{meant} "
            f"There are: {there or 'none'}."
        )
