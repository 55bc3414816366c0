"""Pictures of token slices in a cell's output and in a file."""

from __future__ import annotations

from pathlib import Path

from pathways_widgets.explorers import picture_figure
from pathways_widgets.explorers.token_columns import Pictured
from pathways_widgets.explorers.token_still import scene_of_tokens
from pathways_widgets.explorers.token_view import TokenSlices


class TokenFigure(picture_figure.PictureFigure[Pictured]):
    """Token slices, their cost and their latency, in a cell's output.

    Args:
        picture: what to draw.
    """

    def __init__(self, picture: Pictured):
        super().__init__(picture, TokenSlices(), scene_of_tokens)


def write(picture: Pictured, path: str | Path, width: str | float) -> None:
    """Write the pictures as SVG or PNG; see ``picture_figure.write``."""
    picture_figure.write(picture, scene_of_tokens, path, width)
