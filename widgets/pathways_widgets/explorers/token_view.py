"""The live picture of token slices: boxes of slices above, cost surface and bars of the latency below.

Changing a choice changes columns and ranges only; the browser keeps its models. Columns are made in ``token_columns``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import (
    Column,
    ColumnDataSource,
    CustomJSTickFormatter,
    FixedTicker,
    GlyphRenderer,
    Legend,
    LegendItem,
    Quad,
    Scatter,
    Text,
)
from bokeh.plotting import figure

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.legends import LEGEND_ROLES
from pathways_widgets.drawing.plane import Axes, frame, roles
from pathways_widgets.drawing.time_axis import TICKS
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import CLIPPED, Columns, empty_source
from pathways_widgets.explorers.token_columns import SOURCES, SUM, WAITS, DrawnSlicing, TokenLayout, columns_of

SLICES, SURFACE, BARS = "tokens_slices", "tokens_costs", "tokens_terms"
"""Names of the three figures."""
WIDTH = 740.0
"""Pixels of the boxes' axis, to which their text is fitted."""
HEIGHT = 300.0
"""Pixels of the two lower figures."""
BEST, EVEN = palette.YELLOW, palette.VERMILION
"""Marks of the slices of the optimum and of the best uniform slicing on the cost surface."""
WORDS = {
    "tokens": "tokens of the sequence",
    "context": "tokens before the slice",
    "length": "tokens of the slice",
    "count": "number of uniform slices",
    "latency": "latency",
    "best": "optimum",
    "even": "best uniform",
    "sum": "sum of all slices",
    "waits": "(stages − 1) × slowest slice",
}
"""Words on axes and in legends."""
_SIDES: dict[str, Any] = {side: side for side in ("left", "right", "top", "bottom")}
_NAMES = "const {x, name} = bars.data; return name[Array.from(x).indexOf(tick)] ?? ''"
_TITLE = {"text_color": "text"}
_ROLES = (
    roles(SLICES) | roles(SURFACE) | roles(BARS)
    | {f"{name}_title": _TITLE for name in (SURFACE, BARS)}
    | {f"{name}_legend": LEGEND_ROLES for name in (SURFACE, BARS)}
    | {name: {"text_color": "text"} for name in ("tokens_heading_text", "tokens_bar_text")}
)  # fmt: skip


class TokenSlices:
    """Draws token slices, their cost and their latency."""

    def __init__(self) -> None:
        self.style, self.roles = style.current(), _ROLES
        self.sources: dict[str, Columns] = {}
        """The columns last returned by ``update``."""
        self.properties: dict[str, dict[str, Any]] = {}
        """Model name -> properties that follow the data: ranges, ticks, titles, height."""

    @cached_property
    def tables(self) -> dict[str, ColumnDataSource]:
        """The Bokeh sources of the glyphs."""
        return {name: empty_source(name, columns) for name, columns in SOURCES.items()}

    @cached_property
    def root(self) -> Column:
        """The three figures."""
        below = row(_surface(self), _bars(self), sizing_mode="stretch_width")
        return column(_slices(self), below, sizing_mode="stretch_width")

    def update(self, picture: DrawnSlicing) -> dict[str, Columns]:
        """Return the columns of every source."""
        self.sources, layout = columns_of(picture, WIDTH, self.style)
        self.properties = _properties(layout, self.sources["tokens_bars"])
        return self.sources


def _properties(layout: TokenLayout, bars: Columns) -> dict[str, dict[str, Any]]:
    """Return the properties that follow the data."""

    def bounds(start: float, end: float) -> dict[str, float]:
        return {"start": start, "end": end, "reset_start": start, "reset_end": end}

    return {
        SLICES: {"frame_height": max(round(layout.height), 1)},
        f"{SLICES}_across": bounds(0.0, layout.length),
        f"{SLICES}_up": bounds(layout.height, 0.0),
        f"{SURFACE}_across": bounds(0.0, layout.length),
        f"{SURFACE}_up": bounds(0.0, layout.highest),
        f"{SURFACE}_title": {"text": layout.surface_title},
        f"{BARS}_across": bounds(-1.0, layout.bars),
        f"{BARS}_up": bounds(0.0, layout.latency),
        f"{BARS}_title": {"text": layout.bars_title},
        f"{BARS}_ticks": {"ticks": [float(x) for x in bars["x"]]},
    }


def _frame(name: str, x: str, y: str, height: float, drawn: TokenSlices) -> figure:
    """Return an empty figure whose ranges and title have names."""
    plot = frame(name, Axes(x, y, (0.0, 1.0), (0.0, 1.0), {}, height), "xpan,box_zoom,reset")
    plot.x_range.name, plot.y_range.name, plot.title.name = f"{name}_across", f"{name}_up", f"{name}_title"
    plot.title.text_font_size, plot.title.text_font_style = f"{drawn.style.font}px", "normal"
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        axis.axis_label_text_font_size = axis.major_label_text_font_size = f"{drawn.style.font}px"
        axis.minor_tick_line_color = None
    plot.stylesheets = [CLIPPED]
    return plot


def _slices(drawn: TokenSlices) -> figure:
    """Return the figure of boxes."""
    plot, size = _frame(SLICES, WORDS["tokens"], "", 200, drawn), f"{drawn.style.font}px"
    plot.height, plot.frame_height, plot.min_border_left = None, 150, 20
    plot.yaxis[0].visible = plot.ygrid[0].visible = plot.xgrid[0].visible = plot.title.visible = False
    look = {"line_color": palette.BOX_EDGE, "line_width": 0.5 * drawn.style.line}
    boxes = plot.add_glyph(drawn.tables["tokens_boxes"], Quad(**_SIDES, fill_color="colour", **look))
    _words(plot, drawn.tables["tokens_boxes"], "tokens_box_text", size, "center", text_color=palette.INK)
    _words(plot, drawn.tables["tokens_headings"], "tokens_heading_text", size, "left")
    _tell(plot, boxes)
    return plot


def _surface(drawn: TokenSlices) -> figure:
    """Return the figure of the cost surface."""
    plot = _frame(SURFACE, WORDS["context"], WORDS["length"], HEIGHT, drawn)
    plot.xgrid[0].visible = plot.ygrid[0].visible = False
    cells = plot.add_glyph(drawn.tables["tokens_surface"], Quad(**_SIDES, fill_color="colour", line_color="colour"))
    look: dict[str, Any] = {"x": "context", "y": "tokens", "line_color": palette.INK}
    even = Scatter(marker="diamond", size=9, fill_color=EVEN, **look)
    best = Scatter(marker="circle", size=7, fill_color=BEST, **look)
    marks = {"even": plot.add_glyph(drawn.tables["tokens_even"], even)}
    marks["best"] = plot.add_glyph(drawn.tables["tokens_best"], best)
    _legend(plot, SURFACE, {WORDS[name]: marks[name] for name in ("best", "even")}, drawn)
    _tell(plot, cells)
    return plot


def _bars(drawn: TokenSlices) -> figure:
    """Return the figure of bars."""
    plot, table = _frame(BARS, WORDS["count"], WORDS["latency"], HEIGHT, drawn), drawn.tables["tokens_bars"]
    size = f"{0.9 * drawn.style.font}px"
    plot.xgrid[0].visible = False
    plot.xaxis[0].ticker = FixedTicker(ticks=[], name=f"{BARS}_ticks")
    plot.xaxis[0].formatter = CustomJSTickFormatter(args={"bars": table}, code=_NAMES)
    plot.yaxis[0].formatter = CustomJSTickFormatter(code=TICKS)
    sides: dict[str, Any] = {"left": "left", "right": "right", "line_color": None}
    total = plot.add_glyph(table, Quad(bottom=0, top="sum", fill_color=SUM, **sides))
    waits = plot.add_glyph(table, Quad(bottom="sum", top="latency", fill_color=WAITS, **sides))
    _words(plot, table, "tokens_bar_text", size, "center", text_baseline="bottom")
    _legend(plot, BARS, {WORDS["sum"]: total, WORDS["waits"]: waits}, drawn)
    seconds = {"sum": "sum", "waits": WORDS["waits"], "latency": "latency"}
    tips = [("slices", "@slices"), *((words, f"@{name}{{custom}}") for name, words in seconds.items())]
    plot.add_tools(Tooltip(tuple(tips), tuple(seconds)).tool([total, waits]))
    return plot


def _tell(plot: figure, renderer: GlyphRenderer) -> None:
    """Add the tooltip of slices."""
    tips = (("tokens", "@tokens"), ("before it", "@context"), ("seconds", "@seconds{custom}"))
    plot.add_tools(Tooltip(tips, ("seconds",)).tool([renderer]))


def _words(plot: figure, table: ColumnDataSource, name: str, size: str, align: str, **look: Any) -> None:
    """Add a column of text."""
    look = {"text_baseline": "middle"} | look
    plot.add_glyph(table, Text(x="x", y="y", text="text", name=name, text_font_size=size, text_align=align, **look))


def _legend(plot: figure, name: str, entries: dict[str, GlyphRenderer], drawn: TokenSlices) -> None:
    """Add a legend above a figure."""
    items = [LegendItem(label={"value": label}, renderers=[renderer]) for label, renderer in entries.items()]
    legend = Legend(items=items, name=f"{name}_legend", orientation="horizontal", location="top_left")
    legend.spacing, legend.padding, legend.margin, legend.border_line_color = 16, 2, 0, None
    legend.label_text_font_size, legend.glyph_height = f"{drawn.style.font}px", 14
    plot.add_layout(legend, "above")
