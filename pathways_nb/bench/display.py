"""Display: waiting time for a picture, smoothness with many events, and response time of controls.

Measured in a real JupyterLab and a real Chromium, from the command that runs a cell to the painted pixel: a message
that has reached the browser is not yet a picture. Without a browser or without Playwright these figures are absent. The
figures of ``recording`` and ``_quickstart`` are part of the report.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pathways_nb.bench import (
    _decision_steps,
    _explorer_updates,
    _large_pictures,
    _quickstart,
    lab,
    recording,
)
from pathways_nb.results.run import Run
from pathways_nb.trace.record import STORED, UNKNOWN, Events, Record
from pathways_nb.trace.rows import Label

PANS = 10
"""Repetitions of each gesture."""
_NODES = 40
"""Nodes of the synthetic program."""
_COUNTS = {100_000: "100k", 1_000_000: "1m"}
"""Numbers of events, with their names in figures."""
_GESTURES = {"pan": 0.1, "jump": 1.2}
"""Share of the window by which each gesture moves; a jump shows what was not visible before."""
_FIRST = [
    "%load_ext pathways_nb\nimport pathways_nb as pw\npw.attach('cpu', islands=2, devices_per_island=4)\n"
    "f = pw.jit(lambda v: v + 1, on=pw.virtual_slice(4))",
    "%%pathways\ny = f(1.)",
    "%%pathways\ny = f(2.)",
]
_MANY = ["from pathways_nb.bench.display import synthetic\nrun = synthetic({count})", "run.show('timeline')"]
_READY = "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
_HELPERS = """() => {
  window.painted = (cell) => {
    const canvases = []
    const find = root => { for (const e of root.querySelectorAll('*')) {
      if (e.shadowRoot) find(e.shadowRoot)
      if (e.tagName === 'CANVAS' && e.width > 100) canvases.push(e) } }
    find(document.querySelectorAll('.jp-CodeCell')[cell])
    return canvases.some(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))
  }
  window.move = async (share) => {
    const Bokeh = Object.values(globalThis.pathwaysBokeh)[0], doc = Bokeh.documents.at(-1)
    const range = doc.get_model_by_name('timeline_x'), source = doc.get_model_by_name('timeline_boxes')
    const frame = () => new Promise(requestAnimationFrame)
    const covered = () => source.data.left.some(x => x <= range.start) && source.data.right.some(x => x >= range.end)
    const span = range.end - range.start, began = performance.now()
    range.setv({start: range.start + share * span, end: range.end + share * span})
    while (!covered() && performance.now() < began + 20_000) await frame()
    await frame(); await frame()
    return performance.now() - began
  }
}"""
"""JavaScript for the page: whether a cell has painted pixels, and the time until a moved range shows its boxes."""


def synthetic(count: int, islands: tuple[int, ...] = (4, 4), seconds: float = 10.0, nodes: int = _NODES) -> Run:
    """Return a finished run of synthetic events, one after another on every device, to measure pictures.

    Args:
        count: number of events.
        islands: number of devices of each island.
        seconds: length of the run.
        nodes: of the program.
    """
    devices = [(island, device) for island, size in enumerate(islands) for device in range(size)]
    labels = [
        Label("compute", f"node {node}", "synthetic", node=node, island=i, device=d, devices=1)
        for node in range(nodes)
        for i, d in devices
    ]
    number = np.arange(count)
    start = (number // len(devices)) * (seconds * len(devices) / count)
    columns = {
        "label": (number % len(labels)).astype(np.int32),
        "start": start,
        "end": start + 0.6 * seconds * len(devices) / count,
        "run": np.zeros(count, np.int32),
        "quality": np.zeros(count, np.uint8),
        "status": np.zeros(count, np.uint8),
        **{name: np.full(count, code, STORED[name]) for name, code in UNKNOWN.items()},
    }
    events = Events(labels, columns, number)
    return Run(f"synthetic, {count:,} events", islands, Record.of(events), finished=True)


def run() -> dict[str, Any]:
    """Return the time of the first and a later picture, of pans at 100,000 and a million events, steps and controls."""
    cost, waits = recording.run(), _quickstart.run()
    cost = {part: cost[part] | waits[part] for part in ("figures", "detail")}
    browser = lab.find_chromium()
    if browser is None or importlib.util.find_spec("playwright") is None:
        cost["detail"] |= {"note": "no Chromium or no playwright here: the browser's part was not measured"}
        return cost
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = lab.start(Path(folder))
        # Chromium does not start as root with its sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = playwright.chromium.launch(executable_path=browser, args=arguments)
        try:
            first, warm = _pictures(server, chromium)
            moves = {count: _moves(server, chromium, count) for count in _COUNTS}
            large = {name: _large(server, chromium, name) for name in _large_pictures.CELLS}
            steps = _steps(server, chromium)
            changes = [_changes(server, chromium, number) for number in range(len(_explorer_updates.EXPLORERS))]
        finally:
            chromium.close()
            server.stop()
    figures = {"first_picture_seconds": first, "warm_picture_seconds": warm}
    figures |= large | cost["figures"]
    detail = dict(cost["detail"])
    for (count, short), (gesture, share) in itertools.product(_COUNTS.items(), _GESTURES.items()):
        times = moves[count][gesture]
        figures[f"{gesture}_ms_{short}"] = median(times)
        detail[f"{gesture} by {share:.0%} of the window at {count:,} events, ms"] = [round(ms) for ms in times]
    figures["step_ms_100k"] = median(steps)
    detail[f"one step on among {_decision_steps.EVENTS:,} events of the controller, ms"] = [round(ms) for ms in steps]
    answers = _explorer_updates.summary(changes)
    return {"figures": figures | answers["figures"], "detail": detail | answers["detail"]}


def _open(server: lab.LabServer, chromium: Any, name: str, cells: list[str]) -> Any:
    """Return a page with a new notebook, whose kernel is idle."""
    server.write(name, cells)
    page = chromium.new_page(viewport={"width": 1400, "height": 1400})
    page.goto(server.page(name))
    page.wait_for_function("window.jupyterapp !== undefined", timeout=60_000)
    page.wait_for_function(_READY, timeout=60_000)
    page.evaluate(_HELPERS)
    return page


def _pictures(server: lab.LabServer, chromium: Any) -> tuple[float, float]:
    """Return the seconds until the first picture, with the import before it, and until a later one."""
    page = _open(server, chromium, "first.ipynb", _FIRST)
    began = time.monotonic()
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-cell-and-select-next') }")
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-cell-and-select-next') }")
    page.wait_for_function("painted(1)", timeout=60_000, polling="raf")
    first = time.monotonic() - began
    page.wait_for_function(_READY, timeout=60_000)
    page.wait_for_timeout(1000)
    began = time.monotonic()
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-cell') }")
    page.wait_for_function("painted(2)", timeout=60_000, polling="raf")
    warm = time.monotonic() - began
    page.close()
    return first, warm


def _large(server: lab.LabServer, chromium: Any, name: str) -> float:
    """Return the seconds until a large picture is painted."""
    page = _open(server, chromium, f"{name}.ipynb", list(_large_pictures.CELLS[name]))
    found = _large_pictures.seconds(page, _READY)
    page.close()
    return found


def _changes(server: lab.LabServer, chromium: Any, number: int) -> list[float]:
    """Return the milliseconds of each change in an explorer, by its position."""
    one = _explorer_updates.EXPLORERS[number]
    page = _open(server, chromium, f"explorer{number}.ipynb", ["import pathways_nb as pw", one.cell])
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
    times = _explorer_updates.answers(page, one)
    page.close()
    return times


def _steps(server: lab.LabServer, chromium: Any) -> list[float]:
    """Return the milliseconds of each step of the player of a long run's decisions."""
    page = _open(server, chromium, "steps.ipynb", _decision_steps.CELLS)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function("painted(1)", timeout=240_000)
    page.wait_for_function(_READY, timeout=60_000)
    times = _decision_steps.answers(page)
    page.close()
    return times


def _moves(server: lab.LabServer, chromium: Any, count: int) -> dict[str, list[float]]:
    """Return the milliseconds of each pan and jump on a timeline of so many events."""
    page = _open(server, chromium, f"many{count}.ipynb", [cell.format(count=count) for cell in _MANY])
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function("painted(1)", timeout=120_000)
    page.wait_for_timeout(2000)
    page.evaluate("""() => {
      const Bokeh = Object.values(globalThis.pathwaysBokeh)[0]
      Bokeh.documents.at(-1).get_model_by_name('timeline_x').setv({start: 1, end: 1.5})
    }""")
    page.wait_for_timeout(1000)
    times = {
        gesture: [float(page.evaluate("share => move(share)", share)) for _ in range(PANS)]
        for gesture, share in _GESTURES.items()
    }
    page.close()
    return times
