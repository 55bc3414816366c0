"""The player of an explorer whose trait counts steps, of schedules and of runs: play, one back, one on, a slider."""

from __future__ import annotations

from typing import Any

import ipywidgets as w

_PER_STEP = 400
"""Milliseconds of a step while stepping plays."""


class StepPlayer:
    """Controls that move through the steps of an explorer, one at a time or playing.

    Args:
        explorer: a ``pathways_nb.results.explorer_base.Explorer``.
        name: of its trait that counts steps; the trait's tag ``steps`` names the attribute that says how many there
            are.
    """

    def __init__(self, explorer: Any, name: str):
        self._explorer, self._name = explorer, name
        self.slider = w.IntSlider(self.step, 0, self.last, description=name, layout=w.Layout(width="26em"))
        # Linked in the browser, where steps keep their pace while the kernel draws; it has the slider's value, because
        # the link would set the slider back to 0 there.
        self.play = w.Play(self.step, min=0, max=self.last, interval=_PER_STEP, layout=w.Layout(width="9em"))
        w.jslink((self.play, "value"), (self.slider, "value"))
        # The browser may not know yet that there are fewer steps.
        self.slider.observe(lambda change: setattr(explorer, name, min(change["new"], self.last)), "value")
        self.controls = [
            self.play,
            self._button("◀", "one step back", -1),
            self._button("▶", "one step on", 1),
            self.slider,
        ]

    @property
    def step(self) -> int:
        """The step that the explorer is at."""
        return int(getattr(self._explorer, self._name))

    @property
    def last(self) -> int:
        """The number of steps."""
        return int(getattr(self._explorer, self._explorer.trait_metadata(self._name, "steps")))

    def refresh(self) -> None:
        """Show the explorer's step, and how many there are now."""
        step, last = self.step, self.last
        # The value between the two ends: it may be beyond the old one, or the old value beyond the new one, which
        # would be cut off and count as the user's step. While the end stays, the browser's link moves ``play``.
        for one in (self.slider, self.play) if last != self.slider.max else (self.slider,):
            one.max = max(last, one.max)
            one.value = min(step, last)
            one.max = last

    def _button(self, label: str, hint: str, by: int) -> w.Button:
        """Return a button that moves on by some steps."""
        made = w.Button(description=label, tooltip=hint, layout=w.Layout(width="4em"))
        made.on_click(lambda _: setattr(self._explorer, self._name, min(max(self.step + by, 0), self.last)))
        return made
