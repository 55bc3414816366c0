"""A run as trace viewers show it: processes, tracks of bars that do not overlap, arrows, and counters.

The formats of ``chrome_trace`` and ``perfetto_trace`` are two ways to write this. Processes and tracks are in the order
of the lanes of our own timeline: the controller, each island with its devices and its host, the transfers. Arrows lead
from what made a value to the transfer that carries it, and on to what reads it. Counters are memory by client, and the
share of an island's devices that is busy. Times are in seconds; the first is not negative, as viewers need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.trace.causality.dependencies import transfer_edges
from pathways_nb.trace.host_parts import devices_per_host
from pathways_nb.trace.memory_history import memory_of
from pathways_nb.trace.metrics import BUSY, busy_devices, client_name
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import CONTROLLER_ROWS, GAUGE_KINDS, HOST_KIND

_CONTROLLER_TRACKS = ("compile and dispatch", "programs that wait", "waits of Python")
"""Names of the controller's tracks, by row of its lane (``CONTROLLER_ROWS``).

Perfetto sorts some tracks by their names, so all names here are in the order of our lanes by the alphabet as well.
"""
_CONTROLLER = 0
"""Position of the controller's process; islands follow, then the transfers."""
_HOST = 1 << 30
"""What stands for an island's host among the numbers of its devices: it is below them."""
_LEAST_STRIDE = 1000
"""Distance of the numbers of processes: viewers show a number behind its name, and ``island 0 2`` would confuse."""


class Bar(NamedTuple):
    """An event on one track.

    Args:
        process: number of the process.
        track: number of the track; no two of all processes have one.
        start: in seconds.
        end: in seconds.
        event: all its columns.
    """

    process: int
    track: int
    start: float
    end: float
    event: Mapping[str, Any]


class CounterTrack(NamedTuple):
    """A level over time.

    Args:
        process: number of the process.
        name: what is counted.
        unit: ``"bytes"`` or ``"%"``.
        times: when it changes, in seconds, rising; (times,).
        levels: from each of ``times`` to the next; (times,).
    """

    process: int
    name: str
    unit: str
    times: np.ndarray
    levels: np.ndarray


@dataclass(frozen=True)
class TraceTracks:
    """What a trace viewer draws.

    Args:
        processes: names, by number, which rises in the order of our lanes.
        tracks: process and name, by number, which rises in the order of our lanes.
        bars: by process, in the order of their starts.
        arrows: pairs of positions in ``bars``: what made a value and its transfer, or a transfer and what reads it.
        counters: of the islands.
    """

    processes: dict[int, str]
    tracks: dict[int, tuple[int, str]]
    bars: list[Bar]
    arrows: list[tuple[int, int]] = field(default_factory=list)
    counters: list[CounterTrack] = field(default_factory=list)


def tracks_of(events: Events, islands: Sequence[int]) -> TraceTracks:
    """Return events as tracks.

    Args:
        events: of a run.
        islands: number of devices of each island.
    """
    happened = events.without(GAUGE_KINDS)
    # By start, as arrows lead forward only; of equal starts the longest first, so that it gets the first track.
    happened = happened.select(np.lexsort((-happened["end"], happened["start"])))
    shift = -min(float(events["start"].min(initial=0.0)), 0.0)
    lanes, rows = _lanes(happened, islands), list[tuple[tuple[int, int, int], int, dict[str, Any]]]()
    free: dict[tuple[int, int], list[float]] = {}
    for position, event in enumerate(map(as_plain, happened)):
        start, end = event["start"], max(event["end"], event["start"])
        for lane in _where(event, islands):
            ends = free.setdefault(lane, [])
            # Bars of one track must not overlap, so one that would gets the next track of its lane.
            at = next((i for i, until in enumerate(ends) if until <= start), len(ends))
            ends[at : at + 1] = [end]
            rows.append(((*lane, at), position, event))
    used = sorted({(*lane, 0) for lane in lanes} | {key for key, *_ in rows})
    most = max(Counter(process for process, *_ in used).values())
    stride = max(_LEAST_STRIDE, 10 ** len(str(most)))
    tracks, numbers = dict[int, tuple[int, str]](), dict[tuple[int, int, int], int]()
    for process, group in groupby(used, key=lambda key: key[0]):
        for rank, key in enumerate(group, 1):
            numbers[key] = stride * (1 + process) + rank
            again = f" ({key[2] + 1})" if key[2] else ""
            tracks[numbers[key]] = stride * (1 + process), lanes[key[:2]] + again
    bars, first = list[Bar](), dict[int, int]()
    for key, position, event in sorted(rows, key=lambda row: (row[0][0], row[1])):
        first.setdefault(position, len(bars))
        start, end = event["start"] + shift, event["end"] + shift
        bars.append(Bar(tracks[numbers[key]][0], numbers[key], start, max(start, end), event))
    arrows = [(first[source], first[target]) for source, target in transfer_edges(happened)]
    names = ["controller", *(f"island {number}" for number in _aligned(len(islands))), "transfers"]
    processes = {stride * number: name for number, name in enumerate(names, 1)}
    counters = [one._replace(process=stride * (1 + one.process)) for one in _counters(events, islands, shift)]
    return TraceTracks(processes, tracks, bars, arrows, counters)


def as_plain(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with values of Python's own types."""
    plain = ((name, value.item() if isinstance(value, np.generic) else value) for name, value in event.items())
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain}


def _island(index: int) -> int:
    """Return the position of an island's process; of that behind the last one, the transfers'."""
    return _CONTROLLER + 1 + index


def _aligned(count: int) -> list[str]:
    """Return the numbers below ``count`` in one width, so that they are in order as texts; a page shows one space."""
    return [f"{number:>{len(str(count - 1))}}" for number in range(count)]


def _lanes(events: Events, islands: Sequence[int]) -> dict[tuple[int, int], str]:
    """Return the name of each lane, by process and position in it; a device that did nothing has one, too."""
    names = {(_CONTROLLER, row): name for row, name in enumerate(_CONTROLLER_TRACKS)}
    sizes = devices_per_host(events.labels, islands)
    for island, (count, size) in enumerate(zip(islands, sizes, strict=True)):
        hosts = _aligned(count // size) if size else []
        for device, number in enumerate(_aligned(count)):
            names[_island(island), device] = f"host {hosts[device // size]} · dev {number}" if size else f"dev {number}"
        if any(label.kind == HOST_KIND and label.island == island for label in events.labels):
            names[_island(island), _HOST] = "host work"
        names[_island(len(islands)), island] = f"to island {_aligned(len(islands))[island]}"
    return names


def _where(event: Mapping[str, Any], islands: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield process and position of each lane in which an event is drawn."""
    kind, island = event["kind"], event["island"]
    placed = 0 <= island < len(islands)
    if kind == "transfer" and islands:
        yield _island(len(islands)), island if placed else 0
    elif placed and kind == HOST_KIND:
        yield _island(island), _HOST
    elif placed and kind in BUSY:
        # No device beyond those of the island has a lane, and no event is left out.
        first = min(event["device"], islands[island] - 1)
        for device in range(first, min(first + max(event["devices"], 1), islands[island])):
            yield _island(island), device
    else:
        yield _CONTROLLER, CONTROLLER_ROWS.get(kind, 0)


def _counters(events: Events, islands: Sequence[int], shift: float) -> Iterator[CounterTrack]:
    """Yield what is busy and what is held on each island, whenever that changes; equal devices have one counter."""
    busy = events.of_kind(*BUSY)
    for island, count in enumerate(islands):
        times, used = busy_devices(busy.select(busy.is_("island", island)), count)
        if len(times):
            yield CounterTrack(_island(island), "utilisation", "%", times + shift, 100 * used / count)
    for held in (held for held in memory_of(events) if 0 <= held.island < len(islands)):
        ranges = (f"{low}–{high - 1}" if high - low > 1 else f"{low}" for low, high in held.devices)
        where = f"memory of dev {', '.join(ranges)}"
        for client, levels in zip(held.names, held.levels.T, strict=True):
            yield CounterTrack(
                _island(held.island), f"{where}: {client_name(client)}", "bytes", held.times + shift, levels
            )
