"""A plain curve, for instance a loss over steps, in the same widget, theme and colours as every other picture.

A plotting library would be a second set of colours and a second way into saved notebooks. ``pw.sweep`` draws its
results with this; pictures over time are in ``timeline``, two costs in ``tradeoff``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, LegendItem

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.legends import add_legend
from pathways_widgets.drawing.line_marks import PathMark
from pathways_widgets.drawing.picture_marks import PictureMark, draw, shapes_of
from pathways_widgets.drawing.plane import MARK, Axes, frame, roles, still, still_place
from pathways_widgets.drawing.point_marks import DotMark
from pathways_widgets.drawing.scene import Rect, Scene, Text
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.views import Columns
from pathways_widgets.figures.live import Figure

_ROLES = roles("curve")


def curve(
    series: Mapping[str, Sequence[float]], x: str, y: str, at: Sequence[float] | Sequence[str] | None = None
) -> Figure:
    """Return a figure of lines over 0, 1, 2, … or over given positions, which are marked.

    Args:
        series: values of each line by its name in the legend; at least one line, none empty; NaN for a missing value.
        x: title of the horizontal axis, with its unit.
        y: title of the vertical axis, with its unit.
        at: positions of the values, rising; or names, which are placed side by side; ``None`` for 0, 1, 2, …
    """
    axes, places = _axes(series, x, y, at)
    sources: dict[str, Columns] = {
        name: {
            "x": places[: len(values)],
            "y": list(values),
            "word": [axes.names.get(one, "") for one in places[: len(values)]],
        }
        for name, values in series.items()
    }
    colours = {name: palette.place_colour(index) for index, name in enumerate(series)}
    lines = {name: PathMark(source=name, line=colour, line_width=2.0) for name, colour in colours.items()}
    dots = [DotMark(source=name, size=MARK, fill=colour, line=colour) for name, colour in colours.items()]
    marks = [*lines.values(), *(dots if at is not None else ())]
    plot = frame("curve", axes, "pan,xwheel_zoom,reset,hover")
    plot.hover.tooltips = [(x, "@word" if axes.names else "@x"), (y, "@y{0.000}")]
    drawn = draw(plot, marks, {name: ColumnDataSource(columns) for name, columns in sources.items()}, style.current())
    items = [LegendItem(label={"value": name}, renderers=[drawn[line]]) for name, line in lines.items()]
    add_legend(plot, "curve_legend", items, style.current())
    # The last values of a curve may be missing.
    ends = {name: next((v for v in reversed(values) if math.isfinite(v)), math.nan) for name, values in series.items()}
    summary = f"last: {', '.join(f'{name} {end:.4g}' for name, end in ends.items())} {y}"
    item = dict(json_item(plot)) | {"summary": summary, "themes": palette.themed(_ROLES)}
    return Figure(item, lambda: _scene(marks, sources, colours, axes), summary=summary)


def _axes(
    series: Mapping[str, Sequence[float]], x: str, y: str, at: Sequence[float] | Sequence[str] | None
) -> tuple[Axes, list[float]]:
    """Return the axes, and the positions of the values.

    Args:
        series: values of each line.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        at: positions, names, or ``None``.
    """
    finite = [value for values in series.values() for value in values if math.isfinite(value)]
    # The axis shows 0 and has a length, even if all values are 0 or missing.
    up = 1.08 * min([0.0, *finite]), 1.08 * max([0.0, *finite]) or 1.0
    if at is None:
        longest = max(map(len, series.values()))
        return Axes(x, y, (0.0, max(longest - 1, 1.0)), up, {}, whole=True), [float(step) for step in range(longest)]
    has_names, whole = any(isinstance(place, str) for place in at), all(isinstance(place, Integral) for place in at)
    places = [float(place) for place in (range(len(at)) if has_names else at)]
    names = {place: str(name) for place, name in zip(places, at, strict=True)} if has_names else {}
    # Marks at both ends stay inside the plot; a single value has half a unit on both sides.
    margin = 0.03 * (places[-1] - places[0]) or 0.5
    return Axes(x, y, (places[0] - margin, places[-1] + margin), up, names, whole=whole), places


def _scene(
    marks: Sequence[PictureMark], sources: Mapping[str, Columns], colours: Mapping[str, str], axes: Axes
) -> Scene:
    """Return the same lines as a still picture.

    Args:
        marks: what is drawn.
        sources: the columns of each line.
        colours: of each line, by its name in the legend.
        axes: the axes.
    """
    font, ink = style.current().font, palette.THEMES["light"]["text"]
    scene, place = still(axes), still_place(axes)
    scene.shapes += shapes_of(marks, sources, place)
    along = place.left
    for name, colour in colours.items():
        scene.shapes.append(Rect(along, 4, font, font, colour))
        scene.shapes.append(Text(along + 1.5 * font, 4 + font / 2, name, font, ink))
        along += 4 * font + text_width(name, font)
    return scene
