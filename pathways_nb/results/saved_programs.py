"""Programs in a saved run: to JSON, and back with every reference checked.

Nodes are stored in an order that respects their dependencies and are numbered by it, so one pass proves that the graph
has no cycle and that every input is an output of an earlier node. Virtual slices are shared by all programs of a file,
so programs that ran on one slice still share it. The event record is checked in ``saved_record``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

from pathways_nb.plan.graph import ActionKey, Graph, Node, NodeKind, Value
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.trace.label_fields import MOST_SECONDS
from pathways_nb.util.json_forms import Declared, Form, list_of, one_of, optional, record, row
from pathways_nb.util.json_text import DamagedError, Field

_AXES, _DEVICES = 32, 2**31 - 1
"""Largest number of axes of a virtual slice, as of a NumPy array, and of devices along one."""
_SIZES, _ISLAND = partial(Field.wholes, low=1, high=_DEVICES), optional(partial(Field.whole, high=_DEVICES))
_PLACE = row(tuple, _SIZES, Field.texts, _ISLAND, Field.text)
_ACTION = row(ActionKey._make, Field.whole, Field.whole, partial(Field.whole, low=-1))


def _form(places: dict[int, VirtualSlice], nodes: int, values: int) -> Form[Any]:
    """Return the form of a program.

    Args:
        places: virtual slices by their serial in the file; reading adds those of the program.
        nodes: number of nodes, to which edges refer.
        values: number of values, to which nodes refer.
    """
    node, of_values = partial(Field.whole, high=nodes - 1), partial(Field.wholes, high=values - 1)
    waits = list_of(row(tuple, node, Field.text, Field.whole))
    return record(
        SimpleNamespace,
        name=Field.text,
        runs=Field.whole,
        # Read before the nodes, which refer to them.
        places=Form(partial(_read_places, places), _written_places),
        where=Form(lambda field: {serial: text.text() for serial, text in field.entries()}, dict),
        routes=_edges(node, one_of("host", "local", "ICI", "DCN")),
        # Files from before layouts, seconds and actions were recorded have none.
        layouts=optional(_edges(node, Field.text), may_lack=True),
        needed=Form(
            lambda field: {node: (line, count) for node, line, count in waits.read(field)},
            lambda needed: [(node, *waited) for node, waited in needed.items()],
        ),
        nodes=list_of(
            record(
                Node,
                id=Field.whole,
                kind=one_of(*get_args(NodeKind)),
                name=Field.text,
                inputs=of_values,
                outputs=of_values,
                line=Field.text,
                parts=Field.texts,
                seconds=optional(partial(Field.seconds, most=MOST_SECONDS), may_lack=True),
                action=optional(_ACTION, may_lack=True),
                place=optional(Form(partial(_placed, places=places), lambda place: place.serial)),
            )
        ),
        values=list_of(record(Value, id=Field.whole, shape=Field.wholes, dtype=Field.text, bytes=Field.whole)),
    )


def _edges(node: Callable[[Field], int], text: Declared[str]) -> Form[dict[tuple[int, int], str]]:
    """Return the form of a text for each of some edges: a list of source, target and text."""
    rows = list_of(row(tuple, node, node, text))
    return Form(
        lambda field: {(source, target): text for source, target, text in rows.read(field)},
        lambda edges: [(*edge, text) for edge, text in edges.items()],
    )


def to_json(program: ExecutedProgram) -> dict[str, Any]:
    """Return a program as JSON values."""
    graph = program.graph
    form = _form({}, len(graph.nodes), len(graph.values))
    of_graph = {"name": graph.name, "places": graph.places, "nodes": graph.nodes, "values": graph.values}
    return form.write(SimpleNamespace(**vars(program), **of_graph))


def from_json(field: Field, places: dict[int, VirtualSlice]) -> ExecutedProgram:
    """Return a program from JSON values.

    Args:
        field: the program, as ``to_json`` returned it.
        places: virtual slices by their serial in the file; filled here and shared by all programs of the file.

    Raises:
        DamagedError: naming the field that is wrong.
    """
    found = _form(places, field["nodes"].length(), field["values"].length()).read(field)
    _check_graph(field.where, found.nodes, found.values)
    # From serials of the file to those of this process.
    where = {places[serial].serial: text for serial, text in found.where.items() if serial in places}
    graph = Graph(found.name, found.nodes, found.values)
    return ExecutedProgram(graph, where, found.routes, found.runs, found.needed, found.layouts or {})


def _read_places(places: dict[int, VirtualSlice], field: Field) -> None:
    """Add the virtual slices of a program to those of the programs before it.

    Raises:
        DamagedError: the sizes and names of one do not match, or are too many.
    """
    for serial, written in field.entries():
        if serial in places:
            continue
        sizes, names, island, name = _PLACE.read(written)
        if not sizes or len(sizes) != len(names) or len(set(names)) != len(names) or len(sizes) > _AXES:
            raise DamagedError(f"{written.where} has the shape {sizes} and the axes {names}, not a name for each size")
        # With a new serial: the one in the file may be in use by a slice of this process.
        places[serial] = VirtualSlice(sizes, names, island, name)


def _written_places(places: Sequence[VirtualSlice]) -> dict[int, Any]:
    return {place.serial: _PLACE.write((place.shape, place.axes, place.island, place.label)) for place in places}


def _placed(field: Field, places: Mapping[int, VirtualSlice]) -> VirtualSlice:
    """Return the virtual slice of a node.

    Raises:
        DamagedError: the file does not describe it.
    """
    serial = field.whole()
    if serial not in places:
        raise DamagedError(f"{field.where} is {serial}, a place that the file does not describe")
    return places[serial]


def _check_graph(where: str, nodes: Sequence[Node], values: Sequence[Value]) -> None:
    """Check that nodes and values are numbered by position, and that every value is made once, before it is read.

    Args:
        where: path of the program in the file.
        nodes: in their order.
        values: by number.

    Raises:
        DamagedError: naming the node or value that is wrong.
    """
    parts: dict[str, Sequence[Node | Value]] = {"values": values, "nodes": nodes}
    for part, rows in parts.items():
        for number, one in enumerate(rows):
            if one.id != number:
                raise DamagedError(f"{where}.{part}[{number}].id is {one.id}, not its position {number}")
    # Nodes stand in an order that respects their dependencies, so one pass finds every cycle and dangling input.
    made: set[int] = set()
    for node in nodes:
        wrong = ""
        if len(set(node.outputs)) != len(node.outputs):
            wrong = f"makes one value twice: {node.outputs}"
        elif (node.place is None) != (node.kind in ("argument", "result")):
            wrong = f"is of kind {node.kind!r} and has {'no' if node.place is None else 'a'} place"
        elif unknown := [value for value in node.inputs if value not in made]:
            wrong = f"reads the value {unknown[0]}, which no node before it makes"
        elif twice := [value for value in node.outputs if value in made]:
            wrong = f"makes the value {twice[0]}, which another node makes"
        # One node at a time, in order: what comes after a wrong one may be wrong because of it.
        if wrong:
            raise DamagedError(f"{where}.nodes[{node.id}] {wrong}")
        made.update(node.outputs)
