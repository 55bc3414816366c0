"""Exact stamps for what was estimated: launches of a record matched with what a profiler saw.

A profiler names devices, the module and when; a record knows the order of dispatch. Launches of one module on one set
of devices happen in that order, so the n-th is the n-th. Where the counts differ nothing is guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pathways_nb.trace.metrics import BUSY, duration
from pathways_nb.trace.record import Events, Record


class Span(NamedTuple):
    """One launch as seen on one device, in seconds on the clock of the record."""

    device: int
    module: str
    launch: Hashable
    """The same on all devices of one launch."""
    start: float
    end: float


@dataclass(frozen=True)
class Stamps:
    """How many launches got exact stamps, and how far off the estimated ones had been.

    Args:
        launches, matched: in the record, and of those with exact stamps now.
        start, end: estimated minus exact time, in seconds: the median of its size, and what 95 % stay under.
    """

    launches: int
    matched: int
    start: tuple[float, float] = (0.0, 0.0)
    end: tuple[float, float] = (0.0, 0.0)

    def __str__(self) -> str:
        if not self.launches:
            return "exact stamps for none: nothing was launched"
        if not self.matched:
            return f"exact stamps for none of {self.launches} launches: the profiler did not tell them apart"
        return (
            f"exact stamps for {self.matched} of {self.launches} launches; estimated ends were off by "
            f"{duration(self.end[0])} (95 %: {duration(self.end[1])}), starts by "
            f"{duration(self.start[0])} (95 %: {duration(self.start[1])})"
        )


def make_exact(
    record: Record, spans: Sequence[Span], devices: Sequence[Sequence[int]], module_of: Callable[[str], str]
) -> Stamps:
    """Put exact stamps where launches can be matched, and say how far off the estimated ones were.

    Args:
        record: of one block. spans: what the profiler saw meanwhile, on the record's clock before its origin.
        devices: the profiler's number of each device of each island.
        module_of: what the profiler calls a node of this name.
    """
    events = record.events()
    seen, launched = _seen(spans), _launched(events, devices, module_of)
    where: list[int] = []
    when: list[tuple[float, float]] = []
    for key, indices in launched.items():
        if len(seen.get(key, ())) == len(indices):
            where += indices
            when += seen[key]
    count = sum(map(len, launched.values()))
    if not where:
        return Stamps(count, 0)
    start, end = (np.array(when) - record.origin).T
    rows = np.array(where)
    found = Stamps(count, len(where), _off(events["start"][rows] - start), _off(events["end"][rows] - end))
    record.correct(rows, start, end)
    _clip_transfers(record, rows)
    return found


def _clip_transfers(record: Record, exact: np.ndarray) -> None:
    """A transfer's end is seen late; it was over when the launch that needs it began, of which that is known now."""
    events = record.events()
    key = list(zip(*(events[name].tolist() for name in ("run", "island", "node")), strict=True))
    began = {key[row]: float(events["start"][row]) for row in exact.tolist()}
    rows = [row for row in np.flatnonzero(events.is_("kind", "transfer")).tolist() if key[row] in began]
    late = np.array([row for row in rows if events["end"][row] > began[key[row]]], np.int64)
    end = np.array([began[key[row]] for row in late.tolist()])
    record.correct(late, np.minimum(events["start"][late], end), end, "estimated")


def _seen(spans: Sequence[Span]) -> dict[Hashable, list[tuple[float, float]]]:
    """By devices and module: when each launch was busy on the first and the last of its devices, in order."""
    launches: dict[Hashable, list[Span]] = defaultdict(list)
    for span in spans:
        launches[span.module, span.launch].append(span)
    found: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for parts in launches.values():
        key = frozenset(span.device for span in parts), parts[0].module
        found[key].append((min(span.start for span in parts), max(span.end for span in parts)))
    return {key: sorted(times) for key, times in found.items()}


def _launched(
    events: Events, devices: Sequence[Sequence[int]], module_of: Callable[[str], str]
) -> dict[Hashable, list[int]]:
    """By devices and module: the launches of the record, which are in order of dispatch on each island.

    What failed without a duration did so before it was launched: no profiler saw it.
    """
    labels = [
        (frozenset(devices[label.island][label.device : label.device + label.devices]), module_of(label.name))
        if label.kind in BUSY
        else None
        for label in events.labels
    ]
    found: dict[Hashable, list[int]] = defaultdict(list)
    launched = ~events.is_("status", "failed") | (events["end"] > events["start"])
    for row, label in enumerate(events.label):
        key = labels[label]
        if key is not None and launched[row]:
            found[key].append(row)
    return found


def _off(errors: np.ndarray) -> tuple[float, float]:
    middle, most = np.quantile(np.abs(errors), (0.5, 0.95))
    return float(middle), float(most)
