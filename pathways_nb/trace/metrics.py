"""What a record adds up to: makespan, utilisation, time spent dispatching. Seconds throughout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pathways_nb.trace.record import Events

BUSY = ("compute", "collective")
"""Kinds that keep a device busy."""


@dataclass(frozen=True)
class Summary:
    """Totals of one run.

    Args:
        makespan: from the first event on a device, or its dispatch, to the last end.
        utilisation: for each island, busy device-seconds over devices times makespan.
        dispatch: seconds during which at least one island's dispatcher was launching.
        compile: seconds during which it traced, lowered or compiled.
        transfers, transfer_bytes: number and total size.
        launches: nodes launched. interpolated: of those, how many ends were not watched.
        failed: events that ended with an error.
    """

    makespan: float
    utilisation: tuple[float, ...]
    dispatch: float
    compile: float
    transfers: int
    transfer_bytes: int
    launches: int
    interpolated: int
    failed: int

    def __str__(self) -> str:
        shares = ", ".join(f"island {i} {share:.0%}" for i, share in enumerate(self.utilisation))
        words = [
            f"makespan {duration(self.makespan)}",
            f"utilisation {shares}",
            f"dispatch {duration(self.dispatch)}",
            counted(self.launches, "launch", "es"),
        ]
        if self.transfers:
            words.append(f"{counted(self.transfers, 'transfer')} of {size(self.transfer_bytes)}")
        if self.compile:
            words.append(f"compiling {duration(self.compile)}")
        if self.interpolated:
            words.append(f"{1 - self.interpolated / self.launches:.0%} of ends watched, the rest interpolated")
        if self.failed:
            words.append(f"{self.failed} failed")
        return " · ".join(words)


def counted(count: int, thing: str, plural: str = "s") -> str:
    """``"1 launch"``, ``"2 launches"``."""
    return f"{count} {thing}{'' if count == 1 else plural}"


def summarise(events: Events, islands: Sequence[int]) -> Summary:
    """Totals of ``events`` on islands with these numbers of devices."""
    busy = events.of_kind(*BUSY)
    moves = events.of_kind("transfer")
    spans = events.of_kind(*BUSY, "transfer", "enqueue")
    makespan = float(spans["end"].max() - spans["start"].min()) if len(spans) else 0.0
    used = [device_seconds(busy.select(busy.is_("island", i)), count).sum() for i, count in enumerate(islands)]
    shares = (u / (count * makespan) if makespan else 0.0 for u, count in zip(used, islands, strict=True))
    return Summary(
        makespan,
        tuple(float(share) for share in shares),
        covered(events.of_kind("enqueue")),
        covered(events.of_kind("trace", "lower", "compile")),
        len(moves),
        int(moves["bytes"].sum()),
        len(busy),
        int(busy.is_("quality", "interpolated").sum()),
        int(events.is_("status", "failed").sum()),
    )


def device_seconds(events: Events, devices: int) -> np.ndarray:
    """Seconds during which each of ``devices`` devices of one island was busy; overlaps count once."""
    found = np.zeros(devices)
    for low, high, start, end in _busy(events, devices):
        found[low:high] = (end - start).sum()
    return found


def busy_between(events: Events, devices: int, times: np.ndarray) -> np.ndarray:
    """Device-seconds that ``devices`` devices of one island were busy between each of ``times`` and the next."""
    total = np.zeros(len(times))
    for low, high, start, end in _busy(events, devices):
        if len(start):
            done = np.concatenate([[0.0], np.cumsum(end - start)])
            stamps = np.stack([start, end], 1).ravel()
            total += (high - low) * np.interp(times, stamps, np.repeat(done, 2)[1:-1])
    return np.diff(total)


def _busy(events: Events, devices: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Runs of devices, from and up to, that have the same events, and when they are busy."""
    first = events["device"]
    last, start, end = first + events["devices"], events["start"], events["end"]
    edges = sorted({0, devices, *np.unique(first).tolist(), *np.unique(last).tolist()})
    for low, high in pairwise(edges):
        if high <= devices:
            here = (first <= low) & (low < last)
            yield low, high, *_union(start[here], end[here])


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would use."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{_three(seconds * scale)} {unit}"
    return f"{_three(seconds)} s"


def size(count: float) -> str:
    """Bytes as people say them: ``size(1_500_000)`` is ``"1.5 MB"`` (powers of 1000)."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{_three(count)} {unit}"


def _three(value: float) -> str:
    """Three digits, and never an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"


def covered(events: Events) -> float:
    """Seconds during which at least one of ``events`` was under way."""
    start, end = intervals(events)
    return float((end - start).sum())


def intervals(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the times during which at least one of ``events`` was under way."""
    return _union(events["start"], events["end"])


def _union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if not len(start):
        return start, end
    end = np.maximum(end, start)
    begins = np.flatnonzero(np.concatenate([[True], start[1:] > np.maximum.accumulate(end)[:-1]]))
    return start[begins], np.maximum.reduceat(end, begins)
