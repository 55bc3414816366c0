"""The notebook on tenants in a real JupyterLab: it runs through, and a client is hidden while the kernel is busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.lab.test_lab import SHOTS, lab, open_notebook, run_all, wait_until_done

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["lab"]
pytestmark = [pytest.mark.browser, pytest.mark.slow]
_SEEN = """() => {
  const doc = Object.values(globalThis.pathwaysBokeh)[0].documents[0], source = doc.get_model_by_name("timeline_boxes")
  const renderer = doc.get_model_by_name("timeline").renderers.find((one) => one.data_source === source)
  const view = Object.values(globalThis.pathwaysBokeh)[0].index.find_one(renderer)
  return [...new Set([...view.all_indices].map((i) => source.data.client[i]))].sort()
}"""


def test_a_client_is_hidden_while_the_kernel_is_busy(chromium: Browser, lab: LabServer) -> None:
    page, trouble = open_notebook(chromium, lab, "03_tenants_and_gangs.ipynb")
    run_all(page)
    bob = page.get_by_role("button", name="bob", exact=True).first
    bob.click(timeout=60_000)
    page.wait_for_function(f"() => {{ const seen = ({_SEEN})(); return seen.includes(1) && !seen.includes(2) }}")
    last = page.locator(".jp-CodeCell").last.locator(".jp-InputPrompt")
    assert last.inner_text() in ("[*]:", "[ ]:"), "cells were still to be run"
    wait_until_done(page)
    assert 2 not in page.evaluate(_SEEN), "new boxes of a hidden client are hidden, too"
    page.locator(".jp-CodeCell").nth(4).scroll_into_view_if_needed()
    page.wait_for_timeout(500)
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
