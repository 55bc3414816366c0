"""Two records side by side: events matched by what they are, and how much earlier or longer each was.

An event is known by its kind, program, name, client, node, stage, microbatch and token slice, and by which occurrence
of these it is. Times count from the first thing that happened on a device or was dispatched, so that compiling does
not matter.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pathways_nb.trace.metrics import BUSY, duration, makes_span, summarise
from pathways_nb.trace.record import GAUGE_KINDS, STORED, Events, Label
from pathways_nb.util.words import counted

KEYS = ("kind", "program", "name", "client", "node", "stage", "microbatch", "token_slice")
TIMES = ("start_a", "start_b", "takes_a", "takes_b", "longer")
ORIGINS = ("origin_a", "origin_b")
_ON_DEVICES = (*BUSY, "transfer")
_SAME = 1e-9
"""Seconds that two simulated runs may differ by in rounding."""


@dataclass(frozen=True)
class Difference:
    """What two records have in common and what not.

    Args:
        table: columns ``KEYS``, ``occurrence``, ``TIMES`` and ``ORIGINS`` of the events in both, in the order of the
            first record; seconds, ``longer`` is by how much the second took longer. An origin is how the times are
            known, ``"real, estimated"`` or ``"simulated, declared"`` say.
        only_a, only_b: how many events of each have no partner.
    """

    table: dict[str, np.ndarray]
    only_a: int
    only_b: int

    def __len__(self) -> int:
        return len(self.table["occurrence"])

    def to_csv(self, path: str | Path) -> None:
        """Write the table."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.table)
            writer.writerows(zip(*(column.tolist() for column in self.table.values()), strict=True))

    def worst(self, count: int = 5) -> list[str]:
        """The nodes that took longer or shorter by most, over all their occurrences, in words."""
        total: Counter[str] = Counter()
        columns = (self.table[column].tolist() for column in ("name", "client", "longer"))
        for name, client, longer in zip(*columns, strict=True):
            total[f"{name} of {client}" if client else name] += longer
        apart = [item for item in total.items() if abs(item[1]) >= _SAME]
        ranked = sorted(apart, key=lambda item: -abs(item[1]))[:count]
        return [f"{name}: {'+' if longer >= 0 else '−'}{duration(abs(longer))}" for name, longer in ranked]


def compare_events(first: Events, second: Events) -> Difference:
    """Match the events on devices of two records."""
    a, b = _known(first), _known(second)
    both = [key for key in a if key in b]
    rows = [(*key, *_times(a[key], b[key])) for key in both]
    names = (*KEYS, "occurrence", *TIMES, *ORIGINS)
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    words = ("kind", "program", "name", "client", *ORIGINS)
    table = {name: np.array(list(values), object if name in words else None)
             for name, values in zip(names, columns, strict=True)}  # fmt: skip
    return Difference(table, len(a) - len(both), len(b) - len(both))


def together(first: Events, second: Events, islands: int) -> Events:
    """What both records did and held on devices, on one axis; the second's islands come after the ``islands`` of the
    first.
    """
    labels: list[Label] = []
    parts = []
    for offset, events in ((0, first), (islands, second)):
        ours, begin = events.of_kind(*_ON_DEVICES, *GAUGE_KINDS), beginning(events)
        shifted = {"label": ours.label + len(labels), "start": ours["start"] - begin, "end": ours["end"] - begin}
        parts.append({name: ours.stored(name) for name in STORED} | shifted)
        labels += [
            replace(label, island=label.island + offset) if label.island >= 0 else label for label in ours.labels
        ]
    stored = {name: np.concatenate([part[name] for part in parts]) for name in STORED}
    return Events(labels, stored, np.arange(len(stored["label"]), dtype=np.int64))


def beginning(events: Events) -> float:
    """When the first thing was sent or dispatched, or happened on a device."""
    spans = events.select(makes_span(events))
    return float(spans["start"].min()) if len(spans) else 0.0


def say(names: Sequence[str], first: Events, second: Events, islands: Sequence[Sequence[int]]) -> str:
    """Both makespans, their ratio, and what differs most, in a line."""
    a, b = (summarise(events, count) for events, count in zip((first, second), islands, strict=True))
    difference = compare_events(first, second)
    ratio = f"{b.makespan / a.makespan:.2f} times as long" if a.makespan else "nothing to compare"
    words = [f"{names[0]} {duration(a.makespan)}", f"{names[1]} {duration(b.makespan)} ({ratio})"]
    words.append(
        f"{counted(len(difference), 'event')} matched, {difference.only_a} and {difference.only_b} without partner"
    )
    return " · ".join([*words, *difference.worst(3)])


def _known(events: Events) -> dict[tuple[Any, ...], tuple[float, float, str]]:
    """Start since the beginning, duration and origin, by key and occurrence."""
    ours, begin = events.of_kind(*_ON_DEVICES), beginning(events)
    order = np.argsort(ours["start"], kind="stable")
    seen: Counter[Any] = Counter()
    found = {}
    columns = (ours[name][order].tolist() for name in ("start", "end", "quality"))
    for number, start, end, quality in zip(ours.label[order].tolist(), *columns, strict=True):
        label = ours.labels[number]
        key = tuple(getattr(label, name) for name in KEYS)
        found[(*key, seen[key])] = (start - begin, end - start, _origin(label, quality))
        seen[key] += 1
    return found


def _origin(label: Label, quality: str) -> str:
    """How the times of an event are known, in words."""
    if quality != "simulated":
        return f"real, {quality}"
    return f"simulated, {label.basis}" if label.basis else "simulated"


def _times(a: tuple[float, float, str], b: tuple[float, float, str]) -> tuple[float | str, ...]:
    return a[0], b[0], a[1], b[1], b[1] - a[1], a[2], b[2]
