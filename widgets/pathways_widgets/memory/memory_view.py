"""The picture of memory: what each client held on each device over time, or for what; its budget and its peak.

Devices with the same history share a row, in which clients or categories are stacked. The time axis is that of the
timeline, and both pan together. A dashed line is the budget of a device. A level holds until it changes, so boxes are
drawn and no slopes, which would show bytes that nobody held. Boxes are computed in ``memory_columns``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from bokeh.models import CustomJSTickFormatter, FixedTicker, LegendItem, Range1d
from bokeh.plotting import figure

from pathways_nb.trace.memory_history import Division, MemoryHistory, memory_of
from pathways_nb.trace.metrics import clients_of
from pathways_nb.trace.record import Events
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.folded_time import time_span
from pathways_widgets.drawing.legends import Swatch, add_legend
from pathways_widgets.drawing.line_marks import LineMark, SpanMark
from pathways_widgets.drawing.picture_marks import Column, PictureMark, Role, draw, shapes_of, theme_roles
from pathways_widgets.drawing.point_marks import FONT, DotMark, TextMark
from pathways_widgets.drawing.scene import Shape
from pathways_widgets.drawing.still_frame import time_ends
from pathways_widgets.drawing.still_over_time import begin_over_time, brushed_part
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.time_axis import (
    TIME_RANGE,
    clipped,
    shown_span,
    time_figure,
    time_roles,
    with_margins,
)
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import Columns, RunLike, View, Window
from pathways_widgets.memory.memory_columns import (
    BUDGET,
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

_LABELS = """
    const {y, text} = labels.data
    return text[y.indexOf(tick)] ?? ""
"""
_DASHED: dict[str, Any] = {"line": Role("text"), "line_width": 1.5, "dash": (6, 3)}
_BUDGET = LineMark(source="memory_budgets", name="memory_dashes", ends=("x", "y", "x", "y"), **_DASHED)
"""What explains a budget in the legend: a line without length, since Bokeh has no entry for a line across the plot."""
_LAYER: dict[str, Any] = {"fill": Column("fill"), "line": Column("fill")}
"""A border in the same colour: else the background shows between neighbours."""
_CLIENTS = BoxMark(source="memory_clients", **_LAYER)
"""What explains the layers in the legend; its boxes are nowhere."""


_ROLES = {"memory_lines": {"grid_line_color": "grid"}}


def memory_marks(by: str) -> tuple[PictureMark, ...]:
    """Return the marks of memory, from back to front; ``by`` says what the layers are."""
    rows = ((by, "@client"), ("that is", "@client{custom}"), ("holds", "@bytes{custom} on each"), ("where", "@where"),
            ("from", "@start{custom} to @end{custom}"))  # fmt: skip
    tooltip = Tooltip(rows, ("start", "end"), ("bytes",), ("that is",), ("client",))
    inks: dict[str, Any] = {"text_colour": Role("text"), "background": Role("background")}
    above: dict[str, Any] = {"anchor": "bottom", "lift": -WORDS_ABOVE * FONT, "align": Column("align")}
    return (
        BoxMark(source="memory_levels", **_LAYER, tooltip=tooltip),
        _CLIENTS,
        SpanMark(source="memory_budgets", name="memory_budget", **_DASHED),
        _BUDGET,
        DotMark(
            source="memory_peaks", name="memory_marker", fill=Role("text"), line=Role("background"), line_width=1.5
        ),
        TextMark(source="memory_peaks", name="memory_peak", y="text_y", **inks, **above),
    )


class MemoryView(View):
    """Draws the memory levels of runs, divided by client.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    by: ClassVar[Division] = "client"

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        self.marks = memory_marks(self.by)
        super().__init__(SOURCES, time_roles("memory") | _ROLES | theme_roles(self.marks))
        self.layout = MemoryLayout((), "", self.style.lane, self.style.font, 1.0)
        lanes = Lanes(islands, names)
        self._names, self._pixels = [lanes.name(island) for island in range(len(islands))], pixels
        self._known: tuple[int, int] | None = None
        self._held: list[MemoryHistory] = []

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = time_figure("memory", _height(self.layout, self.style), Range1d(1, 0, name="memory_y"), self.style)
        made.yaxis[0].ticker = FixedTicker(ticks=[], name="memory_ticks")
        made.yaxis[0].formatter = CustomJSTickFormatter(args={"labels": self.tables["memory_labels"]}, code=_LABELS)
        made.ygrid[0].ticker = FixedTicker(ticks=[], name="memory_steps")
        made.ygrid[0].name = "memory_lines"
        drawn = draw(made, self.marks, self.tables, self.style)
        # Entries come from columns of text, because the clients are not known beforehand.
        entries = {"client": drawn[_CLIENTS], "name": drawn[_BUDGET]}
        items = [LegendItem(label={"field": name}, renderers=[renderer]) for name, renderer in entries.items()]
        add_legend(made, "memory_legend", items, self.style)
        return made

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the steps to draw with half a window more on each side, budgets, peaks, and the layers of the legend.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        events = run.events
        span = time_span(events, not run.island_names, run.last_time)
        visible, around = with_margins((span["start"], span["end"]), window)
        # Histories are computed again only when events came in, not when the user pans.
        # A record only grows, so its length and its last event tell whether anything is new.
        known = len(events), int(events["id"][-1]) if len(events) else -1
        if known != self._known:
            self._held = [held for held in memory_of(clipped(events), self.by) if 0 <= held.island < len(self._names)]
            self._known = known
        self.layout = layout_of(self._held, self._names, run.hbm, self.style.lane, self.style.font)
        self.sources = columns_of(self.layout, self._layers(events), visible, around, self._pixels)
        self.properties = {TIME_RANGE: span, **_properties(run.name, self.layout, self.style)}
        return self.sources

    def still(self, run: RunLike, width: float, top: float) -> tuple[list[Shape], float]:
        """Return the same as shapes, and their height in pixels.

        Args:
            run: what to draw.
            width: width of the page in pixels.
            top: pixels above the picture.
        """
        left, right = time_ends(width)
        self._pixels = right - left
        self.update(run, self.window)
        layers = self.sources["memory_clients"]
        entries = [
            Swatch(text, BoxMark(fill=fill)) for text, fill in zip(layers["client"], layers["fill"], strict=True)
        ]
        if self.sources["memory_budgets"]["y"]:
            entries.append(Swatch(BUDGET, LineMark(**_DASHED)))
        words, span = self.properties["memory_title"]["text"], shown_span(self.properties, self.window)
        rows = max(len(self.layout.strips), 1), self.layout.row
        shapes, frame, height = begin_over_time(words, [entries], span, rows, width, top)
        shapes += frame.rows(self.properties["memory_steps"]["ticks"])
        shapes += [*shapes_of(self.marks, self.sources, frame), *frame.names(self.layout.labels)]
        shapes += [*brushed_part(frame, self.brushed), *frame.break_in_time(span, top)]
        return shapes, height

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


def _height(layout: MemoryLayout, style: Style) -> int:
    """Return the height of the figure in pixels."""
    return round(max(len(layout.strips), 1) * layout.row + 56 * style.factor)


def _properties(name: str, layout: MemoryLayout, style: Style) -> dict[str, dict[str, Any]]:
    """Return the properties that follow the data: height, title, range and ticks.

    Args:
        name: name of the run.
        layout: the rows.
        style: sizes of text and lines.
    """
    rows = max(len(layout.strips), 1)
    lines = [layout.y(position, step) for position in range(len(layout.strips)) for step in layout.steps]
    # Reset returns to what was there when the figure was made, so these bounds must follow, too.
    bounds = {"start": rows, "end": 0}
    return {
        "memory": {"height": _height(layout, style)},
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
