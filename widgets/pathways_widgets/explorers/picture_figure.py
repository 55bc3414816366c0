"""What the figures of explorers that draw one picture share: the live figure, its still picture and its words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import traitlets
from bokeh.embed import json_item

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Scene
from pathways_widgets.figures.live import Figure
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.run_still import write_scene


class Worded(Protocol):
    """A picture that can be told in words."""

    @property
    def lines(self) -> Sequence[str]:
        """The picture in words."""


P = TypeVar("P", bound=Worded)


class PictureFigure(Figure, Generic[P]):
    """A picture in a cell's output.

    Args:
        picture: what to draw.
        drawing: draws it, such as a ``token_view.TokenSlices``.
        still: returns the same as shapes.
    """

    def __init__(self, picture: P, drawing: Any, still: Callable[[P], Scene]):
        self._picture, self.drawing = picture, drawing
        sources = drawing.update(picture)
        self.add_traits(**{f"_data_{name}": traitlets.Bytes().tag(sync=True) for name in sources})
        data = {f"_data_{name}": pack(columns) for name, columns in sources.items()}
        super().__init__(self._item_of(), lambda: still(self._picture), _sources=list(sources), **data)
        self.description = describe(picture)

    def draw(self, picture: P) -> None:
        """Show another picture; only the columns that differ are sent."""
        with self.hold_sync():
            self._picture = picture
            for name, columns in self.drawing.update(picture).items():
                setattr(self, f"_data_{name}", pack(columns))
            self._properties = json.dumps(self.drawing.properties)
            self.description = describe(picture)

    def json_item_with_data(self) -> dict[str, Any]:
        """Return the item in its present state, with its data, for a page without a kernel."""
        for name, table in self.drawing.tables.items():
            table.data = {column: list(values) for column, values in self.drawing.sources[name].items()}
        item = self._item_of()
        for table in self.drawing.tables.values():
            table.data = {column: [] for column in table.data}
        return item

    def _item_of(self) -> dict[str, Any]:
        """Return the item to embed, with the data that the sources have now."""
        words = {"summary": "", "description": describe(self._picture)}
        looks = {"themes": palette.themed(self.drawing.roles), "properties": self.drawing.properties}
        return dict(json_item(self.drawing.root)) | words | looks

    def __repr__(self) -> str:
        return self.description


def describe(picture: Worded) -> str:
    """Return what a picture shows, as text."""
    return "\n".join(picture.lines)


def write(picture: P, still: Callable[[P, float], Scene], path: str | Path, width: str | float) -> None:
    """Write a picture as SVG or PNG.

    Args:
        picture: what to draw.
        still: returns it as shapes, for a width in pixels.
        path: path of the file.
        width: pixels, or a length; see ``run_still.write_scene``.

    Raises:
        ValueError: the file's ending or the length is unknown.
    """
    write_scene(lambda pixels: still(picture, pixels), path, width)
