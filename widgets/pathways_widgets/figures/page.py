"""One HTML file that shows figures with no kernel and no network: BokehJS is inside.

It uses scripts of the live widget (``drawing_script``), so themes, links between views and legends work as in a
notebook; only what needs the kernel (drawing more detail after a zoom) is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from bokeh.util.paths import bokehjs_path

from pathways_widgets.drawing.palette import THEMES
from pathways_widgets.drawing.views import RunLike
from pathways_widgets.figures.panel import DEFAULT_SHOW, check_show, figure_of

__all__ = ["bokeh_source", "figure_html", "figure_of", "figure_script", "page", "write_run"]

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em;
  color: {light[text]}; background: {light[background]}; }}
@media (prefers-color-scheme: dark) {{ body {{ color: {dark[text]}; background: {dark[background]}; }} }}
</style>
<script>{bokeh}</script>
</head>
<body>
<main>
{body}
</main>
<script type="module">
{script}
</script>
</body>
</html>
"""
_MOUNT_ALL = """
for (const item of document.querySelectorAll("script[data-figure]"))
  await mount(Bokeh, JSON.parse(item.textContent), item.previousElementSibling)
document.body.dataset.drawn = "true"
"""


def page(title: str, parts: Sequence[str | dict[str, Any]]) -> str:
    """Return a self-contained page.

    Args:
        title: title of the page.
        parts: in order, HTML fragments (escaped by the caller) or figures' items.
    """
    body = "\n".join(part if isinstance(part, str) else figure_html(part) for part in parts)
    # An HTML parser ends the element at this text, even within a string of the script.
    bokeh = bokeh_source().replace("</script", "<\\/script")
    return _FRAME.format(title=escape(title), body=body, script=figure_script(), bokeh=bokeh, **THEMES)


def write_run(run: RunLike, path: str | Path, show: str | Sequence[str] = DEFAULT_SHOW) -> None:
    """Write one HTML file with the figure of a run as it is now.

    Args:
        run: what to draw.
        path: path of the file, which ends in ``.html``.
        show: names of views.

    Raises:
        ValueError: the file's ending or a view is unknown.
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(
            f"to_html({str(path)!r}): the file's name must end in .html; run.savefig writes .svg and .png."
        )
    text = page(run.name, [figure_of(run, check_show(show))])
    Path(path).write_text(text, "utf-8", errors="backslashreplace")  # a name may have half of a pair of surrogates


@cache
def bokeh_source() -> str:
    """Return the script of BokehJS as installed, without the widgets and tables that figures do not need."""
    return (Path(bokehjs_path()) / "js" / "bokeh.min.js").read_text("utf-8")


def figure_script() -> str:
    """Return the JavaScript that draws every ``figure_html`` of a page; it needs BokehJS and may use ``await``."""
    return drawing_script() + _MOUNT_ALL


@cache
def drawing_script() -> str:
    """Return the JavaScript that a page and the live widget share."""
    files = ("keyboard.js", "table.js", "legends.js", "graph.js", "why.js", "cells.js", "filters.js", "figure.js")
    return "\n".join((Path(__file__).parent / name).read_text("utf-8") for name in files)


def figure_html(item: dict[str, Any]) -> str:
    """Return a figure's place in a page and its item as JSON; ``<`` is escaped so that no text can end the element."""
    text = json.dumps(item).replace("<", "\\u003c")
    return f'<div></div><script type="application/json" data-figure>{text}</script>'
