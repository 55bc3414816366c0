"""What a person sees: the quickstart in a real JupyterLab, in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench import lab as lab_server
from pathways_nb.bench.lab import LabServer
from pathways_widgets.drawing import palette
from tests.support.dragging import drag

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
SHOTS = lab_server.ROOT / "build" / "screenshots"
_RUN_ALL = "jupyterapp.commands.execute('notebook:run-all-cells')"
_STATUS = "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
_CANVASES = "[...document.querySelectorAll('.jp-OutputArea-output')].flatMap(e => findAll(e)).length"
_IN_SHADOWS = """
window.findAll = (root, found = []) => {
  for (const element of root.querySelectorAll('*')) {
    if (element.shadowRoot) findAll(element.shadowRoot, found)
    if (element.tagName === 'CANVAS' && element.width > 100) found.push(element)
  }
  return found
}
"""
_IS_DONE = """() => {
  const {cells} = jupyterapp.shell.currentWidget.content.model
  const all = Array.from({length: cells.length}, (_, i) => cells.get(i))
  const code = all.filter((cell) => cell.type === 'code' && cell.sharedModel.getSource().trim())
  const failed = code.some((cell) => cell.sharedModel.getOutputs().some((one) => one.output_type === 'error'))
  return failed || code.every((cell) => cell.executionCount !== null)
}"""
_IS_PAINTED = """() => new Promise((after) => requestAnimationFrame(() => requestAnimationFrame(() => after(true))))"""


def open_notebook(chromium: Browser, lab: LabServer, name: str) -> tuple[Page, list[str]]:
    """The notebook in a page of its own, its kernel idle; the list fills with page errors and off-site requests."""
    page = chromium.new_context(viewport={"width": 1400, "height": 1600}).new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(f"page error: {error}"))
    page.on("request", lambda r: None if _is_local(r.url) else trouble.append(f"request: {r.url}"))
    page.goto(lab.page(name))
    page.wait_for_function(
        "window.jupyterapp !== undefined",
    )
    page.wait_for_function(f"{_STATUS} === 'idle'")
    page.evaluate(f"() => {{ {_IN_SHADOWS} }}")
    return page, trouble


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1", "data:", "blob:", "about:"))


def run_all(page: Page) -> None:
    page.evaluate(f"() => {{ {_RUN_ALL} }}")


def wait_until_done(page: Page) -> None:
    """Until every cell has run, or one has failed."""
    page.wait_for_function(_IS_DONE)


def wait_until_painted(page: Page) -> None:
    """Until figures have been laid out and drawn, as far as their data has come."""
    page.wait_for_function("Object.values(globalThis.pathwaysBokeh)[0].documents.every((one) => one.is_idle)")
    page.evaluate(_IS_PAINTED)


def run_cells(chromium: Browser, lab: LabServer, name: str, cells: list[str]) -> tuple[Page, list[str]]:
    """A notebook of these cells as ``open_notebook`` opens it, after all of them have run."""
    lab.write(name, cells)
    page, trouble = open_notebook(chromium, lab, name)
    run_all(page)
    wait_until_done(page)
    return page, trouble


def test_the_quickstart_runs_and_is_drawn(chromium: Browser, lab: LabServer) -> None:
    page, trouble = open_notebook(chromium, lab, "01_quickstart.ipynb")
    run_all(page)
    wait_until_done(page)
    page.wait_for_function(f"{_CANVASES} >= 6")
    wait_until_painted(page)
    SHOTS.mkdir(parents=True, exist_ok=True)
    _shots(page)
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert (
        page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr'] >> text=Traceback").count() == 0
    )
    assert not trouble


def _shots(page: Page) -> None:
    cells = page.locator(".jp-CodeCell")
    for index in range(cells.count()):
        cell = cells.nth(index)
        if "%%pathways" in cell.inner_text() or "show(" in cell.inner_text():
            cell.scroll_into_view_if_needed()
            page.evaluate(_IS_PAINTED)
            cell.screenshot(path=SHOTS / f"quickstart-{index:02d}.png")


def test_a_notebook_reopened_without_its_kernel_shows_still_pictures(chromium: Browser, lab: LabServer) -> None:
    name = "still.ipynb"
    cells = ["%load_ext pathways_nb", 'import pathways_nb as pw\npw.attach("cpu", islands=2, devices_per_island=2)',
             "f = pw.jit(lambda v: v + 1, on=pw.virtual_slice(2))", "%%pathways\ny = f(1.)"]  # fmt: skip
    page, trouble = run_cells(chromium, lab, name, cells)
    page.wait_for_function(f"{_CANVASES} > 0")
    still = ".jp-OutputArea-child:has([data-pw-still]) + .jp-OutputArea-child img"
    assert page.locator(still).count() == 1
    assert not page.locator(still).is_visible(), "the figure itself is there"
    page.evaluate(
        "() => jupyterapp.commands.execute('docmanager:save').then(() => null)"
    )  # which is over when it is saved
    lab.end_kernels()
    page.close()

    page, again = open_notebook(chromium, lab, name)
    page.locator(still).wait_for(state="visible")
    # JupyterLab gives no image an alternative text: it stands before the image, where only screen readers find it.
    assert " launch" in page.locator("[data-pw-still] p").inner_text()
    for words in ("Error displaying widget", "Loading widget"):
        assert not page.locator(f"text={words}").is_visible()
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "reopened.png")
    assert not trouble
    assert not again


_FIGURE = """
window.figure = () => {
  const Bokeh = Object.values(globalThis.pathwaysBokeh)[0]
  const doc = Bokeh.documents.at(-1), model = doc.get_model_by_name("timeline")
  return {doc, model, view: Bokeh.index.find_one(model)}
}
window.at = (x, y) => {
  const {view} = figure(), box = view.canvas_view.el.getBoundingClientRect()
  return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)]
}
"""


_STEP_BY_STEP = """\
%%pathways --run mine
y = f(1.); y.wait()
picture = current.get().recordings[-1][0].view
for n in range(1, 6):
    while picture.view != [n, n + 1]: time.sleep(.01)
    y = f(y); y.wait()
"""
"""Goes on after each call when the browser, which has seen it, looks at the n-th second."""


def _look_at_each_step(page: Page) -> None:
    """While the cell runs, its picture tells of one launch more at each step."""
    prompt = page.locator(".jp-CodeCell").nth(2).locator(".jp-InputPrompt")
    # With what is folded below "details".
    output = "document.querySelectorAll('.jp-CodeCell')[2].querySelector('.jp-OutputArea').textContent"
    for n in range(1, 6):
        page.wait_for_function(f"/(?<!\\d){n} launch/.test({output})")
        assert "*" in prompt.inner_text()
        page.evaluate(f"() => figure().doc.get_model_by_name('timeline_x').setv({{start: {n}, end: {n + 1}}})")
    page.wait_for_function(f"{output}.includes('6 launches')")
    page.evaluate("() => figure().view.reset()")


def test_brushing_and_picking_while_the_kernel_is_busy_and_the_theme_switched(
    chromium: Browser, lab: LabServer
) -> None:
    name = "brush.ipynb"
    lab.write(name, [
        "%load_ext pathways_nb\nimport time, pathways_nb as pw\nfrom pathways_nb.session import default_controller as current\n"
        "pw.attach('cpu', islands=2, devices_per_island=2)",
        "f = pw.jit(lambda v: v + 1, on=pw.virtual_slice(2))\nf(1.).wait()",
        _STEP_BY_STEP,
        "while pw.runs['mine'].view.selection is None: time.sleep(.01)",
        "print('selected', len(pw.runs['mine'].view.selection.events), 'events')",
    ])  # fmt: skip
    page, trouble = open_notebook(chromium, lab, name)
    page.evaluate(f"() => {{ {_FIGURE} }}")
    run_all(page)
    page.wait_for_function(f"{_CANVASES} > 1")
    page.locator(".jp-CodeCell").nth(2).scroll_into_view_if_needed()
    _look_at_each_step(page)
    busy = page.locator(".jp-CodeCell").nth(3).locator(".jp-InputPrompt")
    page.wait_for_function("figure().doc.get_model_by_name('timeline_boxes').data.kind.includes('compute')")
    wait_until_painted(page)
    assert "*" in busy.inner_text()

    node = page.evaluate("""() => {
      const {doc} = figure(), nodes = doc.get_model_by_name("graph_nodes")
      nodes.selected.indices = [nodes.data.kind.indexOf("computation")]
      return doc.get_model_by_name("timeline_boxes").selected.indices.length
    }""")
    assert node >= 1, "bars of the node are marked"
    back = page.evaluate("""() => {
      const {doc} = figure(), bars = doc.get_model_by_name("timeline_boxes"), nodes = doc.get_model_by_name("graph_nodes")
      bars.selected.indices = [bars.data.kind.lastIndexOf("compute")]
      return nodes.selected.indices.map((i) => nodes.data.kind[i])
    }""")
    assert back == ["computation"], "the node of a bar is marked"
    assert "*" in busy.inner_text(), "the kernel was busy all the while"

    cells = page.locator(".jp-CodeCell").count()
    page.locator("input[type=search]").first.click()
    page.keyboard.type("ddaa")
    assert page.locator("input[type=search]").first.input_value() == "ddaa"
    assert page.locator(".jp-CodeCell").count() == cells, "letters are no commands while a name is typed"

    page.evaluate("() => { figure().model.toolbar.tools.find(t => t.type === 'BoxSelectTool').active = true }")
    span = page.evaluate("() => { const r = figure().model.x_range; return [r.start, r.end] }")
    left, right = (page.evaluate("x => at(x, 2.5)", span[0] + part * (span[1] - span[0])) for part in (0.02, 0.98))
    drag(page, left, right)
    page.locator("text=received").first.wait_for()
    wait_until_done(page)
    assert "selected" in page.locator(".jp-CodeCell").nth(4).inner_text()
    page.screenshot(path=SHOTS / "brushed.png")
    page.evaluate("() => figure().view.reset()")
    page.locator("text=received").first.wait_for(state="hidden")

    soft = palette.THEMES["dark"]["soft"].lower()
    assert page.evaluate("() => figure().model.title.text_color.toLowerCase()") != soft
    page.evaluate("() => { jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'}) }")
    page.wait_for_function(f"figure().model.title.text_color.toLowerCase() === '{soft}'")
    wait_until_painted(page)
    page.screenshot(path=SHOTS / "dark.png")
    assert not trouble
