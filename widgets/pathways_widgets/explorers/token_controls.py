"""Controls for token slices: sizes and constants of the cost above, the pictures below.

The state belongs to the explorer (``pathways_nb.parallel.terapipe.explorer``), which works without a notebook. Controls
are linked to it in both directions. A typed number counts when it is complete, a slider while it is dragged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ipywidgets as w
import traitlets

from pathways_widgets.drawing.scene import Scene
from pathways_widgets.explorers.controls_panel import WRAP, ControlsPanel, wide
from pathways_widgets.explorers.token_display import TokenFigure
from pathways_widgets.explorers.token_still import scene_of_tokens


class _Slider(NamedTuple):
    """How a constant is shown: its words, its unit with the number of them in a second, and the end of the slider."""

    words: str
    unit: str
    per_second: float
    most: float


_SLIDERS = {
    "floor": _Slider("floor", "ms", 1e3, 40.0),
    "fixed": _Slider("fixed", "ms", 1e3, 40.0),
    "per_token": _Slider("per token", "µs", 1e6, 200.0),
    "per_pair": _Slider("per pair", "ns", 1e9, 20.0),
}
_STEPS = 4000
"""Positions of a slider."""
_SAYS = {"uniform": "uniform slices"}
_HINTS = {
    "length": "Tokens of a sequence",
    "batch": "Number of sequences",
    "granularity": "Tokens; each slice is a multiple of it",
    "uniform": "Number of slices of the uniform slicing below",
    "floor": "Time of the shortest slices",
    "fixed": "Time of each slice above the floor",
    "per_token": "Time of a token",
    "per_pair": "Time of a pair of a token and one that it may attend to",
}
_FORMULA = "max(floor, fixed + per token · b l + per pair · b l (l + c)) for l tokens after c, of b sequences together"
_FILE = "token_slices.svg"


class TokenPanel(ControlsPanel):
    """The controls and the figure of an explorer of token slices.

    Args:
        explorer: has a trait for each of its ``choices``, and ``picture``, as
            ``pathways_nb.parallel.terapipe.explorer.TokenExplorer`` has.
    """

    def __init__(self, explorer: Any):
        super().__init__(explorer)
        self.controls = {name: self._control(name) for name in explorer.choices}
        self.figure = TokenFigure(explorer.picture)
        explorer.observe(self._changed, list(explorer.choices))
        sizes, constants = ([one for name, one in self.controls.items() if (name in _SLIDERS) == slides]
                            for slides in (False, True))  # fmt: skip
        svg = self.button("SVG", f"Write {_FILE}", lambda: self.write(_FILE, explorer.savefig))
        if constants:
            constants.append(w.Label(_FORMULA))
        rows = [w.HBox(row, layout=WRAP) for row in (sizes, constants) if row]
        self.children = [*rows, self.figure, w.HBox([svg, self.message], layout=WRAP)]

    def scene(self) -> Callable[[], Scene]:
        """Return the function that draws the present choice as a still picture."""
        picture = self.explorer.picture
        return lambda: scene_of_tokens(picture)

    def _control(self, name: str) -> Any:
        """Return a control that shows and sets one choice."""
        look = {"tooltip": _HINTS.get(name, ""), "style": {"description_width": "initial"}}
        if name in _SLIDERS:
            return self._slider(name, _SLIDERS[name], look)
        words = _SAYS.get(name, name)
        layout = wide(f"{5.5 + 0.5 * len(words)}em")
        made = w.IntText(
            getattr(self.explorer, name), description=words, continuous_update=False, layout=layout, **look
        )
        traitlets.link((self.explorer, name), (made, "value"))
        return made

    def _slider(self, name: str, slider: _Slider, look: dict[str, Any]) -> w.FloatSlider:
        """Return the slider of a constant, in its unit; it grows to a larger value that Python sets.

        The browser moves a slider to the nearest of its positions. That is no choice of the user.
        """
        most = max(slider.most, slider.per_second * getattr(self.explorer, name))
        words = f"{slider.words}, {slider.unit}"
        made = w.FloatSlider(0.0, min=0.0, max=most, step=slider.most / _STEPS, description=words,
                             readout_format=".3g", layout=wide("20em"), **look)  # fmt: skip

        def shown(seconds: float) -> float:
            made.max = max(made.max, slider.per_second * seconds)
            return slider.per_second * seconds

        def chosen(value: float) -> float:
            now = getattr(self.explorer, name)
            return now if abs(value - slider.per_second * now) <= made.step else value / slider.per_second

        traitlets.link((self.explorer, name), (made, "value"), transform=(shown, chosen))
        return made

    def _changed(self, change: Any = None) -> None:
        """Draw the present choice, and clear the message about an earlier one."""
        self.message.value = ""
        self.figure.draw(self.explorer.picture)
        self.renew()


def display_explorer(explorer: Any) -> TokenPanel:
    """Show an explorer with its controls in the current cell, with a still picture beside it.

    Args:
        explorer: the explorer.

    Returns:
        The controls.
    """
    panel = TokenPanel(explorer)
    panel.display()
    return panel
