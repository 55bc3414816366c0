"""What pictures of shardings share: their sources and columns, the rows that fill them, and what they draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.still_text import text_width, wrapped
from pathways_widgets.drawing.views import SIDES
from pathways_widgets.shardings.sharding_grid import Index

SOURCES = {
    "sharding_padding": (*SIDES,),
    "sharding_blocks": (*SIDES, "fill", "edge", "index", "devices", "bytes", "place"),
    "sharding_copies": (*SIDES, "fill"),
    "sharding_moves": (*SIDES, "fill", "what", "amount"),
    "sharding_stays": (*SIDES,),
    "sharding_groups": (*SIDES,),
    "sharding_marks": ("x", "y", "text"),
    "sharding_heads": ("x", "y", "text"),
    "sharding_words": ("x", "y", "text", "align"),
}
"""The columns of each source, from back to front."""
_LINE, _BOLD = 1.45, 1.08
"""Height of a line of text over that of the text; width of bold text over that of ordinary text."""


class DrawnBlocks(Protocol):
    """The grid of blocks of an array."""

    @property
    def ranges(self) -> Sequence[Sequence[tuple[int, int]]]:
        """For each dimension, the range of each part."""

    @property
    def holders(self) -> Mapping[Index, Sequence[int]]:
        """For each block the positions of its devices."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the largest block."""


@runtime_checkable
class DrawnLayout(Protocol):
    """A layout as a picture needs it."""

    @property
    def heading(self) -> str:
        """What lies where."""

    @property
    def lines(self) -> Sequence[str]:
        """What each device holds."""

    @property
    def place(self) -> str:
        """What holds it, with its axes."""

    @property
    def blocks(self) -> DrawnBlocks:
        """Its blocks."""

    @property
    def devices(self) -> Sequence[Any]:
        """The devices; equal ones in two layouts are the same."""

    def dimension(self, number: int) -> str:
        """Return how a dimension is split."""

    def index(self, block: Index) -> str:
        """Return the range of indices of a block."""

    def device_numbers(self, positions: Sequence[int], most: int = 4) -> str:
        """Return the numbers of the devices at these positions."""

    def bytes_of(self, block: Index) -> int:
        """Return the bytes of one block."""


@dataclass
class Rows:
    """The rows of each source, and the pixels that they take."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    height: float = 0.0

    def add(self, source: str, **row: object) -> None:
        """Add one row to ``source``."""
        self.rows.setdefault(source, []).append(row)

    def box(self, source: str, left: float, top: float, width: float, height: float, **row: object) -> None:
        """Add a box to ``source``."""
        self.add(source, left=left, right=left + width, top=top, bottom=top + height, **row)

    def word(self, x: float, y: float, text: str, align: str = "center") -> None:
        """Add one line of text, centred at the height ``y``."""
        self.add("sharding_words", x=x, y=y, text=text, align=align)

    def paragraphs(
        self, left: float, top: float, width: float, font: float, heading: str, lines: Iterable[str]
    ) -> float:
        """Add a heading and the lines below it, broken where they are too wide.

        Args:
            left: pixels of their left edge.
            top: pixels of their upper edge.
            width: pixels of the longest line.
            font: height of text in pixels.
            heading: the heading.
            lines: the other lines.

        Returns:
            Pixels of their lower edge.
        """

        def fits(text: str) -> bool:
            # Widths are those of ordinary text; headings are bold.
            return _BOLD * text_width(text, font) <= width

        for part in wrapped(heading, fits):
            self.add("sharding_heads", x=left, y=top + _LINE * font / 2, text=part)
            top += _LINE * font
        for part in (part for line in lines for part in wrapped(line, fits)):
            self.word(left, top + _LINE * font / 2, part, "left")
            top += _LINE * font
        return top

    def columns(self) -> dict[str, dict[str, list[Any]]]:
        """Return the columns of each source."""
        return {name: {column: [row[column] for row in self.rows.get(name, [])] for column in columns}
                for name, columns in SOURCES.items()}  # fmt: skip


def colours_of(*layouts: DrawnLayout) -> list[list[str]]:
    """Return the colour of each device of each layout; a device that is in several has one colour."""
    # By device and not by position: in a reshard the same device keeps its colour on both sides.
    known = {device: at for at, device in enumerate(dict.fromkeys(d for one in layouts for d in one.devices))}
    return [[palette.device_colour(known[device], len(known)) for device in one.devices] for one in layouts]
