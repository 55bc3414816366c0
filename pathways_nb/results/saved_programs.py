"""Programs in a saved run: to JSON, and back with every reference checked.

Nodes are stored in an order that respects their dependencies and are numbered by it, so one pass proves that the graph
has no cycle and that every input is an output of an earlier node. Virtual slices are shared by all programs of a file,
so programs that ran on one slice still share it. The event record is checked in ``saved_record``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from pathways_nb.plan.graph import ActionKey, Graph, Node, NodeKind, Value
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.trace.label_fields import MOST_SECONDS
from pathways_nb.util.json_text import DamagedError, Field

_AXES, _DEVICES = 32, 2**31 - 1
"""Largest number of axes of a virtual slice, as of a NumPy array, and of devices along one."""


def to_json(program: ExecutedProgram) -> dict[str, Any]:
    """Return a program as JSON values."""
    graph = program.graph
    return {
        "name": graph.name,
        "runs": program.runs,
        "places": {place.serial: [place.shape, place.axes, place.island, place.label] for place in graph.places},
        "where": dict(program.where),
        "routes": [[*pair, route] for pair, route in program.routes.items()],
        "layouts": [[*pair, text] for pair, text in program.layouts.items()],
        "needed": [[node, line, count] for node, (line, count) in program.needed.items()],
        "nodes": [{**_node_fields(node), "place": node.place.serial if node.place else None} for node in graph.nodes],
        "values": [asdict(value) for value in graph.values],
    }


def _node_fields(node: Node) -> dict[str, Any]:
    """Return the plain fields of a node, without its virtual slice."""
    names = ("id", "kind", "name", "inputs", "outputs", "line", "parts", "seconds", "action")
    return {name: getattr(node, name) for name in names}


def from_json(field: Field, places: dict[int, VirtualSlice]) -> ExecutedProgram:
    """Return a program from JSON values.

    Args:
        field: the program, as ``to_json`` returned it.
        places: virtual slices by their serial in the file; filled here and shared by all programs of the file.

    Raises:
        DamagedError: naming the field that is wrong.
    """
    for serial, written in field["places"].entries():
        if serial not in places:  # with new serials: those in the file may be in use by slices of this process
            places[serial] = _place(written)
    values = tuple(_value(one, number) for number, one in enumerate(field["values"].rows()))
    nodes = _nodes(field["nodes"], places, len(values))
    last = len(nodes) - 1
    where = {places[serial].serial: text.text() for serial, text in field["where"].entries() if serial in places}
    routes = {}
    for row in field["routes"].rows():
        source, target, route = row.rows(3)
        routes[source.whole(0, last), target.whole(0, last)] = route.one_of("host", "local", "ICI", "DCN")
    layouts = {}
    for row in [] if (written := field.get("layouts")).value is None else written.rows():
        source, target, text = row.rows(3)
        layouts[source.whole(0, last), target.whole(0, last)] = text.text()
    needed = {}
    for row in field["needed"].rows():
        node, line, count = row.rows(3)
        needed[node.whole(0, last)] = line.text(), count.whole()
    graph, runs = Graph(field["name"].text(), nodes, values), field["runs"].whole()
    return ExecutedProgram(graph, where, routes, runs, needed, layouts)


def _place(field: Field) -> VirtualSlice:
    """Return a virtual slice with a size for each named axis.

    Raises:
        DamagedError: sizes and names do not match, or are too many.
    """
    shape, axes, island, name = field.rows(4)
    sizes, names = shape.wholes(1, _DEVICES), axes.texts()
    if not sizes or len(sizes) != len(names) or len(set(names)) != len(names) or len(sizes) > _AXES:
        raise DamagedError(f"{field.where} has the shape {sizes} and the axes {names}, not a name for each size")
    return VirtualSlice(sizes, names, None if island.value is None else island.whole(0, _DEVICES), name.text())


def _value(field: Field, number: int) -> Value:
    """Return a value, whose id must be its position in the list.

    Raises:
        DamagedError: it is not.
    """
    found = Value(field["id"].whole(), field["shape"].wholes(), field["dtype"].text(), field["bytes"].whole())
    if found.id != number:
        raise DamagedError(f"{field.where}.id is {found.id}, not its position {number}")
    return found


def _nodes(field: Field, places: Mapping[int, VirtualSlice], values: int) -> tuple[Node, ...]:
    """Return the nodes in their order, in which every value is made before it is read.

    Args:
        field: the list of nodes.
        places: virtual slices by their serial in the file.
        values: number of values of the graph.

    Raises:
        DamagedError: a node reads a value that no earlier node makes, or makes one that exists.
    """
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
    """Return one node; arguments and results have no virtual slice, all other nodes have one.

    Raises:
        DamagedError: naming the field that is wrong.
    """
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
    action = _action(field.get("action"))
    return Node(field["id"].whole(), kind, texts[0], place, inputs, outputs, *texts[1:], seconds, action)  # type: ignore[arg-type]


def _action(field: Field) -> ActionKey | None:
    """Return the action of a pipeline that a node is, if it is one."""
    if field.value is None:
        return None
    stage, microbatch, token_slice = field.rows(3)
    return ActionKey(stage.whole(), microbatch.whole(), token_slice.whole(-1))


def _placed(field: Field, places: Mapping[int, VirtualSlice]) -> VirtualSlice | None:
    """Return the virtual slice of a node, ``None`` for arguments and results.

    Raises:
        DamagedError: the file does not describe it.
    """
    if field.value is None:
        return None
    serial = field.whole()
    if serial not in places:
        raise DamagedError(f"{field.where} is {serial}, a place that the file does not describe")
    return places[serial]
