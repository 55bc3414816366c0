"""Events for other tools: CSV, a pandas table, and Chrome's trace format, which Perfetto opens.

A Chrome trace has a process for the controller, one for each device, and one for the host of each island with host
work. Perfetto requires that bars of one track do not overlap, so work that overlaps (compiling, transfers) gets tracks
of its own. Every bar carries its whole event in
``args``, so ``from_chrome`` reads back exactly what was written. Levels of memory are counters of their devices; the
events behind them are in the format's ``otherData``, since a counter holds only numbers.

Saved runs (``results``) have a format of their own; figures are drawn by the views.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.timing.waits import WHY
from pathways_nb.trace.host_parts import devices_per_host
from pathways_nb.trace.label_fields import FIELDS, MOST_SECONDS
from pathways_nb.trace.memory_history import memory_of
from pathways_nb.trace.record import COLUMNS, TUPLES, Events
from pathways_nb.trace.rows import GAUGE_KINDS, HOST_KIND, QUALITIES, STATUSES, Cause, Row, label_of
from pathways_nb.util.json_text import DamagedError, Field, parse, said, shortened

MICROSECONDS = 1e6
"""Chrome's unit of time, per second."""
_CONTROLLER = 0
"""Number of the controller's process; processes of devices follow from 1."""


def to_csv(events: Events, path: str | Path) -> None:
    """Write all columns, one row for each event; times in seconds, parents and links separated by spaces."""
    columns = [events[name].tolist() for name in COLUMNS]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in zip(*columns, strict=True):
            writer.writerow(" ".join(map(str, cell)) if isinstance(cell, tuple) else cell for cell in row)


def to_pandas(events: Events) -> Any:
    """Return all columns as a ``pandas.DataFrame``.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas  # type: ignore[import-untyped]
    except ImportError:
        fix = "pip install pandas, or use run.events or run.to_csv(path)"
        raise UsageError(f"to_pandas needs pandas: {fix}.") from None
    return pandas.DataFrame({name: events[name] for name in COLUMNS})


def to_chrome(events: Events, islands: Sequence[int], path: str | Path) -> None:
    """Write Chrome trace JSON.

    Args:
        events: what to write.
        islands: number of devices of each island.
        path: the file; compressed if it ends in ``.gz``.
    """
    # Rising starts, longest first, so that the first track that is free is found in one pass.
    bars = sorted(_bars(events, islands), key=lambda bar: (bar["pid"], bar["ts"], -bar["dur"]))
    tracks = _without_overlap(bars)
    sizes = devices_per_host(events.labels, islands)
    devices = (
        f"island {i}{f' · host {d // size}' if size else ''} · dev {d}"
        for i, (count, size) in enumerate(zip(islands, sizes, strict=True))
        for d in range(count)
    )
    names = dict(enumerate(["controller", *devices]))
    hosts = {bar["pid"]: bar["args"]["island"] for bar in bars if bar["cat"] == HOST_KIND}
    names |= {pid: f"island {island} · host" for pid, island in sorted(hosts.items()) if pid not in names}
    metadata = [_name_row("process_name", pid, 0, name) for pid, name in names.items()]
    metadata += [{"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
                 for pid in names]  # fmt: skip
    metadata += [_name_row("thread_name", pid, tid, name) for (pid, tid), name in sorted(tracks.items())]
    counters = list(_counters(events, islands))
    levels = {"levels": [_as_json(event) for event in events.of_kind(*GAUGE_KINDS)]}
    text = json.dumps({"traceEvents": metadata + bars + counters, "displayTimeUnit": "ms", "otherData": levels})
    data = text.encode()
    Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)


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
        value = args[name].value
        values[name] = tuple(value) if name in TUPLES and isinstance(value, list) else value
        if not fits(values[name]):
            raise DamagedError(f"{args.where}.{name} is {shortened(value)}, not {wanted}")
    start, end = (args[name].number(-MOST_SECONDS, MOST_SECONDS) for name in ("start", "end"))
    quality, status = args["quality"].one_of(*QUALITIES), args["status"].one_of(*STATUSES)
    why = "" if args.get("why").value is None else args["why"].one_of(*WHY, "")
    cause = Cause(WHY.index(why)) if why else None
    return Row(label_of(**values), start, end, args["run"].whole(-1), quality, status, cause)


def _bars(events: Events, islands: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield one bar for each device of an event on devices, and one for an event of the controller."""
    first_pid = _first_pids(islands)
    for event in events.without(GAUGE_KINDS):
        plain = _as_json(event)
        island, device = plain["island"], plain["device"]
        on_devices = 0 <= island < len(islands) and plain["kind"] in ("compute", "collective", "transfer")
        # Perfetto has a track for each process: the controller, then each device, then the host of each island.
        first = first_pid[island] + device if on_devices else _CONTROLLER
        if plain["kind"] == HOST_KIND and 0 <= island < len(islands):
            first = 1 + sum(islands) + island
        for pid in range(first, first + (max(plain["devices"], 1) if on_devices else 1)):
            yield {
                "ph": "X",
                "name": plain["name"],
                "cat": plain["kind"],
                "pid": pid,
                "tid": 0,
                "ts": plain["start"] * MICROSECONDS,
                "dur": max(plain["end"] - plain["start"], 0.0) * MICROSECONDS,
                "args": plain,
            }


def _counters(events: Events, islands: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield what each client holds on each device, whenever that changes."""
    first_pid = _first_pids(islands)
    for held in (held for held in memory_of(events) if 0 <= held.island < len(islands)):
        clients = [client or "no client" for client in held.names]
        pids = [first_pid[held.island] + device for low, high in held.devices for device in range(low, high)]
        for time, levels in zip(held.times.tolist(), held.levels.tolist(), strict=True):
            args = dict(zip(clients, levels, strict=True))
            for pid in pids:
                yield {"ph": "C", "name": "memory", "pid": pid, "tid": 0, "ts": time * MICROSECONDS, "args": args}


def _first_pids(islands: Sequence[int]) -> list[int]:
    """Return the process number of the first device of each island."""
    return [1 + sum(islands[:island]) for island in range(len(islands))]


def _without_overlap(bars: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    """Give each bar the first track (``tid``) of its process and kind that is free when it begins.

    Returns:
        The name of each track, by process and track.
    """
    free: dict[tuple[int, str], list[float]] = {}
    numbers: dict[tuple[int, str, int], int] = {}
    names: dict[tuple[int, int], str] = {}
    for bar in bars:
        pid, kind = bar["pid"], "compute" if bar["cat"] == "collective" else bar["cat"]
        ends = free.setdefault((pid, kind), [])
        # Bars of one track must not overlap, so one that would gets the next track.
        position = next((i for i, end in enumerate(ends) if end <= bar["ts"]), len(ends))
        ends[position : position + 1] = [bar["ts"] + bar["dur"]]
        tid = numbers.setdefault((pid, kind, position), 1 + sum(key[0] == pid for key in numbers))
        bar["tid"] = tid
        names[pid, tid] = kind if position == 0 else f"{kind} {position + 1}"
    return names


def _as_json(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event with values of Python's own types, which ``json`` can write."""
    plain = ((name, value.item() if isinstance(value, np.generic) else value) for name, value in event.items())
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain}


def _name_row(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
