"""Which pages of the guide and which notebooks of the course are about the same; the site links each to the others.

The links are made when the site is built: a notebook that was copied out of a wheel has no guide beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
TOPICS: dict[str, tuple[str, ...]] = {
    "01_quickstart": ("start", "accelerators", "programs", "pictures"),
    "02_dispatch": ("simulator", "measuring"),
    "03_tenants_and_gangs": ("tenants",),
    "04_memory": ("tenants", "measuring"),
    "05_mixture_of_experts": ("programs",),
    "06_two_thousand_tpus": ("simulator", "measured"),
    "07_pipelines": ("schedules", "pipelines"),
    "08_terapipe": ("pipelines",),
    "09_simple_fsdp": ("fsdp", "islands"),
    "10_research": ("measuring", "simulator", "twelve_cells", "inside"),
    "11_cluster": ("cluster",),
    "12_your_step": ("adopt", "compilers"),
}
"""Notebook -> pages of the guide."""
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def with_guide(name: str, notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook that names, below its heading, the pages of the guide on its topics."""
    pages = ((f"../guide/{page}.md", _title(f"docs/guide/{page}.md")) for page in TOPICS[name])
    notebook.cells[0].source = below_heading(notebook.cells[0].source, "In the guide", pages)
    return notebook


def with_course(page: str, text: str) -> str:
    """Return a page of the guide that names, below its heading, the notebooks on its topics; as it is without any."""
    names = [name for name, pages in TOPICS.items() if page in pages]
    notebooks = ((f"../course/{name}.ipynb", _title(f"notebooks/{name}.ipynb")) for name in names)
    return below_heading(text, "In the course", notebooks) if names else text


def below_heading(text: str, what: str, links: Iterable[tuple[str, str]]) -> str:
    """Return a text in Markdown with a line of links below its first heading.

    Args:
        text: the text.
        what: what the links lead to.
        links: address and words of each.
    """
    listed = ", ".join(f"[{words}]({address})" for address, words in links)
    return _HEADING.sub(lambda found: f"{found[0]}\n\n*{what}:* {listed}", text, count=1)


def _title(path: str) -> str:
    """Return the heading of a page or a notebook, without what follows a colon."""
    file = ROOT / path
    text = file.read_text("utf-8") if file.suffix == ".md" else nbformat.read(file, as_version=4).cells[0].source
    found = _HEADING.search(text)
    assert found is not None, f"{path} has a heading"
    return found[1].partition(":")[0]
