"""The panel of any explorer: a control for each of its choices, its figure, and buttons, made from its traits.

The state belongs to the explorer (``pathways_nb.results.explorer_base``, which explains the tags of traits). Controls
are linked to it in both directions, so values that Python sets appear in them. A typed number counts when it is
complete, a slider while it is dragged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

import ipywidgets as w
import traitlets

from pathways_nb.errors import PathwaysError
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.displaying import append_in_marimo, marimo_notebook
from pathways_widgets.explorers.mirrored_controls import MirroredControls
from pathways_widgets.explorers.refusals import Refusals
from pathways_widgets.explorers.step_player import StepPlayer
from pathways_widgets.figures.output import ITEM_TYPE, embedding, put_out, show_still

_QUIET_SECONDS = 1.0
"""Seconds without a change after which the still picture is made again: a dragged slider changes often."""
_POSITIONS = 4000
"""Positions of a slider up to ``most``."""
_WRAP = w.Layout(flex_flow="row wrap", align_items="center")
_TABLE = '<pre style="max-height: 20em; overflow: auto; white-space: pre; line-height: 1.3; font-size: 12px">{}</pre>'
_WORDS = '<pre role="status" style="overflow-x: auto; white-space: pre; line-height: 1.3; font-size: 12px">{}</pre>'


class ControlsPanel(w.VBox):
    """The controls and the figure of an explorer.

    Args:
        explorer: a ``pathways_nb.results.explorer_base.Explorer``.
    """

    def __init__(self, explorer: Any):
        self.explorer, self.message, self.words = explorer, w.Label(), w.HTML()
        self.refusals = Refusals()
        self.still: Any = None
        self._timer: threading.Timer | None = None
        # What a change of any choice may alter in the controls: the options of a menu, a text that follows the result.
        self._refreshers: list[Callable[[], None]] = []
        super().__init__()
        self.controls = {name: self._control(name) for name in explorer.choices}
        self.figure = explorer.make_figure()
        below = [*self._player(), *map(self._button_of, explorer.buttons), self.message]
        self.children = [*self._rows(), self.figure, *self._tables(), w.HBox(below, layout=_WRAP)]
        for refresh in self._refreshers:
            refresh()
        self._say()
        if explorer.words:
            # Last: lines that become more or fewer must not move the buttons that are pressed.
            self.children += (self.words,)
        explorer.observe(self._changed, list(explorer.inputs))

    def display(self) -> None:
        """Show the panel in the current cell, with a still picture behind it; a page without kernel gets the figure."""
        if marimo_notebook() is not None:
            self._show_in_marimo()
            return
        found = self._repr_mimebundle_()
        bundle = dict(found[0] if isinstance(found, tuple) else found or {}) | {"text/plain": repr(self.explorer)}
        put_out(bundle | ({ITEM_TYPE: self.figure.json_item_with_data()} if embedding() else {}))
        self.show_still()

    def _show_in_marimo(self) -> None:
        """Show the controls above and below the figure, each as a widget that marimo can show."""
        at = self.children.index(self.figure)
        played = {self.play: self.slider} if hasattr(self, "play") else {}
        above, below = (MirroredControls(list(part), played) for part in (self.children[:at], self.children[at + 1 :]))
        self._mirrors = (above, below)  # alive as long as the panel is
        for part in (above, self.figure, below):
            append_in_marimo(part)

    def show_still(self) -> None:
        """Show the present choice as a still picture, in place of the one before."""
        self.still = show_still(self.explorer.scene, repr(self.explorer), self.still)

    # ---- changes

    def _changed(self, change: Any) -> None:
        """Draw the present choice, and clear the message about an earlier one."""
        # The new picture is thousands of objects: a collection in between would take longer than drawing them.
        with uncollected():
            # What was changed last is what is refused; after a search, that is told beside its button.
            group, refusal = self._tag(change["name"], "group"), self.explorer.refusal
            self.message.value = "" if group in self.refusals else refusal
            self.refusals.say(group, refusal)
            for refresh in self._refreshers:
                refresh()
            self.figure.draw(*self.explorer.drawn)
            self._say()
        if self._timer is not None:
            self._timer.cancel()
        if self.still is not None:
            self._timer = threading.Timer(_QUIET_SECONDS, self.show_still)
            self._timer.daemon = True  # a kernel that ends does not wait for a picture
            self._timer.start()

    def _say(self) -> None:
        """Write the line below the figure, and the words below the player."""
        self.figure.summary, words = self.explorer.summary, self.explorer.words
        self.words.value = _WORDS.format(escape(words)) if words else ""

    # ---- what stands where

    def _rows(self) -> list[w.Widget]:
        """Return the controls, a row for each group."""
        rows: dict[str, list[w.Widget]] = {}
        for name, control in self.controls.items():
            rows.setdefault(self._tag(name, "group"), []).append(control)
        for group, note in self.explorer.notes.items():
            if group in rows:
                rows[group].append(w.Label(note))
        found: list[w.Widget] = []
        for group, row in rows.items():
            why = self.refusals.beside(group)
            # A control that is alone stands in the panel itself, where it may be as wide as the figure.
            found += [w.HBox([*row, why], layout=_WRAP)] if len(row) > 1 else [row[0], why]
        return found

    def _tables(self) -> list[w.Accordion]:
        """Return the tables below the figure, folded up; nothing if the explorer has none."""
        if not self.explorer.tables:
            return []
        made = w.Accordion([w.HTML() for _ in self.explorer.tables])

        def refresh() -> None:
            found = self.explorer.tables
            for table, (_, lines) in zip(made.children, found, strict=True):
                table.value = _TABLE.format(escape("\n".join(lines)))
            made.titles = tuple(title for title, _ in found)

        self._refreshers.append(refresh)
        return [made]

    def _player(self) -> list[w.Widget]:
        """Return what plays the trait that counts steps; nothing if there is none."""
        explorer = self.explorer
        for name in explorer.trait_names(steps=lambda tag: tag is not None):
            player = StepPlayer(explorer, name)
            self.slider, self.play = player.slider, player.play

            def stepped(change: Any, player: StepPlayer = player) -> None:
                # The figure first: what it sends is what takes the browser longest.
                with self.figure.hold_sync():
                    self.figure.point(explorer.pointed)
                    self._say()
                player.refresh()

            self._refreshers.append(player.refresh)
            explorer.observe(stepped, name)
            self.figure.point(explorer.pointed)
            return player.controls
        return []

    def _button_of(self, described: Any) -> w.Button:
        """Return a button of the explorer's."""
        method = getattr(self.explorer, described.method)

        def work() -> None:
            self.message.value, button.disabled = described.busy, True
            try:
                if described.file:
                    file = _free(described.file)
                    method(file)
                    kept = f"; {described.file} stays as it was" if file != described.file else ""
                    self.message.value = f"wrote {file}{kept}"
                else:
                    method()
                for refresh in self._refreshers:
                    refresh()
            except (PathwaysError, OSError) as refused:
                self.message.value = str(refused)
            finally:
                button.disabled = False

        button = _button(described.label, described.help or f"Write {described.file}", work)
        return button

    # ---- controls

    def _tag(self, name: str, tag: str, default: Any = "") -> Any:
        return self.explorer.trait_metadata(name, tag, default)

    def _label(self, name: str) -> str:
        """Return the words left of a control, with the unit in which it shows its number."""
        label = self._tag(name, "label", name)
        return f"{label}, {self._tag(name, 'unit')[0]}" if self._tag(name, "unit") else label

    def _control(self, name: str) -> Any:
        """Return a control that shows and sets one choice; the trait's type and tags say which."""
        trait, value = self.explorer.traits()[name], getattr(self.explorer, name)
        look = {"description": self._label(name), "tooltip": trait.help, "style": {"description_width": "initial"}}
        if isinstance(trait, traitlets.Bool):
            return self._linked(name, w.Checkbox(value, indent=False, layout=_wide("auto"), **look))
        wide = "98%" if isinstance(trait, traitlets.Unicode) else "20em" if self._tag(name, "most") else "8em"
        look["layout"] = _wide(f"{self._tag(name, 'width')}em" if self._tag(name, "width") else wide)
        if self._tag(name, "options") or isinstance(trait, traitlets.Enum):
            return self._menu(name, look)
        if self._tag(name, "shows"):
            return self._following_text(name, look)
        if isinstance(trait, traitlets.Unicode):
            return self._text(name, look)
        if self._tag(name, "most"):
            return self._slider(name, look)
        if trait.allow_none:
            return self._optional(name, look)
        kind = w.IntText if isinstance(trait, traitlets.Int) else w.FloatText
        return self._linked(name, kind(value, continuous_update=False, **look))

    def _linked(self, name: str, control: Any) -> Any:
        traitlets.link((self.explorer, name), (control, "value"))
        return control

    def _menu(self, name: str, look: dict[str, Any]) -> w.Dropdown:
        """Return a menu of what a choice allows; a value of the user's own, such as a chip, is among it."""

        def options() -> tuple[Any, ...]:
            tag, value = self._tag(name, "options"), getattr(self.explorer, name)
            known = getattr(self.explorer, tag) if tag else self.explorer.traits()[name].values
            if value in known:
                return tuple(known)
            return (*((str(one), one) for one in known), (str(getattr(value, "name", value)), value))

        made = w.Dropdown(options=options(), value=getattr(self.explorer, name), **look)
        # Before the link, which could not show a value that is no option yet.
        self.explorer.observe(lambda _: refresh(), name)
        link = traitlets.link((self.explorer, name), (made, "value"))

        def refresh() -> None:
            if (now := options()) != made.options:
                # New options make a menu choose the first of them, which is no choice of the user.
                link.unlink()
                with made.hold_sync():
                    made.options = now
                    link.link()

        self._refreshers.append(refresh)
        return made

    def _optional(self, name: str, look: dict[str, Any]) -> w.Text:
        """Return a field for a number that may be None; a text that is no number is replaced by the last value."""
        explorer, power = self.explorer, (self._tag(name, "unit") or ("", 0))[1]
        # Powers of ten are whole numbers: 40 * 10**-6 is less than 40e-6, because 10**-6 is rounded.
        number = int if isinstance(explorer.traits()[name], traitlets.Int) else float

        def written(value: float | None) -> str:
            return "" if value is None else f"{value / 10**power if power > 0 else value * 10**-power:g}"

        def read(text: str) -> float | None:
            if not text.strip():
                return None
            value = number(text)
            return value * 10**power if power > 0 else value / 10**-power if power else value

        made = w.Text(written(getattr(explorer, name)), placeholder=self._tag(name, "empty"), continuous_update=False,
                      **look)  # fmt: skip

        def typed(change: Any) -> None:
            now = written(getattr(explorer, name))
            try:
                found = read(change["new"])
            except ValueError:
                made.value = now
                self.refusals.say(self._tag(name, "group"), f"{look['description']}: {change['new']!r} is no number")
                return
            # The field shows few digits: to show a number is not to choose the rounded one.
            if written(found) != now:
                setattr(explorer, name, found)

        made.observe(typed, "value")
        explorer.observe(lambda change: setattr(made, "value", written(change["new"])), name)
        return made

    def _slider(self, name: str, look: dict[str, Any]) -> w.FloatSlider:
        """Return a slider in a choice's unit; it grows to a larger value that Python sets."""
        most, scale = self._tag(name, "most"), 10.0 ** -(self._tag(name, "unit") or ("", 0))[1]
        made = w.FloatSlider(0.0, min=0.0, max=max(most, scale * getattr(self.explorer, name)), step=most / _POSITIONS,
                             readout_format=".3g", **look)  # fmt: skip

        def in_unit(value: float) -> float:
            # First the end, else the slider would cut off the value.
            made.max = max(made.max, scale * value)
            return scale * value

        def chosen(value: float) -> float:
            now = getattr(self.explorer, name)
            # The browser moves a slider to the nearest of its positions: that is no choice of the user.
            return now if abs(value - scale * now) <= made.step else value / scale

        traitlets.link((self.explorer, name), (made, "value"), transform=(in_unit, chosen))
        return made

    def _text(self, name: str, look: dict[str, Any]) -> w.Combobox:
        """Return a field for a text, which offers suggestions; it is hidden while there are none, if it has some."""
        made = w.Combobox(placeholder=self._tag(name, "empty"), continuous_update=False, **look)
        if suggestions := self._tag(name, "suggestions"):

            def refresh() -> None:
                made.options = getattr(self.explorer, suggestions)
                made.layout.display = None if made.options or getattr(self.explorer, name) else "none"

            self._refreshers.append(refresh)
        return self._linked(name, made)

    def _following_text(self, name: str, look: dict[str, Any]) -> w.Textarea:
        """Return a field that shows another attribute of the explorer, and sets the trait where the user changes it."""
        explorer, shows = self.explorer, self._tag(name, "shows")
        made = w.Textarea(getattr(explorer, shows), continuous_update=False, rows=self._tag(name, "lines"), **look)

        def typed(change: Any) -> None:
            # The field also changes when the explorer does: to show its text is not to type it.
            if change["new"] != getattr(explorer, shows):
                setattr(explorer, name, change["new"])

        made.observe(typed, "value")
        self._refreshers.append(lambda: setattr(made, "value", getattr(explorer, shows)))
        return made


def _button(label: str, hint: str, work: Callable[[], None]) -> w.Button:
    """Return a button that calls ``work``."""
    made = w.Button(description=label, tooltip=hint, layout=_wide(f"{max(4, len(label))}em"))
    made.on_click(lambda _: work())
    return made


def _free(name: str) -> str:
    """Return the name of a file that is not there yet: with a number behind it if one of that name is."""
    path = Path(name)
    others = (f"{path.stem} {number}{path.suffix}" for number in count(2))
    return name if not path.exists() else next(other for other in others if not Path(other).exists())


def _wide(width: str) -> w.Layout:
    return w.Layout(width=width)
