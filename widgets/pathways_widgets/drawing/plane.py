"""Two axes with numbers or names, for a plain picture that is no timeline: as a Bokeh figure and as a still one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bokeh.models import FixedTicker, Range1d
from bokeh.plotting import figure

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Scene, Text
from pathways_widgets.drawing.time_axis import round_steps
from pathways_widgets.drawing.views import FULL_WIDTH

MARK = 6
"""Pixels of the mark of a value."""
_AXIS = {
    "major_label_text_color": "text",
    "axis_label_text_color": "text",
    "axis_line_color": "lane",
    "major_tick_line_color": "lane",
    "minor_tick_line_color": "lane",
}


class Axes(NamedTuple):
    """What the axes say and their ranges; what places on the x axis are called; pixels of the picture's height; and
    whether x counts something, so that there are no ticks between whole numbers.
    """

    x: str
    y: str
    across: tuple[float, float]
    up: tuple[float, float]
    names: dict[float, str]
    height: float = 240.0
    whole: bool = False


def roles(name: str) -> dict[str, dict[str, str]]:
    """The colours of the parts of ``frame(name, …)``."""
    grid = {"grid_line_color": "grid"}
    return {f"{name}_x": _AXIS, f"{name}_y": _AXIS, f"{name}_grid_x": grid, f"{name}_grid_y": grid}


def frame(name: str, axes: Axes, tools: str) -> figure:
    """An empty figure with these axes; its parts are ``name_x``, ``name_y``, ``name_grid_x`` and ``name_grid_y``."""
    plot = figure(
        name=name,
        height=int(axes.height),
        sizing_mode="stretch_width",
        x_range=Range1d(*axes.across),
        y_range=Range1d(*axes.up),
        x_axis_label=axes.x,
        y_axis_label=axes.y,
        tools=tools,
        background_fill_color=None,
        border_fill_color=None,
    )
    plot.toolbar.logo, plot.toolbar.autohide, plot.outline_line_color = None, True, None
    plot.xaxis[0].name, plot.yaxis[0].name = f"{name}_x", f"{name}_y"
    plot.xgrid[0].name, plot.ygrid[0].name = f"{name}_grid_x", f"{name}_grid_y"
    if axes.whole:
        plot.xaxis[0].ticker.min_interval, plot.xaxis[0].ticker.num_minor_ticks = 1, 0
    if axes.names:
        plot.xaxis[0].ticker, plot.xaxis[0].major_label_overrides = FixedTicker(ticks=list(axes.names)), axes.names
    return plot


Place = Callable[[float, float], tuple[float, float]]
"""Pixels of two values."""


def pixels_of(axes: Axes) -> Place:
    """Where values lie in a still picture."""
    font = style.now().font
    left, top, bottom = 6 * font, 2 * font, 4 * font
    (first, last), (low, high) = axes.across, axes.up

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) * (FULL_WIDTH - left - font)
        return left + across, axes.height - bottom - (y - low) / (high - low) * (axes.height - top - bottom)

    return at


def still(axes: Axes) -> Scene:
    """The same axes for where no scripts run."""
    font, ink, grid = style.now().font, palette.THEMES["light"]["text"], palette.THEMES["light"]["grid"]
    scene, at = Scene(FULL_WIDTH, axes.height, palette.THEMES["light"]["background"]), pixels_of(axes)
    (first, last), (low, high) = axes.across, axes.up
    for step in axes.names or round_steps(first, last, 10, least=1.0 if axes.whole else 0.0):
        x, y = at(step, low)
        scene.shapes.append(Text(x, y + font, axes.names.get(step, f"{step:g}"), font, ink, "middle"))
    for value in round_steps(low, high, 5):
        left, y = at(first, value)
        scene.shapes.append(Curve(((left, y), at(last, value)), grid))
        scene.shapes.append(Text(left - 6, y, f"{value:.6g}", font, ink, "end"))
    scene.shapes.append(Text(at(first, low)[0], axes.height - font, f"{axes.y} over {axes.x}", font, ink))
    return scene
