"""The live picture of one or several pipeline schedules on one time axis, one above the other.

Hue shows the operation, lightness the chunk, token slice or direction, text the microbatch, hatching a bubble. Below
each device is the memory that it holds, with its peak and the cap. An overlapped pair is one box in two tones with one
border.

All pictures are in one Bokeh figure with one source for each kind of shape: choosing other schedules changes columns
only, and the browser keeps its models. Columns are made in ``schedule_columns``, positions in ``schedule_layout``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CustomJSHover,
    CustomJSTickFormatter,
    FixedTicker,
    GlyphRenderer,
    HoverTool,
    ImageRGBA,
    Label,
    Legend,
    LegendItem,
    Line,
    LinearAxis,
    Patch,
    Quad,
    Range1d,
    Segment,
)
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.time_axis import LEGEND_ROLES, TIME_RANGE, time_figure, time_roles
from pathways_widgets.drawing.views import Columns, Drawing, Window
from pathways_widgets.schedules import schedule_hover
from pathways_widgets.schedules.schedule_columns import (
    COLOURS,
    LEVELS,
    MARKS,
    SIDES,
    SOURCES,
    CellPointer,
    ScheduleScale,
    boxes_columns,
    edge_columns,
    fill_columns,
    ground_columns,
    mark_columns,
    memory_columns,
    nothing,
    outline_columns,
    pair_columns,
    step_columns,
)
from pathways_widgets.schedules.schedule_dense import ALWAYS, NEVER, is_dense, pixel_columns
from pathways_widgets.schedules.schedule_layout import LINE, Drawable, ScheduleLayout, labels_of, layout_of

NAME = "schedules"
PIXELS = 760.0
"""Width of the time axis in pixels, to which text is fitted until the browser reports its own."""
_AT: dict[str, Any] = {side: side for side in SIDES}
_TICKS = "return `${Number(tick.toPrecision(10))}`"
_LABELS = "const {y, %s: text} = labels.data; return text[Array.from(y).indexOf(tick)] ?? ''"
_VEIL, _HATCH = 0.6, 14.0
"""Opacity of the veil over later time, and the space between the lines of a bubble's pattern, in pixels."""
_COARSE = 3
"""Pixels of which the memory curve shows the largest amount, where boxes are drawn as rows of pixels."""
_ABOVE = 6.0
"""Pixels above the first heading."""
_LEADING = 1.2
"""Height of a line of text in a browser, in heights of text."""
IDLE, HELD, CAP = "bubble", "activations held", "cap of a device"
FIRST = {"order": "first in another order", "late": "first later than planned"}
"""Words of the legend."""
DASHES = {"order": [], "late": [6, 4]}
"""Dashes of the outlines of marked actions in pixels: a box with both marks shows both."""


class Schedules(Drawing):
    """Draws several schedules.

    Args:
        most: largest number of pictures; the models for their text are made beforehand.
        pixels: width of the time axis.
        max_width: width of headings and text in pixels.
    """

    def __init__(self, most: int, pixels: float = PIXELS, max_width: float = PIXELS):
        super().__init__(SOURCES, _roles(most))
        self.pixels, self.is_dense = pixels, False
        """Width of the time axis; and whether boxes are drawn as rows of pixels because many are visible."""
        self._most, self._max_width = most, max_width
        self.layout = ScheduleLayout((), 0.0)
        self._pictures: Sequence[Drawable] = ()

    @cached_property
    def root(self) -> figure:
        """The Bokeh figure; made when first needed."""
        made = time_figure(NAME, 400, Range1d(400, 0, name="schedules_y"), self.style)
        made.frame_height = 300
        made.height, made.xaxis[0].formatter = None, CustomJSTickFormatter(code=_TICKS)
        made.xgrid[0].level, made.title.visible = "underlay", False
        _name_rows(made, self.tables["schedules_labels"], self.style)
        _draw_boxes(made, self.tables, self.style)
        _draw_memory(made, self.tables, self.style)
        _draw_step(made, self.tables, self.style)
        _draw_words(made, self._most, self.style)
        _draw_legend(made, self.style)
        return made

    def update(self, pictures: Sequence[Drawable], step: CellPointer | None = None) -> dict[str, Columns]:
        """Return the columns of every source for these schedules, with all of their time visible.

        Args:
            pictures: the schedules.
            step: the cell to point at; ``None`` for none.
        """
        self._pictures, self.layout = pictures, layout_of(pictures, self._max_width, self.style)
        self.sources = {"schedules_boxes": boxes_columns(pictures, self.layout)}
        self.sources |= ground_columns(pictures, self.layout)
        self.sources["schedules_pairs"] = pair_columns(self.sources["schedules_boxes"])
        self.sources |= outline_columns(self.sources["schedules_boxes"], pictures)
        labels = list(zip(*labels_of(self.layout, pictures, self.style), strict=True)) or [()] * 3
        self.sources["schedules_labels"] = dict(zip(SOURCES["schedules_labels"], labels, strict=True))
        self.properties = self._properties()
        self.point(step)
        self.look(None)
        return self.sources

    def look(self, window: Window | None) -> dict[str, Columns]:
        """Return the columns that depend on the zoom: boxes with half a window more on each side, text and memory.

        Args:
            window: the visible part of the time axis; ``None`` for all of it.
        """
        span = self.properties[TIME_RANGE]
        begin, end = window or (span["start"], span["end"])
        margin = (end - begin) / 2
        around, scale = (begin - margin, end + margin), ScheduleScale((end - begin) / self.pixels, self.style.font)
        boxes = self.sources["schedules_boxes"]
        makers = {"schedules_edges": edge_columns, "schedules_marks": mark_columns}
        found = {name: make(boxes, scale, around) for name, make in makers.items()}
        self.is_dense = is_dense(boxes, (begin, end))
        coarse = scale._replace(time=_COARSE * scale.time) if self.is_dense else scale
        found |= memory_columns(self._pictures, self.layout, coarse)
        found |= (
            self._as_pixels(around if window else (begin, end), scale) if self.is_dense else self.one_by_one(around)
        )
        self.sources |= found
        return found

    def one_by_one(self, window: Window = ALWAYS) -> dict[str, Columns]:
        """Return the columns that draw the boxes in ``window`` one by one."""
        return fill_columns(self.sources["schedules_boxes"], window) | {"schedules_lanes": nothing("schedules_lanes")}

    def _as_pixels(self, window: Window, scale: ScheduleScale) -> dict[str, Columns]:
        """Return the columns that draw the boxes in ``window`` as rows of pixels."""
        boxes, count = self.sources["schedules_boxes"], round((window[1] - window[0]) / scale.time)
        return fill_columns(boxes, NEVER) | {"schedules_lanes": pixel_columns(boxes, window, count)}

    def point(self, step: CellPointer | None) -> dict[str, Columns]:
        """Return the columns that point at one cell, or at none."""
        found = step_columns(self._pictures, self.layout, step)
        self.sources |= found
        return found

    @property
    def extent(self) -> float:
        """End of the last cell of all schedules."""
        return max([0.0, *(one.makespan for one in self._pictures)]) or 1.0

    def _properties(self) -> dict[str, dict[str, Any]]:
        """Return the properties that follow the data: height, ranges, ticks, headings, text and legend."""
        height = self.layout.height
        bounds = {"start": height, "end": -_ABOVE, "reset_start": height, "reset_end": -_ABOVE}
        found: dict[str, dict[str, Any]] = {
            NAME: {"frame_height": round(height + _ABOVE)},
            "schedules_y": bounds,
            TIME_RANGE: {"start": -0.005 * self.extent, "end": 1.005 * self.extent},
        }
        rows = list(self.sources["schedules_labels"]["y"])
        found |= {f"schedules_ticks_{side}": {"ticks": rows} for side in ("device", "peak")}
        for number in range(self._most):
            board = self.layout.boards[number] if number < len(self._pictures) else None
            heading, words = (board.heading, board.lines) if board else ((), ())
            found[f"schedules_heading{number}"] = {"text": "\n".join(heading), "y": board.top if board else 0.0}
            found[f"schedules_words{number}"] = {"text": "\n".join(words), "y": board.words if board else 0.0}
        return found | self._legend()

    def _legend(self) -> dict[str, dict[str, Any]]:
        """Return which entries of the legend are visible: those that explain something in these pictures."""
        shown = set(np.unique(self.sources["schedules_boxes"]["operation"]).tolist())
        found = {f"schedules_key{code}": {"visible": code in shown} for code in range(len(palette.OPERATIONS))}
        found["schedules_key_shade"] = shade_entry(self._pictures)
        found["schedules_key_cap"] = {"visible": any(one.cap is not None for one in self._pictures)}
        found |= {f"schedules_key_{kind}": {"visible": any(kind in one.marks for one in self._pictures)}
                  for kind in MARKS}  # fmt: skip
        found["schedules_legend0"] = {"visible": any(one.marks for one in self._pictures)}
        return found


def shade_entry(pictures: Sequence[Drawable]) -> dict[str, Any]:
    """Return the properties of the legend's entry for lightness."""
    kinds = dict.fromkeys(word for one in pictures for word in one.shades.split(" and ") if word)
    says = [f"{'other' if kind == 'direction' else 'later'} {kind}" for kind in kinds]
    return {"visible": bool(kinds), "label": {"value": f"paler: {', '.join(says)}"}}


def _name_rows(fig: figure, labels: ColumnDataSource, style: Style) -> None:
    """Label devices at the left, and their peaks at the right."""
    right = LinearAxis(name="schedules_right")
    fig.add_layout(right, "right")
    for axis, column in ((fig.yaxis[0], "device"), (right, "peak")):
        axis.ticker = FixedTicker(ticks=[], name=f"schedules_ticks_{column}")
        axis.formatter = CustomJSTickFormatter(args={"labels": labels}, code=_LABELS % column)
        axis.major_tick_line_color = axis.axis_line_color = axis.minor_tick_line_color = None
        axis.major_label_text_font_size = f"{style.font}px"
    fig.ygrid[0].visible = False


def _draw_boxes(fig: figure, tables: dict[str, ColumnDataSource], style: Style) -> None:
    """Add the glyphs of bubbles, boxes, rows of pixels, borders and text, from back to front, and the tooltip."""
    idle = Quad(**_AT, fill_color=None, line_width=0.5 * style.line, hatch_pattern="/", name="schedules_hatch")
    idle.hatch_scale, idle.hatch_weight = _HATCH * style.factor, 0.6
    fig.add_glyph(tables["schedules_idle"], idle)
    for code, colour in enumerate(COLOURS):
        fig.add_glyph(tables[f"schedules_fill{code}"], Quad(**_AT, fill_color=colour, line_color=None))
    fig.add_glyph(tables["schedules_lanes"], ImageRGBA(x="x", y="y", dw="dw", dh="dh", image="image"))
    boxes = fig.add_glyph(tables["schedules_boxes"], Quad(**_AT, fill_color=None, line_color=None))  # for tooltips
    edge = Quad(**_AT, fill_color=None, line_color=palette.BOX_EDGE, line_width=0.5 * style.line)
    fig.add_glyph(tables["schedules_edges"], edge)
    border = Quad(**_AT, fill_color=None, line_width=1.5 * style.line, name="schedules_pair")
    fig.add_glyph(tables["schedules_pairs"], border)
    for kind, colour in MARKS.items():
        outline = Quad(**_AT, fill_color=None, line_color=colour, line_width=3 * style.line, line_dash=DASHES[kind])
        fig.add_glyph(tables[f"schedules_first_{kind}"], outline)
    fig.text("x", "y", "text", source=tables["schedules_marks"], text_color=palette.INK, text_align="center",
             text_baseline="middle", text_font_size=f"{style.font}px")  # fmt: skip
    fig.add_tools(_hover(boxes, tables["schedules_boxes"]))


def _hover(boxes: GlyphRenderer, source: ColumnDataSource) -> HoverTool:
    """Return the tooltip, whose text is made by scripts from columns of ``source``."""
    says = {
        "cell": ("code", schedule_hover.CELL),
        "from": ("left", schedule_hover.SPAN),
        "why then": ("by", schedule_hover.WHY),
        "idle before": ("idle", schedule_hover.IDLE),
    }
    formatters = {f"@{field}": CustomJSHover(args={"source": source}, code=code) for field, code in says.values()}
    tooltips = [(name, f"@{field}{{custom}}") for name, (field, _) in says.items()]
    return HoverTool(renderers=[boxes], tooltips=tooltips, formatters=formatters, name="schedules_hover")


def _draw_memory(fig: figure, tables: dict[str, ColumnDataSource], style: Style) -> None:
    """Add the glyphs of memory, caps and peaks."""
    for name, colour in (("held", palette.MEMORY), ("over", palette.EXCESS)):
        fig.add_glyph(tables[f"schedules_{name}"], Patch(x="x", y="y", fill_color=colour, line_color=None))
    caps = Segment(x0="x0", x1="x1", y0="y", y1="y", line_dash=[5, 3], line_width=style.line, name="schedules_cap")
    fig.add_glyph(tables["schedules_caps"], caps)
    fig.scatter("x", "y", source=tables["schedules_peaks"], size=4 * style.factor, line_color=None)
    fig.renderers[-1].glyph.name = "schedules_peak"


def _draw_step(fig: figure, tables: dict[str, ColumnDataSource], style: Style) -> None:
    """Add the glyphs that point at a cell."""
    veil = Quad(**_AT, fill_alpha=_VEIL, line_color=None, name="schedules_veil")
    fig.add_glyph(tables["schedules_later"], veil)
    border = Quad(**_AT, fill_color=None, line_width=2.5 * style.line, name="schedules_border")
    fig.add_glyph(tables["schedules_now"], border)
    wire = Segment(x0="x0", y0="y0", x1="x1", y1="y1", line_width=2.5 * style.line, name="schedules_thread")
    fig.add_glyph(tables["schedules_wire"], wire)


def _draw_words(fig: figure, most: int, style: Style) -> None:
    """Add the headings and texts of ``most`` pictures; their content follows as properties."""
    for number in range(most):
        for part, weight in (("heading", "bold"), ("words", "normal")):
            label = Label(x=0, y=0, text="", x_units="screen", text_baseline="top", name=f"schedules_{part}{number}")
            label.text_font_size, label.text_font_style = f"{style.font}px", weight
            label.text_line_height = LINE / _LEADING
            fig.add_layout(label)


def _draw_legend(fig: figure, style: Style) -> None:
    """Add a legend of two rows, operations and everything else, and a third of marked actions, if there are any."""
    nowhere = ColumnDataSource({side: [float("nan")] for side in SIDES})

    def entry(key: str, label: str, **look: Any) -> LegendItem:
        dashed = "line_dash" in look
        glyph = Line(x="left", y="top", **look) if dashed else Quad(**_AT, **({"line_color": None} | look))
        renderer = fig.add_glyph(nowhere, glyph)
        return LegendItem(label={"value": label}, renderers=[renderer], name=f"schedules_key{key}")

    operations = [entry(str(code), f"{kind.letter} {kind.name}", fill_color=kind.colour)
                  for code, kind in enumerate(palette.OPERATIONS)]  # fmt: skip
    hatch = {"hatch_pattern": "/", "hatch_scale": 0.6 * _HATCH * style.factor, "hatch_weight": 0.6}
    rest = [
        entry("_idle", IDLE, fill_color=None, name="schedules_hatch1", **hatch),
        entry("_shade", "", fill_color=COLOURS[LEVELS - 1]),
        entry("_held", HELD, fill_color=palette.MEMORY),
        entry("_cap", CAP, line_dash=[4, 2], name="schedules_cap1"),
    ]
    dashes = {kind: {"line_dash": dash} if dash else {"fill_color": None} for kind, dash in DASHES.items()}
    marks = [entry(f"_{kind}", FIRST[kind], line_color=colour, line_width=2.5 * style.line, **dashes[kind])
             for kind, colour in MARKS.items()]  # fmt: skip
    for number, items in enumerate((marks, rest, operations)):
        legend = Legend(items=items, name=f"schedules_legend{number}", orientation="horizontal", location="top_left")
        legend.label_text_font_size, legend.border_line_color = f"{style.font}px", None
        legend.glyph_width = legend.glyph_height = int(12 * style.factor)
        legend.padding, legend.margin, legend.spacing = 2, 2, 10
        fig.add_layout(legend, "above")


def _roles(most: int) -> dict[str, dict[str, str]]:
    """Return the roles of colours of the parts of the figure; operations have the same colours in every theme."""
    hatch = {"hatch_color": "island", "line_color": "lane"}
    found = time_roles(NAME) | {
        "schedules_right": {"major_label_text_color": "text"},
        "schedules_hatch": hatch,
        "schedules_hatch1": hatch,
        "schedules_pair": {"line_color": "text"},
        "schedules_cap": {"line_color": "text"},
        "schedules_cap1": {"line_color": "text"},
        "schedules_peak": {"fill_color": "text"},
        "schedules_veil": {"fill_color": "background"},
        "schedules_border": {"line_color": "text"},
        "schedules_thread": {"line_color": "text"},
        "schedules_legend0": LEGEND_ROLES,
        "schedules_legend1": LEGEND_ROLES,
        "schedules_legend2": LEGEND_ROLES,
    }
    words = {"text_color": "text", "background_fill_color": "background"}
    return found | {f"schedules_{part}{number}": words for part in ("heading", "words") for number in range(most)}
