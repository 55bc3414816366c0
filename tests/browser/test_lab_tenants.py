"""The notebook on tenants in a real JupyterLab: it runs through, and a client is hidden while the kernel is busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat
import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import SHOTS, open_notebook, run_all, wait_until_done, wait_until_painted

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]
_SEEN = """() => {
  const doc = Object.values(globalThis.pathwaysBokeh)[0].documents[0], source = doc.get_model_by_name("timeline_boxes")
  const renderer = doc.get_model_by_name("timeline").renderers.find((one) => one.data_source === source)
  const view = Object.values(globalThis.pathwaysBokeh)[0].index.find_one(renderer)
  return [...new Set([...view.all_indices].map((i) => source.data.client[i]))].sort()
}"""


GO_ON = "bob-is-hidden"


def patient_copy(lab: LabServer) -> str:
    """The notebook, whose first two tenants compete until there is a file of that name; what it is called."""
    content = nbformat.read(lab.folder / "03_tenants_and_gangs.ipynb", as_version=4)
    source = "".join(cell.source for cell in content.cells)
    for old, new in (
        ("over.wait(seconds)", "has_looked(seconds) or over.wait(seconds)"),
        ("compete(2.0, ", "compete(0, "),
        ("import threading, ", HAS_LOOKED + "import threading, "),
    ):
        assert source.count(old) == 1, old
        for cell in content.cells:
            cell.source = cell.source.replace(old, new)
    nbformat.write(content, lab.folder / "tenants.ipynb")
    return "tenants.ipynb"


HAS_LOOKED = f"""\
import pathlib, time
def has_looked(seconds):
    while not seconds and not pathlib.Path("{GO_ON}").exists(): time.sleep(.01)
"""


def test_a_client_is_hidden_while_the_kernel_is_busy(chromium: Browser, lab: LabServer) -> None:
    page, trouble = open_notebook(chromium, lab, patient_copy(lab))
    run_all(page)
    bob = page.get_by_role("button", name="bob", exact=True).first
    bob.click()
    page.wait_for_function(f"() => {{ const seen = ({_SEEN})(); return seen.includes(1) && !seen.includes(2) }}")
    (lab.folder / GO_ON).touch()
    wait_until_done(page)
    assert 2 not in page.evaluate(_SEEN), "new boxes of a hidden client are hidden, too"
    page.locator(".jp-CodeCell").nth(4).scroll_into_view_if_needed()
    wait_until_painted(page)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "tenants.png")
    bob.click()
    page.wait_for_function(f"({_SEEN})().includes(2)")

    text = page.locator(".jp-NotebookPanel").inner_text()
    assert "ann: asked for 25%, got" in text
    assert "each waits for the other for ever" in text
    assert "each waits for the next for ever" in text
    assert "gangs in 4 orders, which fit together" in text
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert not trouble
