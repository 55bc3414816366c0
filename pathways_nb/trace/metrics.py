"""What a record is measured by: which events count for what, busy device-seconds, clients; in seconds.

One definition of each, used by summaries, views, benches and comparisons alike. Overlapping events count once in every
time, so a utilisation is at most 1. The totals of a run are in ``summary``.

Reasons for idle time are in ``breakdown``; what waited for what is in ``happened_before``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pathways_nb.errors import duration, size
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import HOST_KIND, WINDOW_FULL
from pathways_nb.util.intervals import pieces, union

BUSY = ("compute", "collective")
"""Kinds of events that keep a device busy."""
WORK = (*BUSY, "transfer", HOST_KIND)
"""Kinds of events on devices, between them and on hosts: all that a program consists of."""
COMPILING = ("trace", "lower", "compile")
"""Kinds of events before a program's first launch."""


def of_budget(held: int, hbm: int) -> str:
    """Return bytes of a budget in words: ``"12 MB of 16 MB"``, or ``"12 MB"`` if ``hbm`` is 0 (unknown)."""
    return f"{size(held)} of {size(hbm)}" if hbm else size(held)


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


def busy_devices(events: Events, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return when the number of busy devices of an island changes, in seconds, and what it is from then on.

    Args:
        events: busy events of the island.
        devices: number of devices of the island.
    """
    parts = [(np.concatenate([start, end]), (high - low) * np.repeat([1, -1], len(start)))
             for low, high, start, end in _busy(events, devices)]  # fmt: skip
    if not parts:
        return np.zeros(0), np.zeros(0, int)
    times, at = np.unique(np.concatenate([stamps for stamps, _ in parts]), return_inverse=True)
    # (times,) how many devices more are busy from each time on than before it.
    change = np.zeros(len(times), int)
    np.add.at(change, at, np.concatenate([steps for _, steps in parts]))
    return times[change != 0], change[change != 0].cumsum()


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
