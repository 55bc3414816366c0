"""The course's notebooks, executed once for what they are: ``build/notebooks`` holds each with its outputs.

The tests and the site read them there. A notebook is executed again when it, its answers or the code have changed. Its
cells run as they are stored, so that the site shows its questions open; behind them each question is answered and
checked, in cells that are marked and that the site leaves out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbformat.v4 import new_code_cell

from pathways_nb.notebook.demo import execute
from tests.support.compiler_effort import usual_environment

ROOT = Path(__file__).parents[2]
FOLDER, BUILD = ROOT / "notebooks", ROOT / "build" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
CODE = [ROOT / "pathways_nb", ROOT / "widgets", ROOT / "datasets"]
ANSWERS: dict[str, dict[str, str]] = {
    "01_quickstart": {"crossings = ...": "crossings = 1", "best = ...": "best = 16 / 9"},
    "02_dispatch": {
        "sequential_ms = ...\nparallel_ms = ...": "sequential_ms = 200.0\nparallel_ms = 105.0",
        "hidden_ms = ...": "hidden_ms = 43.125",
        "fused_ms = ...": "fused_ms = 50.0",
    },
    "03_tenants_and_gangs": {"part = ...": "part = 3 / 8", "luck = ...": "luck = 1 / 6"},
    "04_memory": {"peak = ...": "peak = 3", "together = ...": "together = 4"},
    "05_mixture_of_experts": {
        "transfers = ...": "transfers = 8",
        '"05.rows", ...': f'"05.rows", {4 * 440 / (2 * 256)}',
    },
    "06_two_thousand_tpus": {"smallest_ms = ...": "smallest_ms = 9.675", "clients = ...": "clients = 7"},
    "07_pipelines": {
        "bubble = ...\npeak_of_64 = ...": "bubble = 3 / 11\npeak_of_64 = 4",
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
    "12_your_step": {
        "received_gb = ...": "received_gb = 2.416",
        "inputs_gb = ...": "inputs_gb = 68.7",
        "parameters_gb = ...": "parameters_gb = 25.8",
    },
}
"""What to write in place of each blank."""


def executed(name: str) -> nbformat.NotebookNode:
    """Return a notebook with its outputs; cells that answer and check have ``answers`` in their metadata."""
    path, key = BUILD / f"{name}.ipynb", _key(name)
    if path.exists():
        known = nbformat.read(path, as_version=4)
        if known.metadata.get("executed_for") == key:
            return known
    content = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    content.cells += _answered(name, [cell.source for cell in content.cells if cell.cell_type == "code"])
    with TemporaryDirectory() as home, usual_environment():
        os.environ["XDG_DATA_HOME"] = home  # where a calibration is stored
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # an earlier kernel's nodes may have other lines
        execute(content, FOLDER)
    content.metadata["executed_for"] = key
    BUILD.mkdir(parents=True, exist_ok=True)
    store(content, made := path.with_suffix(f".{os.getpid()}"))
    made.rename(path)
    return content


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook as it is: ``nbformat.write`` sorts keys, and a figure in Bokeh's JSON depends on their order."""
    path.write_text(json.dumps(notebook), "utf-8")


def for_readers(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return an executed notebook without the cells that answer its questions."""
    shown = nbformat.from_dict(notebook)
    shown.cells = [cell for cell in shown.cells if "answers" not in cell.metadata]
    return shown


def _answered(name: str, sources: list[str]) -> list[nbformat.NotebookNode]:
    """Return cells that fill in each blank, and then those that check."""
    made = []
    for blank, answer in ANSWERS.get(name, {}).items():
        (source,) = (source for source in sources if blank in source)
        made.append(source.replace(blank, answer))
    asked = [
        source for source in sources if "pw.check(" in source and not any(b in source for b in ANSWERS.get(name, {}))
    ]
    return [new_code_cell(source, metadata={"answers": True}) for source in made + asked]


def _key(name: str) -> str:
    """Return a digest of all that decides what the cells do."""
    installed = sorted((one.name, one.version) for one in distributions())
    digest = hashlib.sha256(json.dumps([sys.version, os.cpu_count(), installed]).encode())
    code = (path for folder in CODE for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    for path in sorted([FOLDER / f"{name}.ipynb", Path(__file__), *code]):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def said(notebook: nbformat.NotebookNode) -> str:
    """Return all that the cells of an executed notebook print."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    # What is printed comes in pieces that may end within a line.
    return "".join(
        output.text if output.output_type == "stream" else f"{output.get('data', {}).get('text/plain', '')}\n"
        for output in outputs
    )
