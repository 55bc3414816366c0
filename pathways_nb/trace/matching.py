"""Two records compared: events are matched, and their starts and durations compared.

The records may come from different backends (a real run and its simulation) and hold events in different orders. So an
event is known by its kind, program, name, client, node, stage, microbatch and token slice, and by which occurrence of
these it is. Times count from the first event on a device or its dispatch, so that compiling does not matter.

This module makes the table of differences; ``two_records`` lays both on one axis, and ``comparisons`` draws them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pathways_nb.trace.metrics import WORK, duration, makes_span, signed_duration
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label
from pathways_nb.trace.summary import summarise
from pathways_nb.util.csv_columns import write_columns
from pathways_nb.util.words import counted

KEYS = ("kind", "program", "name", "client", "node", "stage", "microbatch", "token_slice")
"""Columns by which an event is known, with the number of its occurrence."""
TIMES = ("start_a", "start_b", "takes_a", "takes_b", "longer")
"""Columns of seconds: starts and durations in both records, and by how much the second duration is longer."""
ORIGINS = ("origin_a", "origin_b")
"""Columns that say how the times of each record are known."""
SAME = 1e-9
"""Seconds by which two simulated runs may differ because of rounding."""


@dataclass(frozen=True)
class Difference:
    """What two records have in common, and what not.

    Args:
        table: columns ``KEYS``, ``occurrence``, ``TIMES`` and ``ORIGINS`` of the events in both records, in the order
            of the first. Times are in seconds. An origin is text such as ``"real, estimated"`` or ``"simulated,
            declared"``.
        only_a: number of events of the first record without a partner.
        only_b: number of events of the second record without a partner.
        names: columns of text that name what ``worst`` adds up.
    """

    table: dict[str, np.ndarray]
    only_a: int
    only_b: int
    names: tuple[str, ...] = ("name", "client")

    def __len__(self) -> int:
        return len(self.table["occurrence"])

    def to_csv(self, path: str | Path) -> None:
        """Write the table as CSV."""
        write_columns(path, self.table)

    def worst(self, count: int = 5) -> list[str]:
        """Return what differs most in duration, added up over its occurrences, in words.

        Args:
            count: number of nodes, or lines of code, to return at most.
        """
        total: Counter[str] = Counter()
        columns = (self.table[column].tolist() for column in (*self.names, "longer"))
        for *names, longer in zip(*columns, strict=True):
            total[" of ".join(filter(None, names))] += longer
        apart = [item for item in total.items() if abs(item[1]) >= SAME]
        ranked = sorted(apart, key=lambda item: -abs(item[1]))[:count]
        return [f"{name}: {signed_duration(longer)}" for name, longer in ranked]


def compare_events(first: Events, second: Events) -> Difference:
    """Match the events on devices of two records.

    Returns:
        The matched events with their times, and how many have no partner.
    """
    a, b = _known(first), _known(second)
    both = [key for key in a if key in b]
    rows = []
    for key in both:
        (start_a, takes_a, origin_a), (start_b, takes_b, origin_b) = a[key], b[key]
        rows.append((*key, start_a, start_b, takes_a, takes_b, takes_b - takes_a, origin_a, origin_b))
    names = (*KEYS, "occurrence", *TIMES, *ORIGINS)
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    words = ("kind", "program", "name", "client", *ORIGINS)
    table = {name: np.array(list(values), object if name in words else None)
             for name, values in zip(names, columns, strict=True)}  # fmt: skip
    return Difference(table, len(a) - len(both), len(b) - len(both))


def keys_of(events: Events) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield what each event on devices is known by, its occurrence included, and its position; by their starts."""
    seen: Counter[Any] = Counter()
    rows = np.flatnonzero(events.is_("kind", *WORK))
    rows = rows[np.argsort(events["start"][rows], kind="stable")]
    for row, number in zip(rows.tolist(), events.label[rows].tolist(), strict=True):
        label = events.labels[number]
        key = tuple(getattr(label, name) for name in KEYS)
        # Counted for each host, so that the parts of one launch on several hosts have one number.
        yield (*key, seen[key, label.host]), row
        seen[key, label.host] += 1


def share_names(first: Events, second: Events) -> bool:
    """Return whether anything that ran on devices has one name in both records, whoever called it and wherever."""
    names = ({events.labels[number].name for number in _work_labels(events)} for events in (first, second))
    return not next(names).isdisjoint(next(names))


def _work_labels(events: Events) -> list[int]:
    return np.unique(events.label[events.is_("kind", *WORK)]).tolist()


def beginning(events: Events) -> float:
    """Return when the first event was sent, dispatched or began on a device; 0 if there is none."""
    spans = events.select(makes_span(events))
    return float(spans["start"].min()) if len(spans) else 0.0


def comparison_line(
    names: Sequence[str], first: Events, second: Events, islands: Sequence[Sequence[int]], has_ops: bool = False
) -> str:
    """Return both makespans, their ratio and the largest differences in one line.

    Args:
        names: what to call the two records.
        first: events of the first record.
        second: events of the second record.
        islands: for each record, the number of devices of each island.
        has_ops: whether operations of both were matched: where no event is, these alone are what fits.
    """
    a, b = (summarise(events, count) for events, count in zip((first, second), islands, strict=True))
    difference = compare_events(first, second)
    ratio = f"{b.makespan / a.makespan:.2f} times as long" if a.makespan else "nothing to compare"
    words = [f"{names[0]} {duration(a.makespan)}", f"{names[1]} {duration(b.makespan)} ({ratio})"]
    if len(difference) or not has_ops:
        words.append(
            f"{counted(len(difference), 'event')} matched, {difference.only_a} and {difference.only_b} without partner"
        )
    return " · ".join([*words, *difference.worst(3)])


def _known(events: Events) -> dict[tuple[Any, ...], tuple[float, float, str]]:
    """Return start since the beginning, duration and origin of each event, by key and occurrence.

    What several hosts of an island did together is one event, from the first start to the last end.
    """
    begin = beginning(events)
    found: dict[tuple[Any, ...], tuple[float, float, str]] = {}
    start, end, quality = (events[name].tolist() for name in ("start", "end", "quality"))
    numbers = events.label.tolist()
    for occurrence, row in keys_of(events):
        first, last = found.get(occurrence, (start[row] - begin, 0.0, ""))[:2]
        origin = _origin(events.labels[numbers[row]], quality[row])
        found[occurrence] = (first, max(first + last, end[row] - begin) - first, origin)
    return found


def _origin(label: Label, quality: str) -> str:
    """Return how the times of an event are known, in words."""
    if quality != "simulated":
        return f"real, {quality}"
    return f"simulated, {label.basis}" if label.basis else "simulated"
