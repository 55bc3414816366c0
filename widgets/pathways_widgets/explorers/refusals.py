"""Where an explorer says why it refuses what was typed or chosen: beside the controls, where the user looks."""

from __future__ import annotations

from html import escape

import ipywidgets as w

_STATUS = '<span role="status" style="line-height: 1.4; overflow-wrap: anywhere">⚠ {}</span>'


class Refusals(dict[str, w.HTML]):
    """The places for refusals, one beside each group of controls, by the name of the group."""

    def beside(self, group: str) -> w.HTML:
        """Return a new place for the refusals of a group; it takes no room while it is empty."""
        self[group] = w.HTML(layout=w.Layout(display="none", flex="1 1 20em", max_width="100%", margin="0 0 0 8px"))
        return self[group]

    def say(self, group: str, why: str) -> None:
        """Say why the values of a group are refused, and nothing beside the other groups; empty if they are not."""
        for name, place in self.items():
            here = why if name == group else ""
            place.value, place.layout.display = (
                _STATUS.format(escape(here, quote=False)) if here else "",
                "" if here else "none",
            )
