"""A plain curve, a loss over steps for instance, in the same widget, theme and colours as everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bokeh.embed import json_item
from bokeh.models import Range1d
from bokeh.plotting import figure

from pathways_widgets import palette, style
from pathways_widgets.live import Figure
from pathways_widgets.scene import Curve, Rect, Scene, Text
from pathways_widgets.time_axis import round_steps
from pathways_widgets.views import FULL_WIDTH

_AXIS = {
    "major_label_text_color": "text",
    "axis_label_text_color": "text",
    "axis_line_color": "lane",
    "major_tick_line_color": "lane",
    "minor_tick_line_color": "lane",
}
_ROLES = {
    "curve_x": _AXIS,
    "curve_y": _AXIS,
    "curve_grid_x": {"grid_line_color": "grid"},
    "curve_grid_y": {"grid_line_color": "grid"},
    "curve_legend": {"label_text_color": "text", "background_fill_color": "background"},
}


def curve(series: Mapping[str, Sequence[float]], x: str, y: str) -> Figure:
    """Lines over 0, 1, 2, …

    Args:
        series: values by the name in the legend; at least one, none empty.
        x, y: what the axes say, units included.
    """
    longest = max(map(len, series.values()))
    finite = [value for values in series.values() for value in values if math.isfinite(value)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    plot = figure(
        name="curve",
        height=240,
        sizing_mode="stretch_width",
        x_range=Range1d(0, max(longest - 1, 1)),
        y_range=Range1d(1.08 * low, 1.08 * high or 1.0),
        x_axis_label=x,
        y_axis_label=y,
        tools="pan,xwheel_zoom,reset,hover",
        tooltips=[(x, "@x"), (y, "@y{0.000}")],
        background_fill_color=None,
        border_fill_color=None,
    )
    plot.toolbar.logo, plot.toolbar.autohide, plot.outline_line_color = None, True, None
    plot.xaxis[0].name, plot.yaxis[0].name = "curve_x", "curve_y"
    plot.xgrid[0].name, plot.ygrid[0].name = "curve_grid_x", "curve_grid_y"
    for index, (name, values) in enumerate(series.items()):
        plot.line(list(range(len(values))), list(values), color=palette.place_colour(index), width=2, legend_label=name)
    plot.legend[0].name = "curve_legend"
    last = ", ".join(f"{name} {values[-1]:.3g}" for name, values in series.items())
    summary = f"last: {last} {y}"
    item = dict(json_item(plot)) | {"summary": summary, "themes": palette.themed(_ROLES)}
    low, high = float(plot.y_range.start), float(plot.y_range.end)
    return Figure(item, lambda: _scene(series, x, y, float(plot.x_range.end), low, high), summary=summary)


def _scene(series: Mapping[str, Sequence[float]], x: str, y: str, last: float, low: float, high: float) -> Scene:
    """The same lines for where no scripts run; steps go up to ``last``, values from ``low`` to ``high``."""
    font, ink, grid = style.now().font, palette.THEMES["light"]["text"], palette.THEMES["light"]["grid"]
    width, height, left, top, bottom = FULL_WIDTH, 240.0, 6 * font, 2 * font, 4 * font
    scene = Scene(width, height, palette.THEMES["light"]["background"])

    def at(step: float, value: float) -> tuple[float, float]:
        across = step / last * (width - left - font)
        return left + across, height - bottom - (value - low) / (high - low) * (height - top - bottom)

    for step in round_steps(0, last, 10):
        scene.shapes.append(Text(at(step, low)[0], height - bottom + font, f"{step:g}", font, ink, "middle"))
    for value in round_steps(low, high, 5):
        scene.shapes.append(Curve((at(0, value), at(last, value)), grid))
        scene.shapes.append(Text(left - 6, at(0, value)[1], f"{value:.6g}", font, ink, "end"))
    for index, (name, numbers) in enumerate(series.items()):
        points = tuple(at(step, value) for step, value in enumerate(numbers) if math.isfinite(value))
        colour = palette.place_colour(index)
        scene.shapes += [Curve(points, colour, 2.0), Rect(left + 130 * index, 4, font, font, colour)]
        scene.shapes.append(Text(left + 130 * index + 1.5 * font, 4 + font / 2, name, font, ink))
    scene.shapes.append(Text(left, height - font, f"{y} over {x}", font, ink))
    return scene
