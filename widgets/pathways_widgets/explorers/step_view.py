"""The picture of a sharded step: buckets as a band, lanes of one device and its memory on one time axis.

Marks are described once over the columns of ``step_columns``; the live figure and the still picture draw them. The
still picture also has the schedule after each pass, which is in a table below the live one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

from bokeh.layouts import column
from bokeh.models import Column as Rows
from bokeh.models import CustomJSTickFormatter, FixedTicker
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark, Hatching
from pathways_widgets.drawing.legends import LEGEND_ROW, Swatch
from pathways_widgets.drawing.line_marks import SpanMark
from pathways_widgets.drawing.picture_marks import Column, Role, shapes_of
from pathways_widgets.drawing.point_marks import DotMark, TextMark
from pathways_widgets.drawing.scene import Scene, Shape, Text
from pathways_widgets.drawing.still_frame import AXIS, LABELS, LIGHT, Frame
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.time_axis import TICKS, round_steps
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.explorers.plots import WIDTH, Plot, PlotsDrawing
from pathways_widgets.explorers.step_columns import (
    BACKWARD,
    COMPUTE,
    SOURCES,
    STALL,
    SUMS,
    UPDATE,
    DrawnStep,
    StepLayout,
    columns_of,
)
from pathways_widgets.explorers.step_memory_columns import CATEGORIES
from pathways_widgets.explorers.step_tables import LETTERS

HEIGHT = 150.0
"""Pixels of the memory."""
LANE = 1.6
"""Height of a lane, in those of a device's."""
_BORDER = 90
"""Pixels left of both time axes, so that they are one below the other whatever their labels are."""
_NAMES = "const {y, text} = lanes.data; return text[Array.from(y).indexOf(tick)] ?? ''"
_LINES = Hatching(weight=0.7)
_HEADINGS = TextMark(source="step_headings", name="step_heading_text", text_colour=Role("text"), align="left")
_PARAMETER = Tooltip((("parameter", "@name"), ("bucket", "@bucket"), ("bytes", "@bytes{custom}")), (), ("bytes",))
_BOX = Tooltip(
    (
        *(("", "@kind"), ("of", "@words"), ("bytes", "@bytes{custom}"), ("takes", "@seconds{custom}")),
        *(("from", "@left{custom}"), ("to", "@right{custom}"), ("exposed", "@exposed{custom}")),
    ),
    ("seconds", "left", "right", "exposed"),
    ("bytes",),
)
_LEVEL = Tooltip(
    (("in all", "@bytes{custom}"), *((name, f"@{name}_held{{custom}}") for name in reversed(CATEGORIES))),
    sizes=("bytes", *(f"{name}_held" for name in CATEGORIES)),
)
# The border, in the same colour, closes the seams between the steps of a level.
_CATEGORIES: dict[str, Any] = {name: dict.fromkeys(("fill", "line"), palette.CATEGORIES[name]) for name in CATEGORIES}
_LEVELS = {
    name: BoxMark(source="step_memory", bottom=below, top=name, **_CATEGORIES[name], tooltip=_LEVEL)
    for below, name in pairwise(("base", *CATEGORIES))
}
_ZOOM = "xpan,xwheel_zoom,xbox_zoom,reset"
BUCKETS = Plot(
    "step_buckets",
    (
        BoxMark(source="step_band", fill=Column("colour"), line=palette.BOX_EDGE, line_width=0.3, tooltip=_PARAMETER),
        TextMark(source="step_labels"),
        _HEADINGS,
    ),
    x="parameters in the order of their use",
)
LANES = Plot(
    "step_lanes",
    (
        BoxMark(source="step_boxes", fill=Column("colour"), line=Column("edge"), line_width=0.5, tooltip=_BOX),
        BoxMark(source="step_hatched", hatch=Column("hatch"), hatching=_LINES),
        TextMark(source="step_box_labels"),
    ),
    legend=(
        Swatch("forward", BoxMark(fill=COMPUTE)),
        Swatch("backward", BoxMark(fill=BACKWARD)),
        Swatch("optimizer", BoxMark(fill=UPDATE)),
        Swatch("waits", BoxMark(fill=STALL, hatch=palette.HATCHES["level"], hatching=_LINES)),
        Swatch("sums over other axes", BoxMark(fill=SUMS)),
        Swatch("gather, in its bucket's colour", BoxMark(fill=palette.GREY)),
        Swatch("reduction", BoxMark(fill=palette.GREY, hatch=palette.HATCHES["upright"], hatching=_LINES)),
    ),
    tools=_ZOOM,
)
MEMORY = Plot(
    "step_held",
    (
        *_LEVELS.values(),
        SpanMark(source="step_limit", name="step_limit_line", line=Role("text"), line_width=1.5, dash=(6, 3)),
        DotMark(source="step_peak", name="step_peak_mark", fill=Role("text"), line=Role("background")),
        TextMark(source="step_peak", name="step_peak_text", text_colour=Role("text"), align=Column("align"),
                 anchor="bottom", lift=-4.0),
    ),
    legend=tuple(Swatch(name, BoxMark(**look)) for name, look in _CATEGORIES.items()),
    explained=_LEVELS,
    tools=_ZOOM,
)  # fmt: skip


class StepPlan(PlotsDrawing):
    """Draws the buckets, the lanes and the memory of a step."""

    def __init__(self) -> None:
        super().__init__(SOURCES, (BUCKETS, LANES, MEMORY))

    @cached_property
    def root(self) -> Rows:
        """The three figures; lanes and memory have one time axis."""
        buckets = BUCKETS.figure(100, self.tables, self.style)
        buckets.height, buckets.frame_height, buckets.min_border_left = None, 100, 20
        buckets.yaxis[0].visible = buckets.ygrid[0].visible = buckets.xgrid[0].visible = False
        buckets.xaxis[0].ticker = FixedTicker(ticks=[])
        lanes, memory = self._over_time(LANES, 100), self._over_time(MEMORY, HEIGHT)
        lanes.ygrid[0].visible = False
        lanes.yaxis[0].ticker = FixedTicker(ticks=[], name=f"{LANES.name}_ticks")
        lanes.yaxis[0].formatter = CustomJSTickFormatter(args={"lanes": self.tables["step_lane_names"]}, code=_NAMES)
        # One range object, so that both pan and zoom together.
        memory.x_range, memory.yaxis[0].ticker.desired_num_ticks = lanes.x_range, 4
        return column(buckets, lanes, memory, sizing_mode="stretch_width")

    def _over_time(self, described: Plot, height: float) -> figure:
        plot = described.figure(height, self.tables, self.style)
        # The height of the plot is given and not that of the figure: legends and labels come on top of it.
        plot.height, plot.frame_height, plot.min_border_left = None, int(height), _BORDER
        plot.toolbar.active_scroll = None  # or scrolling the notebook would zoom
        plot.xaxis[0].formatter = CustomJSTickFormatter(code=TICKS)
        return plot

    def update(self, picture: DrawnStep) -> dict[str, Columns]:
        """Return the columns of every source."""
        self.sources, layout = columns_of(picture, WIDTH, self.style)
        has_lanes, ranges = bool(layout.lanes), _ranges(layout)
        self.properties = {
            **BUCKETS.range_properties(*ranges[BUCKETS]),
            **LANES.range_properties(*ranges[LANES]),
            **MEMORY.range_properties(*ranges[MEMORY]),
            BUCKETS.name: {"frame_height": max(round(layout.height), 1)},
            f"{BUCKETS.name}_x": {"visible": has_lanes},
            LANES.name: {"frame_height": round(ranges[LANES][1][0] * LANE * self.style.lane), "visible": has_lanes},
            f"{LANES.name}_ticks": {"ticks": [number + 0.5 for number in range(len(layout.lanes))]},
            MEMORY.name: {"visible": has_lanes},
            f"{MEMORY.name}_y": {"axis_label": layout.unit},
        }
        return self.sources

    def still(self, picture: DrawnStep, width: float = FULL_WIDTH) -> Scene:
        """Return the picture as shapes, for a page of so many pixels."""
        looks = self.style
        font, margin = looks.font, 1.5 * looks.font
        left, right = LABELS * looks.factor, width - margin
        sources, layout = columns_of(picture, right - left, looks)
        ranges, legend_row = _ranges(layout), LEGEND_ROW * looks.factor
        # Headings begin at the edge of the page, because there are no labels left of them.
        headings = Frame(margin, right, 0.0, layout.height, *ranges[BUCKETS])
        texts = list(shapes_of((_HEADINGS,), sources, headings))
        if picture.error:
            return Scene(width, layout.height + 2 * font, LIGHT["background"], texts)
        buckets = Frame(left, right, 0.0, layout.height, *ranges[BUCKETS])
        top = layout.height + 3 * font + legend_row
        lanes = Frame(left, right, top, top + len(layout.lanes) * LANE * looks.lane, *ranges[LANES])
        top = lanes.bottom + 1.6 * AXIS * looks.factor + legend_row
        memory = Frame(left, right, top, top + HEIGHT, *ranges[MEMORY])
        shapes = [*shapes_of((mark for mark in BUCKETS.marks if mark != _HEADINGS), sources, buckets), *texts]
        below = max(sources["step_band"]["bottom"], default=layout.height) + 0.9 * font
        shapes.append(Text((left + right) / 2, below, BUCKETS.x, 0.9 * font, LIGHT["soft"], "middle"))
        for plot, place in ((LANES, lanes), (MEMORY, memory)):
            shapes += [*plot.legend_shapes(place.top - legend_row - 2, place), *place.time_axis()]
            shapes += _amounts(memory, layout) if plot is MEMORY else ()
            shapes += plot.shapes(sources, place)
        shapes += lanes.names({number + 0.5: name for number, name in enumerate(layout.lanes)})
        words = list(_passes(picture, margin, memory.bottom + 1.5 * AXIS * looks.factor, right, font))
        return Scene(width, max(word.y for word in words) + 1.5 * font, LIGHT["background"], [*shapes, *words])


def _ranges(layout: StepLayout) -> dict[Plot, tuple[tuple[float, float], tuple[float, float]]]:
    """Return the ranges of both axes of each plot."""
    return {
        BUCKETS: ((0.0, 1.0), (layout.height, 0.0)),  # downwards, in pixels
        LANES: ((0.0, layout.end), (max(len(layout.lanes), 1), 0.0)),
        MEMORY: ((0.0, layout.end), (0.0, layout.highest)),
    }


# ---- the still picture


def _amounts(place: Frame, layout: StepLayout) -> Iterator[Shape]:
    """Yield grid lines at round amounts of memory, with their labels."""
    for step in round_steps(*place.up, 4):
        yield from place.rows([step])
        yield Text(place.left - 8, place.y(step), f"{step:g} {layout.unit}", place.font, LIGHT["text"], "end")


def _passes(picture: DrawnStep, left: float, top: float, right: float, font: float) -> Iterator[Text]:
    """Yield the schedule before the passes and after each, cut at the edge of the page."""
    yield Text(left, top, f"schedule after each pass: {LETTERS}", font, LIGHT["soft"])
    for number, (name, line) in enumerate(picture.passes, 1):
        y, begin = top + 1.5 * number * font, left + 6 * font
        yield Text(left, y, name, font, LIGHT["text"])
        yield Text(begin, y, _cut(line, right - begin, font), font, LIGHT["text"])


def _cut(line: str, room: float, font: float) -> str:
    """Return a line, or as much of it as there is room for."""
    if text_width(line, font) <= room:
        return line
    count = len(line)
    while text_width(line[:count] + "…", font) > room:
        count -= max(count // 40, 1)  # lines have thousands of letters: by fortieths, and near the end by single ones
    return line[:count] + "…"
