"""Pictures of shardings in a cell's output and in a file."""

from __future__ import annotations

import sys
from pathlib import Path

from bokeh.embed import json_item

from pathways_nb.util.displaying import shows_figures
from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.picture_marks import shapes_of
from pathways_widgets.drawing.scene import Scene
from pathways_widgets.drawing.still_frame import LIGHT, Frame
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.figures.live import Figure
from pathways_widgets.figures.run_still import write_scene
from pathways_widgets.shardings.sharding_columns import DrawnLayout, Rows
from pathways_widgets.shardings.sharding_moves import DrawnReshard, draw_layout, draw_reshard
from pathways_widgets.shardings.sharding_view import ROLES, SHARDING_MARKS, figure_of_sharding

Drawable = DrawnLayout | DrawnReshard


def columns_of(picture: Drawable, width: float) -> tuple[dict[str, Columns], float]:
    """Return the columns of each source, and the height in pixels.

    Args:
        picture: a layout or a reshard.
        width: in pixels.
    """
    rows = Rows()
    if isinstance(picture, DrawnLayout):
        draw_layout(rows, picture, width, style.current())
    else:
        draw_reshard(rows, picture, width, style.current())
    return rows.columns(), rows.height


def scene_of(picture: Drawable, width: float = FULL_WIDTH) -> Scene:
    """Return the picture for viewers without scripts."""
    sources, height = columns_of(picture, width)
    shapes = shapes_of(SHARDING_MARKS, sources, Frame.of_pixels(width, height))
    return Scene(width, height, LIGHT["background"], list(shapes))


class ShardingFigure(Figure):
    """A layout or a reshard in a cell's output; its text is that of the picture.

    Args:
        picture: what to draw.
    """

    def __init__(self, picture: Drawable):
        sources, height = columns_of(picture, FULL_WIDTH)
        plot = figure_of_sharding(sources, height, style.current())
        words = {"summary": "", "description": repr(picture)}
        item = dict(json_item(plot)) | words | {"themes": palette.themed(ROLES)}
        super().__init__(item, lambda: scene_of(picture), description=repr(picture))

    def __repr__(self) -> str:
        return self.description


def show(picture: Drawable) -> None:
    """Show a picture in a cell's output; a script prints its text."""
    if shows_figures():
        ShardingFigure(picture)._ipython_display_()
    else:
        sys.stdout.write(f"{picture!r}\n")


def write(picture: Drawable, path: str | Path, width: str | float) -> None:
    """Write a picture as SVG or PNG.

    Args:
        picture: a layout or a reshard.
        path: path of the file.
        width: pixels, or a length; see ``run_still.write_scene``.

    Raises:
        ValueError: the file's ending or the length is unknown.
    """
    write_scene(lambda pixels: scene_of(picture, pixels), path, width)
