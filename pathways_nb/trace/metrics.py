"""Totals of a record: makespan, utilisation, time of dispatch, shares and waits of clients; in seconds.

One definition of each figure, used by summaries, views, benches and comparisons alike. Overlapping events count once in
every time, so a utilisation is at most 1.

Reasons for idle time are in ``breakdown``; what waited for what is in ``happened_before``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pathways_nb.errors import size, three_digits
from pathways_nb.trace.host_parts import counted_once
from pathways_nb.trace.memory_history import HighWaterMark, peak_of
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import HOST_KIND, WINDOW_FULL
from pathways_nb.util.intervals import pieces, union
from pathways_nb.util.words import counted

BUSY = ("compute", "collective")
"""Kinds of events that keep a device busy."""
WORK = (*BUSY, "transfer", HOST_KIND)
"""Kinds of events on devices, between them and on hosts: all that a program consists of."""
COMPILING = ("trace", "lower", "compile")
"""Kinds of events before a program's first launch."""


@dataclass(frozen=True)
class Summary:
    """Totals of one run.

    Args:
        makespan: seconds from the first event on a device or a host, its dispatch or its message, to the last end.
        utilisation: for each island, busy device-seconds over devices times makespan.
        dispatch: seconds during which at least one island's dispatcher was launching.
        compile: seconds during which programs were traced, lowered or compiled.
        transfers: number of transfers.
        transfer_bytes: bytes that crossed in all transfers, each copy counted.
        launches: number of nodes launched; one on several hosts counts once.
        interpolated: number of launches whose ends were not watched.
        failed: number of events that ended with an error, and of programs that failed as a whole.
        clients: by client, its part of all busy device-seconds, without clients that had none; ``""`` is work for no
            client.
        waits: by client and reason, seconds during which at least one of its programs waited for that reason.
        peak: when the fullest device held most, if levels of memory were recorded.
        hbm: bytes of each device of that device's island; 0 if unknown.
        messages: seconds during which messages from the controller to islands were on their way, over a network or
            emulated.
        simulated: whether devices were simulated.
        taken: number of abstract arguments that simulated calls took as already in place.
        taken_bytes: total size of these arguments.
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
            shares = ", ".join(f"{client_name(client)} {share:.0%}" for client, share in self.clients.items())
            words.append(f"{shares} of device time")
        for client, reasons in self.waits.items():
            parts = (f"{duration(seconds)} ({reason})" for reason, seconds in reasons.items())
            who = f"{client_name(client)} " if client or len(self.clients) > 1 else ""
            words.append(f"{who}waited {', '.join(parts)}")
        return " · ".join(words)


def of_budget(held: int, hbm: int) -> str:
    """Return bytes of a budget in words: ``"12 MB of 16 MB"``, or ``"12 MB"`` if ``hbm`` is 0 (unknown)."""
    return f"{size(held)} of {size(hbm)}" if hbm else size(held)


def summarise(events: Events, islands: Sequence[int], hbm: Sequence[int] = ()) -> Summary:
    """Return the totals of ``events``.

    Args:
        events: of a run.
        islands: number of devices of each island.
        hbm: bytes per device of each island; 0, or no entry, means unknown.
    """
    busy = events.of_kind(*BUSY)
    moves = events.of_kind("transfer")
    launches = busy.select(counted_once(busy))
    messages = sent(events)
    spans = events.select(makes_span(events))
    # Events may be a selection, so the first one need not begin at 0.
    makespan = float(spans["end"].max() - spans["start"].min()) if len(spans) else 0.0
    used = [device_seconds(busy.select(busy.is_("island", i)), count).sum() for i, count in enumerate(islands)]
    shares = (u / (count * makespan) if makespan else 0.0 for u, count in zip(used, islands, strict=True))
    peak = peak_of(events)
    return Summary(
        makespan,
        tuple(float(share) for share in shares),
        covered(events.of_kind("enqueue")),
        covered(events.of_kind(*COMPILING)),
        int(counted_once(moves).sum()),
        int(moves["bytes"].sum()),
        len(launches),
        int(launches.is_("quality", "interpolated").sum()),
        int(events.is_("status", "failed").sum()),
        _shares(busy, islands),
        _waits(events.select(held_back(events) & events.is_("status", "ok"))),
        peak,
        dict(enumerate(hbm)).get(peak.island, 0) if peak else 0,
        covered(events.select(messages)),
        bool(busy.is_("quality", "simulated").any()),
    )


def sent(events: Events) -> np.ndarray:
    """Return whether each event is a message of the controller on its way to an island."""
    return events.is_("kind", "stall") & events.is_("route", "DCN")


def window_full(events: Events) -> np.ndarray:
    """Return whether each event is a dispatcher's wait for its island's devices, which have enough to do."""
    return events.is_("kind", "stall") & events.is_("name", WINDOW_FULL)


def held_back(events: Events) -> np.ndarray:
    """Return whether each event is a time during which something was held back: a stall of no other meaning."""
    return events.is_("kind", "stall") & ~sent(events) & ~window_full(events)


def makes_span(events: Events) -> np.ndarray:
    """Return whether each event counts for the makespan, which lasts from the first such event to the last.

    Compiling, and Python's waiting for values, do not count.
    """
    return events.is_("kind", *WORK, "enqueue") | sent(events)


def clients_of(events: Events) -> tuple[str, ...]:
    """Return the clients of a record by name; last ``""`` if devices also worked for no client.

    The clients of a record count even where ``events`` are a selection of it, and the order is by name, not by time. So
    a client has the same position, and with it the same colour, in every run with the same clients.
    """
    names = sorted({label.client for label in events.labels if label.client})
    nobody = any(label.kind in BUSY and not label.client for label in events.labels)
    return (*names, "") if nobody else tuple(names)


def client_name(client: str) -> str:
    """Return a client's name in a text."""
    return client or "no client"


def _shares(busy: Events, islands: Sequence[int]) -> dict[str, float]:
    """Return each client's part of all busy device-seconds."""
    clients = clients_of(busy)
    # Exactly 1, also where nothing took any time.
    if len(clients) == 1:
        return dict.fromkeys(clients, 1.0)
    used = {}
    for client in clients:
        own = busy.select(busy.is_("client", client))
        used[client] = sum(device_seconds(own.select(own.is_("island", i)), n).sum() for i, n in enumerate(islands))
    total = sum(used.values())
    return {client: float(seconds / total) for client, seconds in used.items() if seconds}


def _waits(stalls: Events) -> dict[str, dict[str, float]]:
    """Return the seconds that each client's programs waited, by client and reason; Python's own pauses are no wait."""
    found: dict[str, dict[str, float]] = {}
    for client, reason in dict.fromkeys((label.client, label.name) for label in stalls.labels if label.program):
        of_client = stalls.is_("client", client) & stalls.is_("name", reason)
        if of_client.any():
            found.setdefault(client, {})[reason] = covered(stalls.select(of_client))
    return found


def device_seconds(events: Events, devices: int) -> np.ndarray:
    """Return the seconds during which each of ``devices`` devices of one island was busy; overlaps count once."""
    found = np.zeros(devices)
    for low, high, start, end in _busy(events, devices):
        found[low:high] = (end - start).sum()
    return found


def busy_between(events: Events, devices: int, times: np.ndarray) -> np.ndarray:
    """Return the device-seconds that one island was busy between each of ``times`` and the next.

    Args:
        events: busy events of the island.
        devices: number of devices of the island.
        times: in seconds, rising.
    """
    # (times,) device-seconds up to each of ``times``.
    total = np.zeros(len(times))
    for low, high, start, end in _busy(events, devices):
        if len(start):
            done = np.concatenate([[0.0], np.cumsum(end - start)])
            # (2 × events,): start, end, start, end, … of disjoint times, which therefore rise.
            stamps = np.stack([start, end], 1).ravel()
            # Busy time up to a moment is linear while an event runs and constant otherwise: interpolate its cumulated
            # sum.
            total += (high - low) * np.interp(times, stamps, np.repeat(done, 2)[1:-1])
    return np.diff(total)


def device_ranges(events: Events, devices: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield ranges of devices that have the same events: first device, device after the last, events' positions."""
    first = events["device"]
    for low, high, rows in pieces(first, first + events["devices"], 0, devices):
        if high <= devices:
            yield low, high, rows


def _busy(events: Events, devices: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """Yield ranges of devices that have the same events, with the starts and ends of their busy times."""
    start, end = events["start"], events["end"]
    for low, high, here in device_ranges(events, devices):
        yield low, high, *union(start[here], end[here])


def duration(seconds: float) -> str:
    """Return seconds in words, in the unit that a person would use."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{three_digits(seconds * scale)} {unit}"
    return f"{three_digits(seconds)} s"


def signed_duration(seconds: float) -> str:
    """Return by how much something takes longer, in words: ``"+3 ms"``, or ``"−3 ms"`` where it takes less."""
    return f"{'+' if seconds >= 0 else '−'}{duration(abs(seconds))}"


def covered(events: Events) -> float:
    """Return the seconds during which at least one of ``events`` was under way."""
    start, end = intervals(events)
    return float((end - start).sum())


def intervals(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of the times during which at least one of ``events`` was under way."""
    return union(events["start"], events["end"])
