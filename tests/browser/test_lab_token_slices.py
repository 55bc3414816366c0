"""The explorer of token slices in a real JupyterLab: a size is changed, and the pictures follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import SHOTS, open_notebook, run_all, wait_until_done, wait_until_painted
from tests.browser.test_lab_schedules import field

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
CELLS = ["import pathways_nb as pw", "explorer = pw.terapipe.explore()\nexplorer"]
_HELPERS = """
window.model = (name) => Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1)?.get_model_by_name(name)
window.heading = () => model("tokens_headings").data.text[0]
"""


def test_a_size_changes_the_slices_the_surface_and_the_bars(chromium: Browser, lab: LabServer) -> None:
    lab.write("tokens.ipynb", CELLS)
    page, trouble = open_notebook(chromium, lab, "tokens.ipynb")
    page.evaluate(f"() => {{ {_HELPERS} }}")
    run_all(page)
    page.wait_for_function("globalThis.pathwaysBokeh && model('tokens_boxes')?.data.left?.length")
    wait_until_done(page)
    wait_until_painted(page)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "tokens.png")
    assert page.evaluate("heading()") == "optimum, 24 slices: 703 ms = sum 236 ms + 47 × max 9.94 ms"

    field(page, "stages").fill("96")
    field(page, "stages").press("Enter")
    page.wait_for_function("heading() === 'optimum, 25 slices: 1.18 s = sum 244 ms + 95 × max 9.85 ms'")
    field(page, "length").fill("2047")
    field(page, "length").press("Enter")
    page.wait_for_function("heading().includes('no multiple of granularity=8')")
    wait_until_painted(page)
    page.screenshot(path=SHOTS / "tokens-refused.png")
    assert page.evaluate("model('tokens_bars').data.x.length") == 0

    page.get_by_role("button", name="SVG").focus()
    page.keyboard.press("b")
    assert page.locator(".jp-CodeCell").count() == len(CELLS), "no key pressed in the controls is one for the notebook"
    assert trouble == []
