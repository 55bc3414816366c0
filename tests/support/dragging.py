"""A drag with the mouse that is one however slowly the page gets its events."""

from __future__ import annotations

from typing import Any

# Bokeh takes a button held for 300 ms before the mouse has moved for a long press, and no drag begins.
_NO_LONG_PRESS = """() => {
  for (const view of Bokeh.index.query((view) => view.canvas_view != null)) {
    const {ui_gestures} = view.canvas_view.ui_event_bus
    ui_gestures.constructor.press_threshold = 1e9
    return
  }
  throw new Error("no figure on this page")
}"""


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Press at one position of the page [px], move to the other in small steps, and let go."""
    page.evaluate(_NO_LONG_PRESS)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=8)
    page.mouse.up()
