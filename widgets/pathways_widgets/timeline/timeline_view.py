"""The timeline: a lane for the controller, one for each device, one for transfers; time runs to the right.

A lane for the host work of an island appears with the first such work.

An event of a gang is one box over all its devices. Gaps are drawn as gaps: nothing is stretched to fill them. Colour,
letter and pattern show the kind, so that it can be read in grey; slanted hatching a bad end; a dashed edge that its
stamps are guessed; a strip along a box its client where there are several. Times are in seconds since the start of the
run.

Legends and hidden clients filter in the browser (``_SEEN``), so that a click works on a page without a kernel.
Which boxes are drawn is decided in ``level_of_detail``, their columns are made in ``timeline_columns``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from bokeh.models import (
    BoxSelectTool,
    ColumnDataSource,
    CustomJS,
    CustomJSFilter,
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
)
from bokeh.plotting import figure

from pathways_nb.trace.host_parts import devices_per_host
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS, HOST_KIND
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.palette import DASHES
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.time_axis import (
    LEGEND_ROLES,
    TIME_RANGE,
    hover,
    last_end,
    shown,
    time_figure,
    time_roles,
    time_span,
)
from pathways_widgets.drawing.views import DIMMED, Columns, RunLike, View, Window, empty_source
from pathways_widgets.timeline.busy_devices import busy_columns
from pathways_widgets.timeline.client_shares import TINTS, legend_of
from pathways_widgets.timeline.lanes import Lanes
from pathways_widgets.timeline.level_of_detail import PIXELS, Digest, choose_boxes
from pathways_widgets.timeline.timeline_columns import SIDES, SOURCES, TimelineScale, columns_of, title_of

_AT: dict[str, Any] = {side: side for side in SIDES}
_LABELS = "const {y, text} = labels.data; return text[Array.from(y).indexOf(tick)] ?? ''"
_SEEN = """
    const kinds = new Set(swatches.flatMap((swatch, code) => swatch.visible ? [] : [code]))
    const clients = new Set(hidden.data.client), whose = source.data.client
    if (!kinds.size && !clients.size) return null
    return Array.from(source.data.code, (code, i) => !kinds.has(code) && !clients.has(whose[i]))
"""
_TOOLTIPS = [
    ("what", "@name · @kind"),
    ("where", "@place"),
    ("program", "@program, run @run"),
    ("start", "@left{custom}"),
    ("takes", "@duration{custom} (@quality, @status)"),
    ("begins by", "@why"),
    ("moves", "@bytes{custom} @route"),
    ("line", "@line"),
]
_OPTIONAL = ("begins by", "moves", "line", "line or source")
"""Rows of the tooltip that only some boxes have."""


class Timeline(View):
    """Draws the events of runs.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    tooltips: ClassVar[list[tuple[str, str]]] = _TOOLTIPS

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        super().__init__(SOURCES, _roles())
        self.lanes: Lanes = Lanes(islands, names, self.style.lane)
        self._pixels = pixels
        self._digest = Digest(self.lanes)

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = _frame(self.lanes, self.tables["timeline_labels"], self.style)
        _draw_boxes(made, self.tables, self.style, self.tooltips)
        _draw_lines(made, self.lanes, self.style)
        _draw_legend(made, self.style)
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the boxes to draw, with half a window more on each side, and the text on them.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        everything = run.events
        events, span = everything.without(GAUGE_KINDS), time_span(everything)
        self._add_lanes(events)
        self._digest.extend(events)
        visible, around = shown((0.0, last_end(everything)), window)
        boxes = choose_boxes(self._digest, around)
        scale = TimelineScale((visible[1] - visible[0]) / self._pixels, 1 / self.lanes.pixels, self.style.font)
        self.sources = columns_of(self._digest, boxes, events, scale)
        self.sources["timeline_busy"] = busy_columns(events, self.lanes, around)
        clients = legend_of(events)
        self.properties = {
            "timeline_title": {"text": f"{run.name} · {title_of(boxes, events)}"},
            TIME_RANGE: span,
            "timeline": {"tags": clients},  # ``figure.js`` makes a row of names from these
            "timeline_strips": {"visible": bool(clients)},
            "timeline_legend2": {"visible": any(len(self.sources[f"timeline_{name}"]["left"]) for name in DASHES)},
        }
        self._lay_out()
        return self.sources

    def _add_lanes(self, events: Events) -> None:
        """Add what lanes have none yet: one for an island's host work, groups for its hosts; then place events anew."""
        working = {label.island for label in events.labels if label.kind == HOST_KIND}
        hosts = tuple(island for island in range(len(self.lanes.islands)) if island in working)
        per_host = devices_per_host(events.labels, self.lanes.islands)
        if any(per_host) and per_host != self.lanes.per_host:
            self.lanes = replace(self.lanes, per_host=per_host)
        if set(hosts) - set(self.lanes.hosts):
            self.lanes = replace(self.lanes, hosts=hosts)
            self._digest = Digest(self.lanes)

    def _lay_out(self) -> None:
        """Name the lanes; with host work or several hosts, also set what depends on the number of lanes."""
        labels = self.lanes.labels
        self.sources["timeline_labels"] = {"y": list(labels), "text": list(labels.values())}
        if self.lanes.hosts or any(self.lanes.per_host):
            inner, bounds = _lines(self.lanes)
            self.properties["timeline"]["height"] = _height(self.lanes, self.style)
            self.properties |= {
                "timeline_y": {"start": self.lanes.bounds[-1]},
                "timeline_ticks": {"ticks": list(labels)},
                "timeline_lanes_ticks": {"ticks": inner},
                "timeline_islands_ticks": {"ticks": bounds},
            }


def _height(lanes: Lanes, style: Style) -> int:
    return max(int(lanes.bounds[-1] * lanes.pixels), 90) + int(117 * style.factor)


def _lines(lanes: Lanes) -> tuple[list[float], list[float]]:
    """Return where the lines between lanes are, and the heavier ones between islands and hosts."""
    bounds = list(lanes.bounds[1:-1])
    inner = [float(y) for top, bottom in pairwise(bounds) for y in np.arange(top + 1, bottom - 1) if not lanes.grouped]
    return inner, sorted([*bounds, *lanes.edges_of_hosts])


def _frame(lanes: Lanes, labels: ColumnDataSource, style: Style) -> figure:
    """Return an empty figure with a label for each lane."""
    fig = time_figure("timeline", _height(lanes, style), Range1d(lanes.bounds[-1], 0, name="timeline_y"), style)
    labels.data = {"y": list(lanes.labels), "text": list(lanes.labels.values())}
    fig.yaxis[0].ticker = FixedTicker(ticks=list(lanes.labels), name="timeline_ticks")
    fig.yaxis[0].formatter = CustomJSTickFormatter(args={"labels": labels}, code=_LABELS)
    fig.ygrid[0].visible = False
    return fig


def _draw_boxes(
    fig: figure, tables: dict[str, ColumnDataSource], style: Style, tooltips: list[tuple[str, str]]
) -> None:
    """Add the glyphs of boxes, strips, busy devices, patterns and text, from back to front, and the tools."""
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
    clients = {"field": "tint", "transform": LinearColorMapper(TINTS, low=-0.5, high=len(TINTS) - 0.5)}
    strip = _AT | {"top": "strip", "fill_color": clients, "line_color": None}
    strips = fig.quad(**strip, source=tables["timeline_boxes"], nonselection_fill_alpha=0.15)
    strips.name, strips.visible = "timeline_strips", False
    busy = fig.quad(**_AT, source=tables["timeline_busy"], fill_color=clients, line_color=None)
    fig.add_tools(HoverTool(renderers=[busy], tooltips=[("busy", "@share{0%} of island @island@whose")]))
    for name in palette.HATCHES:
        pattern = Quad(**_AT, fill_color=None, line_color=None, **_hatch(name))
        fig.add_glyph(tables[f"timeline_{name}"], pattern)  # no glyphs for selections: they cost time to make
    for name, dash in DASHES.items():
        edge = Quad(**_AT, fill_color=None, line_color=palette.BOX_EDGE, line_width=style.line, line_dash=list(dash))
        fig.add_glyph(tables[f"timeline_{name}"], edge).name = f"timeline_{name}_edges"
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
    fig.add_tools(hover(boxes, tooltips, ("left", "duration"), _OPTIONAL))
    fig.add_tools(
        TapTool(renderers=[boxes]),
        BoxSelectTool(dimensions="width", renderers=[], description="Totals", persistent=True),
    )


def _draw_lines(fig: figure, lanes: Lanes, style: Style) -> None:
    """Add lines between lanes, over the boxes of gangs; heavier ones between islands."""
    inner, bounds = _lines(lanes)
    for name, ticks, width in (("timeline_lanes", inner, 0.6), ("timeline_islands", bounds, 1.0)):
        grid = Grid(
            axis=None, dimension=1, ticker=FixedTicker(ticks=ticks, name=f"{name}_ticks"), name=name, level="guide"
        )
        grid.grid_line_width = width * style.line
        fig.add_layout(grid)


def _draw_legend(fig: figure, style: Style) -> None:
    """Add a legend of rows whose entries hide their kind: guessed times, work on devices, work of the controller."""
    nowhere = ColumnDataSource({side: [float("nan")] for side in SIDES})
    swatches = {kind: _swatch(fig, kind, nowhere) for kind in palette.KINDS}
    _filter(fig, list(swatches.values()))
    rows = [
        [LegendItem(label=f"{kind.letter} {kind.name}", renderers=[swatches[kind]]) for kind in kinds]
        for kinds in (palette.CONTROLLER_KINDS, palette.DEVICE_KINDS)
    ]
    for position, items in enumerate([*rows, _guesses(fig, nowhere)]):
        legend = Legend(items=items, name=f"timeline_legend{position}", orientation="horizontal")
        legend.click_policy = "hide"
        legend.location = "top_left"
        legend.border_line_color = None
        legend.label_text_font_size = f"{style.font}px"
        legend.glyph_width = legend.glyph_height = int(12 * style.factor)
        legend.padding = legend.margin = 2
        legend.spacing = 10
        fig.add_layout(legend, "above")


def _swatch(fig: figure, kind: palette.EventStyle, nowhere: ColumnDataSource) -> GlyphRenderer:
    """Return the box of a legend entry, which is drawn nowhere: it carries the entry's colour and visibility."""
    return fig.add_glyph(nowhere, Quad(**_AT, fill_color=kind.colour, line_color=None, **_hatch(kind.pattern)))


def _guesses(fig: figure, nowhere: ColumnDataSource) -> list[LegendItem]:
    """Return the legend entries of dashed edges, which hide these edges."""
    found = []
    for name in DASHES:
        edges = fig.select_one({"name": f"timeline_{name}_edges"})
        swatch = fig.add_glyph(nowhere, edges.glyph.clone())
        found.append(LegendItem(label=palette.GUESSES[name], renderers=[swatch, edges]))
    return found


def _hatch(name: str) -> dict[str, Any]:
    """Return the look of one of ``HATCHES``, or of no pattern."""
    look = {"hatch_color": palette.INK, "hatch_alpha": palette.HATCH_ALPHA, "hatch_scale": 6}
    return look | {"hatch_pattern": palette.HATCHES[name]} if name else {}


def _filter(fig: figure, swatches: Sequence[GlyphRenderer]) -> None:
    """Show everything that has a code only while the legend entry of its kind is on and its client is not hidden."""
    hidden = empty_source("timeline_hidden", ["client"])  # filled by the row of names
    seen = CustomJSFilter(args={"swatches": list(swatches), "hidden": hidden}, code=_SEEN)
    changed = CustomJS(args={"seen": seen}, code="seen.change.emit()")
    hidden.js_on_change("data", changed)
    for swatch in swatches:
        swatch.js_on_change("visible", changed)
    for renderer in fig.renderers:
        if "code" in renderer.data_source.data:
            renderer.view.filter = seen


def _roles() -> dict[str, dict[str, str]]:
    """Return the roles of colours of the parts of the figure; boxes have the same colours in every theme."""
    return time_roles("timeline") | {
        "timeline_lanes": {"grid_line_color": "background"},
        "timeline_islands": {"grid_line_color": "island"},
        "timeline_legend0": LEGEND_ROLES,
        "timeline_legend1": LEGEND_ROLES,
        "timeline_legend2": LEGEND_ROLES,
    }
