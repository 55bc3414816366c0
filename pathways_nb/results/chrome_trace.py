"""Chrome's trace format, which Perfetto and other viewers open.

Every bar carries its whole event in ``args``, so ``from_chrome`` reads back exactly what was written. The events behind
the counters are in the format's ``otherData``, since a counter holds only numbers. What is drawn where is decided in
``trace_tracks``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.results.trace_tracks import TraceTracks, as_plain, tracks_of
from pathways_nb.timing.waits import WHY
from pathways_nb.trace.label_fields import FIELDS, MOST_SECONDS
from pathways_nb.trace.record import TUPLES, Events
from pathways_nb.trace.rows import GAUGE_KINDS, QUALITIES, STATUSES, Cause, Row, label_of
from pathways_nb.util.json_text import DamagedError, Field, parse, said, shortened

MICROSECONDS = 1e6
"""Chrome's unit of time, per second."""
_ABSENT = {"stream": ""}
"""What traces of before a field was written lack."""


def to_chrome(events: Events, islands: Sequence[int], path: str | Path) -> None:
    """Write Chrome trace JSON, in UTF-8.

    Args:
        events: what to write.
        islands: number of devices of each island.
        path: the file; compressed if it ends in ``.gz``.
    """
    drawn = tracks_of(events, islands)
    rows = [*_names(drawn), *_bars(drawn), *_arrows(drawn), *_counters(drawn)]
    levels = {"levels": [as_plain(event) for event in events.of_kind(*GAUGE_KINDS)]}
    content = {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": levels}
    # Half of a surrogate pair cannot be written in UTF-8, and its escape is the one of JSON.
    data = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")
    Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)


def _names(drawn: TraceTracks) -> Iterator[dict[str, Any]]:
    """Yield names and order of processes and tracks."""

    def row(what: str, pid: int, tid: int, **args: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}

    for pid, name in drawn.processes.items():
        yield row("process_name", pid, 0, name=name)
        yield row("process_sort_index", pid, 0, sort_index=pid)
    for tid, (pid, name) in drawn.tracks.items():
        yield row("thread_name", pid, tid, name=name)
        yield row("thread_sort_index", pid, tid, sort_index=tid)


def _bars(drawn: TraceTracks) -> Iterator[dict[str, Any]]:
    for bar in drawn.bars:
        yield {
            "ph": "X",
            "name": bar.event["name"],
            "cat": bar.event["kind"],
            "pid": bar.process,
            "tid": bar.track,
            "ts": bar.start * MICROSECONDS,
            "dur": (bar.end - bar.start) * MICROSECONDS,
            "args": bar.event,
        }


def _arrows(drawn: TraceTracks) -> Iterator[dict[str, Any]]:
    """Yield both ends of each arrow, each at the start of its bar."""
    for number, ends in enumerate(drawn.arrows):
        bars = [drawn.bars[position] for position in ends]
        # An arrow holds on to the bar that is open at its time: one that takes no time is never open.
        if all(bar.end > bar.start for bar in bars):
            for bar, phase in zip(bars, ({"ph": "s"}, {"ph": "f", "bp": "e"}), strict=True):
                where = {"pid": bar.process, "tid": bar.track, "ts": bar.start * MICROSECONDS}
                yield {"name": "transfer", "cat": "transfer", "id": number, **where, **phase}


def _counters(drawn: TraceTracks) -> Iterator[dict[str, Any]]:
    for one in drawn.counters:
        for time, level in zip(one.times.tolist(), one.levels.tolist(), strict=True):
            where = {"pid": one.process, "tid": 0, "ts": time * MICROSECONDS}
            yield {"ph": "C", "name": one.name, **where, "args": {one.unit: level}}


def from_chrome(path: str | Path) -> Events:
    """Return the events that ``to_chrome`` wrote, in the order of recording.

    Raises:
        UsageError: the file is no such trace, with the field that is wrong.
        FileNotFoundError: there is no such file.
    """
    data = Path(path).read_bytes()
    try:
        content = Field(parse((gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()))
        bars = [bar["args"] for bar in content["traceEvents"].rows() if bar["ph"].text() == "X"]
        rows, told = dict[int, Row](), dict[int, int]()
        for args in (*bars, *content["otherData"]["levels"].rows()):
            at = args["id"].whole()
            rows[at] = _row(args)
            told[at] = -1 if args.get("released_by").value is None else args["released_by"].whole(-1)
    except (ValueError, OSError, EOFError, zlib.error) as error:  # no text, or no whole file of gzip
        raise UsageError(f"{path} is no trace that run.to_chrome wrote: {said(error)}.") from None
    # Now that all rows are there: what released an event may come later in the file.
    for at, by in told.items():
        if (cause := rows[at].cause) is not None and by in rows:
            rows[at] = rows[at]._replace(cause=cause._replace(label=rows[by].label, run=rows[by].run))
    return Events.from_rows([rows[at] for at in sorted(rows)])


def _row(args: Field) -> Row:
    """Return the row of an event in a trace, without what released it."""
    values: dict[str, Any] = {}
    for name, (fits, wanted) in FIELDS.items():
        value = _ABSENT.get(name) if name in _ABSENT and name not in args.table() else args[name].value
        values[name] = tuple(value) if name in TUPLES and isinstance(value, list) else value
        if not fits(values[name]):
            raise DamagedError(f"{args.where}.{name} is {shortened(value)}, not {wanted}")
    start, end = (args[name].number(-MOST_SECONDS, MOST_SECONDS) for name in ("start", "end"))
    quality, status = args["quality"].one_of(*QUALITIES), args["status"].one_of(*STATUSES)
    why = "" if args.get("why").value is None else args["why"].one_of(*WHY, "")
    cause = Cause(WHY.index(why)) if why else None
    return Row(label_of(**values), start, end, args["run"].whole(-1), quality, status, cause)
