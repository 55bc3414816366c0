"""Figures within the tabs of ipywidgets in a real JupyterLab: they are seen, their still pictures are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import run_cells

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
_CELLS = [
    """\
import ipywidgets as widgets
import pathways_nb as pw
pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2)
step = pw.work(4e-3, on=pw.virtual_slice(2), name="total")
step().wait()
outs = [widgets.Output(), widgets.Output()]
display(widgets.Tab(outs, titles=["one", "two"]))
print("printed after the tabs")
for out in outs:
    with out, pw.record("tab", show="timeline"):
        step().wait()""",
]


def test_a_figure_within_a_tab_is_seen_and_so_is_what_follows(chromium: Browser, lab: LabServer) -> None:
    page, trouble = run_cells(chromium, lab, "tabs.ipynb", _CELLS)
    figures = page.locator(".pathways-figure")
    figures.nth(0).wait_for()
    assert page.get_by_text("printed after the tabs").last.is_visible()
    page.locator(".lm-TabBar-tabLabel:text-is('two')").click()
    figures.nth(1).wait_for()
    assert not figures.nth(0).is_visible()
    assert page.locator("[data-pw-still]").count() == 2
    assert not any(one.is_visible() for one in page.locator(".jp-OutputArea-child img").all())
    assert not trouble
