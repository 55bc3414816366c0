"""Pictures of schedules on a page without scripts: the columns of ``Schedules``, as shapes.

Every box is drawn, however many there are: rows of pixels are for figures that are panned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Polygon, Rect, Scene, Shape, Text
from pathways_widgets.drawing.still_frame import AXIS, LIGHT, Frame, Swatch, legend
from pathways_widgets.drawing.time_axis import TIME_RANGE, round_steps
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.schedules.schedule_columns import COLOURS, LEVELS, MARKS, SIDES
from pathways_widgets.schedules.schedule_layout import LINE, Drawable
from pathways_widgets.schedules.schedule_view import CAP, DASHES, FIRST, HELD, IDLE, Schedules

_LEFT, _RIGHT, _MARGIN = 64.0, 76.0, 8.0
"""Pixels for the names of devices and for their peaks, and above everything."""


def scene_of_schedules(pictures: Sequence[Drawable], width: float = FULL_WIDTH) -> Scene:
    """Return pictures one below the other with their legend, ``width`` pixels wide."""
    factor = style.current().factor
    left, right = factor * _LEFT, width - factor * _RIGHT
    view = Schedules(len(pictures), right - left, width - left - _MARGIN)
    sources = view.update(pictures)
    shapes, used = legend(_swatches(view), _MARGIN, width, factor * _LEFT)
    span, top = view.properties[TIME_RANGE], _MARGIN + used + 6 * factor
    frame = Frame(left, right, top, top + view.layout.height, span["start"], span["end"], 1.0)
    scene = Scene(width, frame.bottom + factor * AXIS, LIGHT["background"], shapes)
    scene.shapes += [*_axis(frame), *_bars(frame, sources), *_memory(frame, sources), *_words(frame, view)]
    return scene


def _swatches(view: Schedules) -> list[list[Swatch]]:
    """Return the entries of the legend that the view shows."""
    shown = {name for name, values in view.properties.items() if values.get("visible")}
    operations = [Swatch(f"{kind.letter} {kind.name}", kind.colour)
                  for code, kind in enumerate(palette.OPERATIONS) if f"schedules_key{code}" in shown]  # fmt: skip
    rest = [Swatch(IDLE, LIGHT["background"], "/"), Swatch(HELD, palette.MEMORY)]
    if "schedules_key_shade" in shown:
        words = view.properties["schedules_key_shade"]["label"]["value"]
        rest.insert(1, Swatch(words, COLOURS[LEVELS - 1]))
    if "schedules_key_cap" in shown:
        rest.append(Swatch(CAP, LIGHT["text"], dashed=True))
    marks = [Swatch(FIRST[kind], colour, dashed=bool(DASHES[kind]), outline=True)
             for kind, colour in MARKS.items() if f"schedules_key_{kind}" in shown]  # fmt: skip
    return [operations, rest, marks]


def _axis(frame: Frame) -> Iterator[Shape]:
    """Yield grid lines and labels of round times."""
    font, lines = style.current().font, style.current().line
    most = max(int((frame.right - frame.left) / (60 * style.current().factor)), 3)
    for time in round_steps(max(frame.begin, 0.0), frame.end, most):
        x = frame.x(time)
        yield Curve(((x, frame.top), (x, frame.bottom)), LIGHT["grid"], lines)
        yield Text(x, frame.bottom + style.current().factor * AXIS / 2, f"{time:g}", font, LIGHT["text"], "middle")


def _rows(columns: Columns, *names: str) -> Iterator[tuple]:
    """Return the rows of some columns."""
    return zip(*(np.asarray(columns[name]).tolist() for name in names), strict=True)


def _bars(frame: Frame, sources: dict[str, Columns]) -> Iterator[Shape]:
    """Yield bubbles, boxes, borders and the text on boxes, from back to front."""
    x, y, line = frame.x, frame.y, style.current().line
    for left, right, top, bottom in _rows(sources["schedules_idle"], *SIDES):
        box = x(left), y(top), x(right) - x(left), bottom - top
        yield Rect(*box, LIGHT["background"], LIGHT["lane"], 0.5 * line, hatch="/")
    for left, right, top, bottom, code in _rows(sources["schedules_boxes"], *SIDES, "code"):
        yield Rect(x(left), y(top), max(x(right) - x(left), 0.3), bottom - top, COLOURS[code])
    for name, colour, thick in (("edges", palette.BOX_EDGE, 0.5), ("pairs", LIGHT["text"], 1.5)):
        for left, right, top, bottom in _rows(sources[f"schedules_{name}"], *SIDES):
            yield Rect(x(left), y(top), x(right) - x(left), bottom - top, "", colour, thick * line)
    for kind, colour in MARKS.items():
        for left, right, top, bottom in _rows(sources[f"schedules_first_{kind}"], *SIDES):
            corners = ((x(left), y(top)), (x(right), y(top)), (x(right), y(bottom)), (x(left), y(bottom)))
            for one, other in zip(corners, (*corners[1:], corners[0]), strict=True):
                yield Curve((one, other), colour, 3 * line, dash=DASHES[kind][0] if DASHES[kind] else 0.0)
    for time, position, text in _rows(sources["schedules_marks"], "x", "y", "text"):
        yield Text(x(time), y(position), text, style.current().font, palette.INK, "middle")


def _memory(frame: Frame, sources: dict[str, Columns]) -> Iterator[Shape]:
    """Yield what devices hold, the part above the cap, caps and peaks."""
    x, y, line = frame.x, frame.y, style.current().line
    for name, colour in (("held", palette.MEMORY), ("over", palette.EXCESS)):
        points: list[tuple[float, float]] = []
        for time, position in _rows(sources[f"schedules_{name}"], "x", "y"):
            if np.isnan(time):
                yield Polygon(tuple(points), colour)
                points = []
            else:
                points.append((x(time), y(position)))
    for begin, end, position in _rows(sources["schedules_caps"], "x0", "x1", "y"):
        yield Curve(((x(begin), y(position)), (x(end), y(position))), LIGHT["text"], line, dash=5.0)
    size = 4 * style.current().factor
    for time, position in _rows(sources["schedules_peaks"], "x", "y"):
        yield Rect(x(time) - size / 2, y(position) - size / 2, size, size, LIGHT["text"], radius=size / 2)


def _words(frame: Frame, view: Schedules) -> Iterator[Shape]:
    """Yield the labels of devices, and heading and text of each picture."""
    font, labels = style.current().font, view.sources["schedules_labels"]
    for y, device, peak in _rows(labels, "y", "device", "peak"):
        yield Text(frame.left - 8, frame.y(y), device, font, LIGHT["text"], "end")
        yield Text(frame.right + 8, frame.y(y), peak, font, LIGHT["text"])
    for board in view.layout.boards:
        for top, lines, bold in ((board.top, board.heading, True), (board.words, board.lines, False)):
            for row, line in enumerate(lines):
                y = frame.y(top) + (0.5 + row) * LINE * font
                yield Text(frame.left, y, line, font, LIGHT["text"], bold=bold, background=LIGHT["background"])
