"""The picture of a step's modules: levels, what each card opens, what links it to the timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pathways_nb.plan.source_texts import SourceTexts
from pathways_nb.trace.op_graph import GraphEdge, GraphOp, OpGraph
from pathways_widgets import figure_of
from pathways_widgets.drawing import palette
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.graph.module_columns import SOURCES, WIDTH, columns_of
from pathways_widgets.graph.module_tree import MOST, costliest, tree_of
from pathways_widgets.graph.module_view import ModuleView
from tests.core.widgets.fake_run import fake_run

BLOCK = "layers × 32"
LINES = ((1, "x = embed(tokens)"), (2, "    q = x @ <query>"), (3, "    return q"))
GRAPH = OpGraph(
    (
        GraphOp(("L", "embed"), "gather", "compute", "forward", "m.py:1", 1, 1e-3, 0.0),
        GraphOp(("L", BLOCK, "attention"), "all-gather", "collective", "forward", "m.py:2", 32, 4e-3, 3e-3, True),
        GraphOp(("L", BLOCK, "attention"), "dot_general", "compute", "forward", "m.py:2", 32, 8e-3, 0.0, True),
        GraphOp(("L", BLOCK, "mlp"), "dot_general", "compute", "forward", "m.py:3", 32, 9e-3, 0.0, True),
        GraphOp(("L", BLOCK, "mlp"), "dot_general", "compute", "backward", "m.py:3", 32, 9e-3, 0.0, True),
        GraphOp(("optimizer",), "mul", "compute", "optimizer", "", 9, 1e-3, 0.0),
    ),
    (
        GraphEdge(0, 2, 1e6), GraphEdge(1, 2, 5e6), GraphEdge(2, 3, 8e6), GraphEdge(3, 4, 8e6), GraphEdge(4, 1, 2e6),
        GraphEdge(4, 5, 1e6), GraphEdge(0, 5, 1.0),
    ),
    SourceTexts({"m.py": LINES}),
)  # fmt: skip


def rows(level: int, **wanted: object) -> list[dict[str, object]]:
    """The cards of a level, those with some values."""
    columns = columns_of(GRAPH, "step")["graph_nodes"]
    every = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [row for row in every if row["level"] == level and all(row[key] == one for key, one in wanted.items())]


def test_a_step_begins_with_its_modules_and_repeated_blocks_are_one_card():
    assert [row["name"] for row in rows(0)] == ["embed", f"{BLOCK} ▸", "optimizer"]
    (block,) = rows(0, title=BLOCK)
    assert block["sub"] == "30 ms · 3 ms exposed"
    assert block["runs"] == "128 executions a step"
    inside = rows(block["opens"])
    assert [row["name"] for row in inside] == ["↑ back", "attention ▸", "mlp ▸"]
    assert (inside[0]["back"], inside[0]["opens"]) == (1, 0)
    (mlp,) = (row for row in inside if row["title"] == "mlp")
    assert [row["name"] for row in rows(mlp["opens"])] == ["↑ back", "dot_general", "dot_general (bwd)"]
    assert rows(mlp["opens"], name="dot_general (bwd)")[0]["outline"] == palette.GREEN


def test_ids_are_those_of_the_bars_of_all_its_operations_and_of_the_blocks_not_compiled():
    (block,) = rows(0, title=BLOCK)
    assert set(block["ids"].split()) == {f"step#{number}" for number in (2, 3, 4, 5, 7)}
    assert rows(0, title="embed")[0]["ids"] == "step#1"


def test_a_strip_is_as_long_as_the_share_of_the_longest_card():
    embed, block, _ = rows(0)
    longest = block["collective"] - block["begin"]
    assert np.isclose(block["compute"] - block["begin"], longest * 17 / 29)
    assert np.isclose((embed["compute"] - embed["begin"]) / longest, 1 / 29)
    assert embed["backward"] == embed["compute"]


def test_edges_are_between_the_cards_of_a_level_and_small_ones_are_left_out():
    touch = columns_of(GRAPH, "step")["graph_touch"]
    found = {
        (ends, amount) for ends, amount, level in zip(touch["ends"], touch["amount"], touch["level"], strict=True)
        if level == 0
    }  # fmt: skip
    assert found == {(f"embed → {BLOCK}", "1 MB a step"), (f"{BLOCK} → optimizer", "1 MB a step")}
    both = dict(zip(touch["ends"], touch["amount"], strict=True))
    assert both["attention → mlp"] == "8 MB a step · 2 MB a step backwards"


def test_no_card_covers_another_and_all_are_in_view():
    columns = columns_of(GRAPH, "step")
    for level in range(len(columns["graph_levels"]["height"])):
        boxes = [(row["x"], row["y"], row["width"], row["height"]) for row in rows(level)]
        for number, (x, y, wide, high) in enumerate(boxes):
            assert x - wide / 2 >= 0
            assert x + wide / 2 <= WIDTH
            assert y + high / 2 <= columns["graph_levels"]["height"][level]
            for a, b, c, d in boxes[:number]:
                assert abs(x - a) >= (wide + c) / 2 or abs(y - b) >= (high + d) / 2


def test_the_lines_around_each_line_come_with_it():
    columns = columns_of(GRAPH, "step")
    assert columns["graph_levels"]["line"][0] == "m.py:3" == costliest(GRAPH.ops)
    texts = dict(zip(columns["graph_texts"]["line"], columns["graph_texts"]["text"], strict=True))
    assert texts["m.py:1"].split("\n")[1] == "    q = x @ <query>"
    assert set(texts) == {"m.py:1", "m.py:2", "m.py:3"}


def test_what_would_crowd_a_picture_is_one_card_that_opens():
    many = OpGraph(tuple(GRAPH.ops[0]._replace(path=(f"part{chr(97 + n)}",), seconds=1.0) for n in range(26)))
    (rest,) = [part for part in tree_of(many, "step").parts if part.name == "9 short ones"]
    assert len(tree_of(many, "step").parts) == MOST
    assert len(rest.parts) == 9


def test_a_page_has_every_level_and_a_still_picture_the_first():
    run = replace(fake_run(), op_graph=GRAPH)
    item = figure_of(run, ("modules", "timeline"))
    assert "could not be drawn" not in item["summary"]
    svg = scene_of(run, ("modules",)).svg()
    assert f"{BLOCK} ▸" in svg
    assert "attention" not in svg
    view = ModuleView()
    assert view.update(run) is view.update(run), "kept while nothing changes"
    assert set(view.sources) == set(SOURCES)
    empty = ModuleView()
    assert not empty.update(fake_run())["graph_nodes"]["x"]
    assert scene_of(fake_run(), ("modules",)).shapes
