"""The graph of a step's operations: by module, with repeated blocks as one, what reads what, and the lines' texts."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

import pathways_nb as pw
from pathways_nb.adopt.collective_table import collectives_of
from pathways_nb.adopt.module_graph import graph_of, numbered
from pathways_nb.adopt.predicted_step import PredictedStep
from pathways_nb.adopt.scheduled_depths import ScheduledDepths
from pathways_nb.adopt.step_answers import SavedStep
from pathways_nb.cost.hlo.data_flow import reads_in
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.launch.bands import SecondsBand
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.op_seconds import LaunchPlace, price_of
from pathways_nb.cost.launch.opened_launch import open_launch
from pathways_nb.plan.source_texts import SourceTexts, digest_of_files, parts_of, texts_of
from pathways_nb.trace.launch_ops import Ops
from tests.core.adopt.test_collective_table import TEXT
from tests.support.blocks_of_hlo import blocks_of_hlo

PLACE = LaunchPlace(pw.chip("gpu_h100_sxm"), [{"process": 0}] * 8, 8)
KNOWN = constants("gpu_h100_sxm")


def predicted(*texts: str, depths: tuple[int, ...] = (1,), blocks: int = 1) -> PredictedStep:
    """What follows from programs of several depths; the launch is that of the deepest."""
    modules, price = [parse(text) for text in texts], price_of(PLACE, KNOWN)
    programs = ScheduledDepths.of(modules, 8, price, depths, blocks)
    rows = collectives_of(programs, PLACE, {"d": 8})
    graph, node_of = graph_of(programs, "step", [row.line for row in rows.rows])
    launch = open_launch(texts[-1], PLACE, KNOWN)
    launch = replace(launch, ops=numbered(launch.ops, graph, node_of))
    return PredictedStep(launch, SecondsBand(1.0, 0.5, 2.0), rows, graph)


def step_of(made: PredictedStep) -> SavedStep:
    return SavedStep("step", "gpu_h100_sxm", {"d": 8}, made)


def test_values_are_followed_through_tuples_and_loops():
    names = ["c", "gather", "y", "sum", "part"]
    reads = reads_in(parse(TEXT), names)
    # ``y`` is a product in the loop and, with the same name, the element of the loop's tuple that holds it.
    assert reads == {
        ("c", "gather"): 64 * 512 * 4, ("gather", "y"): 512 * 512 * 4, ("y", "sum"): 64 * 512 * 4,
        ("sum", "part"): 64 * 512 * 4,
    }  # fmt: skip


def test_operations_are_in_their_scope_else_in_the_functions_that_called_them():
    graph = predicted(TEXT).graph
    found = {one.name: one for one in graph.ops}
    assert found["all-gather"].path == ("mlp",)
    assert (found["all-gather"].times, found["all-gather"].line) == (3, "train.py:12")
    assert found["dot_general"].path == ("mlp",)
    assert found["all-reduce"].path == (), "the step itself is no module"
    # What the compiler added is where its value is read.
    assert found["c"].path == ("mlp",)
    assert found["all-gather"].seconds >= found["all-gather"].exposed > 0
    assert found["dot_general"].exposed == 0
    pairs = {(graph.ops[edge.source].name, graph.ops[edge.target].name): edge.bytes for edge in graph.edges}
    assert pairs["all-gather", "dot_general"] == 3 * 512 * 512 * 4, "three passes"


def test_blocks_that_differ_in_their_number_are_one_and_count_those_that_were_not_compiled():
    few, many = blocks_of_hlo(4, 6), blocks_of_hlo(8, 6)
    graph = predicted(few, many, depths=(4, 8), blocks=32).graph
    assert {one.path[:2] for one in graph.ops if one.path[0] == "L"} == {("L", "layers × 32")}
    dots = [one for one in graph.ops if one.name == "dot_general"]
    assert sum(one.times for one in dots) == 32 * 6
    assert all(one.in_others for one in dots)
    assert graph.nodes_of(0)[1:] == (graph.others,) == (len(graph.ops) + 1,)
    two = predicted(blocks_of_hlo(2, 6)).graph
    assert {one.path for one in two.ops} == {("L", "layers_0", "mlp"), ("L", "layers_1", "mlp")}, "two may differ"


def test_an_op_of_the_timeline_has_the_number_of_its_operation():
    made = predicted(TEXT)
    run = step_of(made).timeline()
    graph = run.op_graph
    for op in run.ops:
        assert graph.ops[op.node - 1].line == op.line
        if op.kind not in ("wait", "compute"):
            assert op.name.removesuffix("-start") in ("gather", "sum")
    other = Ops([run.ops.labels[0]._replace(name="9 more blocks")], run.ops.parts()[1])
    assert numbered(other, graph, {}).labels[0].node == graph.others


def test_a_file_keeps_the_graph_and_the_lines_and_one_of_before_opens(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("".join(f"line {n}\n" for n in range(1, 41)))
    step = step_of(predicted(TEXT.replace("/home/me/train.py", str(source))))
    step.save(tmp_path / "a.step")
    source.unlink()
    again = pw.load(tmp_path / "a.step")
    assert again.timeline().op_graph == step.timeline().op_graph
    assert again.collectives().texts.text_of("train.py:12") == "line 12"
    assert str(tmp_path) not in gzip.decompress((tmp_path / "a.step").read_bytes()[17:]).decode()

    data = json.loads(gzip.decompress((tmp_path / "a.step").read_bytes()[17:]))
    assert data["version"] == 2
    data["version"] = 1
    del data["step"]["graph"]
    (tmp_path / "old.step").write_bytes(b"pathways_nb step\n" + gzip.compress(json.dumps(data).encode()))
    old = pw.load(tmp_path / "old.step")
    assert old.collectives() == step.collectives()
    assert old.timeline().op_graph.ops == ()
    data |= {"version": 2}
    data["step"]["graph"] = {"ops": [], "edges": [[0, 1, 5.0]], "texts": {"files": {}}}
    (tmp_path / "bad.step").write_bytes(b"pathways_nb step\n" + gzip.compress(json.dumps(data).encode()))
    with pytest.raises(pw.UsageError, match=r"step\.graph has edges between operations that do not exist"):
        pw.load(tmp_path / "bad.step")


def test_ten_thousand_operations_are_folded_to_few():
    text = blocks_of_hlo(250, 40)
    programs = ScheduledDepths.of([parse(text)], 8, price_of(PLACE, KNOWN))
    assert len(programs.ops[0]) >= 10_000
    graph, _ = graph_of(programs, "step")
    assert len(graph.ops) < 100


def test_texts_are_of_the_lines_that_are_named_and_of_none_that_two_files_may_have(tmp_path):
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "model.py")
        paths[-1].write_text("one\ntwo\n  three < 3\n")
    where = str(paths[0])
    found = texts_of([(where, 3), (where, 1), (where, 99)], ["model.py:3"])
    assert found.around("model.py:3", 1) == ((2, "two"), (3, "  three < 3"))
    assert found.text_of("model.py:3") == "three < 3"
    assert found.text_of("model.py:9") == found.text_of("") == ""
    assert texts_of([(where, 3), (str(paths[1]), 3)], ["model.py:3"]) == SourceTexts()
    assert texts_of([(str(tmp_path / "gone.py"), 3)], ["gone.py:3"]) == SourceTexts()
    both = digest_of_files(map(str, paths))
    assert both == digest_of_files(map(str, reversed(paths)))
    paths[1].write_text("one\ntwo # other\n")
    assert digest_of_files(map(str, paths)) != both, "a prediction that was kept shows lines as they are"
    assert parts_of("Cell In[3], line 12") == ("Cell In[3]", 12)
    assert parts_of("C:model.py:3") == ("C:model.py", 3)
    assert parts_of("") == ("", 0)


def test_the_table_of_collectives_stands_beside_the_source(tmp_path: Path):
    source = tmp_path / "train.py"
    source.write_text("".join(f"y = f(x < {n})  # <b>\n" for n in range(1, 41)))
    text = TEXT.replace("/home/me/train.py", str(source)).replace("/body/mlp/", "/body/<lambda>/")
    html = step_of(predicted(text)).collectives()._repr_html_()
    assert "<b>" not in html
    assert "<lambda>" not in html
    assert "&lt;lambda&gt;" in html
    assert "y = f(x &lt; 12)  # &lt;b&gt;" in html
    assert html.index('data-collective="0"') < html.index('data-collective="1"')
    assert "train.py: " in html
    pane = html[html.index('<table class="source">') :]
    assert pane.count("<tr style=") == 2, "the hot lines"
    assert "⋯" in pane, "between lines 16 and 26 there is nothing"
    without = step_of(predicted(TEXT)).collectives()
    assert '<table class="source">' not in without._repr_html_()
    assert "train.py:12" in without._repr_html_()
