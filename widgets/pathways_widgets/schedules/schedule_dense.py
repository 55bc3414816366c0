"""Schedules with more boxes than a browser can draw smoothly: rows of pixels in place of boxes.

In a row of pixels, each colour has exactly the share of the pixel's time that boxes of this colour take; idle time is
transparent to the same degree. Leaving boxes out instead would change these shares.
A browser draws such a row like one box, however many it stands for.
"""

from __future__ import annotations

import numpy as np

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Columns, Window
from pathways_widgets.schedules.schedule_columns import COLOURS

MOST_BOXES = 3000
"""Largest number of visible boxes that are drawn one by one."""
ALWAYS: Window = (-np.inf, np.inf)
NEVER: Window = (np.inf, -np.inf)
_RGBA = np.array([[*palette.channels(colour), 255] for colour in COLOURS]) / 255


def is_dense(boxes: Columns, window: Window) -> bool:
    """Return whether more boxes are in ``window`` than are drawn one by one."""
    return int(np.count_nonzero((boxes["right"] >= window[0]) & (boxes["left"] <= window[1]))) > MOST_BOXES


def pixel_columns(boxes: Columns, window: Window, count: int) -> Columns:
    """Return one image for each row of boxes: each pixel has red, green, blue and opacity, the share that is covered.

    Args:
        boxes: the boxes row by row, those of a row in the order of time.
        window: the part of the time axis to draw.
        count: number of pixels over ``window``.
    """
    top = boxes["top"]
    # (rows,) the first box of each row of boxes.
    first = np.flatnonzero(np.diff(top, prepend=np.nan))
    shares = _shares(boxes, first, np.linspace(*window, count + 1))
    # Colours are weighted by the time that they take; the image has the opacity apart, so they are divided by it.
    alpha = shares[..., 3:]
    shares[..., :3] /= np.maximum(alpha, 1e-9)
    # (rows, pixels) the four bytes of a pixel as one number, as Bokeh reads images.
    image = np.rint(255 * shares.clip(0, 1)).astype(np.uint8).view(np.uint32)[..., 0]
    sizes = np.full(len(first), window[0]), top[first], np.full(len(first), window[1] - window[0])
    return dict(zip(("x", "y", "dw"), sizes, strict=True)) | {"dh": (boxes["bottom"] - top)[first], "image": image}


def _shares(boxes: Columns, first: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the share of each pixel that boxes cover, by colour: ``(rows, pixels, 4)``.

    All rows are put one after another on one axis, so that a single search finds the boxes of all edges.

    Args:
        boxes: the boxes row by row.
        first: the first box of each row.
        edges: the edges of the pixels, in time.
    """
    left, wide = (np.asarray(part, float) for part in (boxes["left"], boxes["right"] - boxes["left"]))
    # (boxes,) the row of each box.
    row = np.repeat(np.arange(len(first)), np.diff([*first, len(left)]))
    # Longer than all boxes and pixels, so that rows do not meet on the common axis.
    length = max(edges[-1], (left + wide).max()) - min(edges[0], 0.0) + 1.0
    # (rows × edges,) the edges of all pixels on that axis.
    at = (edges + length * np.arange(len(first))[:, None]).ravel()
    left = left + length * row
    # (rows × edges,) the last box that has begun at each edge.
    begun = np.maximum(np.searchsorted(left, at, "right") - 1, 0)
    colours = _RGBA[boxes["code"]]
    # (boxes, 4) time that each box gives to red, green, blue and opacity, and the sum of all boxes before it.
    work = wide[:, None] * colours
    before = np.cumsum(work, axis=0) - work
    # (rows × edges, 4) sum up to each edge, with the part of the box that it cuts. Two edges differ by their pixel.
    done = before[begun] + np.clip(at - left[begun], 0.0, wide[begun])[:, None] * colours[begun]
    return np.diff(done.reshape(len(first), len(edges), 4), axis=1) / (edges[1] - edges[0])
