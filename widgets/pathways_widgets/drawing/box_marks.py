"""Marks that are boxes: by their sides, or around a centre.

A field that is a text names the column of a position; ``Column`` says that another value, such as a colour, differs
from row to row. Bokeh cuts off what is outside of the plot, so the shapes of a still picture are cut here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from bokeh.models import Quad
from bokeh.models import Rect as CentredRect
from bokeh.models.glyph import Glyph

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.picture_marks import (
    Colour,
    Column,
    PictureMark,
    Role,
    colour,
    colours_in,
    numbers_in,
    values_in,
)
from pathways_widgets.drawing.scene import Rect, Shape
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import Columns

NARROWEST = 0.3
"""Least width in pixels of a box of a still picture, so that it is visible."""
LOWEST = 0.01
"""Pixels below which a box has no height: what is left where two equal sums were rounded differently."""


class Hatching(NamedTuple):
    """The lines of a pattern over boxes.

    Args:
        colour: of the lines.
        alpha: their opacity.
        gap: pixels between them.
        weight: their width in pixels.
    """

    colour: Colour = palette.INK
    alpha: float = palette.HATCH_ALPHA
    gap: float = 6.0
    weight: float = 1.0


_OVER_BOXES = Hatching()
"""The pattern of kinds of events and of bad ends."""


@dataclass(frozen=True, kw_only=True)
class _Filled(PictureMark):
    """What boxes have in common.

    Args:
        fill: colour inside.
        line: colour of the border.
        line_width: its width in pixels.
        radius: of the corners, in pixels.
    """

    fill: Colour = ""
    line: Colour = ""
    line_width: float = 1.0
    radius: float = 0.0

    def _look(self, style: Style) -> dict[str, Any]:
        """Return the properties of Bokeh's glyph for fill and border."""
        width = self.line_width * style.line
        return {"fill_color": colour(self.fill), "line_color": colour(self.line), "line_width": width}


@dataclass(frozen=True, kw_only=True)
class BoxMark(_Filled):
    """A box for each row, by its four sides.

    Args:
        left: position of its left side: a column, or a number for all rows.
        right: the same of its right side.
        top: the same of its upper side.
        bottom: the same of its lower side.
        alpha: opacity of the fill.
        dash: lengths in pixels of the dashes of the border and of the gaps between them; empty for a solid border.
        hatch: the pattern, one of the letters of ``palette.HATCHES``; empty for none.
        hatching: how the pattern's lines look.
    """

    left: str | float = "left"
    right: str | float = "right"
    top: str | float = "top"
    bottom: str | float = "bottom"
    alpha: float = 1.0
    dash: tuple[int, ...] = ()
    hatch: str | Column = ""
    hatching: Hatching = _OVER_BOXES

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        look = self._look(style) | {"fill_alpha": self.alpha, "line_dash": list(self.dash)}
        if self.hatch:
            pattern = self.hatch.name if isinstance(self.hatch, Column) else self.hatch
            lines = self.hatching
            look |= {"hatch_pattern": pattern, "hatch_color": colour(lines.colour), "hatch_alpha": lines.alpha}
            look |= {"hatch_scale": lines.gap * style.factor, "hatch_weight": lines.weight}
        return Quad(left=self.left, right=self.right, top=self.top, bottom=self.bottom, **look)

    @property
    def roles(self) -> dict[str, str]:
        """Property of the glyph -> role in the theme."""
        lines = self.hatching.colour
        return super().roles | ({"hatch_color": lines.name} if self.hatch and isinstance(lines, Role) else {})

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the boxes, cut off at the edges of the plot."""
        # (boxes,) pixels of each side; a side that is a number is the same for all.
        ends = [frame.x(numbers_in(side, rows)) for side in (self.left, self.right)]
        ends += [frame.y(numbers_in(side, rows)) for side in (self.top, self.bottom)]
        left, right, top, bottom = (side.tolist() for side in np.broadcast_arrays(*ends))
        looks = (colours_in(self.fill, rows, len(left)), colours_in(self.line, rows, len(left)))
        hatches = values_in(self.hatch, rows, len(left))
        width = self.line_width * frame.line
        for x0, x1, y0, y1, fill, line, hatch in zip(left, right, top, bottom, *looks, hatches, strict=True):
            if not (fill or line or hatch) or not (x1 >= frame.left and x0 <= frame.right):  # no number: in a legend
                continue
            # A border in the colour of the fill closes the seams that a canvas leaves; shapes have none.
            line = "" if line == fill else line
            fill = f"{fill}{round(255 * self.alpha):02X}" if fill and self.alpha < 1 else fill
            # An axis runs down for lanes and up for amounts, so either end may be the upper one.
            begin, high = max(x0, frame.left), max(min(y0, y1), frame.top)
            wide, tall = max(min(x1, frame.right) - begin, NARROWEST), min(max(y0, y1), frame.bottom) - high
            if tall > LOWEST:
                yield Rect(begin, high, wide, tall, fill, line, width, self.radius * frame.factor, hatch, self.dash)


@dataclass(frozen=True, kw_only=True)
class CardMark(_Filled):
    """A box for each row around the centre in the columns ``x`` and ``y``.

    Args:
        width: a column, or a number for all rows, in the units of the axes.
        height: the same.
    """

    width: str | float = "width"
    height: str | float = "height"

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        # Bokeh rounds corners by whole pixels only.
        size = {"width": self.width, "height": self.height, "border_radius": round(self.radius)}
        return CentredRect(x="x", y="y", **size, **self._look(style))

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield the boxes."""
        half = [numbers_in(size, rows) / 2 for size in (self.width, self.height)]
        x, y = numbers_in("x", rows), numbers_in("y", rows)
        ends = frame.x(x - half[0]), frame.x(x + half[0]), frame.y(y - half[1]), frame.y(y + half[1])
        looks = (colours_in(look, rows, len(x)) for look in (self.fill, self.line))
        width, radius = self.line_width * frame.line, self.radius * frame.factor
        for x0, x1, y0, y1, fill, line in zip(*(end.tolist() for end in ends), *looks, strict=True):
            yield Rect(x0, min(y0, y1), x1 - x0, abs(y1 - y0), fill, line, width, radius)
