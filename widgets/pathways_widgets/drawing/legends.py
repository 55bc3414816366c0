"""Legends, described once: rows of entries, each a mark with its words, for a Bokeh figure and for a still picture.

Bokeh's own legends have one width, so a narrow page would cut them off. Its models are kept, since they know what an
entry explains and hides, but ``legends.js`` writes their entries above the figure, where the browser breaks the lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bokeh.models import ColumnDataSource, GlyphRenderer, Legend, LegendItem
from bokeh.plotting import figure

from pathways_widgets.drawing import style
from pathways_widgets.drawing.palette import INK
from pathways_widgets.drawing.picture_marks import PictureMark
from pathways_widgets.drawing.scene import Shape, Text
from pathways_widgets.drawing.still_frame import LABELS, LIGHT, Frame
from pathways_widgets.drawing.views import ENDS, SIDES, Columns

LEGEND_ROW = 16.0
"""Height in pixels of a row of a legend in a still picture."""
_FAR = 2.0**16
"""Pixels beyond which no legend is; a power of two, so that a ``Frame`` of them leaves positions as they are."""


@dataclass(frozen=True)
class Swatch:
    """An entry of a legend.

    Args:
        text: its words.
        mark: what they explain, over the columns ``SIDES``, ``ENDS`` or ``x`` and ``y``; its table does not matter.
        name: name of Bokeh's entry, needed if its visibility or its words are properties of the view.
        letter: what stands on the boxes that it explains.
    """

    text: str
    mark: PictureMark
    name: str = ""
    letter: str = ""


def draw_swatch(fig: figure, swatch: Swatch, looks: style.Style) -> GlyphRenderer:
    """Add the mark of an entry to a figure, at no position: it only carries the entry's look and visibility."""
    # One row, since Bokeh draws no entry of an empty table.
    nowhere = ColumnDataSource({column: [math.nan] for column in (*SIDES, *ENDS, "x", "y")})
    return fig.add_glyph(nowhere, swatch.mark.named_glyph(looks))


def named_renderer(fig: figure, name: str) -> GlyphRenderer:
    """Return the renderer with this name; Bokeh's own ``select_one`` looks at all models, which takes long."""
    return next(one for one in fig.renderers if one.name == name)


def swatch_items(fig: figure, swatches: Sequence[Swatch], looks: style.Style) -> list[LegendItem]:
    """Return Bokeh's entries of a legend, after adding their marks to a figure."""
    return [
        LegendItem(
            label={"value": one.text},
            renderers=[draw_swatch(fig, one, looks)],
            name=one.name or None,
            tags=[one.letter, INK] if one.letter else [],
        )
        for one in swatches
    ]


def add_legend(
    fig: figure, name: str, items: Sequence[LegendItem], looks: style.Style, click_policy: str = "none"
) -> None:
    """Add a legend above a figure, and above the legends that are there already.

    Args:
        fig: the figure.
        name: name of the legend.
        items: its entries.
        looks: sizes of text and lines.
        click_policy: ``"hide"`` if a click on an entry hides what it explains.
    """
    legend = Legend(items=list(items), name=name, click_policy=click_policy)
    legend.label_text_font_size = f"{looks.font}px"
    # Bokeh adds outwards from the plot, so a later legend is above an earlier one.
    fig.add_layout(legend, "above")


def shown_swatches(swatches: Sequence[Swatch], properties: Mapping[str, Mapping[str, Any]]) -> list[Swatch]:
    """Return the entries that the properties of a view leave visible, with the words that these give them."""
    found = []
    for swatch in swatches:
        values = properties.get(swatch.name, {}) if swatch.name else {}
        if values.get("visible", True):
            # The same properties that the browser sets on Bokeh's entry.
            words = values.get("label", {}).get("value", swatch.text)
            found.append(replace(swatch, text=words))
    return found


def legend_shapes(
    rows: Sequence[Sequence[Swatch]], top: float, width: float, left: float | None = None
) -> tuple[list[Shape], float]:
    """Lay out the entries of legends in a still picture.

    Args:
        rows: rows of entries, from the top; a row that is too wide is broken.
        top: pixels of their upper edge.
        width: width of the picture in pixels.
        left: where rows begin; ``None`` is the left edge of a plot over time.

    Returns:
        The shapes, and the height of all rows.
    """
    looks = style.current()
    shapes, frame = list[Shape](), Frame.of_pixels(_FAR, _FAR)
    factor, y = looks.factor, top
    begin = factor * LABELS if left is None else left
    for swatches in rows:
        x = begin
        for swatch in swatches:
            # An estimate of the width of a text, so that rows break alike whatever fonts a machine has.
            needed = 16 * factor + 0.55 * looks.font * len(swatch.text)
            if x > begin and x + needed > width:
                x, y = begin, y + factor * LEGEND_ROW
            middle = y + factor * LEGEND_ROW / 2
            sides = x, x + 12 * factor, middle - 6 * factor, middle + 6 * factor
            place: Columns = {name: [side] for name, side in zip(SIDES, sides, strict=True)}
            place |= {"x": [x + 6 * factor], "y": [middle]}
            place |= {name: [end] for name, end in zip(ENDS, (sides[0], middle, sides[1], middle), strict=True)}
            shapes += swatch.mark.shapes(place, frame)
            if swatch.letter:
                shapes.append(Text(x + 6 * factor, middle, swatch.letter, 0.8 * looks.font, INK, "middle"))
            shapes.append(Text(x + 16 * factor, middle, swatch.text, looks.font, LIGHT["text"]))
            x += needed + 12 * factor
        y += factor * LEGEND_ROW if swatches else 0
    return shapes, y - top
