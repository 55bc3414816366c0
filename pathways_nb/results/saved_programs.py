"""Programs in a saved run: graphs whose references lead somewhere, on places with shapes.

Nodes stand in an order that respects their dependencies and are numbered by it; every input is an output of a node
before. Places are shared by the programs of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from pathways_nb.plan.graph import Graph, Node, NodeKind, Value
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.results.saved_record import MOST_SECONDS
from pathways_nb.util.json_text import DamagedError, Field

_AXES, _DEVICES = 32, 2**31 - 1
"""Axes of a place, as of a NumPy array, and devices along one."""


def to_json(program: ExecutedProgram) -> dict[str, Any]:
    """A program as it is saved."""
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


def from_json(field: Field, places: dict[int, VirtualSlice]) -> ExecutedProgram:
    """A program; ``places`` by serial in the file are shared by all programs, and filled here.

    Raises:
        DamagedError: naming what is wrong.
    """
    for serial, written in field["places"].entries():
        if serial not in places:  # with serials of their own: those of this process's slices may be the same
            places[serial] = _place(written)
    values = tuple(_value(one, number) for number, one in enumerate(field["values"].rows()))
    nodes = _nodes(field["nodes"], places, len(values))
    last = len(nodes) - 1
    where = {places[serial].serial: text.text() for serial, text in field["where"].entries() if serial in places}
    routes = {}
    for row in field["routes"].rows():
        source, target, route = row.rows(3)
        routes[source.whole(0, last), target.whole(0, last)] = route.one_of("host", "local", "ICI", "DCN")
    needed = {}
    for row in field["needed"].rows():
        node, line, count = row.rows(3)
        needed[node.whole(0, last)] = line.text(), count.whole()
    return ExecutedProgram(Graph(field["name"].text(), nodes, values), where, routes, field["runs"].whole(), needed)


def _place(field: Field) -> VirtualSlice:
    shape, axes, island, name = field.rows(4)
    sizes, names = shape.wholes(1, _DEVICES), axes.texts()
    if not sizes or len(sizes) != len(names) or len(set(names)) != len(names) or len(sizes) > _AXES:
        raise DamagedError(f"{field.where} has the shape {sizes} and the axes {names}, not a name for each size")
    return VirtualSlice(sizes, names, None if island.value is None else island.whole(0, _DEVICES), name.text())


def _value(field: Field, number: int) -> Value:
    found = Value(field["id"].whole(), field["shape"].wholes(), field["dtype"].text(), field["bytes"].whole())
    if found.id != number:
        raise DamagedError(f"{field.where}.id is {found.id}, not its position {number}")
    return found


def _nodes(field: Field, places: Mapping[int, VirtualSlice], values: int) -> tuple[Node, ...]:
    """In an order in which every value is made before it is read."""
    made: set[int] = set()
    nodes = []
    for number, one in enumerate(field.rows()):
        node = _node(one, places, values)
        if node.id != number:
            raise DamagedError(f"{one.where}.id is {node.id}, not its position {number}")
        if unknown := [value for value in node.inputs if value not in made]:
            raise DamagedError(f"{one.where} reads the value {unknown[0]}, which no node before it makes")
        if twice := [value for value in node.outputs if value in made]:
            raise DamagedError(f"{one.where} makes the value {twice[0]}, which another node makes")
        made.update(node.outputs)
        nodes.append(node)
    return tuple(nodes)


def _node(field: Field, places: Mapping[int, VirtualSlice], values: int) -> Node:
    kind = field["kind"].one_of(*get_args(NodeKind))
    inputs, outputs = (field[name].wholes(0, values - 1) for name in ("inputs", "outputs"))
    if len(set(outputs)) != len(outputs):
        raise DamagedError(f"{field.where} makes one value twice: {outputs}")
    place = _placed(field["place"], places)
    if (place is None) != (kind in ("argument", "result")):
        raise DamagedError(f"{field.where} is of kind {kind!r} and has {'no' if place is None else 'a'} place")
    declared = field.get("seconds")
    seconds = None if declared.value is None else declared.seconds(MOST_SECONDS)
    texts = field["name"].text(), field["line"].text(), field["parts"].texts()
    return Node(field["id"].whole(), kind, texts[0], place, inputs, outputs, *texts[1:], seconds)  # type: ignore[arg-type]


def _placed(field: Field, places: Mapping[int, VirtualSlice]) -> VirtualSlice | None:
    if field.value is None:
        return None
    serial = field.whole()
    if serial not in places:
        raise DamagedError(f"{field.where} is {serial}, a place that the file does not describe")
    return places[serial]
