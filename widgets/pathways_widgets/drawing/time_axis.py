"""The parts that pictures over time share: the figure with its time axis, and times in words.

Figures of one run share one range object, so they pan together; a figure that is drawn alone has a range of the same
name, so properties can be sent to either in the same way. Words for times are made twice, by scripts in the browser
and in Python for still pictures, because a browser must label any window without asking the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from bokeh.models import CustomJSTickFormatter, Range1d, WheelZoomTool
from bokeh.plotting import figure

from pathways_nb.trace.record import STORED, Events
from pathways_nb.trace.rows import GAUGE_KINDS
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import CLIPPED, Window

TIME_RANGE = "timeline_x"
"""Name of the range of every time axis."""
_SHORTEST = 1e-15
"""Seconds of the shortest axis: on a much shorter one, positions would exceed the largest float."""

TICKS = """
    const span = ticks.length > 1 ? ticks[ticks.length - 1] - ticks[0] : tick
    const [unit, scale] = span >= 2 ? ["s", 1] : span >= 2e-3 ? ["ms", 1e3] : ["µs", 1e6]
    return `${Number((tick * scale).toPrecision(10))} ${unit}`
"""
"""Script of an axis: its round values in a suitable unit of time."""


def last_end(events: Events) -> float:
    """Return when the last event ended, in seconds; 1 if none took time.

    Memory levels count only if there is nothing else.
    """
    # Levels of memory are still recorded while a profile is read, when nothing else happens.
    happened = events.without(GAUGE_KINDS)
    # A run in which nothing took time still needs an axis with a length.
    last = float((happened if len(happened) else events)["end"].max(initial=0.0))
    return last if last > _SHORTEST else 1.0


def clipped(events: Events) -> Events:
    """Return the events up to ``last_end``.

    Memory levels are still recorded while a profile is read, when nothing else happens.
    """
    end = last_end(events)
    stored = {name: events.stored(name) for name in STORED}
    # (events,) seconds; what begins later is left out, what ends later is cut.
    stored["end"] = np.minimum(stored["end"], end)
    return Events(events.labels, stored, events["id"]).select(stored["start"] < end)


def with_margins(whole: Window, window: Window | None) -> tuple[Window, Window]:
    """Return the visible window and the window to draw, which has half a window more on each side.

    So boxes are there already when the user pans, before the kernel has answered.

    Args:
        whole: the whole time axis.
        window: the visible part; ``None`` for all of it.
    """
    if window is None:
        return whole, whole
    margin = (window[1] - window[0]) / 2
    return window, (window[0] - margin, window[1] + margin)


def shown_span(properties: Mapping[str, Mapping[str, Any]], window: Window | None) -> Mapping[str, Any]:
    """Return the properties of the time axis of a still picture: of a part of the time nothing is folded.

    Args:
        properties: of a view.
        window: the visible part; ``None`` for that on which the view opens.
    """
    return properties[TIME_RANGE] if window is None else {"start": window[0], "end": window[1], "tags": []}


def time_figure(name: str, height: int, y_range: Range1d, style: Style) -> figure:
    """Return an empty figure over time; its parts are ``name_title``, ``name_time``, ``name_places`` and ``name_grid``.

    Args:
        name: name of the figure.
        height: its height in pixels.
        y_range: range of the vertical axis.
        style: sizes of text and lines.
    """
    fig = figure(
        name=name,
        height=height,
        sizing_mode="stretch_width",
        # Its own until a panel gives it that of the first picture over time.
        x_range=Range1d(0, 1, name=TIME_RANGE),
        y_range=y_range,
        tools="xpan,xbox_zoom,reset,save",
        active_drag="xpan",
        output_backend="canvas",
        lod_threshold=None,  # otherwise Bokeh omits boxes during a drag
        # Transparent: the page behind it has the theme that the reader chose.
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        stylesheets=[CLIPPED],
    )
    # Only with a key, since the wheel alone must scroll the notebook.
    fig.add_tools(WheelZoomTool(dimensions="width", modifiers="ctrl"))
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    fig.title.name = f"{name}_title"
    fig.title.text = "0 events"
    fig.title.text_font_size = f"{style.font}px"
    fig.title.text_font_style = "normal"
    fig.title.align = "right"
    _style_axes(fig, name, style)
    return fig


def _style_axes(fig: figure, name: str, style: Style) -> None:
    """Name the axes and set their text sizes and ticks."""
    time, places = fig.xaxis[0], fig.yaxis[0]
    time.major_label_text_font_size = places.major_label_text_font_size = f"{style.font}px"
    time.name, places.name, fig.xgrid[0].name = f"{name}_time", f"{name}_places", f"{name}_grid"
    # The unit depends on the window, which only the browser knows while the user zooms.
    time.formatter = CustomJSTickFormatter(code=TICKS)
    # Lanes have names, not values: ticks between them would mean nothing.
    places.major_tick_line_color = places.axis_line_color = time.minor_tick_line_color = None


def time_roles(name: str) -> dict[str, dict[str, str]]:
    """Return the roles of colours of the parts of ``time_figure(name)``."""
    text = {"major_label_text_color": "text"}
    return {
        f"{name}_title": {"text_color": "soft"},
        f"{name}_time": text | {"axis_line_color": "lane", "major_tick_line_color": "lane"},
        f"{name}_places": text,
        f"{name}_grid": {"grid_line_color": "grid"},
    }


def round_steps(begin: float, end: float, most: int, least: float = 0.0) -> list[float]:
    """Return the multiples of a round number from ``begin`` to ``end``.

    Args:
        begin: lower bound.
        end: upper bound.
        most: how many there are at most, about.
        least: the smallest step; 1 for an axis that counts.
    """
    rough = max(end - begin, 1e-12) / max(most, 1)
    # The round step above the smallest possible one: 1, 2 or 5 times a power of ten.
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    step = max(step, least)
    return [number * step for number in range(int(np.ceil(begin / step)), int(np.floor(end / step)) + 1)]


def time_ticks(begin: float, end: float, most: int) -> Iterator[tuple[float, str]]:
    """Yield round times with their labels, at most about ``most``; all labels have the same unit."""
    times = round_steps(begin, end, most)
    # By the span of all labels, as the script of a live axis chooses it (``TICKS``).
    span = times[-1] - times[0] if len(times) > 1 else sum(times)
    unit, scale = ("s", 1.0) if span >= 2 else ("ms", 1e3) if span >= 2e-3 else ("µs", 1e6)
    for time in times:
        yield time, f"{time * scale:.10g} {unit}"  # as many digits as in the script
