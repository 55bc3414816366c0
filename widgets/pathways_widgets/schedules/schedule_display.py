"""Pictures of pipeline schedules in a cell's output and in a file.

The figure sends only the columns that a change of controls, zoom or step affects (``Schedules`` returns those). What a
tooltip needs of invisible boxes is sent last, when nothing has changed for a moment, so that a dragged slider redraws
at once. Bokeh draws the columns in ``schedule_view``, controls are in ``explorers.controls_panel``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import traitlets

from pathways_nb.trace.causality.headlines import comparison_headline, schedule_headline
from pathways_nb.util.displaying import shows_figures
from pathways_widgets.drawing.views import Window
from pathways_widgets.figures.output import answer_while_busy
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.picture_figure import PictureFigure
from pathways_widgets.figures.run_still import write_scene
from pathways_widgets.schedules.schedule_columns import CellPointer, nothing
from pathways_widgets.schedules.schedule_layout import Drawable
from pathways_widgets.schedules.schedule_still import scene_of_schedules
from pathways_widgets.schedules.schedule_view import PIXELS, Schedules

BOXES = "schedules_boxes"
_QUIET_SECONDS = 0.2
"""Seconds without a change after which the data of tooltips are sent."""


class ScheduleFigure(PictureFigure[Sequence[Drawable]]):
    """Schedules on one time axis, in a cell's output.

    Args:
        pictures: the schedules.
    """

    pixels = traitlets.Int().tag(sync=True)
    """Width of the time axis in the browser; 0 until it is known."""

    def __init__(self, pictures: Sequence[Drawable]):
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        super().__init__(pictures, Schedules(len(pictures)), scene_of_schedules)
        answer_while_busy(self.comm)
        self.observe(self._draw_window, ["view", "pixels"])

    def words(self, picture: Sequence[Drawable]) -> str:
        """Return the schedules in words."""
        return describe(picture)

    def sentence(self, picture: Sequence[Drawable]) -> str:
        """Return what one schedule leaves idle, or which of several is fastest; empty where one cannot be drawn."""
        seconds = [one.makespan for one in picture]
        if not seconds or min(seconds) <= 0:
            return ""
        names = [one.heading.partition(",")[0] for one in picture]  # without sizes and units
        if len(picture) == 1:
            return schedule_headline(names[0], max(picture[0].bubble, 0.0))  # rounding
        # The fastest and the slowest; of equals the first and the last.
        ends = sorted((int(np.argmin(seconds)), len(seconds) - 1 - int(np.argmax(seconds[::-1]))))
        return comparison_headline([names[at] for at in ends], [seconds[at] for at in ends])

    def draw(self, picture: Sequence[Drawable], *pointed: tuple[int, int] | None) -> None:
        """Show other schedules, at most as many as before.

        Args:
            picture: the schedules.
            *pointed: at most one: the numbers of the picture and of the cell to point at; None for none.
        """
        with self._lock:
            super().draw(picture, *pointed)

    def point(self, pointed: tuple[int, int] | None) -> None:
        """Point at one cell, by the numbers of its picture and of itself, and at the cell that let it start."""
        with self._lock, self.hold_sync():
            self._send_columns(self.drawing.point(CellPointer(*pointed) if pointed else None))

    def _update(self, picture: Sequence[Drawable], *pointed: tuple[int, int] | None) -> dict[str, Any]:
        """Return the columns to send: for the visible part, without those that only tooltips read."""
        self.drawing.update(picture, *(CellPointer(*one) for one in pointed if one))
        if self.view:
            self.drawing.zoom(self._window)
        return self.drawing.sources | self._postponed()

    def _whole(self) -> dict[str, Any]:
        """Return the columns with all boxes one by one."""
        return self.drawing.sources | self.drawing.one_by_one()

    def _postponed(self) -> dict[str, Any]:
        """Return an empty source in place of boxes that only tooltips read, and start the timer that sends them.

        Returns:
            The source to send now; nothing if boxes are drawn one by one, or the browser has them already.
        """
        if self._timer is not None:
            self._timer.cancel()
        boxes = self.drawing.sources[BOXES]
        if not self.drawing.is_dense or pack(boxes) == self._data_schedules_boxes:
            return {}
        self._timer = threading.Timer(_QUIET_SECONDS, self._complete)
        self._timer.daemon = True
        self._timer.start()
        return {BOXES: nothing(BOXES)}

    def _complete(self) -> None:
        """Send the boxes that tooltips read."""
        with self._lock:
            self._send_columns({BOXES: self.drawing.sources[BOXES]})

    @property
    def _window(self) -> Window | None:
        """The visible part of the time axis; ``None`` for all of it."""
        return (self.view[0], self.view[1]) if len(self.view) == 2 else None

    def _draw_window(self, change: object) -> None:
        """Draw for another visible part of the time axis, or another width."""
        with self._lock, self.hold_sync():
            self.drawing.pixels = self.pixels or PIXELS
            self._send_columns(self.drawing.zoom(self._window))


def describe(pictures: Sequence[Drawable]) -> str:
    """Return what the pictures show, as text."""
    return "\n".join(f"{one.heading}: {one.words}" for one in pictures)


def show(pictures: Sequence[Drawable]) -> None:
    """Show schedules in a cell's output, one above the other; a script prints the text."""
    if shows_figures():
        ScheduleFigure(pictures)._ipython_display_()
    else:
        sys.stdout.write(f"{describe(pictures)}\n")


def write(pictures: Sequence[Drawable], path: str | Path, width: str | float) -> None:
    """Write schedules as SVG or PNG, one above the other.

    Args:
        pictures: the schedules.
        path: path of the file.
        width: pixels, or a length; see ``run_still.write_scene``.

    Raises:
        ValueError: the file's ending or the length is unknown.
    """
    write_scene(lambda pixels: scene_of_schedules(pictures, pixels), path, width)
