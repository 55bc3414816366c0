"""What the panels of explorers share: buttons, the line of messages, and the still picture beside the live figure.

The still picture is made again once nothing has changed for a while: a dragged slider changes often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets as w

from pathways_nb.errors import PathwaysError
from pathways_widgets.drawing.scene import Scene
from pathways_widgets.figures.live import Figure
from pathways_widgets.figures.output import ITEM_TYPE, embedding, put_out, show_still

_QUIET_SECONDS = 1.0
"""Seconds without a change after which the still picture is made again."""
WRAP = w.Layout(flex_flow="row wrap", align_items="center")


class ControlsPanel(w.VBox):
    """Controls and figure of an explorer.

    Args:
        explorer: has the choices as traits, and its state in words as ``repr``.
    """

    figure: Figure
    """The live figure, which each panel makes."""

    def __init__(self, explorer: Any):
        self.explorer = explorer
        self.message = w.Label()
        self.still: Any = None
        self._timer: threading.Timer | None = None
        super().__init__()

    def scene(self) -> Callable[[], Scene]:
        """Return the function that draws the present choice as a still picture."""
        raise NotImplementedError

    def display(self) -> None:
        """Show the panel in the current cell, with a still picture beside it; a page without kernel gets the figure."""
        found = self._repr_mimebundle_()
        bundle = dict(found[0] if isinstance(found, tuple) else found or {}) | {"text/plain": repr(self.explorer)}
        put_out(bundle | ({ITEM_TYPE: self.figure.json_item_with_data()} if embedding() else {}))
        self.show_still()

    def show_still(self) -> None:
        """Show the present choice as a still picture, in place of the one before."""
        self.still = show_still(self.scene(), repr(self.explorer), self.still)

    def renew(self) -> None:
        """Make the still picture again once nothing has changed for a while."""
        if self._timer is not None:
            self._timer.cancel()
        if self.still is not None:
            self._timer = threading.Timer(_QUIET_SECONDS, self.show_still)
            self._timer.daemon = True
            self._timer.start()

    def button(self, text: str, hint: str, work: Callable[[], None]) -> w.Button:
        """Return a button that calls ``work``."""
        made = w.Button(description=text, tooltip=hint, layout=wide("4em"))
        made.on_click(lambda _: work())
        return made

    def write(self, path: str, write: Callable[[str], None]) -> None:
        """Write a file and report its name, or why it is not written."""
        try:
            write(path)
        except (PathwaysError, OSError) as refused:
            self.message.value = str(refused)
        else:
            self.message.value = f"wrote {path}"


def wide(width: str) -> w.Layout:
    """Return the layout of a control of this width."""
    return w.Layout(width=width)
