"""Pictures of pipeline schedules in a cell's output and in a file.

The figure sends only the columns that a change of controls, zoom or step affects (``Schedules`` returns those). What a
tooltip needs of invisible boxes is sent last, when nothing has changed for a moment, so that a dragged slider redraws
at once. Bokeh draws the columns in ``schedule_view``, controls are in ``explorers.schedule_controls``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import traitlets
from bokeh.embed import json_item
from IPython.core.interactiveshell import InteractiveShell

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Window
from pathways_widgets.figures.live import Figure
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.run_still import write_scene
from pathways_widgets.schedules.schedule_columns import CellPointer, nothing
from pathways_widgets.schedules.schedule_layout import Drawable
from pathways_widgets.schedules.schedule_still import scene_of_schedules
from pathways_widgets.schedules.schedule_view import PIXELS, Schedules

BOXES = "schedules_boxes"
_QUIET_SECONDS = 0.2
"""Seconds without a change after which the data of tooltips are sent."""


class ScheduleFigure(Figure):
    """Schedules on one time axis, in a cell's output.

    Args:
        pictures: the schedules.
    """

    pixels = traitlets.Int().tag(sync=True)
    """Width of the time axis in the browser; 0 until it is known."""

    def __init__(self, pictures: Sequence[Drawable]):
        self._pictures, self._lock = pictures, threading.RLock()
        self._timer: threading.Timer | None = None
        self.drawing = Schedules(len(pictures))
        sources = self.drawing.update(pictures)
        self.add_traits(**{f"_data_{name}": traitlets.Bytes().tag(sync=True) for name in sources})
        data = {f"_data_{name}": pack(columns) for name, columns in sources.items()}
        item = self._item_of(data=False)
        super().__init__(item, lambda: scene_of_schedules(self._pictures), _sources=list(sources), **data)
        self.description = describe(pictures)
        if hasattr(self.comm, "_reply_subshell_for"):
            self.comm._reply_subshell_for = None  # so that `view` need not wait for the running cell
        self.observe(self._draw_window, ["view", "pixels"])

    def draw(self, pictures: Sequence[Drawable], step: CellPointer | None = None) -> None:
        """Show other schedules, at most as many as before.

        Args:
            pictures: the schedules.
            step: the cell to point at; ``None`` for none.
        """
        with self._lock, self.hold_sync():
            self._pictures = pictures
            self.drawing.update(pictures, step)
            if self.view:
                self.drawing.zoom(self._window)
            self._ship(self.drawing.sources | self._postponed())
            self._properties = json.dumps(self.drawing.properties)
            self.description = describe(pictures)

    def point(self, step: CellPointer | None) -> None:
        """Point at one cell and at the cell that let it start."""
        with self._lock, self.hold_sync():
            self._ship(self.drawing.point(step))

    def json_item_with_data(self) -> dict[str, Any]:
        """Return the item in its present state, with its data, for a page without a kernel."""
        return self._item_of(data=True)

    def _ship(self, sources: dict[str, Any]) -> None:
        """Send the columns of some sources."""
        for name, columns in sources.items():
            setattr(self, f"_data_{name}", pack(columns))

    def _item_of(self, data: bool) -> dict[str, Any]:
        """Return the item to embed, with ``data`` all boxes one by one: no kernel will send other detail later."""
        sources = self.drawing.sources | self.drawing.one_by_one()
        for name, table in self.drawing.tables.items():
            if data:
                table.data = sources[name]
        words = {"summary": "", "description": describe(self._pictures)}
        looks = {"themes": palette.themed(self.drawing.roles), "properties": self.drawing.properties}
        return dict(json_item(self.drawing.root)) | words | looks

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
            self._ship({BOXES: self.drawing.sources[BOXES]})

    @property
    def _window(self) -> Window | None:
        """The visible part of the time axis; ``None`` for all of it."""
        return (self.view[0], self.view[1]) if len(self.view) == 2 else None

    def _draw_window(self, change: object) -> None:
        """Draw for another visible part of the time axis, or another width."""
        with self._lock, self.hold_sync():
            self.drawing.pixels = self.pixels or PIXELS
            self._ship(self.drawing.zoom(self._window))

    def __repr__(self) -> str:
        return self.description


def describe(pictures: Sequence[Drawable]) -> str:
    """Return what the pictures show, as text."""
    return "\n".join(f"{one.heading}: {one.words}" for one in pictures)


def show(pictures: Sequence[Drawable]) -> None:
    """Show schedules in a cell's output, one above the other; a script prints the text."""
    if InteractiveShell.initialized():
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
