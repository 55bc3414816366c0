"""Schedules with more boxes than a browser draws at once: rows of pixels in their place.

A row of pixels shows of each colour exactly the share of the pixel's time that boxes of that colour take; where a
device is idle it is transparent, by as much. A browser paints it like one box, however many it stands for.
"""

from __future__ import annotations

import numpy as np

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Columns, Window
from pathways_widgets.schedules.schedule_columns import COLOURS

MOST_BOXES = 3000
"""Boxes in sight that are drawn one by one."""
ALWAYS: Window = (-np.inf, np.inf)
NEVER: Window = (np.inf, -np.inf)
_RGBA = np.array([[*palette.channels(colour), 255] for colour in COLOURS]) / 255


def is_dense(boxes: Columns, window: Window) -> bool:
    """Whether more boxes are in ``window`` than are drawn one by one."""
    return int(np.count_nonzero((boxes["right"] >= window[0]) & (boxes["left"] <= window[1]))) > MOST_BOXES


def pixel_columns(boxes: Columns, window: Window, count: int) -> Columns:
    """A picture for each row of boxes: ``count`` pixels over ``window``, each red, green, blue and how much is covered.

    Args:
        boxes: row by row, those of a row in the order of time.
    """
    top = boxes["top"]
    first = np.flatnonzero(np.diff(top, prepend=np.nan))
    shares = _shares(boxes, first, np.linspace(*window, count + 1))
    alpha = shares[..., 3:]
    shares[..., :3] /= np.maximum(alpha, 1e-9)
    image = np.rint(255 * shares.clip(0, 1)).astype(np.uint8).view(np.uint32)[..., 0]
    sizes = np.full(len(first), window[0]), top[first], np.full(len(first), window[1] - window[0])
    return dict(zip(("x", "y", "dw"), sizes, strict=True)) | {"dh": (boxes["bottom"] - top)[first], "image": image}


def _shares(boxes: Columns, first: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Of each pixel between two ``edges`` what boxes cover, by colour: ``(rows, pixels, 4)``.

    All rows are one after another on one axis, so that they are looked up at once.
    """
    left, wide = (np.asarray(part, float) for part in (boxes["left"], boxes["right"] - boxes["left"]))
    row = np.repeat(np.arange(len(first)), np.diff([*first, len(left)]))
    length = max(edges[-1], (left + wide).max()) - min(edges[0], 0.0) + 1.0
    at = (edges + length * np.arange(len(first))[:, None]).ravel()
    left = left + length * row
    begun = np.maximum(np.searchsorted(left, at, "right") - 1, 0)
    colours = _RGBA[boxes["code"]]
    work = wide[:, None] * colours
    before = np.cumsum(work, axis=0) - work
    done = before[begun] + np.clip(at - left[begun], 0.0, wide[begun])[:, None] * colours[begun]
    return np.diff(done.reshape(len(first), len(edges), 4), axis=1) / (edges[1] - edges[0])
