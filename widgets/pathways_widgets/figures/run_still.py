"""Still pictures of a run: the columns that Bokeh draws, placed on a page as shapes.

The columns come from the same views, so a figure in a paper shows what the notebook shows; only the frame (axes,
labels, legends) is drawn again, in ``drawing.still_frame``. Memory is drawn in ``memory.memory_still``, schedules in
``schedules.schedule_still``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from pathways_nb.errors import both_ends, is_number
from pathways_nb.util.json_text import shortened
from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Polygon, Rect, Scene, Shape, Text, length_parts, text_width, wrapped
from pathways_widgets.drawing.still_frame import AXIS, LABELS, LIGHT, LINE, RIGHT, Frame, Swatch, legend, title
from pathways_widgets.drawing.time_axis import TIME_RANGE
from pathways_widgets.drawing.views import FULL_WIDTH, Columns, Moment, RunLike
from pathways_widgets.figures.panel import DEFAULT_SHOW, check_show
from pathways_widgets.graph.graph_view import GraphView
from pathways_widgets.memory.memory_still import memory_shapes
from pathways_widgets.memory.memory_view import CategoryView
from pathways_widgets.timeline.client_shares import TINTS, legend_of
from pathways_widgets.timeline.critical_view import ENDS, PATH, WIDTH, CriticalTimeline
from pathways_widgets.timeline.op_view import OpTimeline
from pathways_widgets.timeline.timeline_view import Timeline

NARROWEST, WIDEST = 200.0, 10_000.0
_MARGIN = 12.0
"""Pixels left of the summary."""
KIND_ROWS = (palette.DEVICE_KINDS, palette.CONTROLLER_KINDS)


def scene_of(run: RunLike, show: Sequence[str] = DEFAULT_SHOW, width: float = FULL_WIDTH) -> Scene:
    """Return the views of a run one below the other, with legends and the summary.

    Args:
        run: what to draw.
        show: names of views.
        width: width in pixels.
    """
    moment = Moment.of(run)
    scene = Scene(width, 0.0, LIGHT["background"])
    for name in check_show(show):
        shapes, height = _PARTS[name](moment, width, scene.height)
        scene.shapes += shapes
        scene.height += height
    font, factor = style.current().font, style.current().factor
    max_width = width - _MARGIN - RIGHT
    for line in wrapped(moment.summary_line(), lambda words: text_width(words, font) <= max_width):
        scene.shapes.append(Text(_MARGIN, scene.height + factor * LINE / 2, line, font, LIGHT["soft"]))
        scene.height += factor * LINE
    scene.height += 4
    return scene


def write(run: RunLike, path: str | Path, width: str | float = FULL_WIDTH, show: Sequence[str] = DEFAULT_SHOW) -> None:
    """Write a picture of a run.

    Args:
        run: what to draw.
        path: path of the file, which ends in ``.svg`` or ``.png``.
        width: pixels, or a length; see ``write_scene``.
        show: names of views.

    Raises:
        ValueError: the file's ending, the length or a view is unknown.
    """
    write_scene(lambda pixels: scene_of(run, show, pixels), path, width)


def write_scene(draw: Callable[[float], Scene], path: str | Path, width: str | float) -> None:
    """Write a picture as SVG or PNG, by the ending of ``path``.

    Args:
        draw: makes the picture, given its width in pixels.
        path: path of the file.
        width: pixels, or a length such as ``"3.3in"``, ``"8cm"``, ``"500px"`` or ``"240pt"``.

    Raises:
        ValueError: the file's ending or the length is unknown.
    """
    pixels, kind = _pixels(width), Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise ValueError(
            f"savefig({both_ends(str(path), 300)!r}): the ending must be .svg or .png, not {shortened(kind)}."
        )
    scene = draw(pixels)
    if kind == ".svg":
        Path(path).write_text(scene.svg(width if isinstance(width, str) else ""), "utf-8")
    else:
        Path(path).write_bytes(scene.png(300 / 96 if isinstance(width, str) else 2.0))  # 300 dots per inch on paper


def _pixels(width: str | float) -> float:
    """Return a width in pixels.

    Raises:
        ValueError: not a length, or one that no picture has.
    """
    pixels = _in_pixels(width)
    if not NARROWEST <= pixels <= WIDEST:
        raise ValueError(f"savefig(width={width!r}): a picture is {NARROWEST:g} to {WIDEST:g} pixels wide (1in is 96).")
    return pixels


def _in_pixels(width: str | float) -> float:
    """Return a width in pixels, of which an inch has 96 as in CSS.

    Raises:
        ValueError: not a length.
    """
    if not isinstance(width, str):
        if not is_number(width):
            raise ValueError(f"savefig(width={shortened(width)}): write pixels, or a length such as '3.3in'.")
        return float(width)
    number, unit = length_parts(width)
    return number * {"px": 1.0, "in": 96.0, "cm": 96 / 2.54, "mm": 9.6 / 2.54, "pt": 96 / 72}[unit]


# ---- the graph


def _graph(moment: Moment, width: float, top: float) -> tuple[list[Shape], float]:
    """Return the shapes of the graph below ``top``, scaled to ``width``, and its height in pixels."""
    view = GraphView(page=width)
    sources = view.update(moment)
    natural = float(view.properties["graph_x"]["end"]) if view.properties else FULL_WIDTH
    boxes = (box for name in ("graph_nodes", "graph_needed") for box in _pairs(sources[name], "y", "height"))
    bends = (y for name in ("graph_local", "graph_transfers") for y in sources[name]["y1"])
    lowest = max([0.0, *(y + height / 2 for y, height in boxes), *bends])
    scale = min(width / natural, view.style.factor)

    def at(x: float, y: float) -> tuple[float, float]:
        return scale * x, top + scale * y

    shapes = [*_edges(sources, at, scale), *_boxes(sources, at, scale), *_words(sources, at, scale)]
    return shapes, scale * (lowest + 28)


def _pairs(columns: Columns, *names: str) -> Iterator[tuple]:
    """Return the rows of some columns."""
    return zip(*(columns[name] for name in names), strict=True)


Place = Callable[[float, float], tuple[float, float]]


def _edges(sources: dict[str, Columns], at: Place, scale: float) -> Iterator[Shape]:
    """Yield the curves and arrow heads of edges; ``at`` turns the graph's coordinates into pixels."""
    for name, colour in (("graph_local", palette.NEUTRAL), ("graph_transfers", palette.TRANSFER)):
        columns = sources[name]
        widths = columns.get("width", [1.4] * len(columns["x0"]))
        for x0, y0, x1, y1, cx0, cy0, cx1, cy1, width in zip(
            *(columns[end] for end in ("x0", "y0", "x1", "y1", "cx0", "cy0", "cx1", "cy1")), widths, strict=True
        ):
            yield Curve((at(x0, y0), at(cx0, cy0), at(cx1, cy1), at(x1, y1)), colour, scale * width, bezier=True)
    for name, half, colour in (("graph_heads", 3.5, palette.NEUTRAL), ("graph_arrows", 6.0, palette.TRANSFER)):
        for x, y in _pairs(sources[name], "x", "y"):
            corners = (at(x - half, y - half), at(x + half, y), at(x - half, y + half))
            yield Polygon(corners, colour)


def _boxes(sources: dict[str, Columns], at: Place, scale: float) -> Iterator[Shape]:
    """Yield the boxes of nodes, the tabs below them, and the chips of the legend."""
    columns = sources["graph_nodes"]
    for x, y, width, height, fill, outline in _pairs(columns, "x", "y", "width", "height", "fill", "outline"):
        yield Rect(
            *at(x - width / 2, y - height / 2), scale * width, scale * height, fill, outline, 2 * scale, 5 * scale
        )
    for x, y, width, height in _pairs(sources["graph_needed"], "x", "y", "width", "height"):
        corner, fill, line = at(x - width / 2, y - height / 2), palette.pale(palette.NEEDED), palette.NEEDED
        yield Rect(*corner, scale * width, scale * height, fill, line, scale, 3 * scale)
    for x, y, fill, outline in _pairs(sources["graph_chips"], "x", "y", "fill", "outline"):
        yield Rect(*at(x - 6, y - 6), 12 * scale, 12 * scale, fill, outline, 2 * scale)


def _words(sources: dict[str, Columns], at: Place, scale: float) -> Iterator[Shape]:
    """Yield the text on boxes, tabs and transfers, the titles and the legend."""
    for x, y, name, sub, lift in _pairs(sources["graph_nodes"], "x", "y", "name", "sub", "lift"):
        yield Text(*at(x, y + lift / style.current().factor), name, 11 * scale, palette.INK, "middle")
        yield from _lines(sub, x, y + 7, at, scale)
    for x, y, text in _pairs(sources["graph_needed"], "x", "y", "text"):
        yield from _lines(text, x, y, at, scale)
    for x, y, text in _pairs(sources["graph_labels"], "x", "y", "text"):
        yield Text(*at(x, y), text, 10 * scale, LIGHT["text"], "middle", background=LIGHT["background"])
    for name, size in (("graph_titles", 13), ("graph_legend", 11)):
        for x, y, text in _pairs(sources[name], "x", "y", "text"):
            yield Text(*at(x, y), text, size * scale, LIGHT["text"], bold=name == "graph_titles")


def _lines(text: str, x: float, y: float, at: Place, scale: float) -> Iterator[Shape]:
    """Yield the small lines of a box, centred at ``(x, y)``."""
    lines = text.split("\n") if text else []
    for number, line in enumerate(lines):
        yield Text(*at(x, y + 12 * (number - (len(lines) - 1) / 2)), line, 10 * scale, palette.INK, "middle")


# ---- the timeline


def _timeline(moment: Moment, width: float, top: float, make: type[Timeline] = Timeline) -> tuple[list[Shape], float]:
    """Return the shapes of the timeline below ``top``, and its height in pixels.

    Args:
        moment: what to draw.
        width: width of the page in pixels.
        top: pixels above it.
        make: the view; ``CriticalTimeline`` adds the critical path, ``OpTimeline`` the ops inside launches.
    """
    factor = style.current().factor
    plot = factor * LABELS, width - RIGHT
    view = make(moment.islands, plot[1] - plot[0], moment.island_names)
    sources, span, lane = view.update(moment), view.properties[TIME_RANGE], float(view.lanes.pixels)
    clients = [Swatch(name, colour) for _, name, colour in legend_of(moment.events)]
    guesses = [
        Swatch(palette.GUESSES[name], palette.BOX_EDGE, outline=True, dash=dash)
        for name, dash in palette.DASHES.items()
        if len(sources[f"timeline_{name}"]["left"])
    ]
    shapes, used = legend([guesses, *map(_swatches, KIND_ROWS), clients], top + factor * LINE, width)
    first = top + factor * LINE + used + 4
    bottom = first + view.lanes.bounds[-1] * lane
    frame = Frame(*plot, first, bottom, span["start"], span["end"], lane)
    x, y = frame.x, frame.y
    shapes.append(title(view.properties["timeline_title"]["text"], top, width))
    shapes += frame.time_axis()
    shapes += _tinted(sources["timeline_busy"], x, y, "top")
    shapes += _bars(sources["timeline_boxes"], x, y)
    shapes += _tinted(sources["timeline_boxes"], x, y, "strip") if view.properties["timeline_strips"]["visible"] else ()
    for name, hatch in palette.HATCHES.items():
        for left, right, high, low in _pairs(sources[f"timeline_{name}"], "left", "right", "top", "bottom"):
            shapes.append(Rect(x(left), y(high), x(right) - x(left), y(low) - y(high), hatch=hatch))
    for name, dash in palette.DASHES.items():
        for left, right, high, low in _pairs(sources[f"timeline_{name}"], "left", "right", "top", "bottom"):
            box = x(left), y(high), x(right) - x(left), y(low) - y(high)
            shapes.append(Rect(*box, "", palette.BOX_EDGE, style.current().line, dash=dash))
    shapes += _between_lanes(view, frame)
    for x0, y0, x1, y1 in _pairs(sources[PATH], *ENDS) if PATH in sources else ():
        shapes.append(Curve(((x(x0), y(y0)), (x(x1), y(y1))), LIGHT["text"], WIDTH))
    for time, position, text in _pairs(sources["timeline_marks"], "x", "y", "text"):
        shapes.append(Text(x(time), y(position), text, style.current().font, palette.INK, "middle"))
    shapes += frame.names(view.lanes.labels)
    return shapes, bottom + factor * AXIS - top


def _swatches(kinds: Sequence[palette.EventStyle]) -> list[Swatch]:
    """Return the legend's entries for some kinds of events."""
    return [Swatch(f"{kind.letter} {kind.name}", kind.colour, palette.HATCHES.get(kind.pattern, "")) for kind in kinds]


Along = Callable[[float], float]


def _bars(columns: Columns, x: Along, y: Along) -> Iterator[Shape]:
    """Yield the boxes of events."""
    for left, right, top, bottom, code, edge in _pairs(columns, "left", "right", "top", "bottom", "code", "edge"):
        line = palette.BOX_EDGE if edge == len(palette.KINDS) else ""
        yield Rect(x(left), y(top), _width(left, right, x), y(bottom) - y(top), palette.KINDS[code].colour, line, 0.5)


def _tinted(columns: Columns, x: Along, y: Along, upper: str) -> Iterator[Shape]:
    """Yield boxes in the colours of their clients, whose upper edge is the column ``upper``."""
    for left, right, top, bottom, tint in _pairs(columns, "left", "right", upper, "bottom", "tint"):
        if top < bottom:
            yield Rect(x(left), y(top), _width(left, right, x), y(bottom) - y(top), TINTS[tint])


def _width(left: float, right: float, x: Along) -> float:
    """Return the width of a box in pixels, so wide that it is visible."""
    return max(x(right) - x(left), 0.3)


def _between_lanes(view: Timeline, frame: Frame) -> Iterator[Shape]:
    """Yield the lines between devices, drawn over the boxes of gangs, and the heavier ones between islands."""
    left, right, y = frame.left, frame.right, frame.y
    bounds = view.lanes.bounds[1:-1]
    for top, bottom in pairwise(bounds):
        if not view.lanes.grouped:
            for position in np.arange(top + 1, bottom - 1):
                yield Curve(((left, y(position)), (right, y(position))), LIGHT["background"], 0.6)
    for position in bounds:
        yield Curve(((left, y(position)), (right, y(position))), LIGHT["island"])


_PARTS: dict[str, Callable[[Moment, float, float], tuple[list[Shape], float]]] = {
    "graph": _graph,
    "timeline": _timeline,
    "critical": partial(_timeline, make=CriticalTimeline),
    "ops": partial(_timeline, make=OpTimeline),
    "memory": memory_shapes,
    "categories": partial(memory_shapes, make=CategoryView),
}
