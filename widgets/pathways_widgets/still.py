"""Graph and timeline as a scene: the same columns that Bokeh draws, placed on a page without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from pathways_widgets import palette, style
from pathways_widgets.graph import GraphView
from pathways_widgets.panel import DEFAULT_SHOW, check_show
from pathways_widgets.scene import Curve, Polygon, Rect, Scene, Shape, Text, length_parts
from pathways_widgets.timeline import Timeline
from pathways_widgets.views import FULL_WIDTH, Columns, Moment, RunLike

NARROWEST, WIDEST = 200.0, 10_000.0
LABELS = 104.0
"""Pixels left of the time axis, for the names of lanes."""
_RIGHT, _AXIS, _LEGEND_ROW, _LINE = 12.0, 26.0, 16.0, 18.0
_LIGHT = palette.THEMES["light"]


def scene_of(run: RunLike, show: Sequence[str] = DEFAULT_SHOW, width: float = FULL_WIDTH) -> Scene:
    """The views named in ``show`` of ``run`` below one another, ``width`` pixels wide, with legends and the summary."""
    moment = Moment.of(run)
    scene = Scene(width, 0.0, _LIGHT["background"])
    for name in check_show(show):
        shapes, height = _PARTS[name](moment, width, scene.height)
        scene.shapes += shapes
        scene.height += height
    font, factor = style.now().font, style.now().factor
    for line in _wrapped(moment.summary_line(), int(width / (0.5 * font))):
        scene.shapes.append(Text(12, scene.height + factor * _LINE / 2, line, font, _LIGHT["soft"]))
        scene.height += factor * _LINE
    scene.height += 4
    return scene


def write(run: RunLike, path: str | Path, width: str | float = FULL_WIDTH, show: Sequence[str] = DEFAULT_SHOW) -> None:
    """Write a picture of ``run``: SVG or PNG, by the end of ``path``.

    Args:
        run: what to draw. path: of the file.
        width: pixels, or a length such as ``"3.3in"``, ``"8cm"``, ``"500px"`` or ``"240pt"``.
        show: the views in it.

    Raises:
        ValueError: the file's ending or the length is unknown.
    """
    pixels, kind = _pixels(width), Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise ValueError(f"savefig({str(path)!r}): the ending must be .svg or .png, not {kind!r}.")
    scene = scene_of(run, show, pixels)
    if kind == ".svg":
        Path(path).write_text(scene.svg(width if isinstance(width, str) else ""), "utf-8")
    else:
        Path(path).write_bytes(scene.png(300 / 96 if isinstance(width, str) else 2.0))  # 300 dots per inch on paper


def _pixels(width: str | float) -> float:
    """A width in pixels.

    Raises:
        ValueError: not a length, or one that no picture has.
    """
    pixels = _in_pixels(width)
    if not NARROWEST <= pixels <= WIDEST:
        raise ValueError(f"savefig(width={width!r}): a picture is {NARROWEST:g} to {WIDEST:g} pixels wide (1in is 96).")
    return pixels


def _in_pixels(width: str | float) -> float:
    if not isinstance(width, str):
        return float(width)
    number, unit = length_parts(width)
    return number * {"px": 1.0, "in": 96.0, "cm": 96 / 2.54, "mm": 9.6 / 2.54, "pt": 96 / 72}[unit]


def _wrapped(text: str, most: int) -> Iterator[str]:
    line = ""
    for part in text.split(" · "):
        if line and len(line) + len(part) + 3 > most:
            yield line
            line = ""
        line = f"{line} · {part}" if line else part
    yield line


# ---- the graph


def _graph(moment: Moment, width: float, top: float) -> tuple[list[Shape], float]:
    view = GraphView(page=width)
    sources = view.update(moment)
    natural = float(view.properties["graph_x"]["end"]) if view.properties else FULL_WIDTH
    lowest = max((y + height / 2 for y, height in _pairs(sources["graph_nodes"], "y", "height")), default=0.0)
    scale = min(width / natural, view.style.factor)

    def at(x: float, y: float) -> tuple[float, float]:
        return scale * x, top + scale * y

    shapes = [*_edges(sources, at, scale), *_boxes(sources, at, scale), *_words(sources, at, scale)]
    return shapes, scale * (lowest + 28)


def _pairs(columns: Columns, *names: str) -> Iterator[tuple]:
    return zip(*(columns[name] for name in names), strict=True)


Place = Callable[[float, float], tuple[float, float]]


def _edges(sources: dict[str, Columns], at: Place, scale: float) -> Iterator[Shape]:
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
    columns = sources["graph_nodes"]
    for x, y, width, height, fill, outline in _pairs(columns, "x", "y", "width", "height", "fill", "outline"):
        yield Rect(
            *at(x - width / 2, y - height / 2), scale * width, scale * height, fill, outline, 2 * scale, 5 * scale
        )
    for x, y, fill, outline in _pairs(sources["graph_chips"], "x", "y", "fill", "outline"):
        yield Rect(*at(x - 6, y - 6), 12 * scale, 12 * scale, fill, outline, 2 * scale)


def _words(sources: dict[str, Columns], at: Place, scale: float) -> Iterator[Shape]:
    for x, y, name, sub, lift in _pairs(sources["graph_nodes"], "x", "y", "name", "sub", "lift"):
        yield Text(*at(x, y + lift / style.now().factor), name, 11 * scale, palette.INK, "middle")
        lines = sub.split("\n") if sub else []
        for number, line in enumerate(lines):
            yield Text(*at(x, y + 7 + 12 * (number - (len(lines) - 1) / 2)), line, 10 * scale, palette.INK, "middle")
    for x, y, text in _pairs(sources["graph_labels"], "x", "y", "text"):
        yield Text(*at(x, y), text, 10 * scale, _LIGHT["text"], "middle", background=_LIGHT["background"])
    for name, size in (("graph_titles", 13), ("graph_legend", 11)):
        for x, y, text in _pairs(sources[name], "x", "y", "text"):
            yield Text(*at(x, y), text, size * scale, _LIGHT["text"], bold=name == "graph_titles")


# ---- the timeline


def _timeline(moment: Moment, width: float, top: float) -> tuple[list[Shape], float]:
    font, factor, lines = style.now().font, style.now().factor, style.now().line
    labels = factor * LABELS
    plot = width - labels - _RIGHT
    view = Timeline(moment.islands, plot, moment.island_names)
    sources = view.update(moment)
    begin, end = (float(view.properties["timeline_x"][side]) for side in ("start", "end"))
    legend, legend_height = _legend(top + factor * _LINE, width)
    head = factor * _LINE + legend_height + 4
    lane = float(view.lanes.pixels)
    bottom = top + head + view.lanes.bounds[-1] * lane

    def x(time: float) -> float:
        return labels + (time - begin) / (end - begin) * plot

    def y(position: float) -> float:
        return top + head + position * lane

    title = view.properties["timeline_title"]["text"]
    shapes: list[Shape] = [Text(width - _RIGHT, top + factor * _LINE / 2, title, font, _LIGHT["soft"], "end")]
    shapes += legend
    for tick, text in _ticks(max(begin, 0.0), end, max(int(plot / (90 * factor)), 3)):
        shapes.append(Curve(((x(tick), y(0)), (x(tick), bottom)), _LIGHT["grid"], lines))
        shapes.append(Text(x(tick), bottom + factor * _AXIS / 2, text, font, _LIGHT["text"], "middle"))
    for source, fill in (("timeline_busy", palette.NEUTRAL), ("timeline_boxes", "")):
        shapes += _bars(sources[source], x, y, fill)
    for name, hatch in palette.HATCHES.items():
        for left, right, high, low in _pairs(sources[f"timeline_{name}"], "left", "right", "top", "bottom"):
            shapes.append(Rect(x(left), y(high), x(right) - x(left), y(low) - y(high), hatch=hatch))
    shapes += _between_lanes(view, x(begin), width - _RIGHT, y)
    for time, position, text in _pairs(sources["timeline_marks"], "x", "y", "text"):
        shapes.append(Text(x(time), y(position), text, font, palette.INK, "middle"))
    for position, text in view.lanes.labels.items():
        shapes.append(Text(labels - 8, y(position), text, font, _LIGHT["text"], "end"))
    return shapes, bottom + factor * _AXIS - top


def _legend(top: float, width: float) -> tuple[list[Shape], float]:
    """Two rows of kinds, more where the picture is narrow, and the height of all."""
    shapes: list[Shape] = []
    font, factor = style.now().font, style.now().factor
    y, row = top, factor * _LEGEND_ROW
    for kinds in (palette.DEVICE_KINDS, palette.CONTROLLER_KINDS):
        x = factor * LABELS
        for kind in kinds:
            text = f"{kind.letter} {kind.name}"
            needed = 15 * factor + 0.55 * font * len(text)
            if x > factor * LABELS and x + needed > width:
                x, y = factor * LABELS, y + row
            hatch = palette.HATCHES.get(kind.pattern, "")
            shapes.append(Rect(x, y + row / 2 - 5 * factor, 10 * factor, 10 * factor, kind.colour, hatch=hatch))
            shapes.append(Text(x + 15 * factor, y + row / 2, text, font, _LIGHT["text"]))
            x += needed + 12 * factor
        y += row
    return shapes, y - top


def _bars(columns: Columns, x: Callable[[float], float], y: Callable[[float], float], fill: str) -> Iterator[Shape]:
    nothing = np.zeros(len(columns["left"]), int)
    codes, edges = columns.get("code", nothing), columns.get("edge", nothing)
    for left, right, top, bottom, code, edge in zip(
        *(columns[side] for side in ("left", "right", "top", "bottom")), codes, edges, strict=True
    ):
        colour = fill or palette.KINDS[code].colour
        line = palette.BOX_EDGE if edge == len(palette.KINDS) else ""
        yield Rect(x(left), y(top), max(x(right) - x(left), 0.3), y(bottom) - y(top), colour, line, 0.5)


def _between_lanes(view: Timeline, left: float, right: float, y: Callable[[float], float]) -> Iterator[Shape]:
    bounds = view.lanes.bounds[1:-1]
    for top, bottom in pairwise(bounds):
        if not view.lanes.grouped:
            for position in np.arange(top + 1, bottom - 1):
                yield Curve(((left, y(position)), (right, y(position))), _LIGHT["background"], 0.6)
    for position in bounds:
        yield Curve(((left, y(position)), (right, y(position))), _LIGHT["island"])


def round_steps(begin: float, end: float, most: int) -> list[float]:
    """The multiples of a round number from ``begin`` to ``end``: at most about ``most``."""
    rough = max(end - begin, 1e-12) / max(most, 1)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [number * step for number in range(int(np.ceil(begin / step)), int(np.floor(end / step)) + 1)]


def _ticks(begin: float, end: float, most: int) -> Iterator[tuple[float, str]]:
    """Round times and their words, at most about ``most``."""
    times = round_steps(begin, end, most)
    step = times[1] - times[0] if len(times) > 1 else end - begin
    unit, scale = ("s", 1.0) if step >= 2 else ("ms", 1e3) if step >= 2e-3 else ("µs", 1e6)
    if step >= 0.2:
        unit, scale = "s", 1.0
    for time in times:
        yield time, f"{time * scale:.6g} {unit}"


_PARTS: dict[str, Callable[[Moment, float, float], tuple[list[Shape], float]]] = {
    "graph": _graph,
    "timeline": _timeline,
}
