"""Pictures of token slices in a cell's output and in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import traitlets
from bokeh.embed import json_item

from pathways_widgets.drawing import palette
from pathways_widgets.explorers.token_columns import Pictured
from pathways_widgets.explorers.token_still import scene_of_tokens
from pathways_widgets.explorers.token_view import TokenSlices
from pathways_widgets.figures.live import Figure
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.run_still import write_scene


class TokenFigure(Figure):
    """Token slices, their cost and their latency, in a cell's output.

    Args:
        picture: what to draw.
    """

    def __init__(self, picture: Pictured):
        self._picture, self.drawing = picture, TokenSlices()
        sources = self.drawing.update(picture)
        self.add_traits(**{f"_data_{name}": traitlets.Bytes().tag(sync=True) for name in sources})
        data = {f"_data_{name}": pack(columns) for name, columns in sources.items()}
        super().__init__(self._item_of(), lambda: scene_of_tokens(self._picture), _sources=list(sources), **data)
        self.description = describe(picture)

    def draw(self, picture: Pictured) -> None:
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


def describe(picture: Pictured) -> str:
    """Return what the pictures show, as text."""
    return "\n".join(picture.lines)


def write(picture: Pictured, path: str | Path, width: str | float) -> None:
    """Write the pictures as SVG or PNG.

    Args:
        picture: what to draw.
        path: path of the file.
        width: pixels, or a length; see ``run_still.write_scene``.

    Raises:
        ValueError: the file's ending or the length is unknown.
    """
    write_scene(lambda pixels: scene_of_tokens(picture, pixels), path, width)
