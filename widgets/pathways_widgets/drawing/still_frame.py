"""The frame of a still picture: positions of values on the page, and what Bokeh draws around a figure by itself.

Those are axes with their grid lines, names of rows, and the title; here they are shapes, with the same round times and
colours. Still pictures always have the light theme: without scripts they cannot follow the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Shape, Text
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.time_axis import time_ticks

LABELS = 104.0
"""Pixels left of the time axis, for the labels of lanes."""
RIGHT, AXIS, LINE = 12.0, 26.0, 18.0
"""Pixels right of the time axis, below it for its labels, and of a line of text such as the title."""
LIGHT = palette.THEMES["light"]


@dataclass(frozen=True)
class Frame:
    """The position of a plot on the page, and its scales.

    Args:
        left: pixels of the plot's left edge.
        right: pixels of its right edge.
        top: pixels of its upper edge.
        bottom: pixels of its lower edge.
        across: values at the left and the right edge.
        up: values at the lower and the upper edge.
        font: height of ordinary text in pixels.
        line: factor on the widths of lines.
        column_factor: factor on pixels that are in columns, which the style has scaled already.
    """

    left: float
    right: float
    top: float
    bottom: float
    across: tuple[float, float]
    up: tuple[float, float]
    font: float = field(default_factory=lambda: style.current().font)
    line: float = field(default_factory=lambda: style.current().line)
    column_factor: float = 1.0

    @classmethod
    def of_pixels(cls, width: float, height: float) -> Frame:
        """Return the frame of a picture whose values are pixels already, with y downwards."""
        return cls(0.0, width, 0.0, height, (0.0, width), (height, 0.0))

    @property
    def factor(self) -> float:
        """Factor on sizes that are given for a screen, such as those of dots."""
        return self.font / style.STYLES["screen"].font

    def x(self, value: Any) -> Any:
        """Return the pixel of a value of the horizontal axis, or of an array of values."""
        return self.left + (value - self.across[0]) / (self.across[1] - self.across[0]) * (self.right - self.left)

    def y(self, value: Any) -> Any:
        """Return the pixel of a value of the vertical axis, or of an array of values."""
        # Counted from the upper edge: so positions that are pixels already are not even rounded.
        return self.top + (value - self.up[1]) / (self.up[0] - self.up[1]) * (self.bottom - self.top)

    def time_axis(self, pixels: float = 90.0) -> Iterator[Shape]:
        """Yield grid lines and labels of round times, on a screen ``pixels`` apart or more."""
        most = max(int((self.right - self.left) / (pixels * self.factor)), 3)
        return self.ticks(time_ticks(max(self.across[0], 0.0), self.across[1], most))

    def ticks(self, labels: Iterable[tuple[float, str]]) -> Iterator[Shape]:
        """Yield grid lines and labels of values of the horizontal axis."""
        for value, text in labels:
            yield Curve(((self.x(value), self.top), (self.x(value), self.bottom)), LIGHT["grid"], self.line)
            # A label at the right edge must not be cut off there.
            x = min(self.x(value), self.right + RIGHT - text_width(text, self.font) / 2)
            yield Text(x, self.bottom + self.factor * AXIS / 2, text, self.font, LIGHT["text"], "middle")

    def break_in_time(self, span: Mapping[str, Any], top: float) -> Iterator[Shape]:
        """Yield the edge of an axis of which the beginning is folded, and what happened there.

        Args:
            span: the properties of the axis, as ``time_span`` returns them.
            top: pixels of the upper edge of the title's line.
        """
        for fold in span["tags"]:
            text, _, _ = fold["words"].partition(" · ")  # nobody can click here
            yield Text(self.left, top + self.factor * LINE / 2, text, self.font, LIGHT["soft"])
            step, side = 4 * self.factor, 3 * self.factor
            heights = [self.top + step * number for number in range(int((self.bottom - self.top) / step) + 1)]
            corners = [(self.left + side * (number % 2), y) for number, y in enumerate(heights)]
            yield from (Curve(piece, LIGHT["soft"], self.line) for piece in pairwise(corners))

    def rows(self, values: Iterable[float], role: str = "grid", width: float = 1.0) -> Iterator[Shape]:
        """Yield lines across the plot at values of the vertical axis, in the colour of a role of the theme."""
        for value in values:
            yield Curve(((self.left, self.y(value)), (self.right, self.y(value))), LIGHT[role], width * self.line)

    def names(self, labels: Mapping[float, str]) -> Iterator[Shape]:
        """Yield the labels of positions on the vertical axis; a long one takes two lines, or smaller type."""
        places = sorted(labels)
        unit = (self.bottom - self.top) / abs(self.up[1] - self.up[0])
        # Pixels between the two labels that are closest: only if that is enough may a label take two lines.
        row = min((b - a for a, b in pairwise(places)), default=1.0) * unit
        for position, text in labels.items():
            # How many times as wide as the space left of the plot.
            too_wide = max(text_width(text, self.font) / (self.left - 12), 1.0)
            # Broken at its first separator: the island above, the device below.
            lines = text.replace(" · ", ", ").split(", ", 1) if too_wide > 1 and row >= 2.4 * self.font else [text]
            used = self.font / too_wide if len(lines) == 1 else self.font
            for number, line in enumerate(lines):
                y = self.y(position) + (number - (len(lines) - 1) / 2) * 1.2 * self.font
                yield Text(self.left - 8, y, line, used, LIGHT["text"], "end")


def time_ends(width: float) -> tuple[float, float]:
    """Return the left and right pixel of the time axis on a page of this width: the same for all pictures on it."""
    return style.current().factor * LABELS, width - RIGHT


def title(text: str, top: float, width: float) -> Text:
    """Return the title, at the upper right."""
    look = style.current()
    return Text(width - RIGHT, top + look.factor * LINE / 2, text, look.font, LIGHT["soft"], "end")
