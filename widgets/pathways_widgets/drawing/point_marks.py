"""Marks at a position: texts and dots.

A field that is a text names a column; ``Column`` says that another value, such as a colour, differs from row to row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bokeh.models import Scatter
from bokeh.models import Text as TextGlyph
from bokeh.models.glyph import Glyph

from pathways_widgets.drawing import palette
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
from pathways_widgets.drawing.scene import Align, Polygon, Rect, Shape, Text
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.style import STYLES, Style
from pathways_widgets.drawing.views import Columns

FONT = STYLES["screen"].font
"""Height in pixels of ordinary text on a screen."""
LEADING = 1.2
"""Height of a line of text in a browser, in heights of text."""
_OUTSIDE = 1.0
"""Pixels by which a text or a dot may miss the plot and still be drawn: positions are rounded."""
_ALIGN: dict[str, Align] = {"left": "start", "center": "middle", "right": "end"}


@dataclass(frozen=True, kw_only=True)
class TextMark(PictureMark):
    """A text for each row; its lines are separated by line breaks.

    Args:
        x: the column of its horizontal position.
        y: the column of its vertical position.
        text: the column of the text.
        text_colour: its colour.
        size: its height in pixels.
        align: which part of it is at ``x``.
        anchor: which part of it is at ``y``.
        shift: pixels by which it is moved to the right; negative is left.
        lift: pixels by which it is moved down; negative is up.
        is_bold: whether it is bold.
        background: colour behind it.
        padding: pixels by which its background is larger.
    """

    x: str = "x"
    y: str = "y"
    text: str = "text"
    text_colour: Colour = palette.INK
    size: float = FONT
    align: Literal["left", "center", "right"] | Column = "center"
    anchor: Literal["top", "middle", "bottom"] = "middle"
    shift: float | Column = 0.0
    lift: float | Column = 0.0
    is_bold: bool = False
    background: Colour = ""
    padding: int = 0

    _PROPERTIES: ClassVar = {"text_colour": "text_color", "background": "background_fill_color"}

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        look: dict[str, Any] = {"text_color": colour(self.text_colour)}
        look |= {"text_font_size": f"{style.font * (self.size / FONT):.6g}px", "text_baseline": self.anchor}
        look |= {"text_align": self.align.name if isinstance(self.align, Column) else self.align}
        look |= {"x_offset": pixels(self.shift, style.factor)} if self.shift else {}
        look |= {"y_offset": pixels(self.lift, style.factor)} if self.lift else {}
        look |= {"text_font_style": "bold"} if self.is_bold else {}
        if self.background:
            look |= {"background_fill_color": colour(self.background), "padding": self.padding}
        return TextGlyph(x=self.x, y=self.y, text=self.text, **look)

    @classmethod
    def property_of(cls, colour: str) -> str:
        """Return the property of the glyph that has one of this mark's colours."""
        return cls._PROPERTIES.get(colour, colour)

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the lines of the texts whose positions are in the plot."""
        x, y = frame.x(numbers_in(self.x, rows)), frame.y(numbers_in(self.y, rows))
        # The ratio first: so ordinary text has exactly the size of the style.
        size = frame.font * (self.size / FONT)
        looks = [colours_in(look, rows, len(x)) for look in (self.text_colour, self.background)]
        more = [values_in(one, rows, len(x)) for one in (self.align, self.shift, self.lift)]
        # The style has scaled pixels in columns already; a number is for a screen.
        by_right, by_down = (
            frame.column_factor if isinstance(one, Column) else frame.factor for one in (self.shift, self.lift)
        )
        texts = values_in(Column(self.text), rows, len(x))
        for across, down, text, ink, behind, align, shift, lift in zip(
            x.tolist(), y.tolist(), texts, *looks, *more, strict=True
        ):
            if not text or not _is_inside(frame, across, down):
                continue
            lines = text.split("\n")
            # A still text is centred at its y; several lines are centred, or all below or above the position.
            above = {"top": -0.5, "middle": (len(lines) - 1) / 2, "bottom": len(lines) - 0.5}[self.anchor]
            for number, line in enumerate(lines):
                place = down + by_down * lift + (LEADING if len(lines) > 1 else 1.0) * size * (number - above)
                yield Text(across + by_right * shift, place, line, size, ink, _ALIGN[align], self.is_bold, behind)


@dataclass(frozen=True, kw_only=True)
class DotMark(PictureMark):
    """A dot for each row.

    Args:
        x: the column of its horizontal position.
        y: the column of its vertical position.
        shape: its form; ``"arrow"`` points to the right, ``"down"`` downwards.
        size: its width in pixels.
        fill: colour inside.
        line: colour of the border.
        line_width: its width in pixels.
    """

    x: str = "x"
    y: str = "y"
    shape: Literal["circle", "square", "diamond", "arrow", "down"] = "circle"
    size: float = 6.0
    fill: Colour = ""
    line: Colour = ""
    line_width: float = 1.0

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        form: dict[str, Any] = {"marker": self.shape, "size": self.size * style.factor}
        if self.shape == "arrow":
            # A triangle of Bokeh points upwards.
            form |= {"marker": "triangle", "angle": -math.pi / 2}
        elif self.shape == "down":
            form |= {"marker": "inverted_triangle"}
        look = {"fill_color": colour(self.fill), "line_color": colour(self.line), "line_width": self.line_width}
        return Scatter(x=self.x, y=self.y, **form, **look)

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the dots that are in the plot."""
        x, y = frame.x(numbers_in(self.x, rows)), frame.y(numbers_in(self.y, rows))
        half = self.size * frame.factor / 2
        looks = [colours_in(look, rows, len(x)) for look in (self.fill, self.line)]
        for across, down, fill, line in zip(x.tolist(), y.tolist(), *looks, strict=True):
            if not _is_inside(frame, across, down):
                continue
            if self.shape in ("circle", "square"):
                radius = half if self.shape == "circle" else 0.0
                yield Rect(across - half, down - half, 2 * half, 2 * half, fill, line, self.line_width, radius)
                continue
            # A polygon of a still picture has no border: a larger one below stands for it.
            for edge, inside in ((half + self.line_width, line), (half, fill)):
                corners = [(-edge, -edge), (edge, 0.0), (-edge, edge)]
                if self.shape == "down":
                    corners = [(-edge, -edge), (edge, -edge), (0.0, edge)]
                if self.shape == "diamond":
                    corners = [(-edge, 0.0), (0.0, -edge), (edge, 0.0), (0.0, edge)]
                if inside:
                    yield Polygon(tuple((across + right, down + low) for right, low in corners), inside)


def _is_inside(frame: Frame, x: float, y: float) -> bool:
    """Return whether a position on the page is in the plot; one that is no number is not."""
    across = frame.left - _OUTSIDE <= x <= frame.right + _OUTSIDE
    return across and frame.top - _OUTSIDE <= y <= frame.bottom + _OUTSIDE
