"""Positions of the labels of transfers in the picture of a graph: on their edges, where they cover the least.

Each label tries a few positions along its own edge and takes the best; labels placed earlier do not move again. So
one pass over the edges is enough, and a label never leaves its edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

HEIGHT = 13.0
"""Height of a label in pixels."""
_LETTER, _AROUND = 6.1, 6.0
"""Width of a letter of a label in the widest of the usual fonts, and the space beside a label, in pixels."""
_ALONG = (0.5, 0.38, 0.62, 0.25, 0.75)
"""Positions of a label on each part of an edge, the best first."""
_LABEL_COUNTS = 3.0
"""How many times as bad as covering a box it is to cover another label: its text is not repeated elsewhere."""


class EdgeCurve(NamedTuple):
    """A cubic Bézier curve: its ends (``x0``, ``y0``, ``x1``, ``y1``) and control points (``cx0`` to ``cy1``)."""

    x0: float
    y0: float
    x1: float
    y1: float
    cx0: float
    cy0: float
    cx1: float
    cy1: float

    def at(self, t: float) -> tuple[float, float]:
        """Return the point at parameter ``t`` from 0 to 1."""
        u = 1 - t
        weights = u**3, 3 * u * u * t, 3 * u * t * t, t**3
        xs, ys = (self.x0, self.cx0, self.cx1, self.x1), (self.y0, self.cy0, self.cy1, self.y1)
        x, y = (sum(w * end for w, end in zip(weights, ends, strict=True)) for ends in (xs, ys))
        return x, y


def label_width(text: str) -> float:
    """Return the pixels that a label needs, with some space on both sides."""
    return _LETTER * len(text) + _AROUND


class Labels:
    """Areas that are taken by boxes and labels.

    Args:
        boxes: rows with ``x``, ``y``, ``width`` and ``height``.
    """

    def __init__(self, boxes: Iterable[Mapping[str, Any]]):
        self._taken = [(box["x"], box["y"], box["width"], box["height"], 1.0) for box in boxes]

    def place(self, curves: Sequence[EdgeCurve], text: str) -> tuple[float, float]:
        """Return the centre of a new label on the edge that consists of ``curves``, and mark its area as taken."""
        width = label_width(text)
        points = [_label_point(curve, t) for t in _ALONG for curve in curves]
        x, y = points[int(np.argmin(self._covered(points, width)))]
        self._taken.append((x, y, width, HEIGHT, _LABEL_COUNTS))
        return x, y

    def _covered(self, points: Sequence[tuple[float, float]], width: float) -> np.ndarray:
        """Return how much a label at each of the points would cover, in weighted square pixels."""
        # (taken,) pixels: centres and sizes of what is there, and how much covering it counts.
        x, y, wide, high, counts = np.array(self._taken, float).reshape(-1, 5).T
        at = np.array(points)
        # (points, taken) pixels by which a label at each point overlaps each of them, negative where it does not.
        across = (width + wide) / 2 - np.abs(at[:, :1] - x)
        down = (HEIGHT + high) / 2 - np.abs(at[:, 1:] - y)
        # The overlap is at most the smaller of both: of a label within a box, just the label.
        across = np.minimum(across, np.minimum(width, wide))
        down = np.minimum(down, np.minimum(HEIGHT, high))
        return np.asarray((np.maximum(across, 0.0) * np.maximum(down, 0.0) * counts).sum(1))


def _label_point(curve: EdgeCurve, t: float) -> tuple[float, float]:
    """Return a point on the curve, or just above it where it is flat, so that the line does not cross the text."""
    x, y = curve.at(t)
    return x, y - (9.0 if abs(curve.y1 - curve.y0) < 2 * HEIGHT else 0.0)
