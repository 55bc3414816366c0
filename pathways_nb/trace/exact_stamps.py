"""Exact stamps instead of estimated ones: launches of a record are matched with what a profiler saw.

A profiler knows devices, modules and times but not which call a launch belongs to; a record knows calls and the order
of dispatch. Launches of one module on one set of devices run in the order of dispatch, so the n-th launch seen is the
n-th recorded. Where the counts differ nothing is guessed: a wrong match would call a wrong stamp exact.

``runtime.local.profiler`` reads profiles; this module needs no device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pathways_nb.trace.metrics import BUSY, duration
from pathways_nb.trace.record import Events, Record


class OpSpan(NamedTuple):
    """One op within a launch, by its name in the compiled module; in seconds on the clock of the record."""

    name: str
    start: float
    end: float


class Span(NamedTuple):
    """One launch as seen on one device.

    Args:
        device: the profiler's number of the device.
        module: the profiler's name of the compiled module.
        start: in seconds on the clock of the record.
        end: in seconds on the clock of the record.
    """

    device: int
    module: str
    launch: Hashable
    """Equal on all devices of one launch."""
    start: float
    end: float
    ops: tuple[OpSpan, ...] = ()
    """What ran within it, as far as the profiler says."""


class Matched(NamedTuple):
    """Launches of a record and what the profiler saw of them.

    Args:
        launches: number of launches in the record.
        spans: for each event that was matched, by its position in the record, the launch on each of its devices.
    """

    launches: int
    spans: dict[int, list[Span]]


@dataclass(frozen=True)
class Stamps:
    """How many launches got exact stamps, and how wrong the estimated ones were.

    Args:
        launches: number of launches in the record.
        matched: number of launches with exact stamps now.
        start: size of the error of estimated starts, in seconds: median, and 95th percentile.
        end: size of the error of estimated ends, in seconds: median, and 95th percentile.
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


def matched(
    record: Record, spans: Sequence[Span], devices: Sequence[Sequence[int]], module_of: Callable[[str], str]
) -> Matched:
    """Return the launches that can be matched.

    Args:
        record: of one block.
        spans: what the profiler saw meanwhile, on the record's clock before its origin was subtracted.
        devices: for each island, the profiler's number of each device.
        module_of: returns the profiler's name of a node with this name.
    """
    seen, launched = _seen(spans), _launched(record.events(), devices, module_of)
    found: dict[int, list[Span]] = {}
    for key, indices in launched.items():
        # Otherwise launches are missing on one side, and which ones is not known.
        if len(seen.get(key, ())) == len(indices):
            found |= dict(zip(indices, seen[key], strict=True))
    return Matched(sum(map(len, launched.values())), found)


def make_exact(record: Record, match: Matched) -> Stamps:
    """Correct the stamps of launches that were matched.

    Args:
        record: of one block.
        match: its launches, from ``matched``.

    Returns:
        How many launches were matched, and how wrong the estimated stamps were.
    """
    events = record.events()
    if not match.spans:
        return Stamps(match.launches, 0)
    # (launches,) seconds. The profiler's times are on the clock of the rows, the record's since its origin.
    start, end = (np.array([_ends(spans) for spans in match.spans.values()]) - record.origin).T
    rows = np.array(list(match.spans))
    errors = (_error_sizes(events[name][rows] - exact) for name, exact in (("start", start), ("end", end)))
    found = Stamps(match.launches, len(rows), *errors)
    record.correct(rows, start, end)
    _clip_transfers(record, rows)
    return found


def _clip_transfers(record: Record, exact: np.ndarray) -> None:
    """Move the ends of transfers that end after the launch that needs them began.

    The end of a transfer is seen late: the transfer was over when that launch began, which is known exactly now.
    """
    events = record.events()
    # A transfer is made for a node: both have the same run, island and node.
    key = list(zip(*(events[name].tolist() for name in ("run", "island", "node")), strict=True))
    began = {key[row]: float(events["start"][row]) for row in exact.tolist()}
    rows = [row for row in np.flatnonzero(events.is_("kind", "transfer")).tolist() if key[row] in began]
    late = np.array([row for row in rows if events["end"][row] > began[key[row]]], np.int64)
    end = np.array([began[key[row]] for row in late.tolist()])
    record.correct(late, np.minimum(events["start"][late], end), end, "estimated")


def _ends(spans: Sequence[Span]) -> tuple[float, float]:
    """Return start and end of a launch: it lasts from the start on its first device to the end on its last."""
    return min(span.start for span in spans), max(span.end for span in spans)


def _seen(spans: Sequence[Span]) -> dict[Hashable, list[list[Span]]]:
    """Return the launches that the profiler saw, each on all of its devices, by devices and module, in order."""
    launches: dict[Hashable, list[Span]] = defaultdict(list)
    for span in spans:
        # Two modules may number their launches alike, so the module is part of the key.
        launches[span.module, span.launch].append(span)
    found: dict[Hashable, list[list[Span]]] = defaultdict(list)
    for parts in launches.values():
        found[frozenset(span.device for span in parts), parts[0].module].append(parts)
    return {key: sorted(each, key=_ends) for key, each in found.items()}


def _launched(
    events: Events, devices: Sequence[Sequence[int]], module_of: Callable[[str], str]
) -> dict[Hashable, list[int]]:
    """Return the launches of the record, by devices and module, in order of dispatch on each island.

    What failed without a duration failed before it was launched, so no profiler saw it.
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
        # Rows are in the order of recording, which for one island is the order of dispatch.
        if key is not None and launched[row]:
            found[key].append(row)
    return found


def _error_sizes(errors: np.ndarray) -> tuple[float, float]:
    """Return the median and the 95th percentile of the sizes of errors."""
    middle, most = np.quantile(np.abs(errors), (0.5, 0.95))
    return float(middle), float(most)
