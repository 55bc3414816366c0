"""Runs as files: columns and graphs in one NumPy archive without pickle, readable on a machine without the devices.

The file holds data only, so opening one from a stranger runs no code. Every part is checked when it is read; a damaged
or foreign file is refused with the reason. ``write`` refuses what ``read`` would refuse, so that a saved run can always
be loaded. The event record is checked in ``saved_record``, ops in ``saved_ops``, graphs and virtual slices in
``saved_programs``, sizes in ``column_archive``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.results import saved_ops
from pathways_nb.results.column_archive import Archive
from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.results.saved_programs import from_json, to_json
from pathways_nb.results.saved_record import MOST_EVENTS, check_times, events_of
from pathways_nb.trace.exact_stamps import Stamps
from pathways_nb.trace.label_fields import MOST_SECONDS
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.record import LABEL_COLUMNS, STORED, UNKNOWN, Events
from pathways_nb.util.host_info import machine
from pathways_nb.util.json_forms import list_of, optional, record, row
from pathways_nb.util.json_text import LARGEST, DamagedError, Field, check_depth, is_text, parse, said, shortened
from pathways_nb.util.limits import SIMULATED, SIMULATED_ISLANDS
from pathways_nb.util.words import counted

FORMAT, VERSION = "pathways_nb.run", 1
MOST_TEXT = 256 * 2**20
"""Largest number of bytes of everything but columns: labels, graphs, options. A million different labels fit."""

_ERRORS = list_of(partial(Field.seconds, most=MOST_SECONDS), 2)
_STAMPS = optional(record(Stamps, launches=Field.whole, matched=Field.whole, start=_ERRORS, end=_ERRORS))
_ABOUT: dict[str, Callable[[Field], object]] = {
    "options": Field.table,
    "machine": Field.table,
    "source": Field.text,
    "shares": Field.text,
    "trace": Field.table,
    "collectives": list_of(
        row(tuple, Field.text, Field.text, Field.whole, partial(Field.number, low=-MOST_SECONDS))
    ).read,
    "unread": lambda field: [field[name].whole() for name in field.table()],
    "opened": record(dict, summary=Field.text).read,
    "taken_as_placed": row(tuple, Field.whole, partial(Field.whole, high=MOST_EVENTS * LARGEST)).read,  # of all calls
}
"""What a run's pictures and texts read of ``about``; the rest is kept as it is."""


class SavedRun(NamedTuple):
    """The parts of a run that its file holds.

    Args:
        name: the user's name for it.
        islands: number of devices of each island.
        events: all events.
        programs: the programs that ran, in the order of their first call.
        stamps: result of ``pw.profile``; ``None`` if it was not used.
        about: options, cell source and the like.
        ops: what ran inside launches; empty without ``pw.profile``.
        log: the controller's log as JSON text; empty without one.
    """

    name: str
    islands: tuple[int, ...]
    events: Events
    programs: Sequence[ExecutedProgram]
    stamps: Stamps | None
    about: dict[str, Any]
    ops: Ops
    log: bytes = b""


def write(run: SavedRun, path: str | Path) -> None:
    """Write a run with its graphs, options, cell source, host and versions to one file.

    Args:
        run: what to write.
        path: path of the file.

    Raises:
        UsageError: it is larger than what ``read`` accepts, or has a time that it refuses.
    """
    events = run.events
    about = {"machine": machine(), **run.about}
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "name": run.name,
        "islands": run.islands,
        "about": about,
        "stamps": _STAMPS.write(run.stamps),
        "labels": [[getattr(label, name) for name in LABEL_COLUMNS] for label in events.labels],
        "programs": [to_json(program) for program in run.programs],
        "ops": saved_ops.labels_of(run.ops),
    }
    columns = {name: events.stored(name) for name in STORED}
    try:
        # Before anything is written: a run that was saved can always be loaded.
        check_times(columns)
        columns |= saved_ops.columns_of(run.ops)
    except DamagedError as error:
        raise UsageError(f"save({str(path)!r}): {error}, which pw.load would refuse; run.to_csv writes it.") from None
    # A log that is too long to be read again is left out, and the run can still be saved.
    if 0 < len(run.log) <= MOST_TEXT:
        columns["log"] = np.frombuffer(run.log, np.uint8)
    if not is_text(run.name):
        raise UsageError(
            f"save({str(path)!r}): the run's name is {shortened(run.name)}, not text, which pw.load refuses."
        )
    # A damaged directory of the archive may lose columns, and a file without some of them is read as an older one.
    text = json.dumps({**meta, "columns": list(columns)}).encode()
    if len(events) > MOST_EVENTS or len(text) > MOST_TEXT:
        raise UsageError(
            f"save({str(path)!r}): {counted(len(events), 'event')} and {len(text)} bytes of labels and graphs; pw.load "
            f"reads up to {MOST_EVENTS} and {MOST_TEXT}. Record a shorter part, or write a table: run.to_csv(path)."
        )
    # An open file: to a path without that ending, NumPy would add ".npz".
    with open(path, "wb") as file:
        np.savez_compressed(file, meta=np.frombuffer(text, np.uint8), **columns)  # type: ignore[arg-type]


def read(path: str | Path) -> SavedRun:
    """Return what ``write`` wrote, every part checked.

    Args:
        path: path of the file.

    Raises:
        UsageError: the file is damaged, of another kind or of a newer version, with the reason.
        FileNotFoundError: there is no such file.
    """
    try:
        with Archive(path) as archive:
            return _parts_of(archive)
    except DamagedError as error:
        raise UsageError(
            f"load({str(path)!r}): this is not a run saved by run.save(path), or it is damaged: {error}."
        ) from None


def _parts_of(archive: Archive) -> SavedRun:
    """Return the checked parts of a run from an open archive.

    Raises:
        DamagedError: naming the part that is wrong.
    """
    meta = _meta(archive)
    islands = meta["islands"].wholes(1, SIMULATED)
    # Each island is of a size that exists; their sum is what summaries go through.
    if len(islands) > SIMULATED_ISLANDS or sum(islands) > SIMULATED:
        raise DamagedError(f"islands are {len(islands)} of {counted(sum(islands), 'device')}, not up to {SIMULATED}")
    if (named := meta.get("columns")).value is not None:
        for name in named.texts():
            if name not in archive:
                raise DamagedError(f"there is no column {name!r}")
    # All columns of causes, or none: a file from before they were recorded. One alone is missing in a damaged file.
    older = not any(name in archive for name in UNKNOWN)
    known = {name: dtype for name, dtype in STORED.items() if not (older and name in UNKNOWN)}
    columns = archive.columns(known, MOST_EVENTS, "events")
    events, stamps = events_of(meta["labels"], columns, islands), _STAMPS.read(meta.get("stamps"))
    about, name = _about(meta["about"], len(islands)), meta["name"].text()
    # Shared by all programs: what ran on one slice does so in the loaded run.
    places: dict[int, VirtualSlice] = {}
    programs = [from_json(program, places) for program in meta["programs"].rows()]
    ops = saved_ops.read(meta.get("ops"), archive, islands)
    log = (
        archive.columns({"log": np.uint8}, MOST_TEXT, "bytes of the log")["log"].tobytes() if "log" in archive else b""
    )
    return SavedRun(name, islands, events, programs, stamps, about, ops, log)


def _meta(archive: Archive) -> Field:
    """Return everything but the columns, of a version that this package reads.

    Raises:
        DamagedError: it is no JSON, no run, or of a newer version.
    """
    data = archive.columns({"meta": np.uint8}, MOST_TEXT, "bytes of labels and graphs")["meta"]
    try:
        meta = Field(parse(data.tobytes().decode()))
    except UnicodeDecodeError as error:
        raise DamagedError(f"its description is no text ({said(error)})") from None
    if not isinstance(meta.value, dict) or meta.value.get("format") != FORMAT:
        raise DamagedError("the file says nothing of a run")
    # Newer ones may mean something else by the same field; older ones lack fields, of which each has a default.
    version = meta["version"].whole(1)
    if version > VERSION:
        raise DamagedError(f"version {version} is newer than {VERSION}, which this pathways_nb can read")
    return meta


def _about(about: Field, islands: int) -> dict[str, Any]:
    """Return options, source, memory and host, with those fields checked that a run's pictures and texts read.

    Args:
        about: the field of the file.
        islands: number of islands of the run.

    Raises:
        DamagedError: naming the field that is wrong.
    """
    found = dict(about.table())
    check_depth(found)  # the rest is only kept and written again, which fails on what is nested too deeply
    for key, read in {**_ABOUT, "hbm": list_of(Field.whole, islands).read}.items():
        if key in found:
            read(about[key])
    options = about.get("options")
    for option in ("kind", "chip"):
        if options.value is not None:
            optional(Field.text).read(options.get(option))
    return found
