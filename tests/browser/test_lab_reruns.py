"""A cell that is run again in a real JupyterLab, with other code: its picture says what has changed since its last run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import run_all, run_cells

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
_CELLS = [
    "%load_ext pathways_nb\nimport pathways_nb as pw",
    "pw.attach('sim', chip='tpu_v3', islands=1, devices_per_island=2)\nplace = pw.virtual_slice(2)\n"
    "def made(seconds): return pw.program(pw.work(seconds, on=place, name='total'), name='p')",
    "%%pathways --show timeline\nmade(4e-3)().wait();",
]
_CHANGE = """() => {
  const {cells} = jupyterapp.shell.currentWidget.content.model
  cells.get(2).sharedModel.setSource("%%pathways --show timeline\\nmade(1e-3)().wait();")
}"""


def test_a_changed_cell_is_compared_with_its_last_run(chromium: Browser, lab: LabServer) -> None:
    page, trouble = run_cells(chromium, lab, "reruns.ipynb", _CELLS)
    headline = page.locator(".pathways-headline")
    headline.wait_for()
    assert "last time" not in headline.inner_text()
    page.evaluate(_CHANGE)
    run_all(page)
    page.get_by_text("times as fast as last time: `total` takes 3 ms less").first.wait_for()
    assert not trouble
