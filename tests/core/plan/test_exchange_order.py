"""Exchanges in plans: buckets are neighbours that fit, and what is added elsewhere moves as soon as it is made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.plan.exchange_order import interleaved
from pathways_nb.plan.graph import Graph, Node, Value
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.plan.plan_lowering import lower
from pathways_nb.program.exchange_groups import buckets
from pathways_nb.runtime.sim.makespan import makespan
from tests.support.examples import examples

checked = examples(100)


def test_leaves_share_a_bucket_up_to_its_size_and_a_larger_one_is_alone() -> None:
    assert buckets([3, 3, 3, 20, 1, 9, 1], 10) == [range(3), range(3, 4), range(4, 6), range(6, 7)]
    assert buckets([], 10) == []
    assert buckets([0, 0, 10, 0], 10) == [range(4)]


@given(st.lists(st.integers(0, 30)), st.integers(1, 40))
@checked
def test_buckets_hold_every_leaf_once_in_order_and_no_two_neighbours_would_fit_into_one(sizes, most) -> None:
    found = buckets(sizes, most)
    assert [leaf for bucket in found for leaf in bucket] == list(range(len(sizes)))
    for bucket, after in zip(found, found[1:], strict=False):
        held = sum(sizes[leaf] for leaf in bucket)
        assert held <= most or len([leaf for leaf in bucket if sizes[leaf]]) == 1
        assert held + sizes[after[0]] > most


def backward_passes(islands: int, layers: int, forward: int = 1) -> tuple[Plan, list[pw.VirtualSlice]]:
    """One chain of nodes for each island, traced one island after the other, then a sum of each layer at each place."""
    places = [pw.virtual_slice(2) for _ in range(islands)]
    nodes, values = [Node(0, "argument", "x", None, (), (0,))], 1
    made: list[list[int]] = []
    for place in places:
        last, mine = 0, []
        for layer in range(forward + layers):
            nodes.append(Node(len(nodes), "computation", f"n{layer}", place, (last,), (values,)))
            last, values = values, values + 1
            mine += [last] if layer >= forward else []
        made.append(mine)
    exchanged = tuple(zip(*made, strict=True))
    for parts in exchanged:
        for place in places:
            nodes.append(Node(len(nodes), "computation", "sum", place, parts, (values,)))
            values += 1
    nodes.append(Node(len(nodes), "result", "result", None, (values - 1,), ()))
    known = tuple(Value(value, (2,), "float32", 8) for value in range(values))
    graph = Graph("step", tuple(nodes), known, exchanged=exchanged)
    where = {place.serial: Placement(island, 0, 2) for island, place in enumerate(places)}
    return lower(graph, where, (0,), places[0]), places


@given(st.integers(2, 4), st.integers(1, 5), st.integers(0, 3))
@checked
def test_a_part_moves_right_after_it_is_made_and_sums_come_after_the_backward_pass(islands, layers, forward) -> None:
    plan, _ = backward_passes(islands, layers, forward)
    names = {node.id: node.name for node in plan.graph.nodes}
    for order in plan.orders.values():
        steps = [plan.steps[index] for index in order]
        launches = [names[step.node] for step in steps if step.kind == "launch"]
        assert launches == [f"n{k}" for k in range(forward + layers)] + ["sum"] * layers
        moves = [sum(s.kind == "launch" for s in steps[:at]) for at, step in enumerate(steps) if step.kind == "move"]
        assert len(moves) == layers * (islands - 1)
        for layer in range(layers):
            mine = moves[layer * (islands - 1) : (layer + 1) * (islands - 1)]
            assert all(forward + layer + 1 <= launched <= forward + layer + 2 for launched in mine)


def test_a_program_without_an_exchange_keeps_its_order() -> None:
    plan, places = backward_passes(2, 2)
    plain = Graph("plain", plan.graph.nodes, plan.graph.values)
    found = lower(plain, plan.placements, (0,), places[0])
    assert [s.node for s in found.steps if s.kind == "launch"] == [n.id for n in plain.nodes if n.place is not None]


@given(st.data())
@checked
def test_islands_take_turns_and_keep_their_own_order_and_every_dependency(data) -> None:
    places = [pw.virtual_slice(1) for _ in range(3)]
    nodes = [Node(0, "argument", "x", None, (), (0,))]
    for index in range(1, data.draw(st.integers(1, 12))):
        inputs = tuple(data.draw(st.lists(st.integers(0, index - 1), max_size=2)))
        nodes.append(Node(index, "computation", f"n{index}", data.draw(st.sampled_from(places)), inputs, (index,)))
    island_of = {place.serial: data.draw(st.integers(0, 1)) for place in places}
    graph = Graph("random", tuple(nodes), tuple(Value(i, (), "float32", 4) for i in range(len(nodes))))
    found = interleaved(graph, island_of)
    assert sorted(node.id for node in found) == list(range(1, len(nodes)))
    done = {0}
    for node in found:
        assert done.issuperset(node.inputs)
        done.add(node.id)
    for island in (0, 1):
        mine = [node.id for node in found if island_of[node.place.serial] == island]  # type: ignore[union-attr]
        assert mine == sorted(mine)


def test_without_links_the_exchange_costs_only_its_sums() -> None:
    plan, _ = backward_passes(3, 4)
    seconds = {node.id: 0.25 if node.name == "sum" else 1.0 for node in plan.graph.nodes}
    assert makespan(plan, seconds, "parallel") == 5 + 4 * 0.25
