"""A cell's output for a figure: its widget and, for viewers without scripts, a still picture after it.

The picture is an output of its own, after the widget. In one output with several forms, JupyterLab would always choose
the widget, and print an error where its model is missing, as in a saved notebook without a kernel. Style rules hide the
picture while the live figure is on the page, and hide that error otherwise.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import Any

from IPython.display import DisplayHandle, display

from pathways_nb.util.fallbacks import fall_back
from pathways_widgets.drawing.scene import Scene

ITEM_TYPE = "application/vnd.pathways.figure+json"
"""MIME type of an output that is an item with its data."""

STILL = "data-pw-still"
"""Mark in the metadata of both outputs of a still picture: the picture, and the style rules that hide it."""
_DEAD = ".jp-OutputArea-output:is(:not([data-mime-type], .jp-RenderedImage), [data-mime-type*=widget-view])"
"""Selector for what JupyterLab shows of a widget whose model is missing; nbconvert's images have no type either."""
_HIDE = f"""<style>
.jp-OutputArea:has(.pathways-figure) .jp-OutputArea-child:has([{STILL}]) {{ display: none }}
.jp-OutputArea:has(.pathways-figure) .jp-OutputArea-child:has([{STILL}]) + .jp-OutputArea-child {{ display: none }}
.jp-OutputArea:has([{STILL}]):not(:has(.pathways-figure)) .jp-OutputArea-child:has({_DEAD}) {{ display: none }}
</style>"""
"""Style rules for Jupyter: the picture, which is the next output, is visible only where the figure is not, and there
replaces the text of a widget without a model. They are an output of their own because some viewers show pictures but
no HTML.
"""


def show_still(draw: Callable[[], Scene], text: str, handle: DisplayHandle | None = None) -> DisplayHandle | None:
    """Display a still picture after a figure in the same cell; hidden while the figure is visible.

    Args:
        draw: makes the picture.
        text: the same in words.
        handle: an earlier picture, which this one replaces; ``None`` for a new one.

    Returns:
        The handle with which the picture can be replaced; ``handle`` itself if drawing failed.
    """
    try:
        scene = draw()
        picture = base64.b64encode(scene.png(1.5)).decode()
        bundle = {"image/png": picture, "text/plain": text}
        about = {STILL: True, "image/png": {"width": round(scene.width), "alt": text}}
        if handle is None:
            put_out({"text/html": f"<div {STILL}>{_HIDE}</div>"}, {STILL: True})
            return put_out(bundle, about)
        handle.update(bundle, raw=True, metadata=about)
    except Exception as error:  # the interactive figure is there; its stand-in must not break the cell
        fall_back(
            "The still picture beside a figure could not be drawn",
            error,
            "The figure is shown without it: nothing but text stands in its place where the notebook has no kernel.",
        )
    return handle


def embedding() -> bool:
    """Return whether outputs must contain their data, because ``python -m pathways_nb demo`` makes a page of them."""
    return os.environ.get("PATHWAYS_EMBED_FIGURES") == "1"


def put_out(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> DisplayHandle | None:
    """Return the handle of a bundle, several forms of one thing, after displaying it in the current cell."""
    return display(bundle, raw=True, display_id=True, metadata=metadata or {})
