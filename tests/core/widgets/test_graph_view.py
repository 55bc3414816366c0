"""The graph's picture: layers respect dependencies, nothing overlaps, nodes fold, edges say what they carry."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from pathways_nb.plan.graph import Graph, Node, Value
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.trace.metrics import duration, size
from pathways_nb.trace.record import Events
from pathways_widgets.drawing import style
from pathways_widgets.drawing.scene import Curve, Text
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.views import Columns
from pathways_widgets.graph.folding import drawn
from pathways_widgets.graph.graph_labels import EdgeCurve, Labels
from pathways_widgets.graph.graph_view import GraphView
from pathways_widgets.graph.layered_layout import layered, layers_of
from tests.core.widgets.fake_run import FakeProgram, FakeRun, fake_run, places, training_step, unrolled


def sources_of(*programs: FakeProgram) -> dict[str, Columns]:
    run = fake_run()
    run.programs = list(programs)
    return GraphView().update(run)


def random_edges(count: int, seed: int) -> list[tuple[int, int]]:
    draw = random.Random(seed)
    near = [(node - draw.randint(1, min(node, 12)), node) for node in range(1, count)]
    return sorted({*near, *((draw.randrange(node), node) for node in range(1, count, 7))})


@pytest.mark.parametrize("seed", range(5))
def test_layers_respect_every_edge(seed: int) -> None:
    edges = random_edges(120, seed)
    layer = layers_of(120, edges)
    assert all(layer[source] < layer[target] for source, target in edges)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_of_a_layer_keep_their_distance(seed: int) -> None:
    layout = layered([20.0] * 120, random_edges(120, seed), gap=16)
    rows: dict[int, list[float]] = {}
    for layer, y in zip(layout.layer, layout.y, strict=True):
        rows.setdefault(layer, []).append(y)
    for row in rows.values():
        row.sort()
        assert all(below - above >= 36 - 1e-6 for above, below in itertools.pairwise(row))
    assert min(layout.y) >= 10 - 1e-6
    assert max(layout.y) <= layout.height - 10 + 1e-6


def test_a_thousand_nodes_take_well_under_a_second() -> None:
    edges = random_edges(1000, 1)
    began = time.process_time()
    layered([20.0] * 1000, edges)
    assert time.process_time() - began < 1.0


def test_cycles_and_empty_graphs_are_tolerated() -> None:
    assert layered([20.0] * 3, [(0, 1), (1, 2), (2, 0)]).layer == [0, 1, 2]
    assert layered([], []).height == 0.0


def test_arguments_stand_next_to_their_first_consumer() -> None:
    assert layers_of(4, [(0, 1), (1, 3), (2, 3)]) == [0, 1, 1, 2]


def test_a_training_step_is_drawn_once_with_its_runs() -> None:
    sources = sources_of(training_step())
    assert sources["graph_titles"]["text"] == ["train_step ×200"]
    names = sources["graph_nodes"]["name"]
    assert names == ["batch", "params", "stage0", "stage1", "stage1 (bwd)", "stage0 (bwd)", "result"]
    assert sources["graph_nodes"]["sub"][2] == "left\nisland 0, dev 0–3"
    assert sources["graph_labels"]["text"] == ["2.05 KB DCN", "2.05 KB DCN"]
    assert sources["graph_legend"]["text"] == ["left · island 0, dev 0–3", "right · island 1, dev 0–3"]
    assert sources["graph_nodes"]["line"][2] == "Cell In[3], line 4"


def test_host_work_is_drawn_as_what_it_is() -> None:
    place = VirtualSlice((4,), ("x",), 0, "left")
    nodes = (
        Node(0, "host", "load", place, (), (0,)),
        Node(1, "computation", "step", place, (0,), (1,)),
        Node(2, "result", "result", None, (1,), ()),
    )
    values = tuple(Value(i, (4,), "float32", 16) for i in range(2))
    where = {place.serial: "island 0, dev 0–3"}
    program = FakeProgram(Graph("epoch", nodes, values), where, {(0, 1): "host", (1, 2): "host"})
    drawn_nodes = sources_of(program)["graph_nodes"]
    assert drawn_nodes["kind"] == ["host", "computation", "result"]
    assert drawn_nodes["sub"][:2] == ["left\nisland 0, host", "left\nisland 0, dev 0–3"]
    assert drawn_nodes["place"][0] == "left · island 0, host"
    assert drawn_nodes["outline"][0] == drawn_nodes["outline"][1]
    assert drawn_nodes["fill"][0] != drawn_nodes["fill"][1]


def test_columns_of_a_source_are_equally_long_and_boxes_do_not_overlap() -> None:
    sources = sources_of(training_step(), unrolled())
    for columns in sources.values():
        assert len({len(values) for values in columns.values()}) == 1
    nodes = sources["graph_nodes"]
    boxes = list(zip(nodes["x"], nodes["y"], nodes["width"], nodes["height"], strict=True))
    for i, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:i]:
            apart = abs(x - other_x) >= (width + other_width) / 2, abs(y - other_y) >= (height + other_height) / 2
            assert any(apart)


def test_a_long_program_is_folded() -> None:
    nodes, edges = drawn(unrolled(20))
    titles = [node.title for node in nodes]
    assert titles == ["params", "stage0 ×20", "stage1 ×20", "stage1 (bwd) ×20", "stage0 (bwd) ×20", "result"]
    sent = {(edge.source, edge.target): edge for edge in edges}
    assert sent[1, 2].bytes == 20 * 1024
    assert sent[1, 2].route == "DCN"
    assert (4, 1) in sent  # the next microbatch waits for this one: a cycle


def test_arguments_of_repeated_calls_are_one_box_but_those_of_others_are_not() -> None:
    left, _ = places()
    values = tuple(Value(i, (256,), "float32", 1024) for i in range(130))
    nodes: list[Node] = []
    for call in range(31):
        name = f"v_{call}" if call else "v"
        nodes.append(Node(2 * call, "argument", name, None, (), (2 * call,)))
        nodes.append(Node(2 * call + 1, "computation", "double", left, (2 * call,), (2 * call + 1,)))
    nodes += [Node(62, "argument", "v_31", None, (), (62,)), Node(63, "computation", "total", left, (62,), (63,))]
    program = FakeProgram(Graph("calls", tuple(nodes), values), {}, {})
    assert [node.title for node in drawn(program)[0]] == ["v ×31", "double ×31", "v_31", "total"]


@pytest.mark.parametrize(
    ("leaves", "titles"), [(7, ["state", *(f"state_{i}" for i in range(1, 7))]), (8, ["state ×8"])]
)
def test_the_leaves_of_a_model_are_one_box_once_they_are_many(leaves: int, titles: list[str]) -> None:
    left, _ = places()
    values = tuple(Value(i, (256,), "float32", 1024) for i in range(leaves + 3))
    names = ["state", *(f"state_{i}" for i in range(1, leaves)), "x"]
    nodes = [Node(i, "argument", name, None, (), (i,)) for i, name in enumerate(names)]
    nodes.append(Node(leaves + 1, "computation", "step", left, tuple(range(leaves + 1)), (leaves + 1,)))
    nodes.append(Node(leaves + 2, "computation", "step", left, (leaves + 1,), (leaves + 2,)))
    program = FakeProgram(Graph("train", tuple(nodes), values), {}, {})
    assert [node.title for node in drawn(program)[0]] == [*titles, "x", "step", "step"]


def test_an_edge_says_under_the_pointer_how_its_values_are_laid_out() -> None:
    step = training_step()
    step.layouts = {(2, 3): "float32[512] as P('x') on left → P() on right"}
    touch = sources_of(step)["graph_touch"]
    rows = set(zip(touch["ends"], touch["amount"], touch["layouts"], strict=True))
    assert ("stage0 → stage1", "2.05 KB, DCN", "float32[512] as P('x') on left → P() on right") in rows
    assert ("batch → stage0", "4.1 KB, host", "not recorded") in rows
    assert len(rows) == len(drawn(step)[1])


def test_a_folded_edge_names_each_layout_once_and_not_too_many() -> None:
    program = unrolled(20)
    edges = [(edge.source, edge.target) for edge in program.graph.edges()]
    program.layouts = dict.fromkeys(edges, "as P()")
    assert {edge.layouts for edge in drawn(program)[1]} == {"as P()"}
    program.layouts = {edge: f"as {number}" for number, edge in enumerate(edges)}
    assert all(edge.layouts.count("as") <= 3 for edge in drawn(program)[1])
    assert any(edge.layouts.endswith("; …") for edge in drawn(program)[1])


def test_a_place_keeps_its_colour_over_programs() -> None:
    step = training_step()
    nodes = sources_of(step, FakeProgram(step.graph, step.where, step.routes, 3))["graph_nodes"]
    colours = {
        (name, place): colour for name, place, colour in zip(nodes["name"], nodes["place"], nodes["fill"], strict=True)
    }
    assert len({colour for (_, place), colour in colours.items() if place.startswith("left")}) == 1
    assert len(set(colours.values())) == 3


def test_an_unchanged_run_is_not_laid_out_again() -> None:
    view, run = GraphView(), fake_run()
    first = view.update(run)
    assert view.update(run) is first
    run.programs[0].runs += 1
    assert view.update(run)["graph_titles"]["text"] == ["train_step ×201"]


def test_many_programs_are_counted_not_drawn() -> None:
    titles = sources_of(*(training_step(f"p{i}", 1) for i in range(15)))["graph_titles"]["text"]
    assert len(titles) == 13
    assert titles[-1] == "… and 3 more programs"


def test_a_value_that_python_needed_has_a_tab_under_the_box_that_makes_it() -> None:
    step = training_step()
    assert sources_of(step)["graph_needed"]["text"] == []
    step.needed = {3: ("Cell In[4], line 3", 10)}
    sources = sources_of(step)
    tab, nodes = sources["graph_needed"], sources["graph_nodes"]
    assert tab["text"] == ["← value needed ×10\nCell In[4], line 3"]
    box = nodes["name"].index("stage1")
    assert [i for i, text in enumerate(nodes["needed"]) if text] == [box]
    assert nodes["needed"][box] == "Cell In[4], line 3"
    assert (tab["x"][0], tab["width"][0]) == (nodes["x"][box], nodes["width"][box])
    assert tab["y"][0] - tab["height"][0] / 2 == pytest.approx(nodes["y"][box] + nodes["height"][box] / 2)


def test_a_tab_has_room_of_its_own_and_a_new_one_is_drawn() -> None:
    view, run = GraphView(), fake_run()
    view.update(run)
    run.programs[0].needed = dict.fromkeys(range(7), ("train.py:12", 1))
    sources = view.update(run)
    assert set(sources["graph_needed"]["text"]) == {"← value needed\ntrain.py:12"}
    parts = [list(zip(*(sources[name][side] for side in ("x", "y", "width", "height")), strict=True))
             for name in ("graph_nodes", "graph_needed")]  # fmt: skip
    for (x, y, width, height), (other_x, other_y, other_width, other_height) in itertools.product(*parts):
        assert (
            abs(x - other_x) >= (width + other_width) / 2 - 1e-6
            or abs(y - other_y) >= (height + other_height) / 2 - 1e-6
        )


def test_folded_nodes_share_a_tab_with_the_first_line_and_all_counts() -> None:
    pipeline = unrolled(20)
    ends = [node.id for node in pipeline.graph.nodes if node.name == "stage1"]
    pipeline.needed = {ends[1]: ("train.py:9", 2), ends[0]: ("train.py:4", 1)}
    assert sources_of(pipeline)["graph_needed"]["text"] == ["← value needed ×3\ntrain.py:9"]


def test_an_empty_run_is_an_empty_picture() -> None:
    run: FakeRun = fake_run()
    run.programs = [FakeProgram(Graph("empty", (), ()), {}, {})]
    assert GraphView().update(run)["graph_nodes"]["x"] == []
    run.programs = []
    assert GraphView().update(run)["graph_titles"]["text"] == []


def test_wide_chains_lose_their_second_line_first() -> None:
    step = training_step()
    place = step.graph.places[0]
    nodes = tuple(Node(i, "computation", f"layer{i}", place, (i - 1,) if i else (), (i,)) for i in range(10))
    graph = Graph("chain", nodes, tuple(Value(i, (1,), "float32", 4) for i in range(10)))
    assert set(sources_of(FakeProgram(graph, step.where, {}))["graph_nodes"]["sub"]) == {""}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (2048, "2.05 KB"), (1_500_000, "1.5 MB"), (999_999, "1 MB"), (4e13, "40 TB")],
)
def test_sizes_are_written_as_people_say_them(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 µs"), (1.5e-5, "15 µs"), (0.99996, "1 s"), (0.0999, "99.9 ms"), (1234.5, "1234 s"), (0.25, "250 ms")],
)
def test_durations_are_written_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_deep_graph_is_folded_until_it_fits_and_names_keep_their_ends() -> None:
    place = VirtualSlice((4,), ("x",), 0, "left")
    name = "a_rather_long_name_for_a_layer_of_a_model (bwd)"
    nodes = tuple(Node(i, "computation", name, place, (i - 1,) if i else (), (i,)) for i in range(9))
    graph = Graph("chain", nodes, tuple(Value(i, (1,), "float32", 4) for i in range(9)))
    view = GraphView()
    columns = view.update(FakeRun([FakeProgram(graph, {}, {})], Events.from_rows([])))["graph_nodes"]
    assert [text.split("…")[1] for text in columns["name"]] == [" (bwd) ×9"]
    assert "drag" not in view.sources["graph_titles"]["text"][0]


def test_names_too_wide_for_one_line_have_two() -> None:
    place = VirtualSlice((4,), ("x",), 0, "left")
    nodes = tuple(
        Node(i, "computation", f"layer_number_{i} (bwd)", place, (i - 1,) if i else (), (i,)) for i in range(8)
    )
    graph = Graph("chain", nodes, tuple(Value(i, (1,), "float32", 4) for i in range(8)))
    columns = GraphView().update(FakeRun([FakeProgram(graph, {}, {})], Events.from_rows([])))["graph_nodes"]
    assert (columns["name"][0], columns["sub"][0]) == ("layer_number_0", "(bwd)")


def test_a_place_keeps_its_colour_from_picture_to_picture() -> None:
    def colour(*names: str) -> dict[str, str]:
        places = [VirtualSlice((4,), ("x",), 0, name) for name in names]
        nodes = tuple(Node(i, "computation", "f", place, (), (i,)) for i, place in enumerate(places))
        graph = Graph("g", nodes, tuple(Value(i, (1,), "float32", 4) for i in range(len(names))))
        columns = GraphView().update(FakeRun([FakeProgram(graph, {}, {})], Events.from_rows([])))["graph_nodes"]
        return {text.split(" ")[0]: outline for text, outline in zip(columns["place"], columns["outline"], strict=True)}

    first = colour("encoder", "decoder")
    assert len(set(first.values())) == 2
    assert colour("decoder")["decoder"] == first["decoder"]
    again = colour("other", "decoder", "encoder")
    assert {name: again[name] for name in first} == first
    assert len(set(colour(*map(str, range(7))).values())) == 7


def test_a_label_stands_on_its_edge_where_it_covers_neither_box_nor_label() -> None:
    flat, after = EdgeCurve(0, 0, 100, 0, 50, 0, 50, 0), EdgeCurve(100, 0, 200, 0, 150, 0, 150, 0)
    labels = Labels([{"x": 50, "y": 0, "width": 100, "height": 30}])
    assert labels.place([flat, after], "2 KB ICI") == (150, -9)
    assert labels.place([EdgeCurve(100, 0, 200, 0, 100, 0, 250, 0), after], "2 KB DCN")[0] > 190
    assert Labels([]).place([flat], "1 B ICI") == (50, -9)


def chain(count: int) -> FakeProgram:
    """One computation after another, each of a name of its own, in turn on two islands."""
    left, right = VirtualSlice((4,), ("x",), 0, "left"), VirtualSlice((4,), ("x",), 1, "right")
    values = tuple(Value(i, (256,), "float32", 1024) for i in range(count))
    nodes = tuple(
        Node(i, "computation", f"computation {i:02}", (left, right)[i % 2], (i - 1,) if i else (), (i,))
        for i in range(count)
    )
    routes = {(i - 1, i): "DCN" for i in range(1, count)}
    return FakeProgram(Graph("chain", nodes, values), {}, routes)


@pytest.mark.parametrize("style_name", ["screen", "projector"])
def test_a_wide_graph_of_a_still_picture_is_in_strips_and_stays_readable(style_name: str) -> None:
    run = fake_run()
    run.programs = [chain(20)]
    style.choose(style_name)
    try:
        shapes, height = GraphView().still(run, 900.0, 0.0)
        font = style.current().font
    finally:
        style.choose("screen")
    words = [one for one in shapes if isinstance(one, Text)]
    named = {one.text: one for one in words if one.text.startswith("computation ")}
    assert sorted(named) == [f"computation {i:02}" for i in range(20)]
    assert all(one.size >= 0.8 * font for one in named.values())
    rows = [{name: one for name, one in named.items() if one.y == y} for y in sorted({one.y for one in named.values()})]
    assert len(rows) > 1
    for row in rows:
        assert [name for name, _ in sorted(row.items(), key=lambda pair: pair[1].x)] == sorted(row), "in order"
    assert [name for row in rows for name in sorted(row)] == sorted(named), "strip after strip"
    for one in words:
        half = text_width(one.text, one.size) / 2
        assert half - 2 <= one.x <= 900 - half + 2 or one.align == "start"
    ends = [point for one in shapes if isinstance(one, Curve) for point in one.points]
    assert all(-1 <= x <= 901 and 0 <= y <= height for x, y in ends)
