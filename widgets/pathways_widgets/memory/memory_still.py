"""The picture of memory on a page without scripts.

It draws the columns of ``MemoryView``, so what it shows is what Bokeh shows; only clipping to the page is done here,
since Bokeh clips boxes to its plot itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from pathways_widgets.drawing import style
from pathways_widgets.drawing.scene import Align, Curve, Rect, Shape, Text
from pathways_widgets.drawing.still_frame import AXIS, LABELS, LIGHT, LINE, RIGHT, Frame, Swatch, legend, title
from pathways_widgets.drawing.time_axis import TIME_RANGE
from pathways_widgets.drawing.views import Columns, Moment
from pathways_widgets.memory.memory_columns import BUDGET, SIDES, WORDS_ABOVE
from pathways_widgets.memory.memory_view import MemoryView

_ALIGN: dict[str, Align] = {"left": "start", "center": "middle", "right": "end"}


def memory_shapes(
    moment: Moment, width: float, top: float, make: type[MemoryView] = MemoryView
) -> tuple[list[Shape], float]:
    """Return the shapes to draw below ``top``, and their height in pixels.

    Args:
        moment: what to draw.
        width: width of the page in pixels.
        top: pixels above the picture.
        make: the view; ``CategoryView`` divides memory by category.
    """
    factor = style.current().factor
    left, right = factor * LABELS, width - RIGHT
    view = make(moment.islands, right - left, moment.island_names)
    sources, layout = view.update(moment), view.layout
    clients = sources["memory_clients"]
    entries = [Swatch(text, fill) for text, fill in zip(clients["client"], clients["fill"], strict=True)]
    if sources["memory_budgets"]["y"]:
        entries.append(Swatch(BUDGET, LIGHT["text"], dashed=True))
    shapes, used = legend([entries], top + factor * LINE, width)
    first = top + factor * LINE + used
    span, bottom = view.properties[TIME_RANGE], first + max(len(layout.strips), 1) * layout.row
    frame = Frame(left, right, first, bottom, span["start"], span["end"], layout.row)
    shapes.append(title(view.properties["memory_title"]["text"], top, width))
    shapes += [*frame.time_axis(), *_byte_lines(frame, view.properties["memory_steps"]["ticks"])]
    shapes += [*_levels(frame, sources["memory_levels"]), *_budgets(frame, sources), *_peaks(frame, sources)]
    shapes += frame.names(layout.labels)
    return shapes, bottom + factor * AXIS - top


def _byte_lines(frame: Frame, positions: list[float]) -> Iterator[Shape]:
    """Yield a grid line for each number of bytes that the scale names."""
    for position in positions:
        ends = (frame.left, frame.y(position)), (frame.right, frame.y(position))
        yield Curve(ends, LIGHT["grid"], style.current().line)


def _levels(frame: Frame, columns: Columns) -> Iterator[Shape]:
    """Yield the boxes, clipped to the plot."""
    for left, right, top, bottom, fill in zip(*(columns[name] for name in (*SIDES, "fill")), strict=True):
        begin, end = max(frame.x(left), frame.left), min(frame.x(right), frame.right)
        if begin < end:
            yield Rect(begin, frame.y(top), max(end - begin, 0.3), frame.y(bottom) - frame.y(top), fill)


def _budgets(frame: Frame, sources: dict[str, Columns]) -> Iterator[Shape]:
    """Yield a dashed line for each budget."""
    for position in sources["memory_budgets"]["y"]:
        ends = (frame.left, frame.y(position)), (frame.right, frame.y(position))
        yield Curve(ends, LIGHT["text"], 1.5 * style.current().line, dash=6 * style.current().factor)


def _peaks(frame: Frame, sources: dict[str, Columns]) -> Iterator[Shape]:
    """Yield a marker and a label for each peak that is on the plot."""
    font, size = style.current().font, 6 * style.current().factor
    columns = (sources["memory_peaks"][name] for name in ("x", "y", "text_y", "text", "align"))
    for time, position, words_at, text, align in zip(*columns, strict=True):
        x, y = frame.x(time), frame.y(position)
        if frame.left <= x <= frame.right:
            above = frame.y(words_at) - (WORDS_ABOVE + 0.5) * font
            yield Text(x, above, text, font, LIGHT["text"], _ALIGN[align], background=LIGHT["background"])
            yield Rect(x - size / 2, y - size / 2, size, size, LIGHT["text"], LIGHT["background"], radius=size / 2)
