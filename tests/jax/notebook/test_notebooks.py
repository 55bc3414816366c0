"""The notebooks of the course run from top to bottom, with their questions answered, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from pathways_nb.notebook.demo import demo
from tests.conftest import ROOT
from tests.core.test_packaging import stored_files

FOLDER = ROOT / "notebooks"
ANSWERS: dict[str, dict[str, str]] = {
    "03_tenants_and_gangs": {"part = ...": "part = 3 / 8", "luck = ...": "luck = 1 / 6"},
    "04_memory": {"peak = ...": "peak = 3", "together = ...": "together = 4"},
    "06_two_thousand_tpus": {"smallest_ms = ...": "smallest_ms = 9.675", "clients = ...": "clients = 7"},
    "07_pipelines": {
        "bubble = ...": "bubble = 3 / 11",
        "peak_of_64 = ...": "peak_of_64 = 4",
        "fewest = ...": "fewest = 133",
        "zero_bubble_takes = ...": "zero_bubble_takes = 27",
        "slow_takes = ...": "slow_takes = 57",
        "choice = ...": "choice = 'v-half'",
    },
    "08_terapipe": {
        "bubble = ...": "bubble = 3 / 19",
        "fastest = ...": "fastest = 40",
        "longest = ...": "longest = 1",
    },
    "09_simple_fsdp": {
        "received = ...": "received = 70",
        "held = ...": "held = 7",
        "gathers_now = ...": "gathers_now = 15",
        "saved_us = ...": "saved_us = 440",
        "forward_ms = ...": "forward_ms = 14",
        "waits_ms = ...": "waits_ms = 2",
        "compiled_gathers = ...": "compiled_gathers = 8",
        "exposed_s = ...": "exposed_s = 6.2",
    },
    "10_research": {
        "at_most = ...": "path = fifth.critical_path()\n"
        "at_most = path.length / sum(one.end - one.start for one in path.segments if one.name != 'add_any')"
    },
    "11_cluster": {"messages = ...": "messages = 6"},
}
"""What to write in place of each blank; 01 and 05 have tests of their own."""
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
}
"""Words of their outputs."""


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_it_runs_and_its_questions_have_answers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # where a calibration is stored
    content = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for blank, answer in ANSWERS[name].items():
        (cell,) = (cell for cell in content.cells if cell.cell_type == "code" and blank in cell.source)
        cell.source = cell.source.replace(blank, answer)
    nbformat.write(content, tmp_path / f"{name}.ipynb")
    executed, _ = demo(tmp_path / f"{name}.ipynb", tmp_path / "out")
    outputs = [output for cell in nbformat.read(executed, as_version=4).cells for output in cell.get("outputs", [])]
    said = "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)
    assert said.count(": right.") == len(ANSWERS[name]), said
    for words in SAID[name]:
        assert words in said
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2


def test_notebooks_are_stored_without_outputs():
    for path in stored_files():
        if path.suffix == ".ipynb":
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
            assert "widgets" not in notebook.metadata, path
            for cell in notebook.cells:
                assert not cell.get("outputs"), f"{path}: a cell is stored with outputs"
                assert cell.get("execution_count") is None, f"{path}: a cell is stored with its count"
