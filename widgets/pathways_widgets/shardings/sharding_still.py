"""The picture of a sharding for viewers without scripts: the columns of ``sharding_columns``, as shapes."""

from __future__ import annotations

from collections.abc import Iterator

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Align, Rect, Scene, Shape, Text
from pathways_widgets.drawing.still_frame import LIGHT
from pathways_widgets.drawing.views import Columns
from pathways_widgets.shardings.sharding_columns import SIDES, SOURCES

_ALIGN: dict[str, Align] = {"left": "start", "center": "middle", "right": "end"}


def scene_of_sharding(sources: dict[str, Columns], width: float, height: float) -> Scene:
    """Return the picture as shapes.

    Args:
        sources: the columns of each source.
        width: pixels of the page.
        height: pixels of the picture.
    """
    scene = Scene(width, height, LIGHT["background"])
    for name in SOURCES:
        scene.shapes += _boxes(name, sources[name])
    font = style.current().font
    for name, colour in (("marks", palette.INK), ("heads", LIGHT["text"]), ("words", LIGHT["text"])):
        columns = sources[f"sharding_{name}"]
        aligns = columns.get("align", ["center" if name == "marks" else "left"] * len(columns["x"]))
        for x, y, text, align in zip(columns["x"], columns["y"], columns["text"], aligns, strict=True):
            scene.shapes.append(Text(x, y, text, font, colour, _ALIGN[align], bold=name == "heads"))
    return scene


def _boxes(name: str, columns: Columns) -> Iterator[Shape]:
    """Yield the boxes of one source."""
    if "left" not in columns:
        return
    line = style.current().line
    fills, edges = (columns.get(look, [""] * len(columns["left"])) for look in ("fill", "edge"))
    for left, right, top, bottom, fill, edge in zip(*(columns[side] for side in SIDES), fills, edges, strict=True):
        box = left, top, right - left, bottom - top
        if name == "sharding_groups":
            yield Rect(*box, "", LIGHT["background"], 1.6 * line)
        elif not fill:
            yield Rect(*box, LIGHT["background"], LIGHT["lane"], 0.5 * line, hatch="/")
        else:
            yield Rect(*box, fill, edge, 0.5 * line)
