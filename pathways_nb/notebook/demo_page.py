"""An executed notebook as the parts of one page: text rendered, code coloured, outputs in their best form.

Figures are handed over as Bokeh JSON; ``pathways_widgets.figures.page`` puts them and BokehJS into the page.
Nothing here runs a cell or reads a file.
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
"""An output of this type is a Bokeh ``json_item`` with its data."""

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
    """The whole page: every cell of ``content`` in order, as HTML text."""
    parts: list[Part] = [_STYLE]
    for cell in content.cells:
        parts += _cell(cell)
    return str(page(title, parts))


def _cell(cell: nbformat.NotebookNode) -> list[Part]:
    if cell.cell_type == "markdown":
        return [f"<section>{markdown2html_mistune(cell.source)}</section>"]
    if cell.cell_type == "raw":
        return []
    has_figure = any(FIGURE in output.get("data", {}) for output in cell.outputs)
    shown = [output for output in cell.outputs if not (has_figure and _is_still(output))]
    return [highlight(cell.source, PythonLexer(), _CODE), *map(_output, shown)]


def _is_still(output: nbformat.NotebookNode) -> bool:
    return STILL in output.get("metadata", {})


def _output(output: nbformat.NotebookNode) -> Part:
    if output.output_type == "stream":
        return _text(output.text)
    if output.output_type == "error":
        return _text("\n".join(output.traceback), "pw-text pw-error")
    data = output.data
    if FIGURE in data:
        return dict(data[FIGURE])
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
    return f'<pre class="{style}">{html.escape(strip_ansi(text))}</pre>'
