"""Lowering: random graphs become plans whose order, slots, lifetimes and routes are right. No JAX, no devices."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.plan.graph import Graph, Node, Value
from pathways_nb.plan.plan import Placement, Plan, route
from pathways_nb.plan.plan_lowering import lower
from tests.support.examples import examples


@dataclass
class Sample:
    """A random program: its plan, and what it was made from."""

    graph: Graph
    placements: dict[int, Placement]
    arguments: tuple[int, ...]
    plan: Plan


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """A random DAG over up to four places on up to three islands, with work on devices and on their hosts."""
    places = [pw.virtual_slice(2) for _ in range(draw(st.integers(1, 4)))]
    where = {p.serial: Placement(draw(st.integers(0, 2)), draw(st.sampled_from([0, 2])), 2) for p in places}
    arguments = tuple(range(draw(st.integers(0, 3))))
    values = list(arguments)
    nodes = [Node(0, "argument", "args", None, (), arguments)]
    for index in range(draw(st.integers(1, 7))):
        inputs = tuple(draw(st.lists(st.sampled_from(values), max_size=3))) if values else ()
        outputs = tuple(range(len(values), len(values) + draw(st.integers(1, 2))))
        values += outputs
        kind = draw(st.sampled_from(["computation", "host"]))
        nodes.append(Node(index + 1, kind, f"n{index}", draw(st.sampled_from(places)), inputs, outputs))  # type: ignore[arg-type]
    results = tuple(draw(st.lists(st.sampled_from(values), max_size=4)))
    nodes.append(Node(len(nodes), "result", "result", None, results, ()))
    graph = Graph("sample", tuple(nodes), tuple(Value(i, (2,), "float32", 8) for i in range(len(values))))
    return Sample(graph, where, arguments, lower(graph, where, arguments, places[0]))


checked = examples(150)


@given(samples())
@checked
def test_every_slot_is_made_once_and_before_it_is_read(sample: Sample) -> None:
    made: dict[int, int] = {}
    for index, step in enumerate(sample.plan.steps):
        assert all(slot in made for slot in step.inputs)
        assert {made[slot] for slot in step.inputs} == set(step.producers)
        for slot in step.outputs:
            assert slot not in made
            made[slot] = index
            assert sample.plan.slots[slot].place == step.place
    assert all(slot in made for slot in sample.plan.results)
    assert sorted(made) == list(range(len(sample.plan.slots)))


@given(samples())
@checked
def test_each_launch_reads_its_own_places_values_in_the_nodes_order(sample: Sample) -> None:
    nodes = {node.id: node for node in sample.graph.nodes}
    launched = []
    for step in sample.plan.steps:
        if step.kind in ("launch", "host"):
            launched.append(step.node)
            node = nodes[step.node]
            assert (step.kind == "host") == (node.kind == "host") == step.on_host
            assert sample.plan.placements[step.place] == sample.plan.location(node)
            assert step.on_host or step.place == node.place.serial  # type: ignore[union-attr]
            assert tuple(sample.plan.slots[s].value for s in step.inputs) == node.inputs
            assert tuple(sample.plan.slots[s].value for s in step.outputs) == node.outputs
            assert all(sample.plan.slots[s].place == step.place for s in step.inputs)
    assert launched == [node.id for node in sample.graph.nodes if node.place is not None]
    results = tuple(sample.plan.slots[slot].value for slot in sample.plan.results)
    inputs = sample.graph.nodes[-1].inputs
    assert results == (*inputs, *(inputs[position] for position in sample.plan.copies))
    assert all(sample.plan.slots[slot].place >= 0 for slot in sample.plan.results), "results lie on devices"
    copies = list(zip(sample.plan.copies, sample.plan.results[len(inputs) :], strict=True))
    assert len(set(copies)) == len(copies), "each copy lies at a place of its own"


@given(samples())
@checked
def test_values_travel_once_per_place_and_only_between_places(sample: Sample) -> None:
    seen = set()
    for step in sample.plan.steps:
        if step.kind in ("launch", "host"):
            continue
        (slot,) = step.outputs
        value = sample.plan.slots[slot].value
        assert (value, step.place) not in seen
        seen.add((value, step.place))
        if step.kind == "bring":
            assert step.inputs == ()
            assert sample.arguments[sample.plan.leaves[step.argument]] == value
        else:
            source = sample.plan.slots[step.inputs[0]]
            assert source.value == value
            assert source.place != step.place
            places = sample.plan.placements
            assert step.route == route(places[source.place], places[step.place])


@given(samples())
@checked
def test_orders_are_the_programs_order_split_by_island(sample: Sample) -> None:
    everything = sorted(index for order in sample.plan.orders.values() for index in order)
    assert everything == list(range(len(sample.plan.steps)))
    for island, order in sample.plan.orders.items():
        assert list(order) == sorted(order)
        assert {sample.plan.steps[i].island for i in order} == {island}
    assert all(sample.plan.placements[s.place].island == s.island for s in sample.plan.steps)


@given(samples())
@checked
def test_each_slot_is_let_go_after_its_last_reader_on_each_island_and_host_and_results_never(sample: Sample) -> None:
    steps, results = sample.plan.steps, set(sample.plan.results)
    readers: dict[int, dict[int, int]] = {}
    for index, step in enumerate(steps):
        for slot in step.inputs:
            readers.setdefault(slot, {})[step.reader] = index
    freed: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        assert len(set(step.last)) == len(step.last)
        for slot in step.last:
            freed.setdefault(slot, []).append(index)
    maker = {slot: index for index, step in enumerate(steps) for slot in step.outputs}
    for slot in maker:
        last = sorted(readers.get(slot, {}).values())
        expected = [] if slot in results else last or [maker[slot]]
        assert sorted(freed.get(slot, [])) == expected, slot
    shared = {slot: frozenset(where) for slot, where in readers.items() if len(where) > 1 and slot not in results}
    assert sample.plan.readers == shared


@given(samples())
@checked
def test_edges_have_the_routes_of_their_places(sample: Sample) -> None:
    place = {node.id: sample.plan.location(node) for node in sample.graph.nodes}
    found = sample.plan.routes()
    assert set(found) == {(e.source, e.target) for e in sample.graph.edges()}
    for (source, target), name in found.items():
        one, other = place[source], place[target]
        if one is not None and other is not None:
            inside = "host" if one.is_host or other.is_host else "ICI"
            assert name == ("local" if one == other else inside if one.island == other.island else "DCN")
        else:
            assert name == ("local" if one is other else "host")


def test_routes_have_the_papers_names() -> None:
    here, beside, away = Placement(0, 0, 2), Placement(0, 2, 2), Placement(1, 0, 2)
    assert (route(here, here), route(here, beside), route(here, away)) == ("local", "ICI", "DCN")
    host, other = Placement(0, 0, 0), Placement(1, 0, 0)
    assert (route(host, here), route(here, host), route(host, host)) == ("host", "host", "local")
    assert (route(host, away), route(host, other)) == ("DCN", "DCN")
    assert str(host) == "island 0, host"


def test_host_work_is_a_gang_of_its_own_between_what_it_reads_and_its_readers() -> None:
    """An argument and a computation's output go to the host; what comes back goes to devices once."""
    place = pw.virtual_slice(2)
    nodes = (
        Node(0, "argument", "x", None, (), (0,)),
        Node(1, "computation", "f", place, (0,), (1,)),
        Node(2, "host", "prepare", place, (0, 1), (2,)),
        Node(3, "host", "again", place, (2,), (3,)),
        Node(4, "computation", "g", place, (3, 2), (4,)),
        Node(5, "result", "result", None, (4, 3), ()),
    )
    graph = Graph("p", nodes, tuple(Value(i, (2,), "float32", 8) for i in range(5)))
    where = Placement(1, 0, 2)
    plan = lower(graph, {place.serial: where}, (0,), place)
    assert [(step.kind, step.on_host) for step in plan.steps] == [
        ("bring", False), ("launch", False), ("bring", True), ("move", True), ("host", True), ("host", True),
        ("move", False), ("move", False), ("launch", False),
    ]  # fmt: skip
    assert [(gang.node, gang.devices) for gang in plan.gangs[1]] == [(1, 2), (2, 0), (3, 0), (4, 2)]
    assert plan.again == ()
    assert plan.has_host_work
    assert plan.where() == {place.serial: "island 1, dev 0–1"}
