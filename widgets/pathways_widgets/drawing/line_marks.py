"""Marks that are lines or areas: between two points, through many, across the whole plot, and polygons.

A field that is a text names a column; ``Column`` says that another value, such as a width, differs from row to row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from bokeh.models import Bezier, HSpan, Line, Patch, Segment
from bokeh.models.glyph import Glyph

from pathways_widgets.drawing.picture_marks import (
    Colour,
    Column,
    PictureMark,
    colour,
    colours_in,
    numbers_in,
    pixels,
    values_in,
)
from pathways_widgets.drawing.scene import Curve, Polygon, Shape
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import Columns


@dataclass(frozen=True, kw_only=True)
class LineMark(PictureMark):
    """A line for each row, from ``x0``, ``y0`` to ``x1``, ``y1``.

    Args:
        line: its colour; without one it is invisible, and only the pointer finds it.
        line_width: its width in pixels.
        dash: lengths in pixels of its dashes and of the gaps between them; empty for a solid line.
        ends: the columns of both ends.
        is_bent: whether it is a Bézier curve, with the control points ``cx0``, ``cy0`` and ``cx1``, ``cy1``.
    """

    line: Colour = ""
    line_width: float | Column = 1.0
    dash: tuple[int, ...] = ()
    ends: tuple[str, str, str, str] = ("x0", "y0", "x1", "y1")
    is_bent: bool = False

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        look = {"line_width": pixels(self.line_width, style.line), "line_dash": list(self.dash)}
        # Without a colour the pointer would find nothing, so an invisible line is a transparent one.
        look |= {"line_color": colour(self.line)} if self.line else {"line_alpha": 0.0}
        look |= dict(zip(("x0", "y0", "x1", "y1"), self.ends, strict=True))
        return Bezier(**look, **{end: end for end in ("cx0", "cy0", "cx1", "cy1")}) if self.is_bent else Segment(**look)

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the lines."""
        if not self.line:
            return
        x0, y0, x1, y1 = self.ends
        # In the order of SVG: the control points are between the ends.
        corners = [(x0, y0), ("cx0", "cy0"), ("cx1", "cy1"), (x1, y1)] if self.is_bent else [(x0, y0), (x1, y1)]
        points = [(frame.x(numbers_in(x, rows)).tolist(), frame.y(numbers_in(y, rows)).tolist()) for x, y in corners]
        count = len(points[0][0])
        widths = values_in(self.line_width, rows, count)
        # The style has scaled pixels in columns already; a number is for a screen.
        factor = frame.column_factor if isinstance(self.line_width, Column) else frame.line
        dash, gap = self.dash or (0, 0)
        for row, (line, width) in enumerate(zip(colours_in(self.line, rows, count), widths, strict=True)):
            ends = tuple((x[row], y[row]) for x, y in points)
            if math.isnan(ends[0][0]):  # only in a legend
                continue
            if max(ends[0][0], ends[-1][0]) < frame.left or min(ends[0][0], ends[-1][0]) > frame.right:
                continue
            if self.is_bent:  # a curve that begins or ends outside is bent to the edge
                ends = tuple((min(max(across, frame.left), frame.right), down) for across, down in ends)
            else:
                ends = _cut(ends, frame)
            yield Curve(ends, line, factor * width, self.is_bent, dash, gap)


@dataclass(frozen=True, kw_only=True)
class PathMark(PictureMark):
    """A line through all rows, in the columns ``x`` and ``y``; rows that are no numbers interrupt it.

    Args:
        line: its colour; one for all, since a line has no row of its own.
        line_width: its width in pixels.
        dash: lengths in pixels of its dashes and of the gaps between them; empty for a solid line.
    """

    line: str = ""
    line_width: float = 1.0
    dash: tuple[int, ...] = ()

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        look = {"line_color": self.line, "line_width": self.line_width * style.line, "line_dash": list(self.dash)}
        return Line(x="x", y="y", **look)

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the parts of the line that have a length."""
        dash, gap = self.dash or (0, 0)
        for corners in _unbroken(rows, frame):
            if len(corners) > 1:
                yield Curve(corners, self.line, self.line_width * frame.line, False, dash, gap)


@dataclass(frozen=True, kw_only=True)
class SpanMark(PictureMark):
    """A line across the whole plot for each row, at the height in its column ``y``.

    Args:
        line: its colour.
        line_width: its width in pixels.
        dash: lengths in pixels of its dashes and of the gaps between them; empty for a solid line.
    """

    line: Colour = ""
    line_width: float = 1.0
    dash: tuple[int, ...] = ()

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        look = {"line_color": colour(self.line), "line_width": self.line_width * style.line}
        return HSpan(y="y", line_dash=list(self.dash), **look)

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the lines."""
        (dash, gap), y = self.dash or (0, 0), frame.y(numbers_in("y", rows)).tolist()
        for down, line in zip(y, colours_in(self.line, rows, len(y)), strict=True):
            yield Curve(((frame.left, down), (frame.right, down)), line, self.line_width * frame.line, False, dash, gap)


@dataclass(frozen=True, kw_only=True)
class AreaMark(PictureMark):
    """Polygons whose corners are the rows, in the columns ``x`` and ``y``; rows that are no numbers separate them.

    Args:
        fill: colour inside; one for all, since a polygon has no row of its own.
    """

    fill: str = ""

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        return Patch(x="x", y="y", fill_color=self.fill, line_color=None)

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the polygons."""
        return (Polygon(corners, self.fill) for corners in _unbroken(rows, frame))


def _cut(ends: tuple[tuple[float, float], ...], frame: Frame) -> tuple[tuple[float, float], ...]:
    """Return the part of a straight line between the left and the right edge of the plot."""
    (x0, y0), (x1, y1) = ends

    def at(x: float, y: float) -> tuple[float, float]:
        inside = min(max(x, frame.left), frame.right)
        return inside, y if inside == x else y0 + (inside - x0) / (x1 - x0) * (y1 - y0)

    return at(x0, y0), at(x1, y1)


def _unbroken(rows: Columns, frame: Frame) -> Iterator[tuple[tuple[float, float], ...]]:
    """Yield the positions of rows in a row that are numbers."""
    x, y = numbers_in("x", rows), numbers_in("y", rows)
    begin = 0
    # A part ends at a row without numbers, the last one at the end of the table as well.
    for end in [*np.flatnonzero(~(np.isfinite(x) & np.isfinite(y))).tolist(), len(x)]:
        if end > begin:
            yield tuple(zip(frame.x(x[begin:end]).tolist(), frame.y(y[begin:end]).tolist(), strict=True))
        begin = end + 1
