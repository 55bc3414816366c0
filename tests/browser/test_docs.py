"""The documentation: every public name is in the reference once, and a site's figures are live without a network."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import pathways_nb as pw
from docs import topics
from pathways_nb.notebook.site import fetched, remote
from pathways_nb.parallel.fsdp import passes
from tests.conftest import ROOT

DOCS = ROOT / "docs"
CONF = """\
extensions = ["myst_nb", "pathways_nb.notebook.site"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
html_theme = "furo"
"""
CELL = """\
%load_ext pathways_nb
import sys, pathways_nb as pw
pw.schedule("1f1b", devices=2, microbatches=4).show()
print("kernel of", sys.executable)
"""


DEEPER = {f"pathways_nb.{name}" for name in (
    "parallel.fsdp.step_planner.Planner", "parallel.fsdp.timeline.StepTimeline", "parallel.fsdp.measured.MeasuredStep",
    "parallel.fsdp.passes.edits.StepCollectives", "parallel.fsdp.passes.edits.Gather",
    "parallel.fsdp.passes.edits.Reduction", "adopt.collective_table.Collectives", "adopt.called_steps.CalledSteps",
    "adopt.collective_line.CollectiveLine", "adopt.predicted_seconds.PredictedSeconds",
    "cost.launch.launch_memory.LaunchMemory", "cost.launch.launch_memory.LargeBuffer", "results.policy_replay_player.Ends",
    "controller.order_difference.OrderDifference", "controller.order_difference.SentCollective",
)}  # fmt: skip
"""Documented names that a user meets and rarely writes."""


def test_the_reference_has_every_public_name_once() -> None:
    text = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.rst"))
    named = Counter(re.findall(r"^\.\. (?:auto\w+|py:class|py:data):: ([\w.]+)", text, re.MULTILINE))
    inside = {f"{module.__name__}.{name}" for module in (pw.terapipe, passes) for name in module.__all__}
    assert set(named) == set(pw.__all__) | inside | DEEPER
    assert [name for name, times in named.items() if times > 1] == []


def test_every_page_is_in_a_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    pages = {
        path.relative_to(DOCS).with_suffix("").as_posix()
        for path in DOCS.rglob("*.*")
        if path.suffix in {".md", ".rst"}
    }
    assert pages - {"index"} <= set(index.split())


def test_each_notebook_and_the_pages_on_its_topics_name_each_other() -> None:
    guide = {path.stem: path.read_text("utf-8") for path in (DOCS / "guide").glob("*.md")}
    assert set(topics.TOPICS) == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {page for pages in topics.TOPICS.values() for page in pages} == set(guide), "each page has a notebook"
    shown = topics.with_course("schedules", guide["schedules"])
    assert "# Pipeline schedules\n\n*In the course:* [Pipelines](../course/07_pipelines.ipynb)\n" in shown
    notebook = nbformat.read(ROOT / "notebooks" / "07_pipelines.ipynb", as_version=4)
    links = "[Pipeline schedules](../guide/schedules.md), [Run a pipeline](../guide/pipelines.md)"
    assert f"\n\n*In the guide:* {links}\n" in topics.with_guide("07_pipelines", notebook).cells[0].source


@pytest.mark.slow
def test_the_sidebar_numbers_chapters_of_guide_and_course(tmp_path: Path) -> None:
    from sphinx.cmd.build import build_main

    index = (DOCS / "index.md").read_text("utf-8")
    parts = re.findall(r"```{toctree}\n.*?```", index, re.DOTALL)
    (tmp_path / "conf.py").write_text('extensions = ["myst_nb"]\nhtml_theme = "furo"\n')
    (tmp_path / "index.md").write_text("\n\n".join(["# All", *parts[:2]]))
    pages = [line for line in parts[0].splitlines() if line.startswith("guide/") or line == "contributing"]
    for page in [*pages, "course/01_first", "course/02_second"]:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / f"{page}.md").write_text(f"# About {page}\n\n## A part\n")
    assert build_main(["-q", "-W", str(tmp_path), str(tmp_path / "html")]) == 0
    sidebar = (tmp_path / "html" / "index.html").read_text("utf-8").partition("sidebar-tree")[2]
    named = re.findall(r'<a class="reference internal" href="[^"#]+">([^<]+)</a>', sidebar)
    numbers = [f"{number}. About {page}" for number, page in enumerate(pages, 1)]
    assert named[: len(pages) + 2] == [*numbers, "1. About course/01_first", "2. About course/02_second"]


def test_what_a_page_fetches_is_found(tmp_path: Path) -> None:
    page = """<link rel="stylesheet" href="a.css"><script src="https://cdn.example/x.js"></script><img src="//b/i.png">
    <a href="https://example.org">a link to follow</a><script>const text = '<img src="https://no.example/i.png">'</script>"""
    assert fetched(page) == ["a.css", "https://cdn.example/x.js", "//b/i.png"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "page.html").write_text(page)
    (tmp_path / "a.css").write_text("""@import "https://fonts.example/f"; div { background: url('img.png') }""")
    assert remote(tmp_path) == [
        "a.css: https://fonts.example/f",
        "sub/page.html: https://cdn.example/x.js",
        "sub/page.html: //b/i.png",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small site with one notebook, built once."""
    from sphinx.cmd.build import build_main

    folder = tmp_path_factory.mktemp("site")
    (folder / "conf.py").write_text(CONF)
    nbformat.write(new_notebook(cells=[new_markdown_cell("# A title"), new_code_cell(CELL)]), folder / "index.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", "")
        assert build_main(["-q", "-W", str(folder), str(folder / "html")]) == 0
    return folder / "html"


@pytest.mark.slow
def test_a_notebook_runs_in_this_interpreter_and_its_page_needs_no_network(site: Path) -> None:
    import sys

    page = (site / "index.html").read_text("utf-8")
    assert f"kernel of {sys.executable}" in page
    assert page.count("data-figure") == 1
    assert page.count('<noscript><img alt="" src="data:image/png;base64,') == 1
    assert remote(site) == []


@pytest.mark.browser
@pytest.mark.slow
def test_its_figure_is_drawn_and_follows_the_theme_with_the_network_cut_off(site: Path, chromium: Any) -> None:
    context = chromium.new_context(offline=True)
    try:
        page = context.new_page()
        requests, errors = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "index.html").as_uri())
        page.wait_for_function("document.body.dataset.drawn === 'true' && Bokeh.documents[0].is_idle")
        colour = "Bokeh.documents[0].get_model_by_name('schedules_title').text_color"
        light = page.evaluate(colour)
        page.evaluate("document.body.dataset.theme = 'dark'")
        page.wait_for_function(f"{colour} !== {light!r}")
        assert errors == []
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    finally:
        context.close()
