"""Pictures of the explorer of a sharded step in a cell's output and in a file."""

from __future__ import annotations

from pathlib import Path

from pathways_widgets.explorers import picture_figure
from pathways_widgets.explorers.step_columns import Pictured
from pathways_widgets.explorers.step_still import scene_of_step
from pathways_widgets.explorers.step_view import StepPlan


class StepFigure(picture_figure.PictureFigure[Pictured]):
    """The buckets, the lanes and the memory of a step, in a cell's output.

    Args:
        picture: what to draw.
    """

    def __init__(self, picture: Pictured):
        super().__init__(picture, StepPlan(), scene_of_step)


def write(picture: Pictured, path: str | Path, width: str | float) -> None:
    """Write the pictures as SVG or PNG; see ``picture_figure.write``."""
    picture_figure.write(picture, scene_of_step, path, width)
