"""A cell's output for a figure: its widget and, for viewers without scripts, a still picture after it.

The picture is an output of its own, after the widget. In one output with several forms, JupyterLab would always choose
the widget, and print an error where its model is missing, as in a saved notebook without a kernel. Style rules hide the
picture while the live figure is on the page, and hide that error otherwise. marimo shows the widget alone.
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from IPython.display import DisplayHandle, display

from pathways_nb.util.displaying import append_in_marimo, ipython_shell, marimo_notebook
from pathways_nb.util.fallbacks import fall_back
from pathways_widgets.drawing.scene import Scene

ITEM_TYPE = "application/vnd.pathways.figure+json"
"""MIME type of an output that is an item with its data."""

STILL = "data-pw-still"
"""Mark in the metadata of both outputs of a still picture: the picture, and the style rules that hide it."""
Still = tuple[Any, ...]
"""The handles of both outputs."""
_DEAD = ".jp-OutputArea-output:is(:not([data-mime-type], .jp-RenderedImage), [data-mime-type*=widget-view])"
"""Selector for what JupyterLab shows of a widget whose model is missing; nbconvert's images have no type either."""
_CHILD = ".jp-OutputArea-child:not(:has(.jp-OutputArea))"
"""Selector for one output of a cell, but not for a widget, such as tabs, that contains outputs itself."""
_MISSING = (
    "A still picture. A live one needs a running kernel and, in the environment of the server of this page, anywidget: "
    "pip install anywidget, then load the page again."
)
_HIDE = f"""<style>
.jp-OutputArea:has(.pathways-figure) {_CHILD}:has([{STILL}]) {{ display: none }}
.jp-OutputArea:has(.pathways-figure) {_CHILD}:has([{STILL}]) + .jp-OutputArea-child {{ display: none }}
.jp-OutputArea:has([{STILL}]):not(:has(.pathways-figure)) {_CHILD}:has({_DEAD}) {{ display: none }}
.jp-NotebookPanel .jp-OutputArea:not(:has(.pathways-figure)) [{STILL}]::after {{
  content: "{_MISSING}"; animation: pathways-late 5s step-end
}}
@keyframes pathways-late {{ from {{ visibility: hidden }} }}
[{STILL}] > p {{ position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%) }}
</style>"""
"""Style rules for Jupyter: the picture, which is the next output, is visible only where the figure is not, and there
replaces the text of a widget without a model. In JupyterLab and Notebook a line says what a live figure needs, once one
would be there. The rules are an output of their own because some viewers show pictures but no HTML. With them comes
the text of the picture for screen readers: JupyterLab gives no image an alternative text.
"""
_SUBSHELLS = "_reply_subshell_for"
"""Private name of comms of ipykernel 7.4 or newer: for which thread of the kernel the messages of a widget are."""
_told: set[int] = set()
"""Shells, by identity, in which a line has said what their kernel lacks."""


def show_still(draw: Callable[[], Scene], text: str, still: Still | None = None) -> Still | None:
    """Display a still picture after a figure in the same cell; hidden while the figure is visible.

    Args:
        draw: makes the picture.
        text: the same in words, its alternative text.
        still: an earlier picture, which this one replaces; ``None`` for a new one.

    Returns:
        The outputs, with which the picture can be replaced; ``still`` itself if drawing failed, or where marimo keeps
        figures itself.
    """
    if marimo_notebook() is not None:
        return still
    try:
        scene = draw()
        words = {"text/html": f"<div {STILL}>{_HIDE}<p>{html.escape(text)}</p></div>"}, {STILL: True}
        picture = {"image/png": base64.b64encode(scene.png(1.5)).decode(), "text/plain": text}
        outputs = words, (picture, {STILL: True, "image/png": {"width": round(scene.width), "alt": text}})
        if still is None:
            return tuple(put_out(bundle, about) for bundle, about in outputs)
        for handle, (bundle, about) in zip(still, outputs, strict=True):
            handle.update(bundle, raw=True, metadata=about)
    except Exception as error:  # the interactive figure is there; its stand-in must not break the cell
        fall_back(
            "The still picture beside a figure could not be drawn",
            error,
            "The figure is shown without it: nothing but text stands in its place where the notebook has no kernel.",
        )
    return still


def embedding() -> bool:
    """Return whether outputs must contain their data, because ``python -m pathways_nb demo`` makes a page of them."""
    return os.environ.get("PATHWAYS_EMBED_FIGURES") == "1"


def answer_while_busy(comm: Any) -> None:
    """Have the messages of a widget answered while a cell runs, where the kernel can.

    The front end sends them to a subshell, so that they need not wait for the running cell. ipykernel routes each comm
    back to the shell that last published on it, normally the main one; None switches that off.

    Args:
        comm: of the widget.
    """
    if hasattr(comm, _SUBSHELLS):
        setattr(comm, _SUBSHELLS, None)


def tell_what_waits(comm: Any) -> None:
    """Display once in each kernel what is missing if a figure's messages wait for the running cell.

    Args:
        comm: of a widget.
    """
    shell = ipython_shell()
    if hasattr(comm, _SUBSHELLS) or id(shell) in _told or getattr(shell, "kernel", None) is None:
        return
    _told.add(id(shell))
    text = (
        f"This kernel is ipykernel {version('ipykernel')}: a figure moves while its cell runs, but pan, zoom and taps "
        f"are answered when the cell has ended. ipykernel 7.4 answers them while it runs: "
        f"pip install 'ipykernel>=7.4', then restart the kernel."
    )
    put_out({"text/plain": text, "text/html": f"<div>{html.escape(text)}</div>"})


def put_out(bundle: dict[str, Any], metadata: dict[str, Any] | None = None, widget: Any = None) -> DisplayHandle | None:
    """Display several forms of one thing in the current cell.

    Args:
        bundle: the forms, by MIME type.
        metadata: of the output.
        widget: what marimo shows; its text if left out.

    Returns:
        The handle with which the output can be replaced; None in marimo.
    """
    if (marimo := marimo_notebook()) is not None:
        append_in_marimo(marimo.plain_text(bundle["text/plain"]) if widget is None else widget)
        return None
    return display(bundle, raw=True, display_id=True, metadata=metadata or {})
