"""The marks of pictures of schedules and the entries of their legends; tables are those of ``schedule_columns``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bokeh.models import ImageRGBA
from bokeh.models.glyph import Glyph

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark, Hatching
from pathways_widgets.drawing.legends import Swatch
from pathways_widgets.drawing.line_marks import AreaMark, LineMark
from pathways_widgets.drawing.picture_marks import PictureMark, Role
from pathways_widgets.drawing.point_marks import DotMark, TextMark
from pathways_widgets.drawing.scene import Shape
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import Columns
from pathways_widgets.schedules.schedule_columns import COLOURS, LEVELS, MARKS
from pathways_widgets.schedules.schedule_layout import Drawable

IDLE, HELD, CAP = "bubble", "activations held", "cap of a device"
FIRST = {"order": "first in another order", "late": "first later than planned"}
"""Words of the legend."""
_DASHES: dict[str, tuple[int, ...]] = {"order": (), "late": (6, 4)}
"""Dashes of the outlines of marked actions in pixels: a box with both marks shows both."""
_VEIL = 0.6
"""Opacity of the veil over later time."""
_INK = Role("text")


class PixelRowMark(PictureMark):
    """A row of pixels for each row: the boxes of a device where these are too many for a browser.

    A still picture draws the boxes one by one, so it has no shapes.
    """

    def glyph(self, style: Style) -> Glyph:
        """Return Bokeh's glyph."""
        return ImageRGBA(x="x", y="y", dw="dw", dh="dh", image="image")

    def shapes(self, rows: Columns, frame: Frame) -> Iterator[Shape]:
        """Yield nothing."""
        return iter(())


def _bubble(gap: float, **more: Any) -> BoxMark:
    """Return a mark of idle time, with ``gap`` pixels between the lines of its pattern."""
    return BoxMark(line=Role("lane"), hatch="/", hatching=Hatching(Role("island"), 1.0, gap, 0.6), **more)


BOXES = BoxMark(source="schedules_boxes")
"""Invisible boxes, which only tooltips read: visible ones have one table for each colour."""
SCHEDULE_MARKS: tuple[PictureMark, ...] = (
    _bubble(14.0, source="schedules_idle", name="schedules_hatch", line_width=0.5),
    *(BoxMark(source=f"schedules_fill{code}", fill=colour) for code, colour in enumerate(COLOURS)),
    PixelRowMark(source="schedules_lanes"),
    BOXES,
    BoxMark(source="schedules_edges", line=palette.BOX_EDGE, line_width=0.5),
    BoxMark(source="schedules_pairs", name="schedules_pair", line=_INK, line_width=1.5),
    *(
        BoxMark(source=f"schedules_first_{kind}", line=colour, line_width=3.0, dash=_DASHES[kind])
        for kind, colour in MARKS.items()
    ),
    TextMark(source="schedules_marks"),
    AreaMark(source="schedules_held", fill=palette.MEMORY),
    AreaMark(source="schedules_over", fill=palette.EXCESS),
    LineMark(source="schedules_caps", name="schedules_cap", ends=("x0", "y", "x1", "y"), line=_INK, dash=(5, 3)),
    DotMark(source="schedules_peaks", name="schedules_peak", fill=_INK, size=4.0),
    BoxMark(source="schedules_later", name="schedules_veil", fill=Role("background"), alpha=_VEIL),
    BoxMark(source="schedules_now", name="schedules_border", line=_INK, line_width=2.5),
    LineMark(source="schedules_wire", name="schedules_thread", line=_INK, line_width=2.5),
)
"""What is drawn, from back to front: bubbles, boxes and their texts, memory, and what points at a cell."""


def _first(kind: str, colour: str) -> Swatch:
    """Return the entry of the legend for a kind of marked actions; a dashed border is a dashed line there."""
    look: dict[str, Any] = {"line": colour, "line_width": 2.5}
    mark = LineMark(**look, dash=_DASHES[kind]) if _DASHES[kind] else BoxMark(**look)
    return Swatch(FIRST[kind], mark, f"schedules_key_{kind}")


LEGENDS = (
    tuple(_first(kind, colour) for kind, colour in MARKS.items()),
    (
        Swatch(IDLE, _bubble(8.4, name="schedules_hatch1"), "schedules_key_idle"),
        Swatch("", BoxMark(fill=COLOURS[LEVELS - 1]), "schedules_key_shade"),
        Swatch(HELD, BoxMark(fill=palette.MEMORY), "schedules_key_held"),
        Swatch(CAP, LineMark(name="schedules_cap1", line=_INK, dash=(4, 2)), "schedules_key_cap"),
    ),
    tuple(
        Swatch(kind.name, BoxMark(fill=kind.colour), f"schedules_key{code}", kind.letter)
        for code, kind in enumerate(palette.OPERATIONS)
    ),
)
"""The legends from the picture upwards: marked actions, everything else, operations."""


def shade_entry(pictures: Sequence[Drawable]) -> dict[str, Any]:
    """Return the properties of the legend's entry for lightness."""
    kinds = dict.fromkeys(word for one in pictures for word in one.shades.split(" and ") if word)
    says = [f"{'other' if kind == 'direction' else 'later'} {kind}" for kind in kinds]
    return {"visible": bool(kinds), "label": {"value": f"paler: {', '.join(says)}"}}
