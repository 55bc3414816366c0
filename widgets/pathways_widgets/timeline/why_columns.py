"""What a tap on the timeline tells: why an event began when it did, and what its kind took in all.

The sentences are those of ``trace.causality.why``. They are made once for a run that is over, for every event, so that
the page can follow a chain without a kernel (``why.js``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from pathways_nb.errors import size
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.causality.what_if import with_faster
from pathways_nb.trace.causality.why import Reasons
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label
from pathways_nb.util.words import counted
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.picture_marks import Role
from pathways_widgets.drawing.views import SIDES, Columns, RunLike, node_id
from pathways_widgets.timeline.level_of_detail import Digest

MOST_EVENTS = 4000
"""Number of events up to which a page has a sentence for each."""
FASTER = (2, 4, 10)
"""How many times as fast what is tapped may be thought."""
MOST_RETIMED = 20_000
"""Number of events up to which all these are timed anew, those of each kind once for each factor."""
WHY, FACTS, ASKED = "timeline_why", "timeline_facts", "timeline_asked"
SOURCES: dict[str, list[str]] = {
    WHY: [*SIDES, "free", "text", "next", "fact"],
    FACTS: ["id", "text", *(f"faster{factor}" for factor in FASTER)],
    ASKED: list(SIDES),
}
"""Each event with its sentence, the row of what it waited for (-1 for nothing) and of its facts; facts by node; and
what the page marks of a chain, which is empty here."""
MARK = BoxMark(source=ASKED, name="timeline_asked_line", line=Role("text"), line_width=2.0)
"""Drawn around what was asked, and what it waited for."""


class WhyTable:
    """The columns for one run, made anew only when its events or their lanes have changed."""

    def __init__(self) -> None:
        self._made: tuple[Events, Digest] | None = None
        self._columns = _empty()

    def columns(
        self, run: RunLike, events: Events, digest: Digest, modelled: Sequence[str]
    ) -> tuple[dict[str, Columns], str]:
        """Return the columns of ``SOURCES``, and why they are empty if they are.

        Args:
            run: what is drawn.
            events: its events that have boxes.
            digest: their lanes.
            modelled: for each label how fast a transfer is by the model (``transfer_columns.modelled_words``).
        """
        if run.island_names:
            return _empty(), "Ask one of the runs, not their comparison: run.why(at=…, island=…)."
        if not run.finished:
            return _empty(), "Why events began is told once the run is over."
        if len(events) > MOST_EVENTS:
            return _empty(), (
                f"A page has the causes of {MOST_EVENTS:,} events at most; of {len(events):,} ask in Python: "
                f"run.why(at=…, island=…)."
            )
        # A zoom draws the same events again.
        if self._made is None or self._made[1] is not digest or not _same(self._made[0], events):
            self._columns, self._made = _columns(events, digest, modelled), (events, digest)
        return self._columns, ""


def _same(one: Events, other: Events) -> bool:
    return len(one) == len(other) and bool((one["id"] == other["id"]).all())


def _empty() -> dict[str, Columns]:
    return {name: {column: [] for column in columns} for name, columns in SOURCES.items()}


def _columns(events: Events, digest: Digest, modelled: Sequence[str]) -> dict[str, Columns]:
    dag = Dag.of(events)
    if not dag.counts.any():
        return _empty()
    reasons, count = Reasons(dag), len(dag.events)
    # (events,) the lane of each event of the graph, which has another order than the record.
    order = np.argsort(events["id"], kind="stable")
    track = digest.track[order[np.searchsorted(events["id"], dag.events["id"], sorter=order)]]
    columns: Columns = {"left": dag.start, "right": dag.start + dag.durations, "free": reasons.free}
    columns |= {"top": np.array(digest.top)[track], "bottom": np.array(digest.bottom)[track]}
    columns["text"] = [reasons.cause(row).text for row in range(count)]
    columns["next"] = np.array([reasons.source(row) for row in range(count)], np.int32)
    columns["fact"], facts = _facts(
        dag, {label: said for label, said in zip(events.labels, modelled, strict=True) if said}
    )
    return {WHY: columns, FACTS: facts, ASKED: {side: [] for side in SIDES}}


def _facts(dag: Dag, modelled: Mapping[Label, str]) -> tuple[np.ndarray, Columns]:
    """Return the row of facts of each event, and these: what all events of one name and kind took."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number in np.unique(dag.events.label).tolist():
        label = dag.events.labels[number]
        groups[label.name, label.kind, label.program, label.client].append(number)
    of = np.full(len(dag.events.labels), -1, np.int32)
    for row, numbers in enumerate(groups.values()):
        of[numbers] = row
    of_event = of[dag.events.label]
    makespan = dag.span[1] - dag.span[0]
    found: Columns = {name: [] for name in SOURCES[FACTS]}
    is_quick = len(groups) * len(FASTER) * len(dag.events) <= MOST_RETIMED
    for row, numbers in enumerate(groups.values()):
        labels, rows = [dag.events.labels[number] for number in numbers], of_event == row
        found["id"].append(" ".join(dict.fromkeys(node_id(one.program, one.node) for one in labels)))
        found["text"].append(
            _fact(labels[0], dag.durations[rows], float(dag.slack[rows].min()), makespan, modelled.get(labels[0], ""))
        )
        for factor in FASTER:
            found[f"faster{factor}"].append(_if_faster(dag, rows, labels[0].name, factor) if is_quick else "")
    return of_event, found


def _if_faster(dag: Dag, rows: np.ndarray, name: str, factor: int) -> str:
    """Return what ``run.what_if`` finds for events of one kind, in words."""
    then, (begin, end) = with_faster(dag, rows, factor), dag.span
    after = float(then.end[dag.counts].max() - then.start[dag.counts].min())
    makespan = f"makespan {duration(end - begin)} → {duration(after)}"
    return f"if `{name}` were {factor} times as fast: {makespan}, with order and gaps as recorded"


def _fact(label: Label, durations: np.ndarray, slack: float, makespan: float, modelled: str) -> str:
    """Return what all events of one kind took, in words."""
    total, often = float(durations.sum()), counted(len(durations), "time")
    of = f" of {label.program}" if label.program else ""
    said = f"`{label.name}`{of} ({label.kind}): {often}, {duration(total)} in all"
    said += f", {duration(total / len(durations))} each" if len(durations) > 1 else ""
    said += f", {100 * total / makespan:.0f} % of the makespan" if makespan > 0 else ""
    if slack <= 1e-9:
        said += "; on the critical path"
    elif np.isfinite(slack):
        said += f"; {duration(slack)} of slack"
    moved = size(label.bytes) if label.bytes else ""
    if moved and label.kind == "transfer" and total > 0:
        moved += f" at {size(label.bytes * len(durations) / total)}/s, modelled: "
        moved += modelled or "not known before pw.calibrate()"
    return " · ".join(filter(None, (said, moved, label.line)))
