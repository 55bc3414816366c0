"""Timelines of many runs as small multiples: a row for each run, on one scale of time from the first dispatch of each.

A row has a band for each island, and one for transfers below. A line through all rows follows the pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, CrosshairTool, FixedTicker, Range1d, Span

from pathways_nb.trace.matching import beginning
from pathways_nb.trace.metrics import WORK
from pathways_nb.trace.record import Events
from pathways_nb.util.words import counted
from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.legends import Swatch, add_legend, legend_shapes, swatch_items
from pathways_widgets.drawing.picture_marks import Column, draw, shapes_of
from pathways_widgets.drawing.scene import Scene, Text
from pathways_widgets.drawing.still_frame import AXIS, LIGHT, LINE, RIGHT, Frame
from pathways_widgets.drawing.still_text import text_width, wrapped
from pathways_widgets.drawing.time_axis import time_figure, time_roles
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.figures.live import Figure
from pathways_widgets.timeline.lanes import Lanes
from pathways_widgets.timeline.level_of_detail import Digest, choose_boxes

NAME = "thumbnails"
_ROW, _EDGE, _TRANSFERS = 34.0, 0.08, 0.15
"""Pixels of a row; the parts of it that are left free on each side, and that transfers take."""
_BOXES = 400
"""Number of boxes of a row, about, above which short events are merged."""
_TIP = Tooltip((("run", "@run"), ("what", "@name"), ("takes", "@duration{custom}")), ("duration",))
_MARK = BoxMark(
    source=NAME, fill=Column("code", tuple(kind.colour for kind in palette.DEVICE_KINDS)), line="", tooltip=_TIP
)
_ROLES = time_roles(NAME)


@dataclass(frozen=True)
class _RowOfRun(Lanes):
    """The lanes of a run in its row."""

    row: int = 0

    def band(self, kind: str, island: int, device: int, devices: int, stream: str = "") -> tuple[float, float]:
        """Return the upper and lower edge of an event: that of its island, or of all transfers."""
        top, bottom = self.row + _EDGE, self.row + 1 - _EDGE - _TRANSFERS
        if kind == "transfer":
            return bottom, bottom + _TRANSFERS
        height = (bottom - top) / max(len(self.islands), 1)
        return top + max(island, 0) * height, top + (max(island, 0) + 0.9) * height


def thumbnails(runs: Mapping[str, tuple[Events, tuple[int, ...]]], sentence: str = "") -> Figure:
    """Return a figure of runs, one below the other on one scale.

    Args:
        runs: by what each is called: its events, and the number of devices of each of its islands.
        sentence: what matters, above the figure.
    """
    parts = [_columns(name, *run, row) for row, (name, run) in enumerate(runs.items())]
    columns: Columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    last = float(columns["right"].max(initial=0.0)) or 1.0
    looks, count = style.current(), len(runs)
    plot = time_figure(NAME, round(_ROW * looks.factor * count + 46 * looks.factor), Range1d(count, 0), looks)
    plot.x_range.start, plot.x_range.end = -0.01 * last, 1.01 * last
    plot.title.visible = plot.ygrid[0].visible = False
    plot.yaxis[0].ticker = FixedTicker(ticks=[row + 0.5 for row in range(count)])
    plot.yaxis[0].major_label_overrides = {row + 0.5: name for row, name in enumerate(runs)}
    draw(plot, [_MARK], {NAME: ColumnDataSource(columns)}, looks)
    plot.add_tools(CrosshairTool(overlay=Span(dimension="height", line_dash="dotted", line_color=palette.NEUTRAL)))
    occurring = [palette.DEVICE_KINDS[code] for code in np.unique(columns["code"]).tolist()]
    swatches = [Swatch(kind.words, BoxMark(fill=kind.colour)) for kind in occurring]
    add_legend(plot, f"{NAME}_legend", swatch_items(plot, swatches, looks), looks)
    words = f"{counted(count, 'run')} on one scale: {', '.join(runs)}"
    item = dict(json_item(plot)) | {"headline": sentence, "summary": words, "is_folded": True}
    item |= {"themes": palette.themed(_ROLES)}
    return Figure(item, lambda: scene(list(runs), columns, swatches, sentence), headline=sentence, summary=words)


def _columns(name: str, events: Events, islands: tuple[int, ...], row: int) -> Columns:
    """Return the boxes of one row."""
    begin, done = beginning(events), events.of_kind(*WORK)
    digest = Digest(_RowOfRun(islands, row=row))
    digest.extend(done)
    boxes = choose_boxes(digest, (begin, float(done["end"].max(initial=begin))), _BOXES)
    track = np.concatenate([digest.track[boxes.alone], boxes.track]).astype(int)
    start = np.concatenate([digest.start[boxes.alone], boxes.start]) - begin
    takes = np.concatenate([(digest.end - digest.start)[boxes.alone], boxes.busy])
    labels = [done.labels[number].name for number in done.label[boxes.alone].tolist()]
    found: Columns = {"left": start, "right": start + takes, "duration": takes}
    for side, edges in (("top", digest.top), ("bottom", digest.bottom), ("code", digest.code)):
        found[side] = np.array(edges, float)[track] if len(track) else np.zeros(0)
    found["code"] = found["code"].astype(np.uint8)
    found["name"] = np.array([*labels, *(f"{each:,} events" for each in boxes.count.tolist())], object)
    return found | {"run": np.full(len(track), name, object)}


def scene(names: list[str], columns: Columns, swatches: list[Swatch], sentence: str) -> Scene:
    """Return the same as a still picture.

    Args:
        names: of the runs.
        columns: the boxes.
        swatches: the legend.
        sentence: above the picture.
    """
    looks = style.current()
    found, right = Scene(FULL_WIDTH, 4.0, LIGHT["background"]), FULL_WIDTH - RIGHT
    # The names need what they need, as in a browser, but no more than half of the picture.
    left = min(max(text_width(name, looks.font) for name in names) + 16, FULL_WIDTH / 2)
    font = 16 * looks.factor
    for line in wrapped(sentence, lambda words: text_width(words, font) <= right) if sentence else ():
        found.shapes.append(Text(12, found.height + 0.8 * font, line, font, LIGHT["text"]))
        found.height += 1.6 * font
    shapes, used = legend_shapes([swatches], found.height, FULL_WIDTH, left)
    top = found.height + used + 4
    last = float(columns["right"].max(initial=0.0)) or 1.0
    bottom = top + _ROW * looks.factor * len(names)
    place = Frame(left, right, top, bottom, (-0.01 * last, 1.01 * last), (float(len(names)), 0.0))
    found.shapes += [*shapes, *place.time_axis(), *shapes_of([_MARK], {NAME: columns}, place)]
    found.shapes += place.names({row + 0.5: name for row, name in enumerate(names)})
    found.height = bottom + looks.factor * (AXIS + LINE / 2)
    return found
