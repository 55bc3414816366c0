"""JupyterLab on a server without anywidget's extension: still pictures, and a line that says what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench import lab as lab_server
from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import SHOTS, run_cells

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
CELLS = [
    "import pathways_nb as pw",
    'pw.schedule("1f1b", 4, 8)',
    "explorer = pw.explore_schedules()\nexplorer",
]


@pytest.fixture
def without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabServer]:
    """A server whose pages do not load anywidget's extension."""
    settings = tmp_path / "config" / "labconfig"
    settings.mkdir(parents=True)
    (settings / "page_config.json").write_text(json.dumps({"disabledExtensions": {"anywidget": True}}))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(settings.parent))
    folder = tmp_path / "lab"
    folder.mkdir()
    started = lab_server.start(folder)
    yield started
    started.stop()


def test_stills_stand_in_and_a_line_says_what_to_install(chromium: Browser, without: LabServer) -> None:
    page, _ = run_cells(chromium, without, "without.ipynb", CELLS)
    stills = page.locator(".jp-OutputArea-child:has([data-pw-still]) + .jp-OutputArea-child img")
    stills.nth(1).wait_for()
    said = "(one) => [getComputedStyle(one, '::after').content, getComputedStyle(one, '::after').visibility]"
    lines = page.locator("[data-pw-still]")
    for n in range(2):
        assert stills.nth(n).evaluate("(one) => one.getBoundingClientRect().height") > 100
        lines.nth(n).scroll_into_view_if_needed()
        page.wait_for_function(
            f"(n) => ({said})(document.querySelectorAll('[data-pw-still]')[n])[1] === 'visible'", arg=n
        )
        assert "pip install anywidget" in lines.nth(n).evaluate(said)[0]
    page.screenshot(path=SHOTS / "without-anywidget.png")
    page.context.close()
