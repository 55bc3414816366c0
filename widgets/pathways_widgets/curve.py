"""A plain curve, a loss over steps for instance, in the same widget, theme and colours as everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, FixedTicker, Legend, Range1d
from bokeh.plotting import figure

from pathways_widgets import palette, style
from pathways_widgets.live import Figure
from pathways_widgets.scene import Curve, Rect, Scene, Text, text_width
from pathways_widgets.time_axis import round_steps
from pathways_widgets.views import FULL_WIDTH

_AXIS = {
    "major_label_text_color": "text",
    "axis_label_text_color": "text",
    "axis_line_color": "lane",
    "major_tick_line_color": "lane",
    "minor_tick_line_color": "lane",
}
_MARK = 6
"""Pixels of the mark of a value."""
_ROLES = {
    "curve_x": _AXIS,
    "curve_y": _AXIS,
    "curve_grid_x": {"grid_line_color": "grid"},
    "curve_grid_y": {"grid_line_color": "grid"},
    "curve_legend": {"label_text_color": "text", "background_fill_color": "background"},
}


class Axes(NamedTuple):
    """What the axes say and their ranges; where values lie, what these places are called, and whether it is marked."""

    x: str
    y: str
    across: tuple[float, float]
    up: tuple[float, float]
    places: list[float]
    names: dict[float, str]
    marked: bool


def curve(
    series: Mapping[str, Sequence[float]], x: str, y: str, at: Sequence[float] | Sequence[str] | None = None
) -> Figure:
    """Lines over 0, 1, 2, … or over places of your own, which are marked.

    Args:
        series: values by the name in the legend; at least one, none empty; NaN where there is none.
        x, y: what the axes say, units included.
        at: where the values lie, rising, or their names, which lie side by side.
    """
    axes = _axes(series, x, y, at)
    plot = _frame(axes)
    for index, (name, values) in enumerate(series.items()):
        colour, here = palette.place_colour(index), axes.places[: len(values)]
        source = ColumnDataSource({"x": here, "y": list(values), "word": [axes.names.get(place, "") for place in here]})
        plot.line("x", "y", source=source, color=colour, width=2, legend_label=name)
        if axes.marked:
            plot.scatter("x", "y", source=source, color=colour, size=_MARK)
    _put_above(plot, plot.legend[0])
    ends = {name: next((v for v in reversed(values) if math.isfinite(v)), math.nan) for name, values in series.items()}
    summary = f"last: {', '.join(f'{name} {end:.4g}' for name, end in ends.items())} {y}"
    item = dict(json_item(plot)) | {"summary": summary, "themes": palette.themed(_ROLES)}
    return Figure(item, lambda: _scene(series, axes), summary=summary)


def _axes(series: Mapping[str, Sequence[float]], x: str, y: str, at: Sequence[float] | Sequence[str] | None) -> Axes:
    finite = [value for values in series.values() for value in values if math.isfinite(value)]
    up = 1.08 * min([0.0, *finite]), 1.08 * max([0.0, *finite]) or 1.0
    if at is None:
        longest = max(map(len, series.values()))
        return Axes(x, y, (0.0, max(longest - 1, 1.0)), up, [float(step) for step in range(longest)], {}, False)
    named = any(isinstance(place, str) for place in at)
    places = [float(place) for place in (range(len(at)) if named else at)]
    names = {place: str(name) for place, name in zip(places, at, strict=True)} if named else {}
    margin = 0.03 * (places[-1] - places[0]) or 0.5
    return Axes(x, y, (places[0] - margin, places[-1] + margin), up, places, names, True)


def _frame(axes: Axes) -> figure:
    plot = figure(
        name="curve",
        height=240,
        sizing_mode="stretch_width",
        x_range=Range1d(*axes.across),
        y_range=Range1d(*axes.up),
        x_axis_label=axes.x,
        y_axis_label=axes.y,
        tools="pan,xwheel_zoom,reset,hover",
        tooltips=[(axes.x, "@word" if axes.names else "@x"), (axes.y, "@y{0.000}")],
        background_fill_color=None,
        border_fill_color=None,
    )
    plot.toolbar.logo, plot.toolbar.autohide, plot.outline_line_color = None, True, None
    plot.xaxis[0].name, plot.yaxis[0].name = "curve_x", "curve_y"
    plot.xgrid[0].name, plot.ygrid[0].name = "curve_grid_x", "curve_grid_y"
    if axes.names:
        plot.xaxis[0].ticker, plot.xaxis[0].major_label_overrides = FixedTicker(ticks=list(axes.names)), axes.names
    return plot


def _put_above(plot: figure, legend: Legend) -> None:
    """Within the plot it would cover what is there."""
    legend.name, legend.orientation, legend.location = "curve_legend", "horizontal", "top_left"
    legend.spacing, legend.padding, legend.border_line_color = 20, 2, None
    plot.add_layout(legend, "above")


def _scene(series: Mapping[str, Sequence[float]], axes: Axes) -> Scene:
    """The same lines for where no scripts run."""
    font, ink, grid = style.now().font, palette.THEMES["light"]["text"], palette.THEMES["light"]["grid"]
    width, height, left, top, bottom = FULL_WIDTH, 240.0, 6 * font, 2 * font, 4 * font
    scene = Scene(width, height, palette.THEMES["light"]["background"])
    (first, last), (low, high) = axes.across, axes.up

    def at(step: float, value: float) -> tuple[float, float]:
        across = (step - first) / (last - first) * (width - left - font)
        return left + across, height - bottom - (value - low) / (high - low) * (height - top - bottom)

    for step in axes.names or round_steps(first, last, 10):
        word = axes.names.get(step, f"{step:g}")
        scene.shapes.append(Text(at(step, low)[0], height - bottom + font, word, font, ink, "middle"))
    for value in round_steps(low, high, 5):
        scene.shapes.append(Curve((at(first, value), at(last, value)), grid))
        scene.shapes.append(Text(left - 6, at(first, value)[1], f"{value:.6g}", font, ink, "end"))
    along = left
    for index, (name, numbers) in enumerate(series.items()):
        both = zip(axes.places, numbers, strict=False)
        points = tuple(at(step, value) for step, value in both if math.isfinite(value))
        colour = palette.place_colour(index)
        if axes.marked:
            scene.shapes += [Rect(across - _MARK / 2, up - _MARK / 2, _MARK, _MARK, colour) for across, up in points]
        scene.shapes += [Curve(points, colour, 2.0)] if len(points) > 1 else []
        scene.shapes.append(Rect(along, 4, font, font, colour))
        scene.shapes.append(Text(along + 1.5 * font, 4 + font / 2, name, font, ink))
        along += 4 * font + text_width(name, font)
    scene.shapes.append(Text(left, height - font, f"{axes.y} over {axes.x}", font, ink))
    return scene
