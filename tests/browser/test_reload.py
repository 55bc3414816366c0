"""Figures of a notebook whose page is loaded again, and figures that cannot be drawn: the still picture stays meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pathways_nb.bench.lab import LabServer
from pathways_widgets import figure_of
from pathways_widgets.figures.page import drawing_script
from tests.browser.test_lab import SHOTS, open_notebook, run_all, wait_until_done
from tests.core.widgets.fake_run import fake_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
_MOUNT = f"""<script type="module">
{drawing_script()}
window.mount = mount
</script>"""
_FIGURES, _BETWEEN = 5, 12
"""Figures of the notebook, and cells before each: more than JupyterLab puts on the page at once."""
_PICTURES = """
window.pictures = (index) => {
  const cell = jupyterapp.shell.currentWidget.content.widgets[index].node
  const seen = (elements) => elements.filter((one) => one.getBoundingClientRect().height > 20).length
  const lost = cell.textContent.includes("model not found")  // JupyterLab gave up asking a slow kernel for its widgets
  return {figures: seen(findAll(cell)), stills: seen([...cell.querySelectorAll("img")]), lost}
}
window.scrollTo = (index) => {
  const notebook = jupyterapp.shell.currentWidget.content
  notebook.activeCellIndex = index
  return notebook.scrollToItem(index, "start").then(() => null, () => null)
}
"""


def test_a_figure_waits_until_it_is_on_the_page(opened: Callable[..., Any]) -> None:
    tab = opened("<p>a page</p>", _MOUNT)
    tab.evaluate(
        """(item) => {
          window.at = document.createElement("div")
          window.drawn = mount(Bokeh, item, at)
          document.body.append(at)
          setTimeout(() => at.remove())  // it leaves again just when it would be drawn
        }""",
        figure_of(fake_run(), ("timeline",)),
    )
    tab.wait_for_function("!at.isConnected")
    assert not tab.evaluate("at.matches('.pathways-figure')"), "the still picture would be hidden"
    tab.evaluate("() => { document.body.append(at); return drawn.then(() => null) }")
    assert tab.evaluate("at.matches('.pathways-figure')")
    tab.wait_for_function("Bokeh.documents.at(-1).is_idle")
    assert tab.locator("pathways-host .bk-Figure").first.bounding_box()["height"] > 100


def test_a_figure_that_fails_leaves_the_still_picture(opened: Callable[..., Any]) -> None:
    tab = opened("<p>a page</p><div id=at></div>", _MOUNT)
    said = tab.evaluate(
        """(item) => {
          const broken = {embed: {embed_item: () => Promise.reject(new Error("no canvas"))}}
          const at = document.getElementById("at")
          return mount(broken, item, at).then(() => "drawn", (error) => `${error.message}: ${at.className}`)
        }""",
        figure_of(fake_run(), ("timeline",)),
    )
    assert said == "no canvas: "


def test_a_long_notebook_loaded_again_shows_all_its_figures(chromium: Browser, lab: LabServer) -> None:
    imports = "from pathways_widgets import LiveDisplay\nfrom tests.core.widgets.fake_run import fake_run"
    one = [
        *(f"x = {n}" for n in range(_BETWEEN)),
        "made = LiveDisplay(fake_run(), ('timeline',))\nmade.start()\nmade.stop()",
    ]
    lab.write("long.ipynb", [imports, *one * _FIGURES])
    page, _ = open_notebook(chromium, lab, "long.ipynb")
    run_all(page)
    wait_until_done(page)
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save').then(() => null)")
    page.close()

    page, trouble = open_notebook(chromium, lab, "long.ipynb")
    page.evaluate(f"() => {{ {_PICTURES} }}")
    page.wait_for_function(f"document.querySelectorAll('[data-pw-still]').length === {_FIGURES}")
    for cell in range(1 + _BETWEEN, 1 + _FIGURES * (_BETWEEN + 1), _BETWEEN + 1):
        page.evaluate("(cell) => scrollTo(cell)", cell)
        seen = page.evaluate("(cell) => pictures(cell)", cell)
        assert seen["figures"] or seen["stills"], f"cell {cell} is blank: {trouble}"
        page.wait_for_function("(cell) => pictures(cell).figures || pictures(cell).lost", arg=cell)
        page.wait_for_function("(cell) => !pictures(cell).stills === !pictures(cell).lost", arg=cell)
        page.screenshot(path=SHOTS / f"again-{cell}.png")
    assert not trouble
