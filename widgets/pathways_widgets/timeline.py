"""The timeline: a lane for the controller, one for each device, one for transfers; time runs to the right.

An event of a gang is one box over all its devices. Gaps are drawn as gaps: nothing is stretched to fill them.
Colour, letter and pattern give the kind, slanted hatching a bad end. Times are in seconds since the start of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from bokeh.models import (
    BoxSelectTool,
    ColumnDataSource,
    CustomJS,
    CustomJSFilter,
    CustomJSHover,
    CustomJSTickFormatter,
    FixedTicker,
    GlyphRenderer,
    Grid,
    HoverTool,
    Legend,
    LegendItem,
    LinearColorMapper,
    Quad,
    Range1d,
    TapTool,
    WheelZoomTool,
)
from bokeh.plotting import figure

from pathways_widgets import palette, style
from pathways_widgets.detail import PIXELS, Digest, choose_boxes
from pathways_widgets.lanes import Lanes
from pathways_widgets.style import Style
from pathways_widgets.timeline_columns import SIDES, SOURCES, Scale, busy_columns, columns_of, title_of
from pathways_widgets.views import CLIPPED, DIMMED, Columns, RunLike, Window, empty_source

_SECONDS = """
    const size = Math.abs(value), [unit, scale] = size >= 1 ? ["s", 1] : size >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6]
    return `${Number((value * scale).toPrecision(4))} ${unit}`
"""
_BYTES = """
    if (!value) return ""
    const units = ["B", "KB", "MB", "GB", "TB"]
    let left = value, unit = 0
    while (left >= 999.5 && unit < 4) { left /= 1000; unit += 1 }
    return `${left.toFixed(unit && left < 99.95 ? 1 : 0)} ${units[unit]}`
"""
_TICKS = """
    const span = ticks.length > 1 ? ticks[ticks.length - 1] - ticks[0] : tick
    const [unit, scale] = span >= 2 ? ["s", 1] : span >= 2e-3 ? ["ms", 1e3] : ["µs", 1e6]
    return `${Number((tick * scale).toPrecision(10))} ${unit}`
"""
_AT: dict[str, Any] = {side: side for side in SIDES}
_SEEN = """
    const hidden = new Set(swatches.flatMap((swatch, code) => swatch.visible ? [] : [code]))
    return hidden.size ? Array.from(source.data.code, (code) => !hidden.has(code)) : null
"""
_TOOLTIPS = [
    ("what", "@name · @kind"),
    ("where", "@place"),
    ("program", "@program, run @run"),
    ("start", "@left{custom}"),
    ("takes", "@duration{custom} (@quality, @status)"),
    ("moves", "@bytes{custom} @route"),
]


class Timeline:
    """Draws the events of runs on ``islands`` (number of devices of each island); words fit a width of ``pixels``."""

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        self.style = style.now()
        self.lanes = Lanes(islands, names, self.style.lane)
        self._pixels = pixels
        self.sources: dict[str, Columns] = {name: {column: [] for column in SOURCES[name]} for name in SOURCES}
        self.properties: dict[str, dict[str, Any]] = {}
        self.roles = _roles()
        self._digest = Digest(self.lanes)

    @cached_property
    def tables(self) -> dict[str, ColumnDataSource]:
        """Where the glyphs read the sources, by the same names; made when needed: still pictures have none."""
        return {name: empty_source(name, columns) for name, columns in SOURCES.items()}

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = _frame(self.lanes, self.style)
        _draw_boxes(made, self.tables, self.style)
        _draw_lines(made, self.lanes, self.style)
        _draw_legend(made, self.style)
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """The boxes to draw for ``window`` with half of it again on each side, and the marks written on them."""
        events = run.events
        self._digest.extend(events)
        extent = self._digest.extent or 1.0
        visible = window or (0.0, extent)
        margin = (visible[1] - visible[0]) / 2 if window else 0.0
        around = visible[0] - margin, visible[1] + margin
        boxes = choose_boxes(self._digest, around)
        scale = Scale((visible[1] - visible[0]) / self._pixels, 1 / self.lanes.pixels, self.style.font)
        self.sources = columns_of(self._digest, boxes, events, scale)
        self.sources["timeline_busy"] = busy_columns(events, self.lanes, around)
        self.properties = {
            "timeline_title": {"text": f"{run.name} · {title_of(boxes, events)}"},
            "timeline_x": {"start": -0.01 * extent, "end": 1.01 * extent},
        }
        return self.sources


def _frame(lanes: Lanes, style: Style) -> figure:
    fig = figure(
        name="timeline",
        height=max(int(lanes.bounds[-1] * lanes.pixels), 90) + int(100 * style.factor),
        sizing_mode="stretch_width",
        x_range=Range1d(0, 1, name="timeline_x"),
        y_range=Range1d(lanes.bounds[-1], 0),
        tools="xpan,xbox_zoom,reset,save",
        active_drag="xpan",
        output_backend="canvas",
        lod_threshold=None,  # Bokeh would leave boxes out during a drag
        background_fill_color=None,
        border_fill_color=None,
        stylesheets=[CLIPPED],
    )
    fig.add_tools(WheelZoomTool(dimensions="width", modifiers="ctrl"))
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    fig.title.name = "timeline_title"
    fig.title.text = "0 events"
    fig.title.text_font_size = f"{style.font}px"
    fig.title.text_font_style = "normal"
    fig.title.align = "right"
    _style_axes(fig, lanes, style)
    return fig


def _style_axes(fig: figure, lanes: Lanes, style: Style) -> None:
    time, places = fig.xaxis[0], fig.yaxis[0]
    time.major_label_text_font_size = places.major_label_text_font_size = f"{style.font}px"
    time.name, places.name, fig.xgrid[0].name = "timeline_time", "timeline_places", "timeline_grid"
    time.formatter = CustomJSTickFormatter(code=_TICKS)
    places.ticker = FixedTicker(ticks=list(lanes.labels))
    places.major_label_overrides = lanes.labels
    places.major_tick_line_color = places.axis_line_color = time.minor_tick_line_color = None
    fig.ygrid[0].visible = False
    fig.outline_line_color = None


def _draw_boxes(fig: figure, tables: dict[str, ColumnDataSource], style: Style) -> None:
    edged = [*(kind.colour for kind in palette.KINDS), palette.BOX_EDGE]
    colours = LinearColorMapper(edged, low=-0.5, high=len(edged) - 0.5)
    boxes = fig.quad(
        left="left",
        right="right",
        top="top",
        bottom="bottom",
        source=tables["timeline_boxes"],
        fill_color={"field": "code", "transform": colours},
        line_color={"field": "edge", "transform": colours},
        line_width=0.5 * style.line,
        **DIMMED,
    )
    busy = fig.quad(**_AT, source=tables["timeline_busy"], fill_color=palette.NEUTRAL, line_color=None)
    fig.add_tools(HoverTool(renderers=[busy], tooltips=[("busy", "@share{0%} of island @island")]))
    for name in palette.HATCHES:
        pattern = Quad(**_AT, fill_color=None, line_color=None, **_hatch(name))
        fig.add_glyph(tables[f"timeline_{name}"], pattern)  # without the glyphs of a selection, which cost time to make
    fig.text(
        "x",
        "y",
        "text",
        source=tables["timeline_marks"],
        text_color=palette.INK,
        text_font_size=f"{style.font}px",
        text_align="center",
        text_baseline="middle",
    )
    fig.add_tools(HoverTool(renderers=[boxes], tooltips=_TOOLTIPS, formatters=_formatters()))
    fig.add_tools(
        TapTool(renderers=[boxes]),
        BoxSelectTool(dimensions="width", renderers=[], description="Totals", persistent=True),
    )


def _formatters() -> dict[str, Any]:
    seconds = CustomJSHover(code=_SECONDS)
    return {"@left": seconds, "@duration": seconds, "@bytes": CustomJSHover(code=_BYTES)}


def _draw_lines(fig: figure, lanes: Lanes, style: Style) -> None:
    """Lines between lanes, over the boxes of gangs; heavier ones between islands."""
    bounds = list(lanes.bounds[1:-1])
    inner = [float(y) for top, bottom in pairwise(bounds) for y in np.arange(top + 1, bottom - 1) if not lanes.grouped]
    for name, ticks, width in (("timeline_lanes", inner, 0.6), ("timeline_islands", bounds, 1.0)):
        grid = Grid(axis=None, dimension=1, ticker=FixedTicker(ticks=ticks), name=name, level="guide")
        grid.grid_line_width = width * style.line
        fig.add_layout(grid)


def _draw_legend(fig: figure, style: Style) -> None:
    """Two fixed rows: work on devices (capital letters), work of the controller (small ones). A click hides a kind."""
    nowhere = ColumnDataSource({side: [float("nan")] for side in SIDES})
    swatches = {kind: _swatch(fig, kind, nowhere) for kind in palette.KINDS}
    _filter(fig, list(swatches.values()))
    for position, kinds in enumerate((palette.CONTROLLER_KINDS, palette.DEVICE_KINDS)):
        items = [LegendItem(label=f"{kind.letter} {kind.name}", renderers=[swatches[kind]]) for kind in kinds]
        legend = Legend(items=items, name=f"timeline_legend{position}", orientation="horizontal")
        legend.click_policy = "hide"
        legend.location = "top_left"
        legend.border_line_color = None
        legend.label_text_font_size = f"{style.font}px"
        legend.glyph_width = legend.glyph_height = int(12 * style.factor)
        legend.padding = legend.margin = 2
        legend.spacing = 10
        fig.add_layout(legend, "above")


def _swatch(fig: figure, kind: palette.Kind, nowhere: ColumnDataSource) -> GlyphRenderer:
    """A box nowhere, from which the legend takes its colour, and whose visibility is that of its kind."""
    return fig.add_glyph(nowhere, Quad(**_AT, fill_color=kind.colour, line_color=None, **_hatch(kind.pattern)))


def _hatch(name: str) -> dict[str, Any]:
    """The look of one of ``HATCHES``, or of none."""
    look = {"hatch_color": palette.INK, "hatch_alpha": palette.HATCH_ALPHA, "hatch_scale": 6}
    return look | {"hatch_pattern": palette.HATCHES[name]} if name else {}


def _filter(fig: figure, swatches: Sequence[GlyphRenderer]) -> None:
    """Everything that has a code is seen as long as the swatch of its kind is."""
    seen = CustomJSFilter(args={"swatches": list(swatches)}, code=_SEEN)
    changed = CustomJS(args={"seen": seen}, code="seen.change.emit()")
    for swatch in swatches:
        swatch.js_on_change("visible", changed)
    for renderer in fig.renderers:
        if "code" in renderer.data_source.data:
            renderer.view.filter = seen


def _roles() -> dict[str, dict[str, str]]:
    text = {"major_label_text_color": "text"}
    legend = {"label_text_color": "text", "background_fill_color": "background", "inactive_fill_color": "background"}
    return {
        "timeline_title": {"text_color": "soft"},
        "timeline_time": text | {"axis_line_color": "lane", "major_tick_line_color": "lane"},
        "timeline_places": text,
        "timeline_grid": {"grid_line_color": "grid"},
        "timeline_lanes": {"grid_line_color": "background"},
        "timeline_islands": {"grid_line_color": "island"},
        "timeline_legend0": legend,
        "timeline_legend1": legend,
    }
