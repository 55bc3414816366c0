"""A plain curve, for instance a loss over steps, in the same widget, theme and colours as every other picture.

A plotting library would be a second set of colours and a second way into saved notebooks. ``pw.sweep`` draws its
results with this; pictures over time are in ``timeline``, two costs in ``tradeoff``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, Legend
from bokeh.plotting import figure

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.plane import MARK, Axes, frame, pixels_of, roles, still
from pathways_widgets.drawing.scene import Curve, Rect, Scene, Text, text_width
from pathways_widgets.figures.live import Figure

_ROLES = roles("curve") | {"curve_legend": {"label_text_color": "text", "background_fill_color": "background"}}


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
    plot = frame("curve", axes, "pan,xwheel_zoom,reset,hover")
    plot.hover.tooltips = [(x, "@word" if axes.names else "@x"), (y, "@y{0.000}")]
    for index, (name, values) in enumerate(series.items()):
        colour, here = palette.place_colour(index), places[: len(values)]
        source = ColumnDataSource({"x": here, "y": list(values), "word": [axes.names.get(place, "") for place in here]})
        plot.line("x", "y", source=source, color=colour, width=2, legend_label=name)
        if at is not None:
            plot.scatter("x", "y", source=source, color=colour, size=MARK)
    _put_above(plot, plot.legend[0])
    # The last values of a curve may be missing.
    ends = {name: next((v for v in reversed(values) if math.isfinite(v)), math.nan) for name, values in series.items()}
    summary = f"last: {', '.join(f'{name} {end:.4g}' for name, end in ends.items())} {y}"
    item = dict(json_item(plot)) | {"summary": summary, "themes": palette.themed(_ROLES)}
    return Figure(item, lambda: _scene(series, axes, places, at is not None), summary=summary)


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


def _put_above(plot: figure, legend: Legend) -> None:
    """Move the legend above the plot, where it covers no values."""
    legend.name, legend.orientation, legend.location = "curve_legend", "horizontal", "top_left"
    legend.spacing, legend.padding, legend.border_line_color = 20, 2, None
    plot.add_layout(legend, "above")


def _scene(series: Mapping[str, Sequence[float]], axes: Axes, places: list[float], marked: bool) -> Scene:
    """Return the same lines as a still picture.

    Args:
        series: values of each line.
        axes: the axes.
        places: positions of the values.
        marked: whether values have marks.
    """
    font, ink = style.current().font, palette.THEMES["light"]["text"]
    scene, at = still(axes), pixels_of(axes)
    along = at(axes.across[0], 0.0)[0]
    for index, (name, numbers) in enumerate(series.items()):
        both = zip(places, numbers, strict=False)  # a curve may be shorter than the longest one
        points = tuple(at(step, value) for step, value in both if math.isfinite(value))
        colour = palette.place_colour(index)
        if marked:
            scene.shapes += [Rect(across - MARK / 2, up - MARK / 2, MARK, MARK, colour) for across, up in points]
        scene.shapes += [Curve(points, colour, 2.0)] if len(points) > 1 else []
        scene.shapes.append(Rect(along, 4, font, font, colour))
        scene.shapes.append(Text(along + 1.5 * font, 4 + font / 2, name, font, ink))
        along += 4 * font + text_width(name, font)
    return scene
