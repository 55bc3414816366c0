"""Pictures of pipeline schedules in a cell's output and in a file."""

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
_SETTLED = 0.2
"""Seconds without a change after which what a hover says is sent."""


class ScheduleFigure(Figure):
    """Schedules on one time axis; another set of them, or a step, is only the columns that differ.

    Where boxes are seen as pixels, what a hover says about each follows as soon as nothing has changed for a moment.
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
            self.comm._reply_subshell_for = None  # otherwise `view` would wait for the running cell to end
        self.observe(self._look_elsewhere, ["view", "pixels"])

    def draw(self, pictures: Sequence[Drawable], step: CellPointer | None = None) -> None:
        """Show these instead, at most as many as before."""
        with self._lock, self.hold_sync():
            self._pictures = pictures
            self.drawing.update(pictures, step)
            if self.view:
                self.drawing.look(self._window)
            self._ship(self.drawing.sources | self._postponed())
            self._properties = json.dumps(self.drawing.properties)
            self.description = describe(pictures)

    def point(self, step: CellPointer | None) -> None:
        """Point at one cell and at what let it start."""
        with self._lock, self.hold_sync():
            self._ship(self.drawing.point(step))

    def json_item_with_data(self) -> dict[str, Any]:
        """The item as it stands, with its data, for a page without a kernel."""
        return self._item_of(data=True)

    def _ship(self, sources: dict[str, Any]) -> None:
        for name, columns in sources.items():
            setattr(self, f"_data_{name}", pack(columns))

    def _item_of(self, data: bool) -> dict[str, Any]:
        sources = self.drawing.sources | self.drawing.one_by_one()
        for name, table in self.drawing.tables.items():
            if data:
                table.data = sources[name]
        words = {"summary": "", "description": describe(self._pictures)}
        looks = {"themes": palette.themed(self.drawing.roles), "properties": self.drawing.properties}
        return dict(json_item(self.drawing.root)) | words | looks

    def _postponed(self) -> dict[str, Any]:
        """Boxes that a hover needs but nobody sees are left out, and sent once nothing has changed for a while."""
        if self._timer is not None:
            self._timer.cancel()
        boxes = self.drawing.sources[BOXES]
        if not self.drawing.is_dense or pack(boxes) == self._data_schedules_boxes:
            return {}
        self._timer = threading.Timer(_SETTLED, self._complete)
        self._timer.daemon = True
        self._timer.start()
        return {BOXES: nothing(BOXES)}

    def _complete(self) -> None:
        with self._lock:
            self._ship({BOXES: self.drawing.sources[BOXES]})

    @property
    def _window(self) -> Window | None:
        return (self.view[0], self.view[1]) if len(self.view) == 2 else None

    def _look_elsewhere(self, change: object) -> None:
        with self._lock, self.hold_sync():
            self.drawing.pixels = self.pixels or PIXELS
            self._ship(self.drawing.look(self._window))

    def __repr__(self) -> str:
        return self.description


def describe(pictures: Sequence[Drawable]) -> str:
    """What the pictures show, in words."""
    return "\n".join(f"{one.heading}: {one.words}" for one in pictures)


def show(pictures: Sequence[Drawable]) -> None:
    """Draw schedules in a cell's output, one above the other; a script gets the words."""
    if InteractiveShell.initialized():
        ScheduleFigure(pictures)._ipython_display_()
    else:
        sys.stdout.write(f"{describe(pictures)}\n")


def write(pictures: Sequence[Drawable], path: str | Path, width: str | float) -> None:
    """Write schedules as SVG or PNG, one above the other; see ``still.write_scene``."""
    write_scene(lambda pixels: scene_of_schedules(pictures, pixels), path, width)
