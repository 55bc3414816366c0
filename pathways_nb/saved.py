"""Runs as files: columns and graphs in one NumPy archive without pickle, readable on a machine without the devices.

The file holds data only, and every part of it is checked on the way in: a damaged or foreign one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.machine import machine
from pathways_nb.program.graph import Graph, Node, NodeKind, Value
from pathways_nb.program.places import VirtualSlice
from pathways_nb.run import RanProgram, Run
from pathways_nb.trace.exact import Stamps
from pathways_nb.trace.record import KINDS, LABEL_COLUMNS, QUALITIES, STATUSES, STORED, TUPLES, Events, Label, Record

FORMAT, VERSION = "pathways_nb.run", 1
_TYPES = get_type_hints(Label)


def save(run: Run, path: str | Path) -> None:
    """Write ``run`` with its graphs, options, cell source, machine and versions to one file."""
    events = run.events
    about = {"machine": machine(), **run.about}
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "name": run.name,
        "islands": run.islands,
        "about": about,
        "stamps": run.stamps and asdict(run.stamps),
        "labels": [[getattr(label, name) for name in LABEL_COLUMNS] for label in events.labels],
        "programs": [_program_to_json(program) for program in run.programs],
    }
    columns = {name: events.stored(name) for name in STORED}
    with open(path, "wb") as file:
        np.savez_compressed(file, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **columns)  # type: ignore[arg-type]


def load(path: str | Path) -> Run:
    """Read a run that ``run.save`` wrote. Nothing in the file is executed.

    Raises:
        UsageError: the file is damaged, of another kind or of a newer version, with the reason. FileNotFoundError.
    """
    if not isinstance(path, (str, Path)):
        raise UsageError(f"load({path!r}): a {type(path).__name__} is no path; write pw.load('a.run').")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            parts = {name: archive[name] for name in archive.files} if hasattr(archive, "files") else {}
        return _run_of(parts)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # a damaged archive fails in many ways, each of them below NumPy
        reason = (
            f"there is no {error}" if isinstance(error, KeyError) else (str(error) or "it is empty").splitlines()[0]
        )
        if "pickle" in reason:  # NumPy's advice to load it unsafely is none of ours
            reason = "it is no archive of columns"
        raise UsageError(
            f"load({str(path)!r}): this is not a run saved by run.save(path), or it is damaged: {reason}."
        ) from error


def _run_of(parts: Mapping[str, np.ndarray]) -> Run:
    meta = json.loads(parts["meta"].tobytes()) if "meta" in parts else {}
    if meta.get("format") != FORMAT:
        raise ValueError("the file says nothing of a run")
    if meta["version"] > VERSION:
        raise ValueError(f"version {meta['version']} is newer than {VERSION}, which this pathways_nb can read")
    islands = tuple(_whole(count) for count in meta["islands"])
    record, stamps = Record.of(_events(meta["labels"], parts)), _stamps(meta.get("stamps"))
    about = dict(meta["about"])
    if "hbm" in about and [type(size) for size in about["hbm"]] != [int] * len(islands):
        raise ValueError(f"hbm is {about['hbm']!r}, not bytes for each of {len(islands)} islands")
    run = Run(str(meta["name"]), islands, record, finished=True, stamps=stamps, about=about)
    places: dict[int, VirtualSlice] = {}
    run.set_programs([_program_from_json(program, places) for program in meta["programs"]])
    return run


def _stamps(data: dict[str, Any] | None) -> Stamps | None:
    if data is None:
        return None
    (start, start_most), (end, end_most) = data["start"], data["end"]
    off = (float(start), float(start_most)), (float(end), float(end_most))
    return Stamps(_whole(data["launches"]), _whole(data["matched"]), *off)


def _events(labels: list[list[Any]], parts: Mapping[str, np.ndarray]) -> Events:
    made = [_label(values) for values in labels]
    stored = {name: np.ascontiguousarray(parts[name]) for name in STORED}
    count = len(stored["label"])
    for name, dtype in STORED.items():
        if stored[name].shape != (count,) or stored[name].dtype != dtype:
            raise ValueError(f"column {name!r} is {stored[name].dtype}{list(stored[name].shape)}, not {count} numbers")
    for name, choices in (("label", made), ("quality", QUALITIES), ("status", STATUSES)):
        if count and not 0 <= stored[name].min() <= stored[name].max() < len(choices):
            raise ValueError(f"column {name!r} names what is not there")
    if not np.isfinite(stored["start"]).all() or not np.isfinite(stored["end"]).all():
        raise ValueError("a time is not a number")
    return Events(made, stored, np.arange(count, dtype=np.int64))


def _label(values: list[Any]) -> Label:
    if len(values) == LABEL_COLUMNS.index("links"):  # written before labels knew them
        values = [*values, (), 0.0]
    given = dict(zip(LABEL_COLUMNS, values, strict=True))
    given |= {"parents": tuple(map(_whole, given["parents"])), "links": tuple(map(str, given["links"]))}
    for name, kind in _TYPES.items():
        expected = (int, float) if kind is float else tuple if name in TUPLES else kind
        if not isinstance(given[name], expected):
            raise ValueError(f"{name} is {given[name]!r}")
    if given["kind"] not in KINDS:
        raise ValueError(f"kind is {given['kind']!r}")
    return Label(**given)


def _program_to_json(program: RanProgram) -> dict[str, Any]:
    graph = program.graph
    return {
        "name": graph.name,
        "runs": program.runs,
        "places": {place.serial: [place.shape, place.axes, place.island, place.label] for place in graph.places},
        "where": dict(program.where),
        "routes": [[*pair, route] for pair, route in program.routes.items()],
        "needed": [[node, line, count] for node, (line, count) in program.needed.items()],
        "nodes": [{**_node_fields(node), "place": node.place.serial if node.place else None} for node in graph.nodes],
        "values": [asdict(value) for value in graph.values],
    }


def _node_fields(node: Node) -> dict[str, Any]:
    names = ("id", "kind", "name", "inputs", "outputs", "line", "parts", "seconds")
    return {name: getattr(node, name) for name in names}


def _program_from_json(data: dict[str, Any], places: dict[int, VirtualSlice]) -> RanProgram:
    """A program; ``places`` by serial in the file are shared by all programs, and filled here."""
    for serial, (shape, axes, island, name) in data["places"].items():
        if int(serial) not in places:  # with serials of their own: those of this process's slices may be the same
            places[int(serial)] = VirtualSlice(tuple(map(_whole, shape)), tuple(map(str, axes)), island, str(name))
    values = tuple(
        Value(_whole(v["id"]), tuple(v["shape"]), str(v["dtype"]), _whole(v["bytes"])) for v in data["values"]
    )
    nodes = tuple(_node(node, places, len(values)) for node in data["nodes"])
    where = {places[int(serial)].serial: str(text) for serial, text in data["where"].items() if int(serial) in places}
    routes = {(_whole(source), _whole(target)): str(route) for source, target, route in data["routes"]}
    needed = {_whole(node): (str(line), _whole(count)) for node, line, count in data["needed"]}
    return RanProgram(Graph(str(data["name"]), nodes, values), where, routes, _whole(data["runs"]), needed)


def _node(data: dict[str, Any], places: Mapping[int, VirtualSlice], values: int) -> Node:
    if data["kind"] not in get_args(NodeKind):
        raise ValueError(f"a node is {data['kind']!r}")
    inputs, outputs = tuple(map(_whole, data["inputs"])), tuple(map(_whole, data["outputs"]))
    if any(not 0 <= value < values for value in inputs + outputs):
        raise ValueError(f"node {data['name']!r} names a value that is not there")
    place = places[data["place"]] if data["place"] is not None else None
    parts, seconds = tuple(map(str, data["parts"])), data["seconds"]
    made = Node(_whole(data["id"]), data["kind"], str(data["name"]), place, inputs, outputs, str(data["line"]), parts)
    return made if seconds is None else replace(made, seconds=float(seconds))


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no whole number")
    return value
