"""Controls for two schedules: choices above, both pictures, and steps through their cells below.

The state belongs to the explorer (``pathways_nb.parallel.schedule_explorer``), which works without a notebook. Controls
are linked to it in both directions, so values that Python sets appear in them. A typed number counts when it is
complete. Each change sends the columns that differ and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as w
import traitlets

from pathways_widgets.drawing.scene import Scene
from pathways_widgets.explorers.controls_panel import WRAP, ControlsPanel, wide
from pathways_widgets.schedules.schedule_columns import CellPointer
from pathways_widgets.schedules.schedule_display import ScheduleFigure
from pathways_widgets.schedules.schedule_still import scene_of_schedules

_PER_STEP = 400
"""Milliseconds of a step while stepping plays."""
_MAY_LACK = {"chunks": "its own", "token_slices": "its own", "cap": "none"}
"""Choices that may be empty, and the hint in an empty field."""
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


class ExplorerPanel(ControlsPanel):
    """The controls and the figure of an explorer.

    Args:
        explorer: has a trait for each of ``choices``, ``laid`` and ``step``, as
            ``pathways_nb.parallel.schedule_explorer.ScheduleExplorer`` has.
        choices: names of the traits that get a control.
    """

    def __init__(self, explorer: Any, choices: Sequence[str]):
        super().__init__(explorer)
        self.controls = {name: self._control(name) for name in choices}
        self.figure = ScheduleFigure(explorer.pictures)
        self.slider = w.IntSlider(explorer.step, 0, explorer.steps, description="step", layout=wide("26em"))
        self.play = w.Play(min=0, max=explorer.steps, interval=_PER_STEP, layout=wide("9em"))
        w.jslink((self.play, "value"), (self.slider, "value"))
        traitlets.link((explorer, "step"), (self.slider, "value"))
        explorer.observe(self._changed, [*choices, "registrations", "laid"])
        explorer.observe(self._stepped, "step")
        rows = [w.HBox([self.controls[name] for name in row], layout=WRAP) for row in _ROWS]
        below = [self.play, *self._steppers(), self.slider, *self._exports(), self.message]
        self.children = [*rows, self.figure, w.HBox(below, layout=WRAP)]
        self._stepped()

    def _control(self, name: str) -> Any:
        """Return a control that shows and sets one choice."""
        value = getattr(self.explorer, name)
        look: dict[str, Any] = {"description": _SAYS.get(name, name), "tooltip": _HINTS.get(name, "")}
        look |= {"layout": wide(_WIDTHS.get(name, "8em")), "style": {"description_width": "initial"}}
        if value is None or name in _MAY_LACK:
            return self._text(name, look)
        if isinstance(value, str):
            made = w.Dropdown(options=self.explorer.names, value=value, **look)
        else:
            made = (w.IntText if isinstance(value, int) else w.FloatText)(value, continuous_update=False, **look)
        traitlets.link((self.explorer, name), (made, "value"))
        return made

    def _text(self, name: str, look: dict[str, Any]) -> w.Text:
        """Return a field for a number that may be empty; a text that is no number is replaced by the last value."""
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
        """Return the buttons for one step back and one step on."""
        return [self.button("◀", "one step back", lambda: self._move(-1)),
                self.button("▶", "one step on", lambda: self._move(1))]  # fmt: skip

    def _exports(self) -> list[w.Button]:
        """Return the buttons that write files."""
        csv, svg = "schedules.csv", "schedules.svg"
        return [self.button("CSV", f"Write {csv}", lambda: self.write(csv, self.explorer.to_csv)),
                self.button("SVG", f"Write {svg}", lambda: self.write(svg, self.explorer.savefig))]  # fmt: skip

    def _move(self, by: int) -> None:
        """Move by some steps, within bounds."""
        self.explorer.step = min(max(self.explorer.step + by, 0), self.explorer.steps)

    def _changed(self, change: Any = None) -> None:
        """Draw the present choice, and clear the message about an earlier one."""
        self.message.value = ""
        for name in ("first_name", "second_name"):
            if self.controls[name].options != tuple(self.explorer.names):
                self.controls[name].options = self.explorer.names
        steps = self.explorer.steps
        self.slider.max = self.play.max = steps
        self.figure.draw(self.explorer.pictures, self._step())
        self.figure.summary = self._why()
        self.renew()

    def _stepped(self, change: Any = None) -> None:
        """Point at the present step."""
        self.figure.point(self._step())
        self.figure.summary = self._why()

    def _why(self) -> str:
        """Return what let the cell of this step start; at step 0, what steps are."""
        return (
            self.explorer.why or f"{self.explorer.steps} steps, in the order of time: each says what let its cell start"
        )

    def _step(self) -> CellPointer | None:
        """Return the cell of this step; ``None`` at step 0."""
        return CellPointer(*self.explorer.pointed) if self.explorer.pointed else None

    def scene(self) -> Callable[[], Scene]:
        """Return the function that draws the present choice as a still picture."""
        pictures = self.explorer.pictures
        return lambda: scene_of_schedules(pictures)


def display_explorer(explorer: Any, choices: Sequence[str]) -> ExplorerPanel:
    """Show an explorer with its controls in the current cell, with a still picture beside it.

    Args:
        explorer: the explorer.
        choices: names of its traits that get a control.

    Returns:
        The controls.
    """
    panel = ExplorerPanel(explorer, choices)
    panel.display()
    return panel


def _written(value: float | None) -> str:
    """Return a number as the text of a field; empty for ``None``."""
    return "" if value is None else f"{value:g}"


def _read(text: str, name: str) -> float | int | None:
    """Return the number in a field, whole unless it is the cap; ``None`` if the field is empty.

    Raises:
        ValueError: the text is no number.
    """
    if not text.strip():
        return None
    return float(text) if name == "cap" else int(text)
