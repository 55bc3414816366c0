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
    Label,
    LinearAxis,
    Range1d,
)
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.legends import add_legend, swatch_items
from pathways_widgets.drawing.picture_marks import draw, theme_roles
from pathways_widgets.drawing.point_marks import LEADING
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.time_axis import TIME_RANGE, time_figure, time_roles
from pathways_widgets.drawing.views import Columns, Drawing, Window
from pathways_widgets.schedules.schedule_columns import (
    MARKS,
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
from pathways_widgets.schedules.schedule_marks import BOXES, LEGENDS, SCHEDULE_MARKS, shade_entry

NAME = "schedules"
PIXELS = 760.0
"""Width of the time axis in pixels, to which text is fitted until the browser reports its own."""
_TICKS = "return `${Number(tick.toPrecision(10))}`"
_LABELS = "const {y, %s: text} = labels.data; return text[Array.from(y).indexOf(tick)] ?? ''"
_COARSE = 3
"""Pixels of which the memory curve shows the largest amount, where boxes are drawn as rows of pixels."""
_ABOVE = 6.0
"""Pixels above the first heading."""


# Names of actions are made in the browser from numbers: the text of every box would otherwise be sent at every change
# of a control.
_NAMES = """
    const {data} = source
    const number = (value) => Number(value.toPrecision(6)).toString()
    const action = (i) => (data.direction[i] ? String.fromCharCode(data.direction[i]) : "") + data.stage[i]
      + "FIWB"[data.operation[i]] + data.microbatch[i] + (data.token_slice[i] < 0 ? "" : "." + data.token_slice[i])
    const cell = (i) => {
      const other = data.pair[i]
      return other < 0 ? action(i) : `(${action(Math.min(i, other))};${action(Math.max(i, other))})OVERLAP_F_B`
    }
    const row = special_vars.index
"""
_CELL = _NAMES + "    return `${cell(row)} on device ${data.device[row]}`"
"""Script: which cell, and on which device."""
_SPAN = _NAMES + "    return `${number(data.begin[row])} to ${number(data.end[row])}`"
"""Script: its start and end."""
_WHY = (
    _NAMES
    + """
    const by = data.by[row], wire = data.wire[row], first = data.pair[row] >= 0 ? Math.min(row, data.pair[row]) : row
    if (by < 0) return "nothing to wait for"
    const last = data.pair[by] >= 0 ? Math.max(by, data.pair[by]) : by
    const there = `device ${data.device[by]}`
    if (data.device[by] === data.device[row] && last === first - 1) return `${there} was busy with ${cell(by)}`
    return `waited for ${cell(by)} on ${there}` + (wire ? `, ${number(wire)} on the way` : "")
"""
)
"""Script: what let it start. It must say the same as ``Timing.why`` in Python."""
_IDLE = _NAMES + "    return number(data.idle[row])"
"""Script: how long the device was idle before."""


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
        # The height of the plot is what the layout computes; legends above it may take any.
        made.frame_height = 300
        made.height, made.xaxis[0].formatter = None, CustomJSTickFormatter(code=_TICKS)
        made.xgrid[0].level, made.title.visible = "underlay", False
        _name_rows(made, self.tables["schedules_labels"], self.style)
        drawn = draw(made, SCHEDULE_MARKS, self.tables, self.style)
        made.add_tools(_hover(drawn[BOXES], self.tables["schedules_boxes"]))
        _draw_words(made, self._most, self.style)
        for number, swatches in enumerate(LEGENDS):
            add_legend(made, f"schedules_legend{number}", swatch_items(made, swatches, self.style), self.style)
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
        self.zoom(None)
        return self.sources

    def zoom(self, window: Window | None) -> dict[str, Columns]:
        """Return the columns that depend on the zoom: boxes with half a window more on each side, text and memory.

        Args:
            window: the visible part of the time axis; ``None`` for all of it.
        """
        span = self.properties[TIME_RANGE]
        begin, end = window or (span["start"], span["end"])
        # Half a window more on each side: a pan shows boxes before the kernel has answered.
        margin = (end - begin) / 2
        around, scale = (begin - margin, end + margin), ScheduleScale((end - begin) / self.pixels, self.style.font)
        boxes = self.sources["schedules_boxes"]
        makers = {"schedules_edges": edge_columns, "schedules_marks": mark_columns}
        found = {name: make(boxes, scale, around) for name, make in makers.items()}
        self.is_dense = is_dense(boxes, (begin, end))
        # Where boxes are too many, the curves of memory are long as well: coarser ones keep a pan smooth.
        coarse = scale._replace(time=_COARSE * scale.time) if self.is_dense else scale
        found |= memory_columns(self._pictures, self.layout, coarse)
        if self.is_dense:
            # Without a window all of the time is visible, and beyond it there is nothing to draw.
            drawn = around if window else (begin, end)
            count = round((drawn[1] - drawn[0]) / scale.time)
            found |= fill_columns(boxes, NEVER) | {"schedules_lanes": pixel_columns(boxes, drawn, count)}
        else:
            found |= self.one_by_one(around)
        self.sources |= found
        return found

    def one_by_one(self, window: Window = ALWAYS) -> dict[str, Columns]:
        """Return the columns that draw the boxes in ``window`` one by one."""
        return fill_columns(self.sources["schedules_boxes"], window) | {"schedules_lanes": nothing("schedules_lanes")}

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
        # Reset returns to the bounds of the first schedule otherwise.
        bounds = {"start": height, "end": -_ABOVE, "reset_start": height, "reset_end": -_ABOVE}
        found: dict[str, dict[str, Any]] = {
            NAME: {"frame_height": round(height + _ABOVE)},
            "schedules_y": bounds,
            TIME_RANGE: {"start": -0.005 * self.extent, "end": 1.005 * self.extent},
        }
        rows = list(self.sources["schedules_labels"]["y"])
        found |= {f"schedules_ticks_{side}": {"ticks": rows} for side in ("device", "peak")}
        # A browser keeps its models: those of a picture that is not there have no text.
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
        return found


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


def _hover(boxes: GlyphRenderer, source: ColumnDataSource) -> HoverTool:
    """Return the tooltip, whose text is made by scripts from columns of ``source``."""
    says = {
        "cell": ("code", _CELL),
        "from": ("left", _SPAN),
        "why then": ("by", _WHY),
        "idle before": ("idle", _IDLE),
    }
    formatters = {f"@{field}": CustomJSHover(args={"source": source}, code=code) for field, code in says.values()}
    tooltips = [(name, f"@{field}{{custom}}") for name, (field, _) in says.items()]
    return HoverTool(renderers=[boxes], tooltips=tooltips, formatters=formatters, name="schedules_hover")


def _draw_words(fig: figure, most: int, style: Style) -> None:
    """Add the headings and texts of ``most`` pictures; their content follows as properties."""
    for number in range(most):
        for part, weight in (("heading", "bold"), ("words", "normal")):
            label = Label(x=0, y=0, text="", x_units="screen", text_baseline="top", name=f"schedules_{part}{number}")
            label.text_font_size, label.text_font_style = f"{style.font}px", weight
            # A browser multiplies this with its own height of a line.
            label.text_line_height = LINE / LEADING
            fig.add_layout(label)


def _roles(most: int) -> dict[str, dict[str, str]]:
    """Return the roles of colours of the parts of the figure; operations have the same colours in every theme."""
    entries = [swatch.mark for swatches in LEGENDS for swatch in swatches]
    found = time_roles(NAME) | theme_roles([*SCHEDULE_MARKS, *entries])
    found |= {"schedules_right": {"major_label_text_color": "text"}}
    words = {"text_color": "text", "background_fill_color": "background"}
    return found | {f"schedules_{part}{number}": words for part in ("heading", "words") for number in range(most)}
