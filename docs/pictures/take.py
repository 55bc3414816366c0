"""Take pictures of what cells show in JupyterLab: ``python docs/pictures/take.py readme live adopt trace``.

``readme`` is the first cell of README.md, and ``live`` the moving picture there: a cell while it runs. ``adopt`` are
the pictures of docs/guide/adopt.md, which need both compilers: what JupyterLab and the command show of the step in
``train.py``, on 64 H100. ``trace`` is the profile in docs/guide/measuring.md, beside its prediction.
"""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Locator, Page, sync_playwright

from pathways_nb.bench.lab import find_chromium, start

HERE = Path(__file__).parent
TO = HERE.parent / "_static"
README = HERE.parents[1] / "README.md"
CELLS = [
    "%load_ext pathways_nb\nimport pathways_nb as pw, train",
    "a = pw.adopt(train.step, *train.step_args(), chip='gpu_h100_sxm', mesh={'data': 16, 'model': 4})\n"
    "b = a.on(mesh={'data': 8, 'model': 8})\na.seconds, b.seconds",
    "a.collectives()",
    "a.show('graph,ops,memory')",
    "pw.compare(a, b).show('ops')",
]
TRACE = [
    "%load_ext pathways_nb\nimport pathlib, pathways_datasets, pathways_nb as pw\n"
    "for ending in ('hlo.txt', 'xplane.pb'):\n"
    "    data = pathways_datasets.recorded(f'h200_cudnn_6x4096_full.{ending}')\n"
    "    pathlib.Path(f'step.{ending}').write_bytes(data)",
    "predicted, seen = pw.load('step.hlo.txt', chip='gpu_h200_sxm'), pw.load('step.xplane.pb')\n"
    "pw.compare(predicted, seen).show('ops')",
]
"""A step that was compiled and profiled on an H200: what is predicted of it, and what the profiler saw."""
LIVE = """%load_ext pathways_nb
import pathways_nb as pw
controller = pw.attach("cpu", islands=2, devices_per_island=4)
left, right = pw.virtual_slice(4), pw.virtual_slice(4)
first, second = pw.work(0.2, on=left, name="first"), pw.work(0.2, on=right, name="second")

with pw.record(show="timeline"):
    pw.wait([second(first()) for microbatch in range(10)])"""
LIVE_MOST, LAST = 2_000_000, 3000
"""Bytes that the moving picture may have, and milliseconds for which its last frame stays."""
PICTURES = {2: "adopt_collectives.png", 3: "adopt_graph.png", 4: "adopt_meshes.png"}
OF_TRACE = {1: "foreign_trace.png"}
"""Number of a cell -> file of its output."""
CHECKED = "--chip gpu_h100_sxm --mesh data=16,model=4"
BEFORE = "        return self.down(hidden)"
AFTER = """        hidden = jax.lax.with_sharding_constraint(hidden, PartitionSpec("data", None, None))
        return self.down(hidden)"""
"""What a pull request changes: ``hidden`` is no longer divided over the axis ``model``."""
_DESCRIPTION = 0x010E
"""Number of Exif's text of what is in a picture."""
_DONE = """() => {
  const cells = jupyterapp.shell.currentWidget.content.model.cells
  return Array.from({length: cells.length}, (_, i) => cells.get(i)).every((cell) => cell.executionCount !== null)
}"""
_STATUS = "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
_CARD = """(title) => {
  const Bokeh = Object.values(globalThis.pathwaysBokeh)[0]
  const doc = Bokeh.documents.find((one) => one.get_model_by_name("graph_shown"))
  const {data} = doc.get_model_by_name("graph_nodes"), level = doc.get_model_by_name("graph_shown").data.level[0]
  const i = Array.from(data.title).findIndex((one, k) => data.level[k] === level && one.includes(title))
  const view = Bokeh.index.find_one(doc.get_model_by_name("graph")), box = view.canvas_view.el.getBoundingClientRect()
  return [box.left + view.frame.x_scale.compute(data.x[i]), box.top + view.frame.y_scale.compute(data.y[i])]
}"""


def readme_cell() -> str:
    """Return the first cell of README.md."""
    found = re.search(r"```python\n(.*?)\n```", README.read_text("utf-8"), re.DOTALL)
    assert found is not None, "README.md has a cell"
    return found[1]


def run_all(page: Page) -> None:
    """Run the cells of an open notebook, until each has ended."""
    page.wait_for_function("window.jupyterapp !== undefined")
    page.wait_for_function(f"{_STATUS} === 'idle'")
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function(_DONE)


def take_readme(page: Page) -> None:
    """Take the picture of the first cell of README.md."""
    run_all(page)
    page.evaluate("() => { jupyterapp.commands.execute('application:toggle-left-area') }")
    cell = page.locator(".jp-CodeCell").first
    cell.scroll_into_view_if_needed()
    page.wait_for_timeout(3000)  # until figures are laid out
    keep(cell.locator(".jp-OutputArea").first, "readme.png", cell=readme_cell())


def take_live(page: Page) -> None:
    """Take the moving picture of a cell while it runs: each frame stays as long as the next one took to come."""
    page.wait_for_function("window.jupyterapp !== undefined")
    page.wait_for_function(f"{_STATUS} === 'idle'")
    page.evaluate("() => { jupyterapp.commands.execute('application:toggle-left-area') }")
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.locator(".pathways-figure").wait_for()
    frames, taken = [], []
    is_over = False
    while not is_over:
        is_over = page.evaluate(_DONE)
        if is_over:
            page.wait_for_timeout(1500)  # until the last state is drawn
        taken.append(time.monotonic())
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    place = page.locator(".jp-CodeCell").first.bounding_box()
    assert place is not None, "the cell is in sight"
    left, top = place["x"], place["y"]
    box = tuple(round(side) for side in (left, top, left + place["width"], top + place["height"]))
    lasted = [round(1000 * (after - at)) for at, after in pairwise(taken)]
    keep_moving([one.crop(box) for one in frames], [*lasted, LAST])


def keep_moving(frames: list[Image.Image], milliseconds: list[int]) -> None:
    """Keep pictures as one that moves; its cell is in the file, for a test."""
    about = Image.Exif()
    about[_DESCRIPTION] = LIVE
    file = TO / "live.webp"
    look: dict[str, Any] = {"duration": milliseconds, "loop": 0, "quality": 75, "method": 6, "exif": about}
    frames[0].save(file, save_all=True, append_images=frames[1:], **look)
    assert file.stat().st_size <= LIVE_MOST, "fewer frames, or a smaller page"


def take(page: Page, pictures: dict[int, str]) -> None:
    """Take the pictures of an open notebook."""
    run_all(page)
    for number, name in pictures.items():
        cell = page.locator(".jp-CodeCell").nth(number)
        cell.scroll_into_view_if_needed()
        page.wait_for_timeout(3000)  # until figures are laid out
        if number == 3:
            for title in ("Mlp", "hidden = "):
                page.mouse.click(*page.evaluate(_CARD, title))
                page.mouse.move(5, 5)
                page.wait_for_timeout(1500)
        keep(cell.locator(".jp-OutputArea").first, name)


def keep(what: Locator, name: str, **said: str) -> None:
    """Keep the picture of a part of a page; ``said`` is written into the file, for a test to read what it is of."""
    shot, about = Image.open(io.BytesIO(what.screenshot())), PngInfo()
    for key, text in said.items():
        about.add_text(key, text)
    shot.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(TO / name, optimize=True, pnginfo=about)


def take_check(page: Page, folder: Path) -> None:
    """Take the picture of what the command says of a change that adds a gather."""
    model, asked = folder / "train.py", ["train.py::step", *CHECKED.split()]
    command = [sys.executable, "-m", "pathways_nb", "adopt", *asked]
    subprocess.run([*command, "--save", "main.step"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    assert BEFORE in model.read_text()
    model.write_text(model.read_text().replace(BEFORE, AFTER))
    done = subprocess.run(
        [*command, "--against", "main.step"], cwd=folder, check=False, stdout=subprocess.PIPE, text=True
    )
    typed = f"$ python -m pathways_nb adopt {' '.join(asked)} --against main.step"
    said = f"{typed}\n{done.stdout}$ echo $?\n{done.returncode}"
    page.set_content(f"<pre style='display: inline-block; padding: 1em; font-size: 14px'>{html.escape(said)}</pre>")
    keep(page.locator("pre"), "adopt_check.png")


def main() -> None:
    """Start JupyterLab beside the model, and take the pictures that are asked for."""
    asked = sys.argv[1:] or ["readme", "live", "adopt", "trace"]
    folder = Path(tempfile.mkdtemp())
    # The kernel finds the model beside its notebook; as anybody's code, it is in no package.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "work"), *filter(None, sys.path)])
    lab = start(folder)
    try:
        with sync_playwright() as playwright:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
            context = browser.new_context(viewport={"width": 1400, "height": 1600})
            context.set_default_timeout(300e3)
            if "readme" in asked:
                lab.write("readme.ipynb", [readme_cell()])
                (page := context.new_page()).goto(lab.page("readme.ipynb"))
                take_readme(page)
            if "live" in asked:
                lab.write("live.ipynb", [LIVE])
                (page := context.new_page()).set_viewport_size({"width": 1000, "height": 900})
                page.goto(lab.page("live.ipynb"))
                take_live(page)
            if "adopt" in asked:
                shutil.copy(HERE / "train.py", lab.folder)
                lab.write("adopt.ipynb", CELLS)
                (page := context.new_page()).goto(lab.page("adopt.ipynb"))
                take(page, PICTURES)
                take_check(context.new_page(), lab.folder)
            if "trace" in asked:
                lab.write("trace.ipynb", TRACE)
                (page := context.new_page()).goto(lab.page("trace.ipynb"))
                take(page, OF_TRACE)
            browser.close()
    finally:
        lab.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
