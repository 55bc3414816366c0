"""Controls for the plan of a sharded step: choices and the text of its buckets above, the pictures and tables below.

The state belongs to the explorer (``pathways_nb.parallel.fsdp.explorer``), which works without a notebook. Controls
are linked to it in both directions. A typed number or text counts when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import ipywidgets as w
import traitlets

from pathways_nb.util.collecting import uncollected
from pathways_nb.util.words import counted
from pathways_widgets.drawing.scene import Scene
from pathways_widgets.explorers.controls_panel import WRAP, ControlsPanel, wide
from pathways_widgets.explorers.step_display import StepFigure
from pathways_widgets.explorers.step_still import scene_of_step
from pathways_widgets.explorers.step_tables import LETTERS, listed, scheduled


class _Number(NamedTuple):
    """A number that may be left to the chip: its words, its unit as a power of ten, and the width of its field."""

    words: str
    power: int
    width: str

    def written(self, value: float | None) -> str:
        """Return a value of the explorer in this unit; empty for ``None``."""
        return "" if value is None else f"{value / 10**self.power if self.power > 0 else value * 10**-self.power:g}"

    def read(self, text: str) -> float | None:
        """Return the value that a text means; ``None`` for an empty one.

        Raises:
            ValueError: it is no number.
        """
        if not text.strip():
            return None
        return float(text) * 10**self.power if self.power > 0 else float(text) / 10**-self.power


_NUMBERS = {
    "bandwidth": _Number("bandwidth, GB/s", 9, "15em"),
    "latency": _Number("latency, µs", -6, "13em"),
    "memory": _Number("memory, GB", 9, "13em"),
}
_SAYS = {
    "wrapping": "plan",
    "keep": "keep gathered",
    "three_streams": "gather and reduce each on a stream of its own",
}
_HINTS = {
    "mode": "What is split over devices",
    "wrapping": "How buckets are chosen; 'own' takes those in the field below",
    "prefetch": "How many gathers are under way before their turn",
    "keep": "All parameters stay gathered from the forward to the backward pass",
    "three_streams": "Otherwise one stream carries both, one after another",
    "devices": "Devices that split the batch. Each keeps a part as large as before: the whole batch grows with them",
    "chip": "Whose rates and network are simulated",
    "bandwidth": "Of each device, on one network that joins all; empty for the chip's links and NICs",
    "latency": "Before a collective starts; empty for the chip's",
    "memory": "That a device has, for a search; empty for the chip's",
    "passes": "Passes that you registered with @pw.register_pass and that the plan runs, with their settings",
    "buckets": "A line for each bucket: layers.0 for all that begins so, layers.0-3 for four in one, layers.* for one "
    "bucket each. 'kept' at the end keeps a bucket gathered. After a line 'backward:' the buckets of the backward pass",
}
_WIDTHS = {"mode": "9em", "wrapping": "15em", "prefetch": "9em", "devices": "10em", "chip": "15em"}
_ROWS = (
    ("mode", "wrapping", "prefetch", "keep", "three_streams"),
    ("devices", "chip", "bandwidth", "latency", "memory"),
)
_LINES = 4
"""Lines of the field of buckets."""
_BOX = '<pre style="max-height: 20em; overflow: auto; white-space: pre; line-height: 1.3; font-size: 12px">{}</pre>'
_PLAN, _FILE = "plan.json", "plan.svg"


class StepPanel(ControlsPanel):
    """The controls and the figure of an explorer of a sharded step.

    Args:
        explorer: has a trait for each choice, ``modes``, ``chips``, ``wrappings``, ``own_passes``, ``text``,
            ``picture``, ``search``, ``save`` and ``savefig``, as
            ``pathways_nb.parallel.fsdp.explorer.FsdpExplorer`` has.
    """

    def __init__(self, explorer: Any):
        super().__init__(explorer)
        self.controls = {name: self._control(name) for row in _ROWS for name in row}
        self.controls |= {"passes": self._passes(), "buckets": self._buckets()}
        self.figure = StepFigure(explorer.picture)
        self.tables = w.Accordion([w.HTML(), w.HTML()])
        self.seek = self.button("search", "Search for the best plan for these choices; it takes seconds", self._search)
        self.seek.layout = wide("6em")
        buttons = [self.seek, self.button("save", f"Write {_PLAN}", lambda: self.write(_PLAN, explorer.save)),
                   self.button("SVG", f"Write {_FILE}", lambda: self.write(_FILE, explorer.savefig))]  # fmt: skip
        rows = [w.HBox([self.controls[name] for name in row], layout=WRAP) for row in _ROWS]
        below = w.HBox([*buttons, self.message], layout=WRAP)
        self.children = [*rows, self.controls["passes"], self.controls["buckets"], self.figure, self.tables, below]
        self._suggest()
        self._tabulate()
        explorer.observe(self._changed, [*self.controls, "searches", "registrations"])

    def scene(self) -> Callable[[], Scene]:
        """Return the function that draws the present choice as a still picture."""
        picture = self.explorer.picture
        return lambda: scene_of_step(picture)

    def _control(self, name: str) -> Any:
        """Return a control that shows and sets one choice."""
        value = getattr(self.explorer, name)
        look: dict[str, Any] = {"description": _SAYS.get(name, name), "tooltip": _HINTS[name]}
        look |= {"style": {"description_width": "initial"}}
        if name in _NUMBERS:
            return self._number(name, _NUMBERS[name], look)
        if isinstance(value, bool):
            made: Any = w.Checkbox(value, indent=False, layout=wide("auto"), **look)
        elif isinstance(value, int):
            made = w.IntText(value, continuous_update=False, layout=wide(_WIDTHS[name]), **look)
        else:
            made = w.Dropdown(options=self._options(name, value), value=value, layout=wide(_WIDTHS[name]), **look)
        traitlets.link((self.explorer, name), (made, "value"))
        return made

    def _options(self, name: str, value: Any) -> Sequence[tuple[str, Any]]:
        """Return what a choice allows, with its words; a chip of the user's own among them."""
        names = {"mode": self.explorer.modes, "wrapping": self.explorer.wrappings, "chip": self.explorer.chips}[name]
        own = [] if value in names else [(str(getattr(value, "name", value)), value)]
        return [*((one, one) for one in names), *own]

    def _number(self, name: str, number: _Number, look: dict[str, Any]) -> w.Text:
        """Return a field for a number that may be empty; a text that is no number is replaced by the last value."""
        value = getattr(self.explorer, name)
        look |= {"description": number.words, "layout": wide(number.width), "placeholder": "the chip's"}
        made = w.Text(number.written(value), continuous_update=False, **look)

        def typed(change: Any) -> None:
            now = number.written(getattr(self.explorer, name))
            try:
                found = number.read(change["new"])
            except ValueError:
                self.message.value = f"{number.words}: {change['new']!r} is no number"
                made.value = now
                return
            if number.written(found) != now:
                setattr(self.explorer, name, found)

        made.observe(typed, "value")
        self.explorer.observe(lambda change: setattr(made, "value", number.written(change["new"])), name)
        return made

    def _passes(self) -> w.Combobox:
        """Return the field for passes of the user's, which is seen when there is one."""
        made = w.Combobox(description="your passes", placeholder="name setting=value; …", tooltip=_HINTS["passes"],
                          continuous_update=False, layout=wide("98%"),
                          style={"description_width": "initial"})  # fmt: skip
        traitlets.link((self.explorer, "passes"), (made, "value"))
        return made

    def _suggest(self) -> None:
        """Offer the passes that are registered now."""
        field, known = self.controls["passes"], self.explorer.own_passes
        field.options = known
        field.layout.display = None if known or self.explorer.passes else "none"

    def _buckets(self) -> w.Textarea:
        """Return the field that shows the buckets of the plan and takes the user's own."""
        made = w.Textarea(self.explorer.text, continuous_update=False, rows=_LINES, description="buckets",
                          tooltip=_HINTS["buckets"], layout=wide("98%"),
                          style={"description_width": "initial"})  # fmt: skip

        def typed(change: Any) -> None:
            if change["new"] != self.explorer.text:
                self.explorer.buckets = change["new"]

        made.observe(typed, "value")
        return made

    def _search(self) -> None:
        """Search, and say so meanwhile."""
        self.message.value, self.seek.disabled = "searching …", True
        try:
            self.explorer.search()
        finally:
            self.seek.disabled = False

    def _changed(self, change: Any = None) -> None:
        """Draw the present choice, and clear the message about an earlier one."""
        with uncollected():
            self.message.value = ""
            self.figure.draw(self.explorer.picture)
            self.controls["buckets"].value = self.explorer.text
            self._suggest()
            self._tabulate()
        self.renew()

    def _tabulate(self) -> None:
        """List the collectives, and the schedule after each pass."""
        picture = self.explorer.picture
        titles = counted(len(picture.collectives), "collective"), f"schedule after each pass: {LETTERS}"
        for table, lines in zip(self.tables.children, (listed(picture), scheduled(picture)), strict=True):
            table.value = _BOX.format(escape("\n".join(lines)))
        self.tables.titles = titles


def display_explorer(explorer: Any) -> StepPanel:
    """Show an explorer with its controls in the current cell, with a still picture beside it.

    Args:
        explorer: the explorer.

    Returns:
        The controls.
    """
    panel = StepPanel(explorer)
    panel.display()
    return panel
