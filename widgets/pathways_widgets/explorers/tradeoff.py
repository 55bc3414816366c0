"""Two costs of several candidates, each a labelled point; the lower and the further left, the better.

The stairs join the best candidates: no other one is as good in both costs and better in one (the Pareto front). A point
above and to the right of the stairs costs more than it has to. Labels are placed so that they cover no mark, not the
stairs, and no other label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.line_marks import PathMark
from pathways_widgets.drawing.picture_marks import Column, Role, draw, shapes_of, theme_roles
from pathways_widgets.drawing.plane import MARK, Axes, frame, roles, still, still_place
from pathways_widgets.drawing.point_marks import DotMark, TextMark
from pathways_widgets.drawing.scene import Align, Scene
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.views import Columns
from pathways_widgets.figures.live import Figure

Point = tuple[float, float]
Box = tuple[float, float, float, float]

_NAME, _HEIGHT, _ROOM = "tradeoff", 360.0, 1.12
"""Name of the figure; its height in pixels; and the length of an axis relative to the largest value on it."""
_BEST, _OTHER = palette.VERMILION, palette.SKY
_MARK, _GAP = 1.5 * MARK, 4.0
"""Pixels of a mark, and of the gap between a mark and its label."""
_BOKEH: dict[Align, str] = {"start": "left", "middle": "center", "end": "right"}
_DOTS = DotMark(source="points", shape="circle", size=_MARK, fill=Column("colour"), line=Column("colour"))
_MARKS = (
    PathMark(source="stairs", line=_BEST, line_width=1.5, dash=(5, 3)),
    _DOTS,
    TextMark(source="points", name=f"{_NAME}_label", text_colour=Role("text"), align=Column("align"),
             shift=Column("right"), lift=Column("down")),
)  # fmt: skip
_ROLES = roles(_NAME) | theme_roles(_MARKS)


class PointLabel(NamedTuple):
    """A label next to its point.

    Args:
        name: the text.
        point: both costs.
        right: pixels to the right of the point; negative is left.
        down: pixels below the point; negative is above.
        align: which end of the text is at that position.
    """

    name: str
    point: Point
    right: float
    down: float
    align: Align


def tradeoff(points: Mapping[str, Point], x: str, y: str) -> Figure:
    """Return a figure of two costs of several candidates.

    Args:
        points: both costs by name, at least one; candidates with equal costs share a label.
        x: title of the horizontal axis, with its unit.
        y: title of the vertical axis, with its unit.
    """
    across, up = (_ROOM * max(costs) or 1.0 for costs in zip(*points.values(), strict=True))
    axes = Axes(x, y, (0.0, across), (0.0, up), {}, _HEIGHT)
    best, labels = front(points.values()), labels_of(points, axes)
    sources = _sources(labels, best, stairs(best, axes))
    plot = frame(_NAME, axes, "pan,box_zoom,reset,hover")
    drawn = draw(plot, _MARKS, {name: ColumnDataSource(columns) for name, columns in sources.items()}, style.current())
    plot.hover.renderers = [drawn[_DOTS]]
    plot.hover.tooltips = [("", "@text"), (x, "@x"), (y, "@y{0.0000}")]
    names = {one.point: one.name for one in labels}
    summary = f"best: {'; '.join(f'{names[point]} ({point[0]:.4g}, {point[1]:.4g})' for point in best)}"
    item = dict(json_item(plot)) | {"summary": summary, "themes": palette.themed(_ROLES)}
    return Figure(item, lambda: _scene(sources, axes), summary=summary)


def front(points: Iterable[Point]) -> list[Point]:
    """Return the best points, by the first cost: no other one is as good in both costs and better in one."""
    best: list[Point] = []
    # By the first cost, then by the second: a point is dominated by one before it unless its second cost is lower.
    for point in sorted(set(points)):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def stairs(best: Sequence[Point], axes: Axes) -> list[Point]:
    """Return the line below and left of which there is no point, from the top to the right edge of the picture."""
    corners = [(best[0][0], axes.up[1])]
    for (x, y), (after, _) in zip(best, [*best[1:], (axes.across[1], 0.0)], strict=True):
        corners += [(x, y), (after, y)]
    return corners


def labels_of(points: Mapping[str, Point], axes: Axes) -> list[PointLabel]:
    """Return labels next to their points, placed where they cover no mark, not the stairs, and no other label.

    A label for which no such position exists takes its first choice.

    Args:
        points: both costs by name.
        axes: the axes.
    """
    place, names = still_place(axes), dict[Point, list[str]]()

    def at(x: float, y: float) -> Point:
        return place.x(x), place.y(y)

    for name, point in points.items():
        names.setdefault(point, []).append(name)
    corners = [at(*corner) for corner in stairs(front(points.values()), axes)]
    # (boxes,) in pixels: what a label must not cover.
    taken = [_grown(*ends, by=1.0) for ends in pairwise(corners)]
    taken += [_grown(at(*point), at(*point), by=_MARK / 2) for point in names]
    labels = []
    for point, same in sorted(names.items(), reverse=True):  # those on the left may move further left
        choices = [(label, _box(label, at(*point))) for label in _around(", ".join(same), point)]
        free = (choice for choice in choices if not any(_meet(choice[1], other) for other in taken))
        label, box = next(free, choices[0])
        labels.append(label)
        taken.append(box)
    return labels


def _grown(one: Point, other: Point, by: float) -> Box:
    """Return the box around a straight line, or a point, with some pixels more on each side."""
    (left, right), (top, bottom) = (sorted(ends) for ends in zip(one, other, strict=True))
    return left - by, top - by, right + by, bottom + by


def _around(name: str, point: Point) -> Iterator[PointLabel]:
    """Yield positions of a label around its point, the best first."""
    right, above = _MARK / 2 + _GAP, _MARK / 2 + _GAP + style.current().font / 2
    yield PointLabel(name, point, right, 0.0, "start")
    yield PointLabel(name, point, -right, 0.0, "end")
    for down in (-above, above):
        yield PointLabel(name, point, 0.0, down, "middle")
    for down in (-above, above):
        yield PointLabel(name, point, right, down, "start")
        yield PointLabel(name, point, -right, down, "end")


def _box(label: PointLabel, at: Point) -> Box:
    """Return the box in pixels that a label covers."""
    font = style.current().font
    width, x, y = text_width(label.name, font), at[0] + label.right, at[1] + label.down
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[label.align]
    return left, y - font / 2, left + width, y + font / 2


def _meet(one: Box, other: Box) -> bool:
    """Return whether two boxes overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _colour(label: PointLabel, best: Sequence[Point]) -> str:
    """Return the colour of a point: one for the best, one for all others."""
    return _BEST if label.point in best else _OTHER


def _sources(labels: Sequence[PointLabel], best: Sequence[Point], line: Sequence[Point]) -> dict[str, Columns]:
    """Return the columns of the stairs and of the points with their labels."""
    return {
        "stairs": {"x": [x for x, _ in line], "y": [y for _, y in line]},
        "points": {
            "text": [one.name for one in labels],
            "x": [one.point[0] for one in labels],
            "y": [one.point[1] for one in labels],
            "right": [one.right for one in labels],
            "down": [one.down for one in labels],
            "align": [_BOKEH[one.align] for one in labels],
            "colour": [_colour(one, best) for one in labels],
        },
    }


def _scene(sources: Mapping[str, Columns], axes: Axes) -> Scene:
    """Return the same as a still picture."""
    scene = still(axes)
    scene.shapes += shapes_of(_MARKS, sources, still_place(axes))
    return scene
