"""Controls for two schedules: choices above, both pictures, and steps through them below.

The state is the explorer's own: controls are linked to it both ways, so what is set from Python is seen here as well.
Numbers that are typed count when they are complete; each change ships the columns that differ and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as w
import traitlets

from pathways_widgets.figures.output import put_out, show_still
from pathways_widgets.schedules.schedule_columns import CellPointer
from pathways_widgets.schedules.schedule_display import ScheduleFigure, describe
from pathways_widgets.schedules.schedule_still import scene_of_schedules

_SETTLED = 1.0
"""Seconds without a change after which the still picture is made anew."""
_PER_STEP = 400
"""Milliseconds of a step that is played."""
_MAY_LACK = {"chunks": "its own", "token_slices": "its own", "cap": "none"}
"""Choices that may be left out, and what a field says then."""
_WRAP = w.Layout(flex_flow="row wrap", align_items="center")
_WIDTHS = {
    "first_name": "15em",
    "second_name": "15em",
    "microbatches": "12.5em",
    "chunks": "10em",
    "token_slices": "12.5em",
    "transfer": "9em",
    "cap": "11em",
}
_SAYS = {"first_name": "above", "second_name": "below", "cap": "memory cap", "token_slices": "token slices"}
_HINTS = {
    "cap": "Microbatches of activations that a device has room for; empty for any number",
    "chunks": "Stages on each device, of the schedules that have chunks",
    "token_slices": "Parts of each sequence, of the schedules that have them",
    "transfer": "Time of sending a microbatch's activations to another device",
}
_ROWS = (
    ("first_name", "second_name"),
    ("devices", "microbatches", "chunks", "token_slices"),
    ("F", "I", "W", "transfer", "cap"),
)


class ExplorerPanel(w.VBox):
    """The controls and the figure of an explorer.

    Args:
        explorer: has a trait for each of ``choices``, and ``step``, as
            ``pathways_nb.parallel.schedule_explorer.ScheduleExplorer`` has.
    """

    def __init__(self, explorer: Any, choices: Sequence[str]):
        self.explorer = explorer
        self.controls = {name: self._control(name) for name in choices}
        self.figure = ScheduleFigure(explorer.pictures)
        self.slider = w.IntSlider(explorer.step, 0, explorer.steps, description="step", layout=_wide("26em"))
        self.play = w.Play(min=0, max=explorer.steps, interval=_PER_STEP, layout=_wide("9em"))
        self.message = w.Label()
        self.still: Any = None
        self._timer: threading.Timer | None = None
        w.jslink((self.play, "value"), (self.slider, "value"))
        traitlets.link((explorer, "step"), (self.slider, "value"))
        explorer.observe(self._changed, [*choices, "registrations"])
        explorer.observe(self._stepped, "step")
        rows = [w.HBox([self.controls[name] for name in row], layout=_WRAP) for row in _ROWS]
        below = [self.play, *self._steppers(), self.slider, *self._exports(), self.message]
        super().__init__([*rows, self.figure, w.HBox(below, layout=_WRAP)])
        self._stepped()

    def _control(self, name: str) -> Any:
        """A control that shows and sets one choice."""
        value = getattr(self.explorer, name)
        look: dict[str, Any] = {"description": _SAYS.get(name, name), "tooltip": _HINTS.get(name, "")}
        look |= {"layout": _wide(_WIDTHS.get(name, "8em")), "style": {"description_width": "initial"}}
        if value is None or name in _MAY_LACK:
            return self._text(name, look)
        if isinstance(value, str):
            made = w.Dropdown(options=self.explorer.names, value=value, **look)
        else:
            made = (w.IntText if isinstance(value, int) else w.FloatText)(value, continuous_update=False, **look)
        traitlets.link((self.explorer, name), (made, "value"))
        return made

    def _text(self, name: str, look: dict[str, Any]) -> w.Text:
        """A field for a number that may be left out; what is no number is put back."""
        value = getattr(self.explorer, name)
        made = w.Text(_written(value), placeholder=_MAY_LACK[name], continuous_update=False, **look)

        def typed(change: Any) -> None:
            try:
                setattr(self.explorer, name, _read(change["new"], name))
            except (ValueError, traitlets.TraitError):
                self.message.value = f"{_SAYS.get(name, name)}: {change['new']!r} is no number"
                made.value = _written(getattr(self.explorer, name))

        made.observe(typed, "value")
        self.explorer.observe(lambda change: setattr(made, "value", _written(change["new"])), name)
        return made

    def _steppers(self) -> list[w.Button]:
        return [self._button("◀", "one step back", lambda: self._move(-1)),
                self._button("▶", "one step on", lambda: self._move(1))]  # fmt: skip

    def _exports(self) -> list[w.Button]:
        csv, svg = "schedules.csv", "schedules.svg"
        return [self._button("CSV", f"Write {csv}", lambda: self._write(csv, self.explorer.to_csv)),
                self._button("SVG", f"Write {svg}", lambda: self._write(svg, self.explorer.savefig))]  # fmt: skip

    def _button(self, text: str, hint: str, work: Callable[[], None]) -> w.Button:
        made = w.Button(description=text, tooltip=hint, layout=_wide("4em"))
        made.on_click(lambda _: work())
        return made

    def _move(self, by: int) -> None:
        self.explorer.step = min(max(self.explorer.step + by, 0), self.explorer.steps)

    def _write(self, path: str, write: Callable[[str], None]) -> None:
        write(path)
        self.message.value = f"wrote {path}"

    def _changed(self, change: Any = None) -> None:
        """Draw what is chosen now; what was said of an earlier choice is over."""
        self.message.value = ""
        for name in ("first_name", "second_name"):
            if self.controls[name].options != tuple(self.explorer.names):
                self.controls[name].options = self.explorer.names
        steps = self.explorer.steps
        self.slider.max = self.play.max = steps
        self.figure.draw(self.explorer.pictures, self._step())
        self.figure.summary = self._why()
        self._renew()

    def _stepped(self, change: Any = None) -> None:
        self.figure.point(self._step())
        self.figure.summary = self._why()

    def _why(self) -> str:
        return (
            self.explorer.why or f"{self.explorer.steps} steps, in the order of time: each says what let its cell start"
        )

    def _step(self) -> CellPointer | None:
        return CellPointer(*self.explorer.pointed) if self.explorer.pointed else None

    def _renew(self) -> None:
        """Make the still picture anew once nothing has changed for a while."""
        if self._timer is not None:
            self._timer.cancel()
        if self.still is not None:
            self._timer = threading.Timer(_SETTLED, self.show_still)
            self._timer.daemon = True
            self._timer.start()

    def show_still(self) -> None:
        """Show what is chosen for where no scripts run, in the place of what was shown before."""
        pictures = self.explorer.pictures
        self.still = show_still(lambda: scene_of_schedules(pictures), describe(pictures), self.still)


def display_explorer(explorer: Any, choices: Sequence[str]) -> ExplorerPanel:
    """Show an explorer with its controls in the current cell, and a still picture beside it."""
    panel = ExplorerPanel(explorer, choices)
    found = panel._repr_mimebundle_()
    put_out(dict(found[0] if isinstance(found, tuple) else found or {}) | {"text/plain": repr(explorer)})
    panel.show_still()
    return panel


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _read(text: str, name: str) -> float | int | None:
    if not text.strip():
        return None
    return float(text) if name == "cap" else int(text)


def _wide(width: str) -> w.Layout:
    return w.Layout(width=width)
