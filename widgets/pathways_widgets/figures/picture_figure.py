"""A figure of one picture in a cell's output, which another picture of the same kind can replace.

The browser keeps its models: columns and the properties that follow the data are all that is sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import traitlets
from bokeh.embed import json_item

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Scene
from pathways_widgets.drawing.views import Columns
from pathways_widgets.figures.live import Figure
from pathways_widgets.figures.packing import pack

P = TypeVar("P")


class PictureFigure(Figure, Generic[P]):
    """A picture in a cell's output.

    Args:
        picture: what to draw; ``repr`` tells it in words.
        drawing: draws it, such as a ``token_view.TokenSlices``.
        still: returns the same as shapes; by default the drawing does.
    """

    def __init__(self, picture: P, drawing: Any, still: Callable[[P], Scene] | None = None):
        self._picture, self.drawing = picture, drawing
        sources = drawing.update(picture)
        self.add_traits(**{f"_data_{name}": traitlets.Bytes().tag(sync=True) for name in sources})
        data = {f"_data_{name}": pack(columns) for name, columns in sources.items()}
        super().__init__(
            self._item_of(), lambda: (still or drawing.still)(self._picture), _sources=list(sources), **data
        )
        self.description, self.headline = self.words(picture), self.sentence(picture)

    def sentence(self, picture: P) -> str:
        """Return what matters in a picture, which stands above it; empty for none."""
        return ""

    def words(self, picture: P) -> str:
        """Return a picture in words."""
        return repr(picture)

    def draw(self, picture: P, *pointed: Any) -> None:
        """Show another picture; only the columns that differ are sent.

        Args:
            picture: the picture.
            *pointed: where the drawing points, if it points somewhere.
        """
        with self.hold_sync():
            self._picture = picture
            self._send_columns(self._update(picture, *pointed))
            self._properties = json.dumps(self.drawing.properties)
            self.description, self.headline = self.words(picture), self.sentence(picture)

    def json_item_with_data(self) -> dict[str, Any]:
        """Return the item in its present state, with its data, for a page without a kernel."""
        sources = self._whole()
        for name, table in self.drawing.tables.items():
            columns = sources[name].items()
            # Bokeh takes lists and arrays, and no other sequence, such as a column of few different words.
            table.data = {key: one if isinstance(one, np.ndarray) else list(one) for key, one in columns}
        return self._item_of()

    def _update(self, picture: P, *pointed: Any) -> dict[str, Columns]:
        """Return the columns to send for a picture."""
        return self.drawing.update(picture, *pointed)

    def _whole(self) -> dict[str, Columns]:
        """Return the columns for a page: no kernel will send other detail later."""
        return self.drawing.sources

    def _send_columns(self, sources: dict[str, Columns]) -> None:
        for name, columns in sources.items():
            setattr(self, f"_data_{name}", pack(columns))

    def _item_of(self) -> dict[str, Any]:
        """Return the item to embed, with the data that the tables have now."""
        words = {"summary": "", "headline": self.sentence(self._picture), "description": self.words(self._picture)}
        looks = {"themes": palette.themed(self.drawing.roles), "properties": self.drawing.properties}
        return dict(json_item(self.drawing.root)) | words | looks

    def __repr__(self) -> str:
        return self.description
