"""The controls of an explorer as one widget of anywidget, for front ends that show no others: marimo.

The controls of ipywidgets stay what they are in the kernel, and are linked to the explorer as in Jupyter. Their state
goes to the browser as JSON, which ``controls.js`` shows with the browser's own controls; what the user sets comes back
as the number of the control and its value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as w
import traitlets

_KINDS: dict[type[w.Widget], str] = {
    w.Checkbox: "check", w.Dropdown: "menu", w.Textarea: "lines", w.Button: "button", w.HTML: "html", w.Label: "text",
    w.IntSlider: "slider", w.FloatSlider: "slider", w.IntText: "number", w.FloatText: "number", w.Play: "play",
    w.Combobox: "field", w.Text: "field", w.VBox: "column", w.HBox: "row", w.Accordion: "fold",
}  # fmt: skip
"""What each control is in the browser."""
_STATE = (
    *("value", "index", "min", "max", "step", "options", "_options_labels"),
    *("rows", "disabled", "interval", "titles"),
)
"""Traits that the browser's control has, too."""


class MirroredControls(anywidget.AnyWidget):
    """Some controls, as the browser's own.

    Args:
        controls: of ipywidgets, one below the other, and boxes of them.
        played: by each ``Play``, the slider that it moves: in Jupyter the browser links them.
    """

    _esm = (Path(__file__).parent / "controls.js").read_text("utf-8")
    _tree = traitlets.Unicode().tag(sync=True)
    """As JSON: for each control its number, kind, name, help and the controls in it."""
    _states = traitlets.Unicode().tag(sync=True)
    """As JSON: the state of each control, by its number."""
    _sent = traitlets.List(traitlets.Any()).tag(sync=True)
    """What the user did last: number of the control, its value, and how many times the user did something."""

    def __init__(self, controls: list[w.Widget], played: dict[w.Widget, w.Widget] | None = None):
        self._all: list[w.Widget] = []
        self._played = played or {}
        tree = [self._described(one) for one in controls]
        super().__init__(_tree=json.dumps(tree), _states=self._now())
        for one in self._all:
            names = [name for name in (*_STATE, "description") if one.has_trait(name)]
            one.observe(self._changed, names)
            one.layout.observe(self._changed, ["display"])
        self.observe(self._set, "_sent")

    def _described(self, control: w.Widget) -> dict[str, Any]:
        """Return a control and those in it, and number them."""
        kind = next(kind for one, kind in _KINDS.items() if type(control) is one)
        self._all.append(control)
        number = len(self._all) - 1
        inside = [self._described(one) for one in getattr(control, "children", ())]
        words = {name: getattr(control, name, "") or "" for name in ("description", "tooltip", "placeholder")}
        return {"number": number, "kind": kind, "width": control.layout.width or "", "inside": inside} | words

    def _now(self) -> str:
        """Return the state of all controls."""
        return json.dumps([self._state(one) for one in self._all])

    def _state(self, control: w.Widget) -> dict[str, Any]:
        found = {name: getattr(control, name) for name in _STATE if control.has_trait(name)}
        if isinstance(control, w.Dropdown):  # whose values may be any objects: the browser knows them by their numbers
            found = {"value": found["index"], "options": list(found["_options_labels"])}
        if control in self._played:
            found["value"] = self._played[control].value
        return found | {"hidden": control.layout.display == "none"}

    def _changed(self, change: Any) -> None:
        """Send what Python has set, or an explorer has changed."""
        self._states = self._now()

    def _set(self, change: Any) -> None:
        """Set what the user has set."""
        sent: Any = self._sent
        number, value, _ = sent
        control = self._all[number]
        if isinstance(control, w.Button):
            control.click()
        elif isinstance(control, w.Dropdown):
            control.index = value
        else:
            self._played.get(control, control).value = value
        self._states = self._now()  # also where the kernel keeps what it had: the browser shows something else
