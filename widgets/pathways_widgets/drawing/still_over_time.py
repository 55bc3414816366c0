"""What still pictures over time have in common: the legend above, then the title, the axis, and room for the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pathways_widgets.drawing import style
from pathways_widgets.drawing.legends import Swatch, legend_shapes
from pathways_widgets.drawing.scene import Rect, Shape
from pathways_widgets.drawing.still_frame import AXIS, LIGHT, LINE, Frame, time_ends, title
from pathways_widgets.drawing.views import Window


def begin_over_time(
    words: str,
    legends: Sequence[Sequence[Swatch]],
    span: Mapping[str, Any],
    rows: tuple[float, float],
    width: float,
    top: float,
) -> tuple[list[Shape], Frame, float]:
    """Return what is behind the marks of a picture over time, the frame of its plot, and its height in pixels.

    Args:
        words: the title.
        legends: rows of entries, from the top.
        span: the visible part of the time axis, as ``shown_span`` returns it.
        rows: number of rows, and the height of one in pixels.
        width: width of the page in pixels.
        top: pixels above the picture.
    """
    factor, (left, right) = style.current().factor, time_ends(width)
    shapes, used = legend_shapes(legends, top + factor * LINE, width)
    first = top + factor * LINE + used + 4
    bottom = first + rows[0] * rows[1]
    frame = Frame(left, right, first, bottom, (span["start"], span["end"]), (rows[0], 0.0))
    shapes += [title(words, top, width), *frame.time_axis()]
    return shapes, frame, bottom + factor * AXIS - top


def brushed_part(frame: Frame, brushed: Window | None) -> list[Shape]:
    """Return the shade over a part of the time axis, as far as it is visible."""
    left, right = (min(max(frame.x(end), frame.left), frame.right) for end in brushed or (0.0, 0.0))
    if right <= left:
        return []
    high = frame.bottom - frame.top
    return [Rect(left, frame.top, right - left, high, f"{LIGHT['soft']}28", LIGHT["soft"], frame.line, dash=(4.0, 3.0))]
