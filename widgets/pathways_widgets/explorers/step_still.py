"""A sharded step as a still picture, for viewers without scripts: the columns of the live one, as shapes.

The schedule before and after each pass, which the live figure has beside it, is below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.legends import LEGEND_ROW, Swatch, legend_shapes
from pathways_widgets.drawing.scene import Align, Curve, Rect, Scene, Shape, Text, text_width
from pathways_widgets.drawing.still_frame import AXIS, LABELS, Frame
from pathways_widgets.drawing.time_axis import round_steps
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.explorers.step_columns import DrawnStep, StepLayout, columns_of
from pathways_widgets.explorers.step_memory_columns import CATEGORIES
from pathways_widgets.explorers.step_tables import LETTERS
from pathways_widgets.explorers.step_view import HEIGHT, LANE, LOOKS, WORDS

_LIGHT = palette.THEMES["light"]
_INK = _LIGHT["text"]
_ALIGN: dict[str, Align] = {"left": "start", "center": "middle", "right": "end"}


def scene_of_step(picture: DrawnStep, width: float = FULL_WIDTH) -> Scene:
    """Return the pictures as shapes.

    Args:
        picture: what to draw.
        width: pixels of the page.
    """
    looks = style.current()
    font, margin = looks.font, 1.5 * looks.font
    left, right = LABELS * looks.factor, width - margin
    sources, layout = columns_of(picture, right - left, looks)
    shapes = list(_band(sources, margin, right, left))
    if picture.error:
        return Scene(width, layout.height + 2 * font, _LIGHT["background"], shapes)
    top = layout.height + 3 * font + LEGEND_ROW * looks.factor
    lanes = Frame(
        left, right, top, top + len(layout.lanes) * LANE * looks.lane, (0.0, layout.end), (len(layout.lanes), 0.0)
    )
    top = lanes.bottom + 1.6 * AXIS * looks.factor + LEGEND_ROW * looks.factor
    memory = Frame(left, right, top, top + HEIGHT, (0.0, layout.end), (0.0, layout.highest))
    shapes += [*_lanes(lanes, sources, layout), *_memory(memory, sources, layout)]
    words = list(_passes(picture, margin, memory.bottom + 1.5 * AXIS * looks.factor, right))
    height = max((word.y for word in words), default=memory.bottom + AXIS) + 1.5 * font
    return Scene(width, height, _LIGHT["background"], [*shapes, *words])


def _band(sources: dict[str, Columns], margin: float, right: float, left: float) -> Iterator[Shape]:
    """Yield headings, and the boxes of parameters with their labels."""
    font = style.current().font
    for one in _records(sources["step_headings"]):
        yield Text(margin, one["y"], one["text"], font, _INK)
    for one in _records(sources["step_band"]):
        x = left + one["left"] * (right - left)
        wide = (one["right"] - one["left"]) * (right - left)
        yield Rect(x, one["top"], wide, one["bottom"] - one["top"], one["colour"], palette.BOX_EDGE, 0.3)
    for one in _records(sources["step_labels"]):
        yield Text(left + one["x"] * (right - left), one["y"], one["text"], font, palette.INK, "middle")
    if sources["step_band"]["bottom"]:
        below = max(sources["step_band"]["bottom"]) + 0.9 * font
        yield Text((left + right) / 2, below, WORDS["order"], 0.9 * font, _LIGHT["soft"], "middle")


def _lanes(frame: Frame, sources: dict[str, Columns], layout: StepLayout) -> Iterator[Shape]:
    """Yield the boxes on the lanes, with axis and legend."""
    font = style.current().font
    yield from _legend(
        [
            Swatch(text, BoxMark(fill=colour, hatch=palette.HATCHES.get(mark, "")))
            for text, (colour, mark) in LOOKS.items()
        ],
        frame,
    )
    yield from frame.time_axis()
    for one in _records(sources["step_boxes"]):
        yield _box(frame, one, one["colour"], one["edge"])
    for one in _records(sources["step_hatched"]):
        yield _box(frame, one, hatch=one["hatch"])
    for one in _records(sources["step_box_labels"]):
        yield Text(frame.x(one["x"]), frame.y(one["y"]), one["text"], font, palette.INK, "middle")
    yield from frame.names({number + 0.5: name for number, name in enumerate(layout.lanes)})


def _box(frame: Frame, one: dict[str, Any], colour: str = "", edge: str = "", hatch: str = "") -> Rect:
    """Return a box on a lane."""
    x, y = frame.x(one["left"]), frame.y(one["top"])
    return Rect(x, y, max(frame.x(one["right"]) - x, 0.3), frame.y(one["bottom"]) - y, colour, edge, 0.3, hatch=hatch)


def _memory(frame: Frame, sources: dict[str, Columns], layout: StepLayout) -> Iterator[Shape]:
    """Yield the levels, stacked, with the peak and the memory of the device."""
    looks, columns = style.current(), sources["step_memory"]
    yield from _legend([Swatch(name, BoxMark(fill=palette.CATEGORIES[name])) for name in CATEGORIES], frame)
    yield from frame.time_axis()
    for step in round_steps(0.0, layout.highest, 4):
        y = frame.y(step)
        yield Curve(((frame.left, y), (frame.right, y)), _LIGHT["grid"])
        yield Text(frame.left - 8, y, f"{step:g} {layout.unit}", looks.font, _INK, "end")
    for below, name in pairwise(("base", *CATEGORIES)):
        for begin, end, low, high in zip(columns["left"], columns["right"], columns[below], columns[name], strict=True):
            if high > low:
                top = frame.y(high)
                wide = max(frame.x(end) - frame.x(begin), 0.3)
                yield Rect(frame.x(begin), top, wide, frame.y(low) - top, palette.CATEGORIES[name])
    for limit in sources["step_limit"]["y"]:
        y = frame.y(limit)
        yield Curve(((frame.left, y), (frame.right, y)), _INK, 1.5 * looks.line, dash=6 * looks.factor)
    for one in _records(sources["step_peak"]):
        x, y, mark = frame.x(one["x"]), frame.y(one["y"]), 6 * looks.factor
        yield Text(x, y - 0.9 * looks.font, one["text"], looks.font, _INK, _ALIGN[one["align"]])
        yield Rect(x - mark / 2, y - mark / 2, mark, mark, _INK, _LIGHT["background"], radius=mark / 2)


def _legend(swatches: Sequence[Swatch], frame: Frame) -> list[Shape]:
    return legend_shapes([swatches], frame.top - LEGEND_ROW * style.current().factor - 2, frame.right, frame.left)[0]


def _passes(picture: DrawnStep, left: float, top: float, right: float) -> Iterator[Text]:
    """Yield the schedule before the passes and after each, cut at the edge of the page."""
    font = style.current().font
    yield Text(left, top, f"schedule after each pass: {LETTERS}", font, _LIGHT["soft"])
    for number, (name, line) in enumerate(picture.passes, 1):
        y, begin = top + 1.5 * number * font, left + 6 * font
        yield Text(left, y, name, font, _INK)
        yield Text(begin, y, _cut(line, right - begin), font, _INK)


def _cut(line: str, room: float) -> str:
    """Return a line, or as much of it as there is room for."""
    font = style.current().font
    if text_width(line, font) <= room:
        return line
    count = len(line)
    while text_width(line[:count] + "…", font) > room:
        count -= max(count // 40, 1)
    return line[:count] + "…"


def _records(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of columns."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))
