"""One HTML file that shows figures with no kernel and no network: BokehJS is inside.

It uses scripts of the live widget (``drawing_script``), so themes, links between views and legends work as in a
notebook; only what needs the kernel (drawing more detail after a zoom) is missing.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from bokeh.util.paths import bokehjs_path

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.palette import THEMES
from pathways_widgets.drawing.terms import IN_TEXT, TERMS
from pathways_widgets.drawing.views import RunLike
from pathways_widgets.figures.panel import DEFAULT_SHOW, check_show, figure_of
from pathways_widgets.figures.viewpoint import split_view

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
</head>
<body>
<main>
{body}
</main>
<script type="application/gzip" id="bokeh">{bokeh}</script>
<script type="module">
{script}
</script>
</body>
</html>
"""
_LOAD = """
const packed = Uint8Array.from(atob(document.getElementById("bokeh").textContent), (letter) => letter.charCodeAt(0))
const unpacked = new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip")))
document.head.append(Object.assign(document.createElement("script"), {textContent: await unpacked.text()}))
"""
"""BokehJS is a third as large packed."""
_MOUNT_ALL = """
// A page of one figure opens at the view behind the # of its address, or at its own.
const linkTo = (at) => `${location.href.split("#")[0]}#${at}`
for (const place of document.querySelectorAll("script[data-figure]")) {
  const item = JSON.parse(place.textContent), canOpen = item.at !== undefined
  const link = canOpen ? {write: linkTo, save: null} : null
  const {view} = await mount(Bokeh, item, place.previousElementSibling, {link})
  if (!canOpen) continue
  view.apply(location.hash.slice(1) || item.at)
  addEventListener("hashchange", () => view.apply(location.hash.slice(1)))
}
document.body.dataset.drawn = "true"
"""


def page(title: str, parts: Sequence[str | dict[str, Any]]) -> str:
    """Return a self-contained page.

    Args:
        title: title of the page.
        parts: in order, HTML fragments (escaped by the caller) or figures' items.
    """
    body = "\n".join(part if isinstance(part, str) else figure_html(part) for part in parts)
    return _FRAME.format(
        title=escape(title), body=body, script=_LOAD + figure_script(), bokeh=_packed_bokeh(), **THEMES
    )


def page_of(run: RunLike, show: Sequence[str] = DEFAULT_SHOW, at: str = "") -> str:
    """Return a page with the figure of a run as it is now.

    Args:
        run: what to draw.
        show: names of views.
        at: the view at which it opens; empty for all of the run.
    """
    return page(run.name, [figure_of(run, show) | {"at": at}])


def write_run(run: RunLike, path: str | Path, show: str | Sequence[str] = DEFAULT_SHOW, at: str = "") -> None:
    """Write one HTML file with the figure of a run as it is now.

    Args:
        run: what to draw.
        path: path of the file, which ends in ``.html``.
        show: names of views.
        at: the view at which it opens; empty for all of the run.

    Raises:
        ValueError: the file's ending, a view, or what is written in ``at`` is unknown.
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(
            f"to_html({str(path)!r}): the file's name must end in .html; run.savefig writes .svg and .png."
        )
    text = page_of(run, check_show(show), split_view(at)[0])
    Path(path).write_text(text, "utf-8", errors="backslashreplace")  # a name may have half of a pair of surrogates


@cache
def bokeh_source() -> str:
    """Return the script of BokehJS as installed, without the widgets and tables that figures do not need."""
    return (Path(bokehjs_path()) / "js" / "bokeh.min.js").read_text("utf-8")


@cache
def _packed_bokeh() -> str:
    """Return the script of BokehJS, compressed and as text."""
    return base64.b64encode(gzip.compress(bokeh_source().encode(), mtime=0)).decode()


def figure_script() -> str:
    """Return the JavaScript that draws every ``figure_html`` of a page; it needs BokehJS and may use ``await``."""
    return drawing_script() + _MOUNT_ALL


@cache
def drawing_script() -> str:
    """Return the JavaScript that a page and the live widget share."""
    kinds = {kind.words: TERMS[kind.name] for kind in palette.KINDS if kind.name in TERMS}
    words = f"const IN_TEXT = {json.dumps(IN_TEXT)}, KINDS_IN_WORDS = {json.dumps(kinds)}\n"
    files = "words keyboard table legends graph why cells filters viewpoint tooltips arrows figure".split()
    return words + "\n".join((Path(__file__).parent / f"{name}.js").read_text("utf-8") for name in files)


def figure_html(item: dict[str, Any]) -> str:
    """Return a figure's place in a page and its item as JSON; ``<`` is escaped so that no text can end the element."""
    text = json.dumps(item).replace("<", "\\u003c")
    return f'<div></div><script type="application/json" data-figure>{text}</script>'
