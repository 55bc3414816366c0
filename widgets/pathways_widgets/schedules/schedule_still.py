"""Pictures of schedules on a page without scripts: the marks of ``Schedules``, with axis, labels and text around them.

Every box is drawn, however many there are: rows of pixels are for figures that are panned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pathways_widgets.drawing import style
from pathways_widgets.drawing.legends import legend_shapes, shown_swatches
from pathways_widgets.drawing.picture_marks import shapes_of
from pathways_widgets.drawing.scene import Scene, Shape, Text
from pathways_widgets.drawing.still_frame import AXIS, LIGHT, Frame
from pathways_widgets.drawing.time_axis import TIME_RANGE, round_steps
from pathways_widgets.drawing.views import FULL_WIDTH
from pathways_widgets.schedules.schedule_layout import LINE, Drawable
from pathways_widgets.schedules.schedule_marks import LEGENDS, SCHEDULE_MARKS
from pathways_widgets.schedules.schedule_view import Schedules

_LEFT, _RIGHT, _MARGIN = 64.0, 76.0, 8.0
"""Pixels for the names of devices and for their peaks, and above everything."""
_TICK = 60.0
"""Least pixels between two labels of the time axis, on a screen."""


def scene_of_schedules(pictures: Sequence[Drawable], width: float = FULL_WIDTH) -> Scene:
    """Return pictures one below the other with their legend, ``width`` pixels wide."""
    factor = style.current().factor
    left, right = factor * _LEFT, width - factor * _RIGHT
    view = Schedules(len(pictures), right - left, width - left - _MARGIN)
    # The view may have chosen rows of pixels, which fit the width of a browser.
    sources = view.update(pictures) | view.one_by_one()
    rows = [shown_swatches(swatches, view.properties) for swatches in reversed(LEGENDS)]
    shapes, used = legend_shapes(rows, _MARGIN, width, left)
    span, top, height = view.properties[TIME_RANGE], _MARGIN + used + 6 * factor, max(view.layout.height, 1.0)
    frame = Frame(left, right, top, top + height, (span["start"], span["end"]), (height, 0.0))
    most = max(int((right - left) / (_TICK * factor)), 3)
    shapes += frame.ticks((time, f"{time:g}") for time in round_steps(max(span["start"], 0.0), span["end"], most))
    shapes += [*shapes_of(SCHEDULE_MARKS, sources, frame), *_words(frame, view)]
    return Scene(width, frame.bottom + factor * AXIS, LIGHT["background"], shapes)


def _words(frame: Frame, view: Schedules) -> Iterator[Shape]:
    """Yield the labels of devices, and heading and text of each picture."""
    font, labels = frame.font, view.sources["schedules_labels"]
    for y, device, peak in zip(labels["y"], labels["device"], labels["peak"], strict=True):
        yield Text(frame.left - 8, frame.y(y), device, font, LIGHT["text"], "end")
        yield Text(frame.right + 8, frame.y(y), peak, font, LIGHT["text"])
    for board in view.layout.boards:
        for top, lines, bold in ((board.top, board.heading, True), (board.words, board.lines, False)):
            for row, line in enumerate(lines):
                y = frame.y(top) + (0.5 + row) * LINE * font
                yield Text(frame.left, y, line, font, LIGHT["text"], bold=bold, background=LIGHT["background"])
