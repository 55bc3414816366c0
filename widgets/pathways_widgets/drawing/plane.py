"""Two axes with numbers or names, for curves and trade-offs: as a Bokeh figure and as a still picture.

Both forms are made from one ``Axes``, so that they have the same ranges and words. Pictures over time use
``time_axis`` and ``still_frame`` instead.
"""

from __future__ import annotations

from typing import NamedTuple

from bokeh.models import FixedTicker, Range1d
from bokeh.plotting import figure

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Scene, Text
from pathways_widgets.drawing.still_frame import Frame
from pathways_widgets.drawing.time_axis import round_steps
from pathways_widgets.drawing.views import FULL_WIDTH

MARK = 6
"""Size in pixels of the mark of a value."""
_AXIS = {
    "major_label_text_color": "text",
    "axis_label_text_color": "text",
    "axis_line_color": "lane",
    "major_tick_line_color": "lane",
    "minor_tick_line_color": "lane",
}


class Axes(NamedTuple):
    """The axes of a picture.

    Args:
        x: title of the horizontal axis.
        y: title of the vertical axis.
        across: range of the horizontal axis.
        up: range of the vertical axis.
        names: names of positions on the horizontal axis; empty for numbers.
        height: height of the picture in pixels.
        whole: whether x counts something, so that there are no ticks between whole numbers.
    """

    x: str
    y: str
    across: tuple[float, float]
    up: tuple[float, float]
    names: dict[float, str]
    height: float = 240.0
    whole: bool = False


def roles(name: str) -> dict[str, dict[str, str]]:
    """Return the roles of colours of the parts of ``frame(name, …)``."""
    grid = {"grid_line_color": "grid"}
    return {f"{name}_x": _AXIS, f"{name}_y": _AXIS, f"{name}_grid_x": grid, f"{name}_grid_y": grid}


def frame(name: str, axes: Axes, tools: str) -> figure:
    """Return an empty figure; its parts are named ``name_x``, ``name_y``, ``name_grid_x`` and ``name_grid_y``.

    Args:
        name: name of the figure.
        axes: its axes.
        tools: Bokeh's tools, separated by commas.
    """
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
        # Bokeh would place ticks between whole numbers, and there is nothing between two steps.
        plot.xaxis[0].ticker.min_interval, plot.xaxis[0].ticker.num_minor_ticks = 1, 0
    if axes.names:
        plot.xaxis[0].ticker, plot.xaxis[0].major_label_overrides = FixedTicker(ticks=list(axes.names)), axes.names
    return plot


def still_place(axes: Axes) -> Frame:
    """Return where the plot is in a still picture."""
    font = style.current().font
    # Room for the numbers at the left and for numbers and titles below, which grow with the text.
    return Frame(6 * font, FULL_WIDTH - font, 2 * font, axes.height - 4 * font, axes.across, axes.up)


def still(axes: Axes) -> Scene:
    """Return the same axes as a still picture, for viewers without scripts."""
    font, ink, grid = style.current().font, palette.THEMES["light"]["text"], palette.THEMES["light"]["grid"]
    scene, place = Scene(FULL_WIDTH, axes.height, palette.THEMES["light"]["background"]), still_place(axes)
    (first, last), (low, high) = axes.across, axes.up
    for step in axes.names or round_steps(first, last, 10, least=1.0 if axes.whole else 0.0):
        x, y = place.x(step), place.bottom
        scene.shapes.append(Text(x, y + font, axes.names.get(step, f"{step:g}"), font, ink, "middle"))
    for value in round_steps(low, high, 5):
        y = place.y(value)
        scene.shapes.append(Curve(((place.left, y), (place.right, y)), grid))
        scene.shapes.append(Text(place.left - 6, y, f"{value:.6g}", font, ink, "end"))
    scene.shapes.append(Text(place.left, axes.height - font, f"{axes.y} over {axes.x}", font, ink))
    return scene
