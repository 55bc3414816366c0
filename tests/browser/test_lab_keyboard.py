"""The first figure of the first lesson, used without a mouse in a real JupyterLab and read from the accessibility tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import open_notebook, wait_until_painted

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
_FIGURE_CELL, _TABS = 6, 40
_CELLS = "jupyterapp.shell.currentWidget.content.model.cells"
_FOCUSED = """() => {
  let one = document.activeElement
  while (one.shadowRoot?.activeElement) one = one.shadowRoot.activeElement
  return one.getAttribute("aria-label") ?? ""
}"""
_LANES = """() => {
  const doc = Object.values(pathwaysBokeh)[0].documents[0], [labels, why] = ["timeline_labels", "timeline_why"].map((name) => doc.get_model_by_name(name).data)
  const order = Array.from(labels.y, (_, i) => i).sort((a, b) => labels.y[a] - labels.y[b])
  const rows = Array.from(why.left, (_, i) => i)
  return order.map((at) => [labels.text[at], rows.filter((i) => why.top[i] < labels.y[at] && labels.y[at] < why.bottom[i]).map((i) => why.text[i])])
}"""
"""Script: the lanes from the top, each with the sentences of its events in the order of their starts."""


class Reader:
    """What a screen reader would know of a page: its accessibility tree, as Chromium makes it."""

    def __init__(self, page: Page):
        self._page, self._session = page, page.context.new_cdp_session(page)

    def press(self, key: str) -> str:
        """Return what is announced after a key."""
        self._page.keyboard.press(key)
        (said,) = filter(None, (self._text(one) for one in self.nodes("status")))
        return said

    def nodes(self, role: str) -> list[dict[str, Any]]:
        """Return the nodes of a role."""
        found = self._session.send("Accessibility.getFullAXTree")["nodes"]
        self._by_id = {one["nodeId"]: one for one in found}
        return [one for one in found if not one["ignored"] and one["role"]["value"] == role]

    def names(self, role: str) -> list[str]:
        """Return the names of the nodes of a role."""
        return [one["name"]["value"] for one in self.nodes(role)]

    def _text(self, node: dict[str, Any]) -> str:
        inside = [self._by_id[one] for one in node.get("childIds", ()) if one in self._by_id]
        if node["role"]["value"] == "StaticText":
            return node["name"]["value"]
        return "".join(map(self._text, inside))


def test_the_first_figure_is_used_without_a_mouse(chromium: Browser, lab: LabServer) -> None:
    page, trouble = open_notebook(chromium, lab, "01_quickstart.ipynb")
    for at in range(_FIGURE_CELL + 1):
        page.keyboard.press("Shift+Enter")
        page.wait_for_function(f"jupyterapp.shell.currentWidget.content.activeCellIndex === {at + 1}")
    page.wait_for_function(f"{_CELLS}.get({_FIGURE_CELL}).executionCount !== null")
    page.get_by_role("application", name="Timeline").wait_for()
    page.wait_for_function(
        f"({_LANES})().some(([, sentences]) => sentences.length)"
    )  # which are there once it has ended
    wait_until_painted(page)
    count = page.evaluate(f"{_CELLS}.length")
    page.keyboard.press("ArrowUp")
    for _ in range(_TABS):
        page.keyboard.press("Tab")
        if page.evaluate(_FOCUSED).startswith("Timeline"):
            break

    reader = Reader(page)
    (figure,) = reader.names("figure")
    assert page.locator(".pathways-headline").inner_text() in figure
    lanes = page.evaluate(_LANES)
    announced = [reader.press(key) for key in ("ArrowRight", *["ArrowDown"] * (len(lanes) - 1))]
    assert [said.split(":")[0] for said in announced] == [name for name, _ in lanes]
    for (name, sentences), said in zip(lanes, announced, strict=True):
        if " · dev " in name:
            assert any(map(said.endswith, sentences or ["nothing here"])), said

    for _ in range(len(lanes) - 2):
        said = reader.press("ArrowUp")
    assert said.startswith("island 0 · dev 0: ")
    reached = [reader.press("Home")]
    while "Nothing after" not in (said := reader.press("ArrowRight")):
        reached.append(said)
    sentences = dict(lanes)["island 0 · dev 0"]
    assert len(reached) == len(sentences) > 0
    assert all(said.endswith(one) for said, one in zip(reached, sentences, strict=True))
    reader.press("Enter")
    assert "Why" in reader.names("group")

    for key in ("b", "a", "x", "d", "d", "y", "m", "j", "k", "0", "0"):
        page.keyboard.press(key)
    assert page.evaluate(f"{_CELLS}.length") == count, "keys do nothing to the notebook"
    assert page.evaluate(_FOCUSED).startswith("Timeline")
    assert page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex") == _FIGURE_CELL
    assert not trouble
