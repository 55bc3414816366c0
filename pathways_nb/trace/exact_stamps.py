"""Exact stamps instead of estimated ones: launches of a record are matched with what a profiler saw.

A profiler knows devices, modules and times but not which call a launch belongs to; a record knows calls and the order
of dispatch. Launches of one module on one device run in the order of dispatch, so the n-th launch seen is the n-th
recorded. Where the counts differ nothing is guessed: a wrong match would call a wrong stamp exact. Devices are matched
one by one, because a TPU numbers its launches by itself: no number says which of them are one launch.

``runtime.local.profiler`` reads profiles; this module needs no device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pathways_nb.trace.metrics import BUSY, duration
from pathways_nb.trace.record import Events, Record

_Sequence = tuple[int, str]
"""A device and a module, whose launches there are in order."""


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
    seen = defaultdict[_Sequence, list[Span]](list)
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        seen[span.device, span.module].append(span)
    launched = _launched(record.events(), devices, module_of)
    expected = defaultdict[_Sequence, list[int]](list)
    for row, on in launched.items():
        for key in on:
            expected[key].append(row)
    found = defaultdict[int, list[Span]](list)
    for key, rows in expected.items():
        # Otherwise launches are missing on one side, and which ones is not known.
        if len(seen[key]) == len(rows):
            for row, span in zip(rows, seen[key], strict=True):
                found[row].append(span)
    return Matched(len(launched), {row: on for row, on in found.items() if len(on) == len(launched[row])})


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


def _launched(
    events: Events, devices: Sequence[Sequence[int]], module_of: Callable[[str], str]
) -> dict[int, list[_Sequence]]:
    """Return the launches of the record by their rows, in order of dispatch on each island: each one's sequences.

    What failed without a duration failed before it was launched, so no profiler saw it.
    """
    of_labels = [
        [
            (device, module_of(label.name))
            for device in devices[label.island][label.device : label.device + label.devices]
        ]
        if label.kind in BUSY
        else []
        for label in events.labels
    ]
    launched = ~events.is_("status", "failed") | (events["end"] > events["start"])
    # Rows are in the order of recording, which for one island is the order of dispatch.
    return {row: of_labels[label] for row, label in enumerate(events.label) if launched[row] and of_labels[label]}


def _error_sizes(errors: np.ndarray) -> tuple[float, float]:
    """Return the median and the 95th percentile of the sizes of errors."""
    middle, most = np.quantile(np.abs(errors), (0.5, 0.95))
    return float(middle), float(most)
