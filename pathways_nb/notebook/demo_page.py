"""An executed notebook as one page: text rendered, code coloured, each output in its best form.

Figures are passed on as Bokeh JSON; ``pathways_widgets.figures.page`` puts them and BokehJS into the page. nbconvert's
own HTML exporter is not used for the page because it refers to scripts on the network and knows no Bokeh item. No cell
is run and no file is read here; ``demo`` does both.
"""

from __future__ import annotations

import html
from typing import Any

import nbformat
from nbconvert.filters import markdown2html_mistune, strip_ansi
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from pathways_widgets.figures.output import STILL
from pathways_widgets.figures.page import page

FIGURE = "application/vnd.pathways.figure+json"
"""MIME type of an output that holds a Bokeh ``json_item`` with its data."""

_CODE = HtmlFormatter(cssclass="pw-code")
_STYLE = f"""<style>
{_CODE.get_style_defs(".pw-code")}
@media (prefers-color-scheme: dark) {{ {HtmlFormatter(style="github-dark").get_style_defs(".pw-code")} }}
.pw-code, .pw-text {{ overflow-x: auto; font-size: 13px; line-height: 1.4; }}
.pw-code {{ padding: 0.1em 0.8em; border-left: 3px solid #8888; background: #8881; margin: 1em 0 0.4em; }}
.pw-text {{ white-space: pre-wrap; margin: 0.4em 0; padding: 0 0.8em; }}
.pw-code pre {{ margin: 0.5em 0; }}
.anchor-link {{ display: none; }}
td, th {{ padding: 0.1em 0.8em; }}
.pw-error {{ border-left: 3px solid #c33; }}
</style>"""

Part = str | dict[str, Any]


def render(content: nbformat.NotebookNode, title: str) -> str:
    """Return the whole page as HTML: every cell of ``content`` in order."""
    parts: list[Part] = [_STYLE]
    for cell in content.cells:
        parts += _cell(cell)
    return str(page(title, parts))


def _cell(cell: nbformat.NotebookNode) -> list[Part]:
    """Return the parts of the page for one cell."""
    if cell.cell_type == "markdown":
        return [f"<section>{markdown2html_mistune(cell.source)}</section>"]
    if cell.cell_type == "raw":
        return []
    # Each live figure has a still picture for viewers without scripts; this page runs scripts.
    has_figure = any(FIGURE in output.get("data", {}) for output in cell.outputs)
    visible = [output for output in cell.outputs if not (has_figure and STILL in output.get("metadata", {}))]
    return [highlight(cell.source, PythonLexer(), _CODE), *map(_output, visible)]


def _output(output: nbformat.NotebookNode) -> Part:
    """Return the richest form of an output that a page can show: a figure, then HTML or SVG, an image, text."""
    if output.output_type == "stream":
        return _text(output.text)
    if output.output_type == "error":
        return _text("\n".join(output.traceback), "pw-text pw-error")
    data = output.data
    if FIGURE in data:
        return dict(data[FIGURE])
    # From what reads best on a page to what always reads.
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            return f"<div>{data[kind]}</div>"
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            return f'<img alt="" src="data:{kind};base64,{data[kind]}">'
    if "text/markdown" in data:
        return f"<section>{markdown2html_mistune(data['text/markdown'])}</section>"
    return _text(data.get("text/plain", ""))


def _text(text: str, style: str = "pw-text") -> str:
    """Return plain text as HTML, without the colour codes of a terminal."""
    return f'<pre class="{style}">{html.escape(strip_ansi(text))}</pre>'
