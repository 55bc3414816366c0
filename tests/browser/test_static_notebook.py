"""A saved notebook where no scripts run: exported by nbconvert, or shown by a viewer that knows pictures only."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter

from tests.support.waiting import LIMIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CELLS = [
    "%load_ext pathways_nb\nimport pathways_nb as pw\nfrom pathways_widgets import curve, tradeoff\n"
    "pw.attach('cpu', islands=2, devices_per_island=2)\n"
    "f, g = (pw.jit(lambda v: v + 1, on=pw.virtual_slice(2)) for _ in range(2))\n"
    "step = pw.program(lambda v: g(f(v)), name='step')",
    "%%pathways\ny = g(f(1.))",
    "step.graph(1.)",
    "pw.compare(step.run(1.), step.run(2.)).show()",
    "curve({'loss': [3., 2., 1.5]}, x='step', y='nats')",
    "tradeoff({'a': (1., 2.), 'b': (2., 1.)}, x='memory', y='bubble')",
]
PICTURES = len(CELLS) - 1


@pytest.fixture(scope="module")
def saved() -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    return NotebookClient(notebook, timeout=LIMIT, startup_timeout=LIMIT).execute()


def test_every_display_carries_text_a_picture_and_the_widget(saved) -> None:
    for cell in saved.cells[1:]:
        kinds = [set(output.data) for output in cell.outputs]
        assert {"text/plain", "application/vnd.jupyter.widget-view+json"} in kinds, cell.source
        assert {"text/plain", "image/png"} in kinds, cell.source
        (png,) = (base64.b64decode(output.data["image/png"]) for output in cell.outputs if "image/png" in output.data)
        assert png.startswith(b"\x89PNG")


@pytest.mark.browser
@pytest.mark.parametrize("template", ["lab", "classic"])
def test_nbconverts_page_without_scripts_and_network_shows_the_pictures(
    chromium: Browser, saved, template: str, tmp_path: Path
) -> None:
    page, _ = HTMLExporter(template_name=template).from_notebook_node(saved)
    path = tmp_path / "saved.html"
    path.write_text(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL), "utf-8")
    context = chromium.new_context(viewport={"width": 1000, "height": 2600}, offline=True)
    tab = context.new_page()
    tab.goto(path.as_uri())
    if template == "classic":  # the other one does not look for an alternative text
        assert 'alt="Island' in page
    sizes = tab.eval_on_selector_all("img", "all => all.map(e => [e.naturalWidth, e.getBoundingClientRect().width])")
    assert len(sizes) == PICTURES
    assert all(natural >= 1000 and shown >= 500 for natural, shown in sizes), sizes
    context.close()


def test_markdown_has_the_pictures_as_files(saved) -> None:
    text, resources = MarkdownExporter().from_notebook_node(saved)
    assert text.count("![png]") == PICTURES
    assert sum(name.endswith(".png") for name in resources["outputs"]) == PICTURES
