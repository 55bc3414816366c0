"""The picture of memory in a real JupyterLab: it grows while its cell runs, and asks for what is in view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import SHOTS, open_notebook, run_all, wait_until_done

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
_HELPERS = """
window.model = (name, nth) => Object.values(globalThis.pathwaysBokeh)[0].documents.at(nth).get_model_by_name(name)
window.legend = (nth) => {
  let row = Object.values(globalThis.pathwaysBokeh)[0].index.find_one(model("memory", nth)).el
  while (row.ariaLabel !== "Legend") row = row.previousElementSibling
  return Array.from(row.children, (entry) => entry.textContent)
}
"""
_GROWING = """
run.shown, run.finished = 0, False
both = LiveDisplay(run, ("timeline", "memory")); both.start()
for run.shown in range(0, 108, 3): time.sleep(0.05)
run.shown, run.finished = None, True
both.stop()
"""
_ALONE = """
alone = LiveDisplay(memory_run(), ("memory",)); alone.start()
while not alone.figure.view: time.sleep(0.01)
print("asked for", *alone.figure.view)
alone.stop()
"""


def test_memory_grows_while_its_cell_runs_and_asks_for_its_window(chromium: Browser, lab: LabServer) -> None:
    imports = (
        "import time\nfrom pathways_widgets import LiveDisplay\nfrom tests.core.widgets.fake_run import memory_run"
    )
    lab.write("memory.ipynb", [f"{imports}\nrun = memory_run()", _GROWING, _ALONE])
    page, trouble = open_notebook(chromium, lab, "memory.ipynb")
    page.evaluate(f"() => {{ {_HELPERS} }}")
    run_all(page)
    page.wait_for_function("globalThis.pathwaysBokeh && Object.values(pathwaysBokeh)[0].documents.length === 2")
    page.wait_for_function("model('memory_y', 0).start === 3")
    page.wait_for_function("legend(0).length === 3")
    assert page.evaluate("legend(0)") == ["bob", "me", "budget of a device"]
    assert page.evaluate("model('memory', 0).x_range === model('timeline', 0).x_range")
    assert page.evaluate("model('memory_y', 0).end") == 0

    busy = page.locator(".jp-CodeCell").nth(2)
    assert "*" in busy.locator(".jp-InputPrompt").inner_text()
    page.evaluate("() => model('timeline_x', 1).setv({start: 0.1, end: 0.2})")
    wait_until_done(page)
    assert "asked for 0.1 0.2" in busy.inner_text(), "answered while the kernel was busy"
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "memory.png")
    assert not trouble
