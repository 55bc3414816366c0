"""``pw.style``: the sizes of everything that is drawn of a run."""

from __future__ import annotations


def style(name: str, scale: float = 1.0) -> None:
    """Choose the sizes of text, lines and lanes of every picture drawn from now on.

    Args:
        name: ``"screen"``, ``"projector"`` or ``"paper"``.
        scale: a factor on all sizes.

    Raises:
        ValueError: an unknown name, or a scale that is not from 0.1 to 20.
    """
    from pathways_widgets.drawing.style import choose

    choose(name, scale)
