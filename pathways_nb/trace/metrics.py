"""What a record adds up to: makespan, utilisation, time spent dispatching, who used it and who waited. In seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pathways_nb.errors import size, three_digits
from pathways_nb.trace.memory_history import HighWaterMark, peak_of
from pathways_nb.trace.record import Events
from pathways_nb.util.intervals import pieces, union
from pathways_nb.util.words import counted

BUSY = ("compute", "collective")
"""Kinds that keep a device busy."""
COMPILING = ("trace", "lower", "compile")


@dataclass(frozen=True)
class Summary:
    """Totals of one run.

    Args:
        makespan: from the first event on a device, or its dispatch or the message of it, to the last end.
        utilisation: for each island, busy device-seconds over devices times makespan.
        dispatch: seconds during which at least one island's dispatcher was launching.
        compile: seconds during which it traced, lowered or compiled.
        transfers, transfer_bytes: number and total size.
        launches: nodes launched. interpolated: of those, how many ends were not watched.
        failed: events that ended with an error, and programs that failed as a whole.
        clients: by client, its part of all busy device-seconds, of those who had any; ``""`` is work for no client.
        waits: by client and reason, seconds during which at least one of its programs waited for that.
        peak: when the fullest device held most, if levels of memory were recorded.
        hbm: bytes that each device of its island has, 0 if unknown.
        messages: seconds during which the controller's messages to islands were on their way, where that is emulated.
        simulated: whether devices were simulated.
        taken, taken_bytes: number and total size of abstract arguments that simulated calls took as already in place.
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
    clients: Mapping[str, float]
    waits: Mapping[str, Mapping[str, float]]
    peak: HighWaterMark | None = None
    hbm: int = 0
    messages: float = 0.0
    simulated: bool = False
    taken: int = 0
    taken_bytes: int = 0

    def __str__(self) -> str:
        shares = ", ".join(f"island {i} {share:.0%}" for i, share in enumerate(self.utilisation))
        words = [
            f"{'simulated ' * self.simulated}makespan {duration(self.makespan)}",
            f"utilisation {shares}",
            f"dispatch {duration(self.dispatch)}",
            counted(self.launches, "launch", "es"),
        ]
        if self.transfers:
            words.append(f"{counted(self.transfers, 'transfer')} of {size(self.transfer_bytes)} in all")
        if self.taken:
            words.append(
                f"taken as already in place: {counted(self.taken, 'abstract argument')}, {size(self.taken_bytes)}"
            )
        if self.peak:
            words.append(f"peak memory {of_budget(self.peak.bytes, self.hbm)} per device (island {self.peak.island})")
        if self.messages:
            words.append(f"messages on their way {duration(self.messages)}")
        if self.compile:
            words.append(f"compiling {duration(self.compile)}")
        if self.interpolated:
            words.append(f"{1 - self.interpolated / self.launches:.0%} of ends watched, the rest interpolated")
        if self.failed:
            words.append(f"{self.failed} failed")
        if len(self.clients) > 1:
            shares = ", ".join(f"{named(client)} {share:.0%}" for client, share in self.clients.items())
            words.append(f"{shares} of device time")
        for client, reasons in self.waits.items():
            parts = (f"{duration(seconds)} ({reason})" for reason, seconds in reasons.items())
            who = f"{named(client)} " if client or len(self.clients) > 1 else ""
            words.append(f"{who}waited {', '.join(parts)}")
        return " · ".join(words)


def of_budget(held: int, hbm: int) -> str:
    """``"12 MB of 16 MB"``, or ``"12 MB"`` where ``hbm`` is 0, which is unknown."""
    return f"{size(held)} of {size(hbm)}" if hbm else size(held)


def summarise(events: Events, islands: Sequence[int], hbm: Sequence[int] = ()) -> Summary:
    """Totals of ``events`` on islands with these numbers of devices and bytes per device."""
    busy = events.of_kind(*BUSY)
    moves = events.of_kind("transfer")
    messages = sent(events)
    spans = events.select(makes_span(events))
    makespan = float(spans["end"].max() - spans["start"].min()) if len(spans) else 0.0
    used = [device_seconds(busy.select(busy.is_("island", i)), count).sum() for i, count in enumerate(islands)]
    shares = (u / (count * makespan) if makespan else 0.0 for u, count in zip(used, islands, strict=True))
    peak = peak_of(events)
    return Summary(
        makespan,
        tuple(float(share) for share in shares),
        covered(events.of_kind("enqueue")),
        covered(events.of_kind(*COMPILING)),
        len(moves),
        int(moves["bytes"].sum()),
        len(busy),
        int(busy.is_("quality", "interpolated").sum()),
        int(events.is_("status", "failed").sum()),
        _shares(busy, islands),
        _waits(events.select(events.is_("kind", "stall") & events.is_("status", "ok") & ~messages)),
        peak,
        dict(enumerate(hbm)).get(peak.island, 0) if peak else 0,
        covered(events.select(messages)),
        bool(busy.is_("quality", "simulated").any()),
    )


def sent(events: Events) -> np.ndarray:
    """Whether each event is a message of the controller on its way to an island."""
    return events.is_("kind", "stall") & events.is_("route", "DCN")


def makes_span(events: Events) -> np.ndarray:
    """Whether each event is one of those from the first of which to the last a makespan lasts."""
    return events.is_("kind", *BUSY, "transfer", "enqueue") | sent(events)


def clients_of(events: Events) -> tuple[str, ...]:
    """The clients of a record by name; last ``""`` if devices worked for no client, too.

    What ``events`` were selected from counts. Who came first is a matter of chance, so it does not: a client has the
    same position, and with it the same colour, in every run with the same clients.
    """
    names = sorted({label.client for label in events.labels if label.client})
    nobody = any(label.kind in BUSY and not label.client for label in events.labels)
    return (*names, "") if nobody else tuple(names)


def named(client: str) -> str:
    """What a client is called in a text."""
    return client or "no client"


def _shares(busy: Events, islands: Sequence[int]) -> dict[str, float]:
    clients = clients_of(busy)
    if len(clients) == 1:
        return dict.fromkeys(clients, 1.0)
    used = {}
    for client in clients:
        mine = busy.select(busy.is_("client", client))
        used[client] = sum(device_seconds(mine.select(mine.is_("island", i)), n).sum() for i, n in enumerate(islands))
    total = sum(used.values())
    return {client: float(seconds / total) for client, seconds in used.items() if seconds}


def _waits(stalls: Events) -> dict[str, dict[str, float]]:
    """Python's own pauses belong to no program, and are nobody's waiting."""
    found: dict[str, dict[str, float]] = {}
    for client, reason in dict.fromkeys((label.client, label.name) for label in stalls.labels if label.program):
        mine = stalls.is_("client", client) & stalls.is_("name", reason)
        if mine.any():
            found.setdefault(client, {})[reason] = covered(stalls.select(mine))
    return found


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


def alike(events: Events, devices: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Runs of devices of one island, from and up to, that have the same events, and which events these are."""
    first = events["device"]
    for low, high, rows in pieces(first, first + events["devices"], 0, devices):
        if high <= devices:
            yield low, high, rows


def _busy(events: Events, devices: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Runs of devices, from and up to, that have the same events, and when they are busy."""
    start, end = events["start"], events["end"]
    for low, high, here in alike(events, devices):
        yield low, high, *union(start[here], end[here])


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would use."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{three_digits(seconds * scale)} {unit}"
    return f"{three_digits(seconds)} s"


def covered(events: Events) -> float:
    """Seconds during which at least one of ``events`` was under way."""
    start, end = intervals(events)
    return float((end - start).sum())


def intervals(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the times during which at least one of ``events`` was under way."""
    return union(events["start"], events["end"])
