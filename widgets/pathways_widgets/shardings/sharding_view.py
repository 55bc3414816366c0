"""The marks of pictures of shardings over the columns of ``sharding_columns``, and their Bokeh figure."""

from __future__ import annotations

from typing import Any

from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from pathways_widgets.drawing.box_marks import BoxMark, Hatching
from pathways_widgets.drawing.picture_marks import Column, PictureMark, Role, draw, theme_roles
from pathways_widgets.drawing.point_marks import TextMark
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import CLIPPED, FULL_WIDTH, Columns

NARROWEST = 760
"""Pixels below which a figure does not shrink, so that texts which fit their boxes still do."""
_BLOCK = Tooltip((("block", "@index"), ("on", "@devices"), ("holds", "@bytes"), ("place", "@place")), in_toolbar=False)
_MOVE = Tooltip((("from → to", "@what"), ("sends", "@amount")), in_toolbar=False)


def _boxes(source: str, **look: Any) -> PictureMark:
    return BoxMark(source=source, name=f"{source}_boxes", **look)


def _texts(source: str, **look: Any) -> PictureMark:
    return TextMark(source=source, name=f"{source}_text", **look)


_HATCHED: dict[str, Any] = {
    "line": Role("lane"),
    "line_width": 0.5,
    "hatch": "/",
    "hatching": Hatching(Role("island"), 1.0, 11.0, 0.6),
}
SHARDING_MARKS = (
    _boxes("sharding_padding", **_HATCHED),
    _boxes("sharding_blocks", fill=Column("fill"), line=Column("edge"), line_width=0.5, tooltip=_BLOCK),
    _boxes("sharding_copies", fill=Column("fill")),
    _boxes("sharding_moves", fill=Column("fill"), tooltip=_MOVE),
    _boxes("sharding_stays", **_HATCHED),
    _boxes("sharding_groups", line=Role("background"), line_width=1.6),
    _texts("sharding_marks"),
    _texts("sharding_heads", text_colour=Role("text"), align="left", is_bold=True),
    _texts("sharding_words", text_colour=Role("text"), align=Column("align")),
)
"""What is drawn, from back to front."""
ROLES = theme_roles(SHARDING_MARKS)
"""Colours of the theme: model name -> property -> role."""


def figure_of_sharding(sources: dict[str, Columns], height: float, style: Style) -> figure:
    """Return the figure.

    Args:
        sources: the columns of each source.
        height: in pixels.
        style: sizes of text and lines.
    """
    made = _frame(height)
    draw(made, SHARDING_MARKS, {name: ColumnDataSource(columns, name=name) for name, columns in sources.items()}, style)
    return made


def _frame(height: float) -> figure:
    """Return an empty figure in pixels, with y downwards."""
    made = figure(
        name="sharding",
        height=int(height) + 8,
        sizing_mode="stretch_width",
        min_width=NARROWEST,
        x_range=Range1d(0, FULL_WIDTH),
        y_range=Range1d(height, 0),
        tools="xpan,reset,save",
        min_border=0,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        stylesheets=[CLIPPED],
        output_backend="canvas",
    )
    made.toolbar.logo, made.toolbar.autohide = None, True
    made.axis.visible = made.grid.visible = False
    return made
