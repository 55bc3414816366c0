"""The notebooks of the course run from top to bottom, with their questions answered, and are stored without outputs."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from pathways_nb.notebook.demo_page import render
from tests.core.test_packaging import stored_files
from tests.support.executed_notebooks import NAMES, executed, for_readers, said, store

SAID = {
    "03_tenants_and_gangs": ["each waits for the other for ever", "orders, which fit together", "opposite  unequal"],
    "04_memory": [
        "four needs 3 MB on each device of island 0, dev 0–3, in half",
        "four needs 12 MB on each device of island 0, dev 0–3, where there are 10 MB",
        "waited",
        "memory of island 0 held by",
        "object store: 0 buffers, 0 B logical",
        "belonged to the client 'cleo', which has closed",
        "Held by variables: 3 × put on left",
        "peak memory 3 MB of 3 MB per device",
    ],
    "06_two_thousand_tpus": [
        "a call: 1.25 ms and 65.9 µs for each host",
        "long: simulated makespan 480 ms · utilisation island 0 100%",
        "short: simulated makespan 395 ms · utilisation island 0 30%",
        "Fused is as fast as JAX Fused up to 256 cores here (less than 512), 1000 in the paper",
        "clients:  4   utilisation  57% if clients pay,  14% if the controller does",
        "clients:  8   utilisation 100% if clients pay,  14% if the controller does",
        "nodes of 35 ms and longer hide it (estimated)",
        "1 ms a stage: busy 67%, bubble 30%, dispatch 3%",
        "0.1 ms a stage: busy 17%, bubble 10%, dispatch 73%",
        "hidden by nodes of",
        "dispatch: 2 parameters on 2 points, 0 degrees of freedom",
    ],
    "07_pipelines": [
        "one by one, 4 devices × 8 microbatches: makespan 96 · bubble 75.0%",
        "1f1b, 4 devices × 8 microbatches: sound.",
        "zb-h2  makespan 27   idle from its own first action to its own last: [0. 0. 0. 0.]",
        "within the cap of 3",
        "best: v-min (4, 0.1193); v-half (5, 0.08134); interleaved-zb, zb-v (8, 0.03518)",
        "device 3:   48 of the critical path, 16 actions",
        "last: name gpipe 9, name 1f1b 9, name zb-h1 3 slow device waits, in F",
        "Put 1F1 before 1B1.",
        "best: seq1f1b (2.75, 0.05185)",
        "zb-v, 8 devices × 16 microbatches × 2 chunks: makespan 51.5",
        "every device kept its order",
    ],
    "08_terapipe": [
        "makespan 4.125 · bubble 27.3%",
        "[(1, [128, 48, 32×3, 16×15])]   0.1024",
        "[(1, [88×16, 80×8])] × 2     1.416",
        "uniform, 1 slice of 512",
        "every device kept its order",
        "loss 6.649405, whole sequence 6.649405",
    ],
    "09_simple_fsdp": [
        "gradients agree: True",
        "AAAAAAAA8|1R2R2R2R2R2R2R2R",
        "AA2A2A2|a3a2R2a2R2a2R4R",
        "True that is the step which ran above",
        "in buckets            8 all-gather, 1 all-reduce, 4 reduce-scatter (as planned)",
        "regather blocks.0.down",
        "no order is below",
        "exposed (bound",
    ],
    "10_research": [
        "tpu_v3 · simulated makespan",
        "sweep of at: 15 points",
        "critical path",
        "time of each device",
        "if add_any (42 events) were 2 times as fast",
        "<chip tpu_v3, changed: hbm_bw>",
        "events matched",
        "fifth.run",
    ],
    "11_cluster": [
        "second kernel: <controller ray: 2 islands × 2 devices",
        "bob, share 2: ",
        "ann, share 1: ",
        "client kernel 2: share 1",
        "failed on right (island 1, devices 0–1)",
        "the left island still has 256.0",
        "the same program",
    ],
    "12_your_step": [
        "from a recorded text of jax-cuda13-plugin",
        "Cell In[2], line 31  ",
        "  all-gather      model        4 on 1 host    3.22 GB  96     705 ms   705 ms",
        "before: train_step on 64 × gpu_h100_sxm, data 16 × model 4: 5.87 s (4.44 s … 6.68 s), 1.33 s of it exposed",
        "after:  train_step on 64 × gpu_h100_sxm, data 16 × model 4: 5.14 s (4.36 s … 5.83 s), 621 ms of it exposed",
        "data 8 × model 8: no seconds, 107 GB a device (does not fit: it has 80 GB)",
        "tpu_v5p, data 64 × model 1: 5.37 s",
        "each device keeps a part: could be a reduce-scatter",
    ],
}
"""Words of their outputs."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_its_questions_have_answers(name: str) -> None:
    notebook = executed(name)
    text = said(notebook)
    assert text.count(": right.") == "".join(cell.source for cell in for_readers(notebook).cells).count("pw.check("), (
        text
    )
    for words in SAID.get(name, []):
        assert words in text
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert render(notebook, name).count("data-figure") >= 1


def test_readers_find_the_questions_open() -> None:
    cell, answer = new_code_cell("part = ..."), new_code_cell("part = 3 / 8", metadata={"answers": True})
    assert for_readers(new_notebook(cells=[cell, answer])).cells == [cell]


def test_figures_are_stored_in_the_order_that_bokeh_needs(tmp_path) -> None:
    figure = new_output("display_data", {"application/vnd.pathways.figure+json": {"roots": [], "defs": []}})
    store(new_notebook(cells=[new_code_cell(outputs=[figure])]), tmp_path / "one.ipynb")
    (cell,) = for_readers(nbformat.read(tmp_path / "one.ipynb", as_version=4)).cells
    assert list(cell.outputs[0].data["application/vnd.pathways.figure+json"]) == ["roots", "defs"]


def test_notebooks_are_stored_without_outputs():
    for path in stored_files():
        if path.suffix == ".ipynb":
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
            assert "widgets" not in notebook.metadata, path
            for cell in notebook.cells:
                assert not cell.get("outputs"), f"{path}: a cell is stored with outputs"
                assert cell.get("execution_count") is None, f"{path}: a cell is stored with its count"


@pytest.fixture(scope="module")
def dispatch() -> nbformat.NotebookNode:
    """Notebook 02 with its outputs."""
    return executed("02_dispatch")


@pytest.mark.slow
def test_the_predictions_are_the_closed_forms_and_stand_beside_what_was_measured(dispatch) -> None:
    found = re.findall(r"measured +([\d.]+) ms +predicted +([\d.]+) ms", said(dispatch))
    assert [float(predicted) for _, predicted in found] == [80.0, 45.0, 16.0, 9.0, 50.0]
    assert all(float(measured) > 0 for measured, _ in found)


@pytest.mark.slow
def test_both_timelines_the_comparison_the_curve_and_the_graphs_are_shown(dispatch) -> None:
    shown = [
        cell.source
        for cell in dispatch.cells
        for output in cell.get("outputs", [])
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    ]
    for words in ('sequential.show("timeline")', 'parallel.show("timeline")', "compare(sequential", "compare(*runs",
                  "curve(", "chain.graph", "fused.graph", 'run.show("timeline")'):  # fmt: skip
        assert sum(words in source for source in shown) == 1, words


@pytest.mark.slow
def test_the_three_forms_of_the_chain_give_one_value(dispatch) -> None:
    assert re.findall(r"(OpByOp|Chained|Fused) +[\d.]+ ms +(\d+)", said(dispatch)) == [
        ("OpByOp", "128"), ("Chained", "128"), ("Fused", "128"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def experts() -> str:
    """All that the cells of notebook 05 print."""
    return said(executed("05_mixture_of_experts"))


@pytest.mark.slow
def test_only_two_experts_run_and_gradients_are_those_of_the_dense_reference(experts: str) -> None:
    assert "tokens of each expert: [250   0 190   0]" in experts
    assert re.search(r"utilisation island 0 \d+%, island 1 \d+%, island 2 0%, island 3 \d+%, island 4 0%", experts)
    found = re.search(r"loss ([\d.]+) and ([\d.]+); gradients up to ([\d.]+)\ndiffer by at most (\S+)", experts)
    assert found is not None
    value, expected, largest, difference = map(float, found.groups())
    assert value == pytest.approx(expected, abs=1e-5)
    assert difference < 1e-5 * largest
    assert "largest gradient of an expert without tokens: 0.0" in experts


@pytest.mark.slow
def test_waiting_knowing_and_running_all_learn_the_same(experts: str) -> None:
    found = re.search(r"loss: \{'waits': ([\d.]+), 'knows': ([\d.]+), 'all': ([\d.]+)\}", experts)
    assert found is not None
    waits, knows, everything = map(float, found.groups())
    assert waits == knows == pytest.approx(everything, abs=2e-5)
    assert re.search(r"waits .* ms · all .* ms \([\d.]+ times as long\)", experts)
