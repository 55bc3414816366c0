"""Sizes of everything drawn: for a screen, a projector or a page of a paper. Colours are in ``palette``.

One style is current in the process: a notebook chooses it once for all its pictures (``pw.style``). A view keeps
the style that was current when it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pathways_nb.errors import is_number
from pathways_nb.util.json_text import shortened


@dataclass(frozen=True)
class Style:
    """Sizes in pixels of the screen.

    Args:
        font: height of text on boxes and axes.
        lane: height of a device's lane, where there is room.
        line: factor on the width of lines.
    """

    font: float
    lane: float
    line: float

    @property
    def factor(self) -> float:
        """Size of text relative to that on a screen; margins and marks scale with it."""
        return self.font / STYLES["screen"].font


STYLES = {
    "screen": Style(font=11, lane=24, line=1.0),
    "projector": Style(font=16, lane=34, line=1.8),
    "paper": Style(font=8.5, lane=17, line=0.7),
}
LEAST, MOST = 0.1, 20.0
"""Bounds of the factor on all sizes: text below one pixel cannot be read, text above some hundred leaves no room."""
_chosen = STYLES["screen"]


def choose(name: str, scale: float = 1.0) -> None:
    """Set the style of everything drawn from now on.

    Args:
        name: a key of ``STYLES``.
        scale: factor on all its sizes.

    Raises:
        ValueError: an unknown name, or a scale that is not from 0.1 to 20.
    """
    global _chosen
    if not isinstance(name, str) or name not in STYLES:
        raise ValueError(f"style({shortened(name)}): choose one of {', '.join(map(repr, STYLES))}.")
    if not is_number(scale) or not LEAST <= scale <= MOST:
        raise ValueError(f"style(scale={shortened(scale)}): a positive number is needed, from {LEAST:g} to {MOST:g}.")
    style = STYLES[name]
    # A new style: views keep the one with which they were made.
    _chosen = replace(style, font=style.font * scale, lane=style.lane * scale, line=style.line * scale)


def current() -> Style:
    """Return the current style."""
    return _chosen
