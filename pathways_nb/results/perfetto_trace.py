"""Perfetto's own trace format: what ``chrome_trace`` writes, typed, and without the rules of Chrome's JSON.

What is drawn where is decided in ``trace_tracks``. The packets are those of Perfetto's ``TrackEvent``; their messages
come from the package ``perfetto``, which is optional. Reading a file back is left to Perfetto, which has SQL for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.results.trace_tracks import Bar, TraceTracks, tracks_of
from pathways_nb.trace.record import Events

_NANOSECONDS = 1e9
"""Perfetto's unit of time, per second."""
_SEQUENCE = 1
"""Packets of one writer have one number."""
_BEGIN, _END, _LEVEL = 1, 2, 4
"""Types of a ``TrackEvent``: a bar begins or ends, a counter has a level."""
_EXPLICIT = 3
"""Children of a track are in the order of their ranks (``ChildTracksOrdering``)."""
_FIRST_COUNTER = 1 << 30
"""Number of the first counter among those of processes and tracks, which are lower."""
_BYTES = 3
"""The unit of a counter of bytes (``CounterDescriptor.Unit``)."""


def to_perfetto(events: Events, islands: Sequence[int], path: str | Path) -> None:
    """Write a trace of Perfetto's own format.

    Args:
        events: what to write.
        islands: number of devices of each island.
        path: the file, such as ``"run.pftrace"``.

    Raises:
        UsageError: the package ``perfetto`` is not installed.
    """
    try:
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError:
        fix = "pip install 'pathways_nb[perfetto]', or use run.to_chrome(path), which Perfetto opens, too"
        raise UsageError(f"to_perfetto needs the package perfetto: {fix}.") from None
    drawn = tracks_of(events, islands)
    # (time, rank, values): at one time bars end before others begin, and one that takes no time ends after it began.
    packets = sorted((*_bars(drawn), *_levels(drawn)), key=lambda packet: packet[:2])
    with open(path, "wb") as file:
        builder = StreamingTraceProtoBuilder(file)
        for values in _descriptors(drawn):
            packet = builder.create_packet()
            _fill(packet.track_descriptor, values)
            builder.write_packet(packet)
        for time, _, values in packets:
            packet = builder.create_packet()
            packet.timestamp, packet.trusted_packet_sequence_id = time, _SEQUENCE
            _fill(packet.track_event, values)
            builder.write_packet(packet)


def _fill(message: Any, values: dict[str, Any]) -> None:
    """Set the fields of a message: of a message in it those of a dictionary, of a list each of its items."""
    for name, value in values.items():
        if isinstance(value, dict):
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for one in value:
                _fill(getattr(message, name).add(), one)
        elif isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)


def _descriptors(drawn: TraceTracks) -> Iterator[dict[str, Any]]:
    """Yield what says of each process, track and counter its name, its parent and its position."""
    for number, name in drawn.processes.items():
        process: dict[str, Any] = {"pid": number, "process_name": name, "legacy_sort_index": number}
        yield {"uuid": number, "process": process, "child_ordering": _EXPLICIT}
    for number, (process_number, name) in drawn.tracks.items():
        yield {"uuid": number, "name": name, "parent_uuid": process_number, "sibling_order_rank": number}
    for number, one in enumerate(drawn.counters):
        unit = {"unit": _BYTES} if one.unit == "bytes" else {"unit_name": one.unit}
        # Below all tracks of the process.
        place = {"parent_uuid": one.process, "sibling_order_rank": _FIRST_COUNTER + number}
        yield {"uuid": _FIRST_COUNTER + number, "name": one.name, "counter": unit, **place}


def _bars(drawn: TraceTracks) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the begin and the end of each bar, with the arrows that leave it and that arrive."""
    leaving, arriving = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for arrow, (source, target) in enumerate(drawn.arrows, 1):
        leaving[source].append(arrow)
        arriving[target].append(arrow)
    for position, bar in enumerate(drawn.bars):
        track = {"track_uuid": bar.track}
        begin, end = _time(bar.start), _time(bar.end)
        arrows = {"flow_ids": leaving.get(position, []), "terminating_flow_ids": arriving.get(position, [])}
        words = {"name": bar.event["name"], "categories": [bar.event["kind"]], "debug_annotations": _facts(bar)}
        yield begin, 1, {"type": _BEGIN, **track, **words, **arrows}
        yield end, 0 if end > begin else 2, {"type": _END, **track}


def _facts(bar: Bar) -> list[dict[str, Any]]:
    """Return the columns of a bar's event that say something."""
    found = []
    for name, value in bar.event.items():
        if isinstance(value, bool | int):
            found.append({"name": name, "int_value": int(value)})
        elif isinstance(value, float):
            found.append({"name": name, "double_value": value})
        elif value:  # a text, or a list of texts or numbers
            found.append({"name": name, "string_value": value if isinstance(value, str) else " ".join(map(str, value))})
    return found


def _levels(drawn: TraceTracks) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield each level of each counter."""
    for number, one in enumerate(drawn.counters):
        kind = "counter_value" if one.unit == "bytes" else "double_counter_value"
        for time, level in zip(one.times.tolist(), one.levels.tolist(), strict=True):
            yield _time(time), 1, {"type": _LEVEL, "track_uuid": _FIRST_COUNTER + number, kind: level}


def _time(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
