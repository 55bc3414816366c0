"""The figure of a sharding: the columns of ``sharding_columns``, drawn by Bokeh, with details under the pointer."""

from __future__ import annotations

from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, Quad, Range1d, Text
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import CLIPPED, FULL_WIDTH, Columns
from pathways_widgets.shardings.sharding_columns import SIDES, SOURCES

_AT: dict[str, Any] = {side: side for side in SIDES}
_TOOLTIPS = {
    "sharding_blocks": [("block", "@index"), ("on", "@devices"), ("holds", "@bytes"), ("place", "@place")],
    "sharding_moves": [("from → to", "@what"), ("sends", "@amount")],
}
NARROWEST = 760
"""Pixels below which a figure does not shrink, so that texts which fit their boxes still do."""
ROLES = {
    "sharding_padding_boxes": {"line_color": "lane", "hatch_color": "island"},
    "sharding_stays_boxes": {"line_color": "lane", "hatch_color": "island"},
    "sharding_groups_boxes": {"line_color": "background"},
    "sharding_heads_text": {"text_color": "text"},
    "sharding_words_text": {"text_color": "text"},
}
"""Colours of the theme: model name -> property -> role."""


def figure_of_sharding(sources: dict[str, Columns], height: float, style: Style) -> figure:
    """Return the figure.

    Args:
        sources: the columns of each source.
        height: in pixels.
        style: sizes of text and lines.
    """
    made = _frame(height)
    tables = {name: ColumnDataSource(columns, name=name) for name, columns in sources.items()}
    for name in SOURCES:
        if name in _BOXES:
            boxes = made.add_glyph(tables[name], Quad(**_AT, name=f"{name}_boxes", **_looks(name, style)))
            if name in _TOOLTIPS:
                made.add_tools(HoverTool(renderers=[boxes], tooltips=_TOOLTIPS[name], visible=False))
    for name, face, align in (("marks", "normal", "center"), ("heads", "bold", "left"), ("words", "normal", "align")):
        look = {"text_color": palette.INK} if name == "marks" else {}
        place: dict[str, Any] = {"x": "x", "y": "y", "text": "text", "text_align": align, "text_baseline": "middle"}
        size = f"{style.font}px"
        words = Text(**place, name=f"sharding_{name}_text", text_font_size=size, text_font_style=face, **look)
        made.add_glyph(tables[f"sharding_{name}"], words)
    return made


_BOXES = tuple(name for name, columns in SOURCES.items() if columns[:4] == SIDES)


def _looks(name: str, style: Style) -> dict[str, Any]:
    """Return fill, border and hatching of the boxes of a source."""
    hatched = {"fill_color": None, "line_width": 0.5 * style.line, "hatch_pattern": "/", "hatch_weight": 0.6,
               "hatch_scale": 11 * style.factor}  # fmt: skip
    looks: dict[str, dict[str, Any]] = {
        "sharding_blocks": {"fill_color": "fill", "line_color": "edge", "line_width": 0.5 * style.line},
        "sharding_copies": {"fill_color": "fill", "line_color": None},
        "sharding_moves": {"fill_color": "fill", "line_color": None},
        "sharding_groups": {"fill_color": None, "line_width": 1.6 * style.line},
    }
    return looks.get(name, hatched)


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
