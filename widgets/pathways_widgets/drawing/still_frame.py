"""The frame of a still picture over time: positions of times and rows on the page, the axis, the legend, the labels.

Bokeh draws these parts itself in a live figure; here they are drawn as shapes, with the same round times and colours.
Still pictures always have the light theme: without scripts they cannot follow the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Rect, Shape, Text, text_width
from pathways_widgets.drawing.time_axis import time_ticks

LABELS = 104.0
"""Pixels left of the time axis, for the labels of lanes."""
RIGHT, AXIS, LEGEND_ROW, LINE = 12.0, 26.0, 16.0, 18.0
LIGHT = palette.THEMES["light"]


@dataclass(frozen=True)
class Frame:
    """The position of the plot on the page, and its scales.

    Args:
        left: pixels of the plot's left edge, which is the time ``begin``.
        right: pixels of its right edge, which is the time ``end``.
        top: pixels of its upper edge, where the vertical axis starts.
        bottom: pixels of its lower edge.
        begin: first time of the axis.
        end: last time of the axis.
        unit: pixels of one unit of the vertical axis.
    """

    left: float
    right: float
    top: float
    bottom: float
    begin: float
    end: float
    unit: float

    def x(self, time: float) -> float:
        """Return the pixel of a time."""
        return self.left + (time - self.begin) / (self.end - self.begin) * (self.right - self.left)

    def y(self, position: float) -> float:
        """Return the pixel of a position on the vertical axis."""
        return self.top + position * self.unit

    def time_axis(self) -> Iterator[Shape]:
        """Yield grid lines and labels of round times."""
        font, factor, lines = style.current().font, style.current().factor, style.current().line
        for tick, text in time_ticks(
            max(self.begin, 0.0), self.end, max(int((self.right - self.left) / (90 * factor)), 3)
        ):
            yield Curve(((self.x(tick), self.top), (self.x(tick), self.bottom)), LIGHT["grid"], lines)
            yield Text(self.x(tick), self.bottom + factor * AXIS / 2, text, font, LIGHT["text"], "middle")

    def names(self, labels: Mapping[float, str]) -> Iterator[Shape]:
        """Yield the labels of positions on the vertical axis; a long one takes two lines, or smaller type."""
        font, places = style.current().font, sorted(labels)
        row = min((b - a for a, b in pairwise(places)), default=1.0) * self.unit
        for position, text in labels.items():
            too_wide = max(text_width(text, font) / (self.left - 12), 1.0)
            lines = text.replace(" · ", ", ").split(", ", 1) if too_wide > 1 and row >= 2.4 * font else [text]
            used = font / too_wide if len(lines) == 1 else font
            for number, line in enumerate(lines):
                y = self.y(position) + (number - (len(lines) - 1) / 2) * 1.2 * font
                yield Text(self.left - 8, y, line, used, LIGHT["text"], "end")


class Swatch(NamedTuple):
    """An entry of a legend: a box in a colour with a pattern, only its outline (perhaps dashed), or a dashed line."""

    text: str
    colour: str
    hatch: str = ""
    dashed: bool = False
    outline: bool = False
    dash: tuple[float, ...] = ()

    def shape(self, x: float, y: float, size: float) -> Shape:
        """Return the shape, ``size`` pixels wide, to the right of ``x`` and centred at ``y``."""
        if self.dashed:
            return Curve(((x, y), (x + size, y)), self.colour, 1.5 * style.current().line, dash=0.4 * size)
        box = x, y - size / 2, size, size
        if self.outline:
            return Rect(*box, "", self.colour, (1.0 if self.dash else 2.5) * style.current().line, dash=self.dash)
        return Rect(*box, self.colour, hatch=self.hatch)


def title(text: str, top: float, width: float) -> Text:
    """Return the title, at the upper right."""
    return Text(
        width - RIGHT, top + style.current().factor * LINE / 2, text, style.current().font, LIGHT["soft"], "end"
    )


def legend(
    rows: Sequence[Sequence[Swatch]], top: float, width: float, left: float | None = None
) -> tuple[list[Shape], float]:
    """Lay out the entries of a legend.

    Args:
        rows: rows of entries; a row that is too wide is broken.
        top: pixels of its upper edge.
        width: width of the picture in pixels.
        left: where rows begin; ``None`` is the left edge of the plot.

    Returns:
        The shapes, and the height of all rows.
    """
    shapes: list[Shape] = []
    begin = style.current().factor * LABELS if left is None else left
    font, factor = style.current().font, style.current().factor
    y, row = top, factor * LEGEND_ROW
    for swatches in rows:
        x = begin
        for swatch in swatches:
            needed = 15 * factor + 0.55 * font * len(swatch.text)
            if x > begin and x + needed > width:
                x, y = begin, y + row
            shapes.append(swatch.shape(x, y + row / 2, 10 * factor))
            shapes.append(Text(x + 15 * factor, y + row / 2, swatch.text, font, LIGHT["text"]))
            x += needed + 12 * factor
        y += row if swatches else 0
    return shapes, y - top
