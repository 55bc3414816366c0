"""The explorer of schedules in a real JupyterLab: a control is moved, and both pictures change."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image, ImageChops

from pathways_nb.bench.lab import LabServer
from pathways_widgets.drawing import palette
from tests.browser.test_lab import SHOTS, open_notebook, run_all, wait_until_done, wait_until_painted
from tests.support.waiting import until

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
"""
CELLS = ["import pathways_nb as pw", "explorer = pw.explore_schedules()\nexplorer"]


def field(page: Page, name: str) -> Any:
    """The field of a control."""
    row = page.locator(".widget-inline-hbox", has=page.locator(f"label:text-is('{name}')"))
    return row.locator("input, select").first


def halves(page: Page) -> list[Image.Image]:
    """What is to be seen of both pictures: the figure's upper and lower half."""
    image = Image.open(io.BytesIO(page.locator(".pathways-figure").screenshot())).convert("RGB")
    middle = image.height // 2
    return [image.crop((0, 60, image.width, middle)), image.crop((0, middle, image.width, image.height - 60))]


def differ(before: list[Image.Image], after: list[Image.Image]) -> list[bool]:
    """Whether each of two pictures looks different now."""
    return [ImageChops.difference(a, b).getbbox() is not None for a, b in zip(before, after, strict=True)]


def test_a_control_changes_both_pictures(chromium: Browser, lab: LabServer) -> None:
    lab.write("explore.ipynb", CELLS)
    page, trouble = open_notebook(chromium, lab, "explore.ipynb")
    page.evaluate(f"() => {{ {_HELPERS} }}")
    run_all(page)
    page.wait_for_function("globalThis.pathwaysBokeh && model('schedules_boxes')?.data.code?.length === 128")
    wait_until_done(page)
    wait_until_painted(page)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "explorer.png")
    assert page.evaluate("drawn()")["head"] == [f"{name}, 4 devices × 8 microbatches" for name in ("gpipe", "1f1b")]

    before = halves(page)
    field(page, "microbatches").fill("12")
    field(page, "microbatches").press("Enter")
    page.wait_for_function("drawn().count === 192")
    until(lambda: differ(before, halves(page)) == [True, True])
    assert page.evaluate("drawn()")["head"] == [f"{name}, 4 devices × 12 microbatches" for name in ("gpipe", "1f1b")]
    assert page.evaluate("drawn()")["end"] == 45

    field(page, "below").select_option("dualpipe")
    page.wait_for_function("drawn().head[1].startsWith('dualpipe')")
    field(page, "memory cap").fill("6")
    field(page, "memory cap").press("Enter")
    page.wait_for_function("drawn().words.includes('within the cap of 6')")
    for _ in range(9):
        page.locator("button:text-is('▶')").click()
    page.wait_for_function("model('schedules_now').data.left.length === 2")
    page.wait_for_function("document.querySelector('.pathways-figure').innerText.includes('Step 9 of')")
    wait_until_painted(page)
    page.screenshot(path=SHOTS / "explorer-step.png")
    assert "device 3 was busy with b0F0" in page.locator(".pathways-figure").inner_text()
    assert not trouble


def test_sixteen_devices_in_the_dark(chromium: Browser, lab: LabServer) -> None:
    large = "pw.explore_schedules('1f1b', 'interleaved-1f1b', devices=16, microbatches=128, cap=20)"
    lab.write("large.ipynb", [CELLS[0], large])
    page, trouble = open_notebook(chromium, lab, "large.ipynb")
    page.evaluate(f"() => {{ {_HELPERS} }}")
    page.evaluate("() => { jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'}) }")
    run_all(page)
    page.wait_for_function("globalThis.pathwaysBokeh && model('schedules_boxes')?.data.code?.length === 12288")
    wait_until_done(page)
    text = palette.THEMES["dark"]["text"].lower()
    page.wait_for_function(f"model('schedules_heading0').text_color.toLowerCase() === '{text}'")
    assert page.evaluate("model('schedules_marks').data.text.filter((text) => text).length") == 0
    page.evaluate("() => model('timeline_x').setv({start: 0, end: 12})")
    page.wait_for_function("model('schedules_marks').data.text.includes('F3')")
    wait_until_painted(page)
    page.screenshot(path=SHOTS / "explorer-closer.png")
    page.evaluate("""() => {
      const Bokeh = Object.values(globalThis.pathwaysBokeh)[0]
      Bokeh.index.find_one(model("schedules")).reset()
    }""")
    page.wait_for_function("!model('schedules_marks').data.text.includes('F3')")
    wait_until_painted(page)
    page.screenshot(path=SHOTS / "explorer-dark.png")
    assert not trouble


def test_a_refused_size_is_told_beside_its_field_and_goes_when_it_is_mended(chromium: Browser, lab: LabServer) -> None:
    lab.write("refused.ipynb", ["import pathways_nb as pw\npw.explore_schedules(devices=4)"])
    page, trouble = open_notebook(chromium, lab, "refused.ipynb")
    run_all(page)
    devices, said = field(page, "devices"), page.get_by_role("status").filter(has_text="devices=0 is no whole number")
    devices.wait_for()
    wait_until_done(page)
    devices.fill("0")
    devices.press("Enter")
    said.first.wait_for()
    here, there = devices.bounding_box(), said.first.bounding_box()
    assert there is not None
    assert abs(there["y"] - here["y"]) < 2 * here["height"], "in the row of the field, or right below it"
    devices.fill("4")
    devices.press("Enter")
    said.first.wait_for(state="hidden")
    assert not trouble
