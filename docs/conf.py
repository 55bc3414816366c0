"""Sphinx settings; ``make docs`` builds the site. The course's notebooks come with the outputs that the tests read."""

import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from docs import topics  # noqa: E402 - found in the line above
from tests.support import executed_notebooks  # noqa: E402

COURSE = HERE / "course"
shutil.rmtree(COURSE, ignore_errors=True)
COURSE.mkdir()
for name in executed_notebooks.NAMES:
    shown = executed_notebooks.for_readers(executed_notebooks.executed(name))
    executed_notebooks.store(topics.with_guide(name, shown), COURSE / f"{name}.ipynb")

project = "pathways_nb"
author = "The pathways_nb authors"
copyright = f"2026, {author}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "pathways_nb.notebook.site"]

nb_execution_mode = "force"
nb_execution_excludepatterns = ["course/*"]
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = "pathways_nb"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sphinx = False


def setup(app: Any) -> None:
    """Connect what links the guide to the course, and what keeps the reference short and right."""
    app.connect("source-read", _link_course)
    app.connect("autodoc-process-signature", _hide_constructors)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)


def _link_course(app: Any, document: str, source: list[str]) -> None:
    """Name the notebooks on the topics of a page of the guide below its heading."""
    folder, _, page = document.partition("/")
    if folder == "guide":
        source[0] = topics.with_course(page, source[0])


def _hide_constructors(app: Any, what: str, *_: Any) -> tuple[str, str] | None:
    """Nobody calls the public classes: ``pw.attach``, ``pw.jit`` and others make them."""
    return ("", "") if what == "class" else None


def _keep_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Napoleon, which comes next, takes what stands before a colon in an attribute's first line for its type."""
    if what in {"attribute", "property", "data"}:
        lines.insert(0, "")
