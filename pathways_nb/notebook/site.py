"""A Sphinx extension: figures in notebooks that myst-nb executes stay interactive in the pages, without a network.

A site needs ``extensions = ["myst_nb", "pathways_nb.notebook.site"]`` in its ``conf.py``, and nothing else:

- the kernel is the interpreter that builds the site, whatever kernels are registered;
- BokehJS is copied into the site, and readers without scripts see the still picture of a figure;
- the build fails if a page fetches anything from the network, because the author has a network and would not notice.

Sphinx, myst-nb and docutils come with the extra ``docs``. They are imported for type checking and inside functions
only, so that this module can be imported without them.
"""

from __future__ import annotations

import base64
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ipykernel.kernelspec import get_kernel_dict

from pathways_nb.notebook.demo_page import FIGURE
from pathways_widgets.figures.output import STILL
from pathways_widgets.figures.page import bokeh_source, figure_html, figure_script

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

KERNEL = "python3"
"""The kernel name that all notebooks get; this interpreter is found first under it."""
CELL_TIMEOUT = 900
"""Seconds after which the execution of a cell fails."""
_WIDGET = "application/vnd.jupyter.widget-view+json"
_REMOTE = re.compile(r"(https?:)?//")
_REMOTE_IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


class Figures:
    """The myst-nb renderer of figures: interactive, with a still picture for readers without scripts."""

    mime_priority_overrides: ClassVar[list[tuple[str, str, int | None]]] = [("html", FIGURE, 1)]

    @staticmethod
    def handle_mime(renderer: Any, data: Any, inline: bool) -> list[nodes.Element] | None:
        """Return the nodes of an output, or ``None`` for one that myst-nb renders itself."""
        if data.mime_type == FIGURE:
            return [_raw(figure_html(data.content))]
        if STILL not in data.output_metadata:
            return None
        # Only the picture, for readers without scripts: its other forms would stand below the live figure.
        return [_raw(_still(data))] if data.mime_type == "image/png" else []


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension to a Sphinx application."""
    app.connect("config-inited", _configure)
    app.connect("html-page-context", _add_scripts)
    app.connect("build-finished", _check_offline)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def fetched(page: str) -> list[str]:
    """Return every address that a browser fetches to show an HTML page; links that a reader may follow are left out."""
    parser = _Fetched()
    parser.feed(page)
    parser.close()
    return parser.addresses


def remote(folder: Path) -> list[str]:
    """Return ``file: address`` for each address outside the site that a page or style sheet in ``folder`` fetches."""
    found = []
    for path in sorted([*folder.rglob("*.html"), *folder.rglob("*.css")]):
        text = path.read_text("utf-8")
        named = filter(_REMOTE.match, fetched(text)) if path.suffix == ".html" else _REMOTE_IN_CSS.findall(text)
        found += [f"{path.relative_to(folder)}: {one}" for one in named]
    return found


class _Fetched(HTMLParser):
    """A parser that collects the addresses that a page fetches; addresses inside scripts are not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            # ``href`` of a link is followed by a reader, of a style sheet by the browser.
            if name in {"src", "srcset", "data", "poster"} or (name == "href" and tag != "a"):
                self.addresses.append(value or "")


def _configure(app: Sphinx, config: Any) -> None:
    """Configure myst-nb: run this interpreter, embed figures with their data, fetch no widgets from the network."""
    folder = Path(app.doctreedir) / "jupyter"
    spec = folder / "kernels" / KERNEL / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    kernel = get_kernel_dict() | {"env": {"PATHWAYS_EMBED_FIGURES": "1"}}
    kernel["argv"].append("--log-level=ERROR")  # otherwise each kernel logs that it is reached by local TCP
    spec.write_text(json.dumps(kernel))
    # In front of what is there: the first kernel of a name is taken.
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("JUPYTER_PATH")]))
    config.nb_kernel_rgx_aliases = {".*": KERNEL}
    config.nb_execution_timeout = CELL_TIMEOUT
    config.nb_ipywidgets_js = {}
    # A widget would be fetched from the network; its figure is embedded anyway.
    config.nb_mime_priority_overrides = [*config.nb_mime_priority_overrides, ("html", _WIDGET, None)]


def _add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Load BokehJS in pages with figures, as plain scripts: a page opened as a file may not import modules."""
    if "data-figure" in context.get("body", ""):
        for name, script in (("bokeh.js", bokeh_source()), ("figures.js", f"(async () => {{{figure_script()}}})()")):
            path = Path(app.outdir) / "_static" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script, "utf-8")
            app.add_js_file(name, loading_method="defer")


def _check_offline(app: Sphinx, error: Exception | None) -> None:
    """Fail the build if a page fetches anything from outside the site.

    Raises:
        ExtensionError: names each page and address.
    """
    from sphinx.errors import ExtensionError

    # A build that failed has its own error, which this one would hide.
    found = remote(Path(app.outdir)) if error is None and app.builder.format == "html" else []
    if found:
        raise ExtensionError("These pages need the network:\n" + "\n".join(found))


def _still(data: Any) -> str:
    """Return HTML that shows a still picture where scripts do not run."""
    content = data.content if isinstance(data.content, str) else base64.b64encode(data.content).decode()
    return f'<noscript><img alt="" src="data:image/png;base64,{content.strip()}"></noscript>'


def _raw(text: str) -> nodes.Element:
    """Return a docutils node that contains HTML as it is."""
    from docutils import nodes

    return nodes.raw("", text, format="html")
