"""A real marimo, which runs a notebook as an app: figures show themselves, also those of a page that comes later."""

from __future__ import annotations

import secrets
import subprocess
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.test_lab import SHOTS
from tests.support.environments import bare, behind, outside
from tests.support.waiting import LIMIT, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CELLS = [
    """
    import os
    import time
    import jax.monitoring
    import marimo as mo
    import pathways_nb as pw
    compiled = []
    note = lambda name, seconds, **about: compiled.append(name) if "backend_compile" in name else None
    jax.monitoring.register_event_duration_secs_listener(note)
    again = mo.ui.button(label="again", value=0, on_click=lambda times: times + 1)
    again
    """,
    """
    times = again.value
    controller = pw.attach("cpu", islands=2, devices_per_island=2)
    left, right = pw.virtual_slice(2, name="left"), pw.virtual_slice(2, name="right")
    first = pw.jit(lambda v: v * 2.0, on=left)
    second = pw.jit(lambda v: v + 1.0, on=right)
    both = pw.program(lambda v: second(first(v)), name="both")
    """,
    """
    before = len(compiled)
    with pw.record(show="graph,timeline", name="live") as run:
        while not (os.path.exists("seen") and len(run.events)):  # until somebody has seen it move
            both(1.0).wait()
            time.sleep(0.1)
    mo.output.append(mo.md(f"TIMES {times} COMPILED {len(compiled) - before} CONTROLLER {id(controller)}"))
    """,
    """run.show("memory")""",
    """pw.compare(run, run)""",
    """pw.schedule("1f1b", 4, 8)""",
    """
    explorer = pw.explore_schedules()
    explorer
    """,
]
FIGURES = 5
_SEEN = """() => {
  const found = []
  const walk = (root) => { for (const one of root.querySelectorAll("*")) {
    if (one.matches(".pathways-figure") && one.getBoundingClientRect().height > 100) found.push(one.innerText)
    if (one.shadowRoot) walk(one.shadowRoot)
  } }
  walk(document)
  return found
}"""
"""What stands below each figure that is drawn."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the notebook."""
    return tmp_path_factory.mktemp("marimo")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where marimo runs the notebook."""
    python = bare(folder / "venv", "marimo")
    behind(python)
    notebook = folder / "figures.py"
    made = ["import marimo", 'app = marimo.App(width="medium")']
    for cell in CELLS:
        body = textwrap.indent(textwrap.dedent(cell).strip(), "    ")
        made.append(f"@app.cell\ndef _():\n{body}\n    return")
    notebook.write_text("\n\n".join([*made, 'if __name__ == "__main__":\n    app.run()\n']))
    port = secrets.randbelow(20_000) + 10_000
    command = [str(python), "-m", "marimo", "run", str(notebook), "--headless", "--no-token", f"--port={port}"]
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(command, env=outside(), cwd=folder, stdout=log, stderr=log)
    try:
        until(lambda: started.poll() is not None or is_up(f"http://127.0.0.1:{port}/health"))
        assert started.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        started.terminate()
        started.wait(LIMIT)


def is_up(url: str) -> bool:
    """Whether a server answers."""
    try:
        return bool(urllib.request.urlopen(url, timeout=LIMIT).read())
    except OSError:
        return False


def opened_page(chromium: Browser, address: str) -> tuple[Page, list[str]]:
    """The app in a page of its own, and what went wrong there."""
    page = chromium.new_context(viewport={"width": 1300, "height": 1000}).new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda said: trouble.append(said.text) if said.type == "error" else None)
    page.goto(address)
    return page, trouble


def test_figures_show_themselves_move_and_are_not_compiled_twice(chromium: Browser, address: str, folder: Path) -> None:
    page, trouble = opened_page(chromium, address)
    page.wait_for_function(f"({_SEEN})().length > 0")
    assert page.locator("text=TIMES 0").count() == 0, "its cell ends only when it was seen"
    page.get_by_text("details").first.click()
    early = page.evaluate(_SEEN)[0]
    page.wait_for_function(f"(early) => ({_SEEN})()[0] !== early", arg=early)
    (folder / "seen").touch()
    page.wait_for_function(f"({_SEEN})().length === {FIGURES}")
    words = page.locator("text=TIMES 0").inner_text()
    page.screenshot(path=SHOTS / "marimo.png", full_page=True)

    devices = page.get_by_role("spinbutton", name="devices")
    devices.fill("6")
    devices.press("Tab")
    page.wait_for_function(f"({_SEEN})().at(-1).includes('192 steps')")
    page.get_by_role("button", name="▶").click()
    page.wait_for_function(f"!({_SEEN})().at(-1).includes('192 steps')")

    page.get_by_role("button", name="again").click()
    rerun = page.locator("text=TIMES 1").inner_text()
    assert rerun == words.replace("TIMES 0", "TIMES 1").replace("COMPILED 2", "COMPILED 0")
    page.wait_for_function(f"({_SEEN})().length === {FIGURES}")

    page.reload()  # a session of its own in the same process
    page.wait_for_function(f"({_SEEN})().length === {FIGURES}")
    assert "COMPILED 0" in page.locator("text=TIMES 0").inner_text()
    assert not trouble
