"""The frame of a still picture over time: where times and rows are on the page, the axis, the legend, the names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Rect, Shape, Text, text_width
from pathways_widgets.drawing.time_axis import time_ticks

LABELS = 104.0
"""Pixels left of the time axis, for the names of lanes."""
RIGHT, AXIS, LEGEND_ROW, LINE = 12.0, 26.0, 16.0, 18.0
LIGHT = palette.THEMES["light"]


@dataclass(frozen=True)
class Frame:
    """Where things are: pixels of the page's edges, of which ``left`` to ``right`` is time from ``begin`` to ``end``.

    ``unit`` are the pixels of one unit of the vertical axis, which starts at ``top``.
    """

    left: float
    right: float
    top: float
    bottom: float
    begin: float
    end: float
    unit: float

    def x(self, time: float) -> float:
        """Where a time is."""
        return self.left + (time - self.begin) / (self.end - self.begin) * (self.right - self.left)

    def y(self, position: float) -> float:
        """Where a position on the vertical axis is."""
        return self.top + position * self.unit

    def time_axis(self) -> Iterator[Shape]:
        """Lines and words of round times."""
        font, factor, lines = style.now().font, style.now().factor, style.now().line
        for tick, text in time_ticks(
            max(self.begin, 0.0), self.end, max(int((self.right - self.left) / (90 * factor)), 3)
        ):
            yield Curve(((self.x(tick), self.top), (self.x(tick), self.bottom)), LIGHT["grid"], lines)
            yield Text(self.x(tick), self.bottom + factor * AXIS / 2, text, font, LIGHT["text"], "middle")

    def names(self, labels: Mapping[float, str]) -> Iterator[Shape]:
        """What positions on the vertical axis are called; what is too long takes two lines, or smaller type."""
        font, places = style.now().font, sorted(labels)
        row = min((b - a for a, b in pairwise(places)), default=1.0) * self.unit
        for position, text in labels.items():
            too_wide = max(text_width(text, font) / (self.left - 12), 1.0)
            lines = text.replace(" · ", ", ").split(", ", 1) if too_wide > 1 and row >= 2.4 * font else [text]
            used = font / too_wide if len(lines) == 1 else font
            for number, line in enumerate(lines):
                y = self.y(position) + (number - (len(lines) - 1) / 2) * 1.2 * font
                yield Text(self.left - 8, y, line, used, LIGHT["text"], "end")


class Swatch(NamedTuple):
    """An entry of a legend: a box in a colour with a pattern, or a dashed line."""

    text: str
    colour: str
    hatch: str = ""
    dashed: bool = False

    def shape(self, x: float, y: float, size: float) -> Shape:
        """It, ``size`` wide, to the right of ``x`` and centred at ``y``."""
        if self.dashed:
            return Curve(((x, y), (x + size, y)), self.colour, 1.5 * style.now().line, dash=0.4 * size)
        return Rect(x, y - size / 2, size, size, self.colour, hatch=self.hatch)


def title(text: str, top: float, width: float) -> Text:
    """Words at the upper right."""
    return Text(width - RIGHT, top + style.now().factor * LINE / 2, text, style.now().font, LIGHT["soft"], "end")


def legend(
    rows: Sequence[Sequence[Swatch]], top: float, width: float, left: float | None = None
) -> tuple[list[Shape], float]:
    """Rows of entries from ``left`` on, more where the picture is narrow, and the height of all."""
    shapes: list[Shape] = []
    begin = style.now().factor * LABELS if left is None else left
    font, factor = style.now().font, style.now().factor
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
