"""A page in Chromium with one live figure: the widget's own script, fed with the state that a kernel would send."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import bokeh

import pathways_widgets.figures
from pathways_widgets.figures.page import drawing_script

_FIGURES = Path(pathways_widgets.figures.__file__).parent
_MODEL = """
const decoded = (value) => value?.bytes === undefined ? value : new DataView(Uint8Array.from(atob(value.bytes), (one) => one.charCodeAt(0)).buffer)
const state = {}, handlers = new Map()
const assets = {get: (name) => ({version: "%s", src: []})[name]}
globalThis.live = {
  sent: {},
  receive: (values) => {
    for (const [name, value] of Object.entries(values)) state[name] = decoded(value)
    for (const name of Object.keys(values)) for (const handler of [...(handlers.get(`change:${name}`) ?? [])]) handler()
  },
  model: {
    get: (name) => state[name],
    set: (name, value) => { state[name] = live.sent[name] = value },
    save_changes: () => {},
    on: (event, handler) => handlers.set(event, [...(handlers.get(event) ?? []), handler]),
    off: (event, handler) => handlers.set(event, (handlers.get(event) ?? []).filter((one) => one !== handler)),
    widget_manager: {get_model: async () => assets},
  },
}
globalThis.pathwaysBokeh = {"%s": Bokeh}
globalThis.startLive = () => widget.render({model: live.model, el: document.getElementById("live")})
"""
"""A model of a widget as the script knows it, whose state comes from the test."""


DRAWN = """async () => {
  const after = (milliseconds) => new Promise((go) => setTimeout(() => requestAnimationFrame(go), milliseconds))
  const waits = (view) => view.is_displayed && (view._needs_paint || view._invalidate_all || view._invalidated_painters?.size)
  for (let quiet = 0; quiet < 2; ) {
    await after(40)
    const plots = [...Bokeh.index.query((view) => "throttled_paint" in view)]
    quiet = plots.length && !plots.some(waits) ? quiet + 1 : 0
  }
}"""
"""Script: wait until no plot has anything to paint for two moments in a row, each longer than Bokeh puts painting off.

A document that was idle once says so for ever: ``is_idle`` knows nothing of what an update changed.
"""


class LivePage:
    """Shows a figure and follows its state, as a notebook does.

    Args:
        tab: a drawn page, which has ``PLACE`` in its body.
        figure: the figure, with its first state.
    """

    PLACE = '<div id="live" style="min-height: 1px"></div>'

    def __init__(self, tab: Any, figure: Any):
        self.tab, self.figure = tab, figure
        self._sent: dict[str, Any] = {}
        script = drawing_script() + (_FIGURES / "live.js").read_text("utf-8")
        script = script.replace("export default", "const widget =") + _MODEL % (bokeh.__version__, bokeh.__version__)
        tab.add_script_tag(content=script, type="module")
        tab.wait_for_function("() => 'startLive' in globalThis")
        self._send()
        tab.evaluate("async () => { await startLive() }")
        self.wait()

    def wait(self) -> None:
        """Wait until everything is drawn."""
        self.tab.wait_for_function("Bokeh.documents.length && Bokeh.documents.every((one) => one.is_idle)")
        self.tab.evaluate(DRAWN)

    def update(self) -> None:
        """Bring the page the state that the figure has now, and wait until it is drawn."""
        self._send()
        self.wait()

    def told(self, name: str) -> Any:
        """Return what the page told the kernel last as a trait, or nothing."""
        return self.tab.evaluate("(name) => live.sent[name]", name)

    def _send(self) -> None:
        """Send the traits that changed."""
        state = self.figure.get_state()
        values = {name: _encoded(value) for name, value in state.items() if name != "_esm"}
        fresh = {name: value for name, value in values.items() if self._sent.get(name) != value}
        self._sent |= fresh
        self.tab.evaluate("(values) => live.receive(values)", fresh)


def _encoded(value: Any) -> Any:
    """Return a trait's value as JSON can hold it."""
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes | memoryview) else value
