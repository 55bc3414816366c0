"""The picture of memory: what each client held on each device over time, or for what; its budget and its peak.

Devices with the same history share a row, in which clients or categories are stacked. The time axis is that of the
timeline, and both pan together. A dashed line is the budget of a device. A level holds until it changes, so boxes are
drawn and no slopes, which would show bytes that nobody held. Boxes are computed in ``memory_columns``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from bokeh.models import (
    ColumnDataSource,
    CustomJSTickFormatter,
    FixedTicker,
    GlyphRenderer,
    HSpan,
    Legend,
    LegendItem,
    Line,
    Quad,
    Range1d,
    Text,
)
from bokeh.plotting import figure

from pathways_nb.trace.memory_history import Division, MemoryHistory, memory_of
from pathways_nb.trace.metrics import clients_of
from pathways_nb.trace.record import Events
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.time_axis import (
    LEGEND_ROLES,
    TIME_RANGE,
    clipped,
    hover,
    shown,
    time_figure,
    time_roles,
    time_span,
)
from pathways_widgets.drawing.views import Columns, RunLike, View, Window
from pathways_widgets.memory.memory_columns import (
    SIDES,
    SOURCES,
    WORDS_ABOVE,
    Layer,
    MemoryLayout,
    categories_as_layers,
    clients_as_layers,
    columns_of,
    layout_of,
)
from pathways_widgets.timeline.lanes import Lanes
from pathways_widgets.timeline.level_of_detail import PIXELS

LEGEND_COLUMNS = 5
_LABELS = """
    const {y, text} = labels.data
    return text[y.indexOf(tick)] ?? ""
"""
_TOOLTIPS = [
    ("holds", "@bytes{custom} on each"),
    ("where", "@where"),
    ("from", "@start{custom} to @end{custom}"),
]


class MemoryView(View):
    """Draws the memory levels of runs, divided by client.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    by: ClassVar[Division] = "client"

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        super().__init__(SOURCES, _roles())
        self.layout = MemoryLayout((), "", self.style.lane, self.style.font, 1.0)
        lanes = Lanes(islands, names)
        self._names, self._pixels = [lanes.name(island) for island in range(len(islands))], pixels
        self._known: tuple[int, int] | None = None
        self._held: list[MemoryHistory] = []

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = time_figure("memory", _height(self.layout, 0, self.style), Range1d(1, 0, name="memory_y"), self.style)
        made.yaxis[0].ticker = FixedTicker(ticks=[], name="memory_ticks")
        made.yaxis[0].formatter = CustomJSTickFormatter(args={"labels": self.tables["memory_labels"]}, code=_LABELS)
        made.ygrid[0].ticker = FixedTicker(ticks=[], name="memory_steps")
        made.ygrid[0].name = "memory_lines"
        _draw(made, self.tables, self.style, self.by)
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the steps to draw with half a window more on each side, budgets, peaks, and the layers of the legend.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        events = run.events
        span = time_span(events)
        visible, around = shown((span["start"], span["end"]), window)
        # Histories are computed again only when events came in, not when the user pans.
        known = len(events), int(events["id"][-1]) if len(events) else -1
        if known != self._known:
            self._held = [held for held in memory_of(clipped(events), self.by) if 0 <= held.island < len(self._names)]
            self._known = known
        self.layout = layout_of(self._held, self._names, run.hbm, self.style.lane, self.style.font)
        self.sources = columns_of(self.layout, self._layers(events), visible, around, self._pixels)
        self.properties = {TIME_RANGE: span, **_properties(run.name, self.layout, self.sources, self.style)}
        return self.sources

    def _layers(self, events: Events) -> list[Layer]:
        """Return what the legend may name."""
        return clients_as_layers(clients_of(events))


class CategoryView(MemoryView):
    """Draws the memory levels of runs, divided by what the memory is held for.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    by = "category"

    def _layers(self, events: Events) -> list[Layer]:
        return categories_as_layers()


def _height(layout: MemoryLayout, entries: int, style: Style) -> int:
    """Return the height of the figure in pixels; ``entries`` is the number of entries of its legend."""
    more = max(entries - 1, 0) // LEGEND_COLUMNS
    return round(max(len(layout.strips), 1) * layout.row + (80 + 22 * more) * style.factor)


def _properties(
    name: str, layout: MemoryLayout, sources: dict[str, Columns], style: Style
) -> dict[str, dict[str, Any]]:
    """Return the properties that follow the data: height, title, range and ticks.

    Args:
        name: name of the run.
        layout: the rows.
        sources: the columns, for the number of entries of the legend.
        style: sizes of text and lines.
    """
    entries = len(sources["memory_clients"]["client"]) + bool(sources["memory_budgets"]["y"])
    rows = max(len(layout.strips), 1)
    lines = [layout.y(position, step) for position in range(len(layout.strips)) for step in layout.steps]
    bounds = {"start": rows, "end": 0}
    return {
        "memory": {"height": _height(layout, entries, style)},
        "memory_title": {"text": f"{name} · {title_of(layout)}"},
        "memory_y": bounds | {f"reset_{side}": bound for side, bound in bounds.items()},
        "memory_ticks": {"ticks": list(layout.labels)},
        "memory_steps": {"ticks": lines},
    }


def title_of(layout: MemoryLayout) -> str:
    """Return which devices are drawn."""
    if not layout.strips:
        return "no levels of memory were recorded"
    return f"memory held on {layout.chosen or 'each device'}"


def _draw(fig: figure, tables: dict[str, ColumnDataSource], style: Style, by: str) -> None:
    """Add the glyphs of levels, legend, budgets and peaks; ``by`` says what the layers are."""
    look: dict[str, Any] = {**{side: side for side in SIDES}, "fill_color": "fill", "line_color": "fill"}
    look["line_width"] = 1.0  # else the background shows between neighbours
    levels = fig.add_glyph(tables["memory_levels"], Quad(**look))
    swatches = fig.add_glyph(tables["memory_clients"], Quad(**look))
    budget = {"line_dash": [6, 3], "line_width": 1.5 * style.line}
    fig.add_glyph(tables["memory_budgets"], HSpan(y="y", name="memory_budget", **budget))
    dashes = fig.add_glyph(tables["memory_budgets"], Line(x="x", y="y", name="memory_dashes", **budget))
    fig.scatter("x", "y", source=tables["memory_peaks"], size=6 * style.factor, name="memory_markers", line_width=1.5)
    fig.renderers[-1].glyph.name = "memory_marker"
    words = Text(x="x", y="text_y", text="text", text_align="align", text_baseline="bottom", name="memory_peak")
    words.y_offset, words.text_font_size = -WORDS_ABOVE * style.font, f"{style.font}px"
    fig.add_glyph(tables["memory_peaks"], words)
    fig.add_tools(hover(levels, [(by, "@client"), *_TOOLTIPS], seconds=("start", "end")))
    _legend(fig, {"client": swatches, "name": dashes}, style)


def _legend(fig: figure, renderers: dict[str, GlyphRenderer], style: Style) -> None:
    """Add a legend whose entries come from columns, because the clients are not known beforehand.

    Args:
        fig: the figure.
        renderers: for each column of text the glyphs that are explained.
        style: sizes of text and lines.
    """
    items = [LegendItem(label={"field": name}, renderers=[renderer]) for name, renderer in renderers.items()]
    legend = Legend(items=items, name="memory_legend", orientation="horizontal", location="top_left")
    legend.ncols = LEGEND_COLUMNS
    legend.border_line_color = None
    legend.label_text_font_size = f"{style.font}px"
    legend.glyph_width = legend.glyph_height = int(12 * style.factor)
    legend.padding = legend.margin = 2
    legend.spacing = 10
    fig.add_layout(legend, "above")


def _roles() -> dict[str, dict[str, str]]:
    """Return the roles of colours of the parts of the figure; clients have the same colours in every theme."""
    return time_roles("memory") | {
        "memory_lines": {"grid_line_color": "grid"},
        "memory_legend": LEGEND_ROLES,
        "memory_budget": {"line_color": "text"},
        "memory_dashes": {"line_color": "text"},
        "memory_marker": {"fill_color": "text", "line_color": "background"},
        "memory_peak": {"text_color": "text", "background_fill_color": "background"},
    }
