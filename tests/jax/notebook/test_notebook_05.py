"""The notebook on mixtures of experts runs from top to bottom, with its questions answered, and shows what it says."""

from __future__ import annotations

import re

import nbformat
import pytest

from pathways_nb.notebook.demo import demo
from tests.conftest import ROOT

NOTEBOOK = ROOT / "notebooks" / "05_mixture_of_experts.ipynb"
ANSWERS = {"transfers = ...": "transfers = 8", '"05.rows", ...': f'"05.rows", {4 * 440 / (2 * 256)}'}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All that its cells print."""
    folder = tmp_path_factory.mktemp("notebook")
    content = nbformat.read(NOTEBOOK, as_version=4)
    for blank, answer in ANSWERS.items():
        (cell,) = (cell for cell in content.cells if cell.cell_type == "code" and blank in cell.source)
        cell.source = cell.source.replace(blank, answer)
    nbformat.write(content, folder / NOTEBOOK.name)
    executed, _ = demo(folder / NOTEBOOK.name, folder / "out")
    outputs = [output for cell in nbformat.read(executed, as_version=4).cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def test_it_is_stored_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
def test_answers_are_right(said: str) -> None:
    assert "05.transfers: right." in said
    assert "05.rows: right." in said


@pytest.mark.slow
def test_only_two_experts_run_and_gradients_are_those_of_the_dense_reference(said: str) -> None:
    assert "tokens of each expert: [250   0 190   0]" in said
    assert re.search(r"utilisation island 0 \d+%, island 1 \d+%, island 2 0%, island 3 \d+%, island 4 0%", said)
    found = re.search(r"loss ([\d.]+) and ([\d.]+); gradients up to ([\d.]+)\ndiffer by at most (\S+)", said)
    assert found is not None
    value, expected, largest, difference = map(float, found.groups())
    assert value == pytest.approx(expected, abs=1e-5)
    assert difference < 1e-5 * largest
    assert "largest gradient of an expert without tokens: 0.0" in said


@pytest.mark.slow
def test_waiting_knowing_and_running_all_learn_the_same(said: str) -> None:
    found = re.search(r"loss: \{'waits': ([\d.]+), 'knows': ([\d.]+), 'all': ([\d.]+)\}", said)
    assert found is not None
    waits, knows, everything = map(float, found.groups())
    assert waits == knows == pytest.approx(everything, abs=2e-5)
    assert re.search(r"waits .* ms · all .* ms \([\d.]+ times as long\)", said)
