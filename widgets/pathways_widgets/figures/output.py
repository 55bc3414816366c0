"""What a cell's output holds of a figure: its widget and, for where no scripts run, a still picture beside it."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from typing import Any

from IPython.display import DisplayHandle, display

from pathways_nb.util.fallbacks import fall_back
from pathways_widgets.drawing.scene import Scene

ITEM_TYPE = "application/vnd.pathways.figure+json"
"""The type of an output that is an item with its data."""

STILL = "data-pw-still"
"""Marks the picture that stands beside each live figure, and what hides it: in the metadata of both outputs."""
_DEAD = ".jp-OutputArea-output:is(:not([data-mime-type], .jp-RenderedImage), [data-mime-type*=widget-view])"
"""What JupyterLab shows of a widget whose model it does not find. In nbconvert's pages images have no type either."""
_HIDE = f"""<style>
.jp-OutputArea:has(.pathways-figure) .jp-OutputArea-child:has([{STILL}]) {{ display: none }}
.jp-OutputArea:has(.pathways-figure) .jp-OutputArea-child:has([{STILL}]) + .jp-OutputArea-child {{ display: none }}
.jp-OutputArea:has([{STILL}]):not(:has(.pathways-figure)) .jp-OutputArea-child:has({_DEAD}) {{ display: none }}
</style>"""
"""In Jupyter the picture, which is the next output, is seen only where the figure is not, and then instead of the words
that a dead widget leaves. It is an output of its own because some viewers show pictures but no HTML of ours."""


def show_still(draw: Callable[[], Scene], text: str, handle: DisplayHandle | None = None) -> DisplayHandle | None:
    """Display a picture that needs no scripts, beside a figure in the same cell; hidden while that is to be seen.

    Args:
        draw: makes it. text: says the same. handle: of such a picture, in whose place this one goes.
    """
    try:
        scene = draw()
        picture = base64.b64encode(scene.png(1.5)).decode()
    except Exception as error:  # the interactive figure is there; its stand-in must not break the cell
        fall_back(
            "The still picture beside a figure could not be drawn",
            error,
            "The figure is shown without it: nothing but text stands in its place where the notebook has no kernel.",
        )
        return handle
    bundle = {"image/png": picture, "text/plain": text}
    about = {STILL: True, "image/png": {"width": round(scene.width), "alt": text}}
    if handle is None:
        put_out({"text/html": f"<div {STILL}>{_HIDE}</div>"}, {STILL: True})
        return put_out(bundle, about)
    handle.update(bundle, raw=True, metadata=about)
    return handle


def embedding() -> bool:
    """Whether outputs must carry their data, because ``python -m pathways_nb demo`` makes a page of them."""
    return os.environ.get("PATHWAYS_EMBED_FIGURES") == "1"


def put_out(bundle: dict[str, Any], metadata: dict[str, Any] | None = None) -> DisplayHandle | None:
    """Display a bundle of forms of one thing in the current cell."""
    return display(bundle, raw=True, display_id=True, metadata=metadata or {})
