"""The marks of a timeline, from back to front, and what the pointer finds at its boxes."""

from __future__ import annotations

from typing import Any

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.palette import DASHES
from pathways_widgets.drawing.picture_marks import Column, PictureMark
from pathways_widgets.drawing.point_marks import TextMark
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.timeline.client_shares import TINTS
from pathways_widgets.timeline.ghost_columns import OUTLINE
from pathways_widgets.timeline.happened_columns import SHADE, TAG
from pathways_widgets.timeline.transfer_columns import ARROW_HEAD, ARROW_LINE
from pathways_widgets.timeline.why_columns import MARK

TOOLTIPS = [
    ("what", "@name · @kind"),
    ("that is", "@kind{custom}"),
    ("where", "@place"),
    ("program", "@program{custom}@run{custom}"),
    ("start", "@left{custom}"),
    ("takes", "@duration{custom} (@quality, @status)"),
    ("begins by", "@why"),
    ("moves", "@bytes{custom} @route"),
    ("over", "@route{custom}"),
    ("achieved", "@rate{custom}"),
    ("modelled", "@modelled"),
    ("line", "@line"),
    ("basis", "@basis"),
]
_OPTIONAL = (
    "that is",
    "program",
    "begins by",
    "moves",
    "over",
    "achieved",
    "modelled",
    "line",
    "line or source",
    "basis",
    "work or basis",
)
"""Rows of the tooltip that only some boxes have."""
FORMATS = ("left", "duration"), ("bytes",), _OPTIONAL, ("kind", "route"), ("rate",)
"""Columns of times and of bytes, rows that may be missing, columns of words that newcomers meet here first, and of
bytes per second."""
_COLOURS = (*(kind.colour for kind in palette.KINDS), palette.BOX_EDGE)
"""What the numbers in ``code`` and ``edge`` stand for; a narrow box has no edge, that is one in its own colour."""


def timeline_marks(tooltip: Tooltip) -> tuple[PictureMark, ...]:
    """Return the marks of a timeline, from back to front; ``tooltip`` is that of the boxes."""
    clients = Column("tint", TINTS)
    busy = Tooltip((("busy", "@share{0%} of island @island@whose"),))
    boxes: dict[str, Any] = {"source": "timeline_boxes", "is_dimmed": True}
    look: dict[str, Any] = {"fill": Column("code", _COLOURS), "line": Column("edge", _COLOURS), "line_width": 0.5}
    return (
        SHADE,
        BoxMark(source="timeline_busy", fill=clients, tooltip=busy),
        BoxMark(**boxes, **look, tooltip=tooltip),
        BoxMark(**boxes, renderer="timeline_strips", top="strip", fill=clients),
        *(BoxMark(source=f"timeline_{name}", hatch=hatch) for name, hatch in palette.HATCHES.items()),
        *(
            BoxMark(source=f"timeline_{name}", renderer=f"timeline_{name}_edges", line=palette.BOX_EDGE, dash=dash)
            for name, dash in DASHES.items()
        ),
        OUTLINE,
        ARROW_LINE,
        ARROW_HEAD,
        MARK,
        TAG,
        TextMark(source="timeline_marks"),
    )
