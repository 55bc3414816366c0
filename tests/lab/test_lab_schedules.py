"""The explorer of schedules in a real JupyterLab: a control is moved, and both pictures change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pathways_nb.bench import lab as lab_server
from pathways_nb.bench.lab import LabServer
from tests.lab.test_lab import SHOTS, open_notebook, run_all, wait_until_done

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
_HELPERS = """
window.model = (name) => Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1)?.get_model_by_name(name)
window.boxes = () => model("schedules_boxes").data
window.drawn = () => {
  const {code, left, right} = boxes(), head = [0, 1].map((i) => model(`schedules_heading${i}`).text)
  return {count: code.length, head, end: Math.max(...right), words: model("schedules_words1").text}
}
window.canvas = () => {
  const view = Object.values(globalThis.pathwaysBokeh)[0].index.find_one(model("schedules"))
  const {canvas, ratio} = view.canvas_view.primary
  const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
  const {left, top, width: wide} = view.frame.bbox
  return (y) => {  // the colours along one line of pixels of the figure
    const row = Math.round((top + view.frame.y_scale.compute(y) - top) * 1), found = []
    for (let x = 0; x < canvas.width; x += 3) found.push(...data.slice(4 * (row * ratio * width + x), 4 * (row * ratio * width + x) + 3))
    return found.join()
  }
}
"""
CELLS = ["import pathways_nb as pw", "explorer = pw.explore_schedules()\nexplorer", "pw.schedule('1f1b', 4, 8)"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = lab_server.start(tmp_path_factory.mktemp("lab"))
    yield server
    server.stop()


def field(page: Page, name: str) -> Any:
    """The field of a control."""
    row = page.locator(".widget-inline-hbox", has=page.locator(f"label:text-is('{name}')"))
    return row.locator("input, select").first


def test_a_control_changes_both_pictures(chromium: Browser, lab: LabServer) -> None:
    lab.write("explore.ipynb", CELLS[:2])
    page, trouble = open_notebook(chromium, lab, "explore.ipynb")
    page.evaluate(f"() => {{ {_HELPERS} }}")
    run_all(page)
    page.wait_for_function("globalThis.pathwaysBokeh && model('schedules_boxes')?.data.code?.length === 128")
    wait_until_done(page)
    page.wait_for_timeout(500)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "explorer.png")
    assert page.evaluate("drawn()")["head"] == [f"{name}, 4 devices × 8 microbatches" for name in ("gpipe", "1f1b")]

    field(page, "microbatches").fill("12")
    field(page, "microbatches").press("Enter")
    page.wait_for_function("drawn().count === 192")
    assert page.evaluate("drawn()")["head"] == [f"{name}, 4 devices × 12 microbatches" for name in ("gpipe", "1f1b")]
    field(page, "below").select_option("dualpipe")
    page.wait_for_function("drawn().head[1].startsWith('dualpipe')")
    page.locator("button:text-is('▶')").click()
    page.wait_for_function("model('schedules_now').data.left.length >= 1")
    page.wait_for_timeout(500)
    page.screenshot(path=SHOTS / "explorer-step.png")
    assert "Step 1 of" in page.locator(".pathways-figure").first.inner_text()
    assert not trouble
