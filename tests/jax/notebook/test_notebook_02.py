"""Notebook 02, executed with the reader's answers filled in: pictures, predictions beside measurements, checks."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT
from tests.jax.notebook.test_course_questions import RIGHT
from tests.support.waiting import LIMIT

NOTEBOOK = ROOT / "notebooks" / "02_dispatch.ipynb"


@pytest.fixture(scope="module")
def executed() -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        for name, answer in RIGHT.items():
            variable = f"{name.removeprefix('02.')}_ms"
            cell.source = cell.source.replace(f"{variable} = ...", f"{variable} = {answer}")
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    return NotebookClient(notebook, timeout=LIMIT, startup_timeout=LIMIT, resources=where).execute()


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return "".join(output.get("text", "") for output in outputs)


def test_every_blank_can_be_answered(executed) -> None:
    assert "..." not in "".join(cell.source for cell in executed.cells if cell.cell_type == "code")
    text = printed(executed)
    for name in (name for name in RIGHT if name.startswith("02.")):
        assert f"{name}: right." in text


def test_the_predictions_are_the_closed_forms_and_stand_beside_what_was_measured(executed) -> None:
    found = re.findall(r"measured +([\d.]+) ms +predicted +([\d.]+) ms", printed(executed))
    assert [float(predicted) for _, predicted in found] == [80.0, 45.0, 16.0, 9.0, 50.0]
    assert all(float(measured) > 0 for measured, _ in found)


def test_both_timelines_the_comparison_the_curve_and_the_graphs_are_shown(executed) -> None:
    shown = [
        cell.source
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    ]
    for words in ('sequential.show("timeline")', 'parallel.show("timeline")', "compare(sequential", "compare(*runs",
                  "curve(", "chain.graph", "fused.graph", 'run.show("timeline")'):  # fmt: skip
        assert sum(words in source for source in shown) == 1, words


def test_the_three_forms_of_the_chain_give_one_value(executed) -> None:
    assert re.findall(r"(OpByOp|Chained|Fused) +[\d.]+ ms +(\d+)", printed(executed)) == [
        ("OpByOp", "128"), ("Chained", "128"), ("Fused", "128"),
    ]  # fmt: skip
