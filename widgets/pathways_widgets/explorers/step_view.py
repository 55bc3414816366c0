"""The live picture of a sharded step: buckets as a band, lanes of one device and its memory on one time axis.

Changing a choice changes columns and ranges only; the browser keeps its models. Columns are made in ``step_columns``.
"""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise
from typing import Any

from bokeh.layouts import column
from bokeh.models import (
    Column,
    ColumnDataSource,
    CustomJSTickFormatter,
    FixedTicker,
    GlyphRenderer,
    HSpan,
    Legend,
    LegendItem,
    Quad,
    Range1d,
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
from pathways_widgets.explorers.step_columns import (
    BACKWARD,
    COMPUTE,
    SOURCES,
    STALL,
    DrawnStep,
    StepLayout,
    columns_of,
)
from pathways_widgets.explorers.step_memory_columns import CATEGORIES

BUCKETS, LANES, MEMORY = "step_buckets", "step_lanes", "step_held"
"""Names of the three figures."""
WIDTH = 740.0
"""Pixels of the axes, to which text is fitted."""
HEIGHT = 150.0
"""Pixels of the memory."""
LANE = 1.6
"""Height of a lane, in those of a device's."""
WORDS = {
    "order": "parameters in the order of their use",
    "gather": "gather, in its bucket's colour",
    "reduce": "reduction",
    "compute": "forward",
    "backward": "backward",
    "stall": "waits",
    "limit": "memory of the device",
}
"""Words on axes and in legends."""
_TIME = "step_time"
_BORDER = 90
_HATCHING: dict[str, Any] = {"hatch_color": palette.INK, "hatch_alpha": palette.HATCH_ALPHA, "hatch_scale": 6,
                             "hatch_weight": 0.7}  # fmt: skip
_NAMES = "const {y, text} = lanes.data; return text[Array.from(y).indexOf(tick)] ?? ''"
_NOWHERE = math.nan
"""Where a box is that is only in the legend; one without rows would not be in it, either."""
_SIDES: dict[str, Any] = {side: side for side in ("left", "right", "top", "bottom")}
_TEXT = {"text_color": "text"}
_ROLES = (
    roles(BUCKETS) | roles(LANES) | roles(MEMORY)
    | {f"{name}_legend": LEGEND_ROLES for name in (LANES, MEMORY)}
    | dict.fromkeys(("step_heading_text", "step_peak_text"), _TEXT)
    | {"step_limit_line": {"line_color": "text"}, "step_peak_mark": {"fill_color": "text", "line_color": "background"}}
)  # fmt: skip


class StepPlan:
    """Draws the buckets, the lanes and the memory of a step."""

    def __init__(self) -> None:
        self.style, self.roles = style.current(), _ROLES
        self.sources: dict[str, Columns] = {}
        """The columns last returned by ``update``."""
        self.properties: dict[str, dict[str, Any]] = {}
        """Model name -> properties that follow the data: ranges, ticks, titles, heights."""

    @cached_property
    def tables(self) -> dict[str, ColumnDataSource]:
        """The Bokeh sources of the glyphs."""
        return {name: empty_source(name, columns) for name, columns in SOURCES.items()}

    @cached_property
    def root(self) -> Column:
        """The three figures; lanes and memory have one time axis."""
        lanes = _lanes(self)
        return column(_buckets(self), lanes, _memory(self, lanes.x_range), sizing_mode="stretch_width")

    def update(self, picture: DrawnStep) -> dict[str, Columns]:
        """Return the columns of every source."""
        self.sources, layout = columns_of(picture, WIDTH, self.style)
        self.properties = _properties(layout, self.style)
        return self.sources


def _properties(layout: StepLayout, looks: style.Style) -> dict[str, dict[str, Any]]:
    """Return the properties that follow the data."""

    def bounds(start: float, end: float) -> dict[str, float]:
        return {"start": start, "end": end, "reset_start": start, "reset_end": end}

    count = max(len(layout.lanes), 1)
    return {
        BUCKETS: {"frame_height": max(round(layout.height), 1)},
        f"{BUCKETS}_up": bounds(layout.height, 0.0),
        LANES: {"frame_height": round(count * LANE * looks.lane), "visible": bool(layout.lanes)},
        MEMORY: {"visible": bool(layout.lanes)},
        f"{BUCKETS}_x": {"visible": bool(layout.lanes)},
        f"{LANES}_up": bounds(count, 0.0),
        f"{LANES}_ticks": {"ticks": [number + 0.5 for number in range(len(layout.lanes))]},
        _TIME: bounds(0.0, layout.end),
        f"{MEMORY}_up": bounds(0.0, layout.highest),
        f"{MEMORY}_y": {"axis_label": layout.unit},
    }


def _buckets(drawn: StepPlan) -> figure:
    """Return the figure of headings and bands."""
    plot = frame(BUCKETS, Axes(WORDS["order"], "", (0.0, 1.0), (1.0, 0.0), {}, 100), "xpan,box_zoom,reset")
    plot.y_range.name, plot.height, plot.frame_height, plot.min_border_left = f"{BUCKETS}_up", None, 100, 20
    plot.yaxis[0].visible = plot.ygrid[0].visible = plot.xgrid[0].visible = False
    plot.xaxis[0].ticker = FixedTicker(ticks=[])
    plot.xaxis[0].axis_label_text_font_size, plot.stylesheets = f"{drawn.style.font}px", [CLIPPED]
    look = {"line_color": palette.BOX_EDGE, "line_width": 0.3 * drawn.style.line}
    boxes = plot.add_glyph(drawn.tables["step_band"], Quad(**_SIDES, fill_color="colour", **look))
    _words(plot, drawn, "step_labels", "step_label_text", "center", text_color=palette.INK)
    _words(plot, drawn, "step_headings", "step_heading_text", "left")
    rows = (("parameter", "@name"), ("bucket", "@bucket"), ("bytes", "@bytes{custom}"))
    plot.add_tools(Tooltip(rows, sizes=("bytes",)).tool([boxes]))
    return plot


def _over_time(name: str, height: float, up: Range1d, drawn: StepPlan) -> figure:
    """Return an empty figure over time."""
    plot = frame(name, Axes("", "", (0.0, 1.0), (0.0, 1.0), {}, height), "xpan,xwheel_zoom,xbox_zoom,reset")
    plot.y_range, plot.min_border_left, plot.stylesheets = up, _BORDER, [CLIPPED]
    plot.toolbar.active_scroll = None
    plot.xaxis[0].formatter = CustomJSTickFormatter(code=TICKS)
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        axis.axis_label_text_font_size = axis.major_label_text_font_size = f"{drawn.style.font}px"
        axis.minor_tick_line_color = None
    return plot


def _lanes(drawn: StepPlan) -> figure:
    """Return the figure of lanes."""
    plot = _over_time(LANES, 100, Range1d(1, 0, name=f"{LANES}_up"), drawn)
    plot.height, plot.frame_height, plot.x_range.name = None, 100, _TIME
    plot.ygrid[0].visible = False
    plot.yaxis[0].ticker = FixedTicker(ticks=[], name=f"{LANES}_ticks")
    plot.yaxis[0].formatter = CustomJSTickFormatter(args={"lanes": drawn.tables["step_lane_names"]}, code=_NAMES)
    look: dict[str, Any] = {"fill_color": "colour", "line_color": "edge", "line_width": 0.5 * drawn.style.line}
    boxes = plot.add_glyph(drawn.tables["step_boxes"], Quad(**_SIDES, **look))
    look = {"fill_color": None, "line_color": None, "hatch_pattern": "hatch"} | _HATCHING
    plot.add_glyph(drawn.tables["step_hatched"], Quad(**_SIDES, **look))
    _words(plot, drawn, "step_box_labels", "step_box_text", "center", text_color=palette.INK)
    _legend(plot, LANES, {text: _swatch(plot, *look) for text, look in LOOKS.items()}, drawn)
    seconds = {"seconds": "takes", "left": "from", "right": "to", "exposed": "exposed"}
    tips = [("", "@kind"), ("of", "@words"), ("bytes", "@bytes{custom}")]
    tips += [(words, f"@{name}{{custom}}") for name, words in seconds.items()]
    plot.add_tools(Tooltip(tuple(tips), tuple(seconds), ("bytes",)).tool([boxes]))
    return plot


LOOKS = {
    WORDS["compute"]: (COMPUTE, ""),
    WORDS["backward"]: (BACKWARD, ""),
    WORDS["stall"]: (STALL, "level"),
    WORDS["gather"]: (palette.GREY, ""),
    WORDS["reduce"]: (palette.GREY, "upright"),
}
"""What the legend of lanes explains: colours and patterns."""


def _swatch(plot: figure, colour: str, pattern: str) -> GlyphRenderer:
    """Return a box that is only in the legend."""
    look = {"fill_color": colour, "line_color": None, "hatch_pattern": palette.HATCHES.get(pattern, " ")} | _HATCHING
    return plot.add_glyph(ColumnDataSource({side: [_NOWHERE] for side in _SIDES}), Quad(**_SIDES, **look))


def _memory(drawn: StepPlan, time: Range1d) -> figure:
    """Return the figure of memory."""
    plot, table = _over_time(MEMORY, HEIGHT, Range1d(0, 1, name=f"{MEMORY}_up"), drawn), drawn.tables["step_memory"]
    plot.x_range, plot.height, plot.frame_height = time, None, int(HEIGHT)
    plot.yaxis[0].ticker.desired_num_ticks = 4
    shown = {}
    for below, name in pairwise(("base", *CATEGORIES)):
        colour = palette.CATEGORIES[name]
        look: dict[str, Any] = {"left": "left", "right": "right", "bottom": below, "top": name, "fill_color": colour}
        shown[name] = plot.add_glyph(table, Quad(**look, line_color=colour))
    dashes = HSpan(y="y", name="step_limit_line", line_dash=[6, 3], line_width=1.5 * drawn.style.line)
    plot.add_glyph(drawn.tables["step_limit"], dashes)
    plot.add_glyph(drawn.tables["step_peak"], Scatter(x="x", y="y", size=6 * drawn.style.factor, name="step_peak_mark"))
    look = {"text_align": "align", "text_baseline": "bottom", "y_offset": -4 * drawn.style.factor}
    _words(plot, drawn, "step_peak", "step_peak_text", **look)
    _legend(plot, MEMORY, shown, drawn)
    tips = [(name, f"@{name}_held{{custom}}") for name in reversed(CATEGORIES)]
    sizes = ("bytes", *(f"{one}_held" for one in CATEGORIES))
    tool = Tooltip((("in all", "@bytes{custom}"), *tips), sizes=sizes).tool(list(shown.values()))
    plot.add_tools(tool)
    return plot


def _words(plot: figure, drawn: StepPlan, table: str, name: str, align: str = "left", **look: Any) -> None:
    """Add a column of text."""
    look = {"text_baseline": "middle", "text_align": align, "text_font_size": f"{drawn.style.font}px"} | look
    plot.add_glyph(drawn.tables[table], Text(x="x", y="y", text="text", name=name, **look))


def _legend(plot: figure, name: str, entries: dict[str, GlyphRenderer], drawn: StepPlan) -> None:
    """Add a legend above a figure."""
    items = [LegendItem(label={"value": label}, renderers=[renderer]) for label, renderer in entries.items()]
    legend = Legend(items=items, name=f"{name}_legend", orientation="horizontal", location="top_left")
    legend.spacing, legend.padding, legend.margin, legend.border_line_color = 16, 2, 0, None
    legend.label_text_font_size, legend.glyph_height = f"{drawn.style.font}px", 14
    plot.add_layout(legend, "above")
