"""Columns of the picture of a reshard: both layouts side by side, and below them who sends how much to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pathways_nb.errors import size
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.style import Style
from pathways_widgets.shardings.layout_picture import LayoutPicture
from pathways_widgets.shardings.sharding_columns import DrawnLayout, Rows, colours_of

MOST_CELLS = 32
"""Rows and columns of the table at most; of more devices, neighbours share one."""
_NARROW = 600.0
"""Pixels below which one layout stands above the other."""
_CELL, _HEADER = 64.0, 10.0
"""Pixels of a column of the table at most, and of the colours of devices along its sides."""


EXPLAINED = "bytes from the devices at the left to those above, more where darker"


class DrawnReshard(Protocol):
    """A reshard as a picture needs it."""

    @property
    def before(self) -> DrawnLayout:
        """The layout that there is."""

    @property
    def after(self) -> DrawnLayout:
        """The layout that is wanted."""

    @property
    def pairs(self) -> np.ndarray | None:
        """Rows of the positions of sender and receiver, and bytes; ``None`` if there are too many."""

    @property
    def kept(self) -> np.ndarray | None:
        """The same of what devices keep."""

    @property
    def heading(self) -> str:
        """What crosses."""

    @property
    def lines(self) -> Sequence[str]:
        """What devices receive."""


def draw_layout(rows: Rows, layout: DrawnLayout, width: float, style: Style) -> None:
    """Add the picture of one layout, ``width`` pixels wide."""
    margin = 0.8 * style.font
    colours = colours_of(layout)[0]
    rows.height = LayoutPicture(rows, layout, colours, margin, width - 2 * margin, style).draw(margin) + margin


def draw_reshard(rows: Rows, reshard: DrawnReshard, width: float, style: Style) -> None:
    """Add the picture of a reshard, ``width`` pixels wide."""
    margin, top, bottom = 0.8 * style.font, 0.8 * style.font, 0.0
    is_wide = width >= _NARROW * style.factor
    wide = (width - 4 * margin) / 2 if is_wide else width - 2 * margin
    for number, (layout, colours) in enumerate(
        zip((reshard.before, reshard.after), colours_of(reshard.before, reshard.after), strict=True)
    ):
        left = margin + number * (wide + 2 * margin) if is_wide else margin
        end = LayoutPicture(rows, layout, colours, left, wide, style).draw(top)
        top, bottom = top if is_wide else end + 2 * margin, max(bottom, end)
    rows.height = _Table(rows, reshard, margin, width - 2 * margin, style).draw(bottom + 2 * margin) + margin


class _Table:
    """Adds the table of bytes: a row for each sender, a column for each receiver, or for some neighbours.

    Args:
        rows: where its boxes and words go.
        reshard: what to draw.
        left: pixels of its left edge.
        width: its width in pixels.
        style: sizes of text.
    """

    def __init__(self, rows: Rows, reshard: DrawnReshard, left: float, width: float, style: Style):
        self.rows, self.reshard, self.left, self.width, self.style = rows, reshard, left, width, style
        self.font = style.font

    def draw(self, top: float) -> float:
        """Add the table below ``top``, and return where it ends."""
        lines = [" · ".join(self.reshard.lines)]
        if self.reshard.pairs is not None and self.reshard.kept is not None:
            lines.append(f"{EXPLAINED}; hatched: what a device keeps" if len(self.reshard.kept) else EXPLAINED)
        top = self.rows.paragraphs(self.left, top, self.width, self.font, self.reshard.heading, lines)
        pairs, kept_rows = self.reshard.pairs, self.reshard.kept
        if pairs is None or kept_rows is None:
            return top
        groups = [_groups(len(layout.devices)) for layout in (self.reshard.before, self.reshard.after)]
        # (senders, receivers) bytes.
        moved, kept = _summed(pairs, groups), _summed(kept_rows, groups)
        # Neighbours that share a row or a column are named as a range.
        names = [[layout.device_numbers(range(*group), 1) for group in found]
                 for layout, found in zip((self.reshard.before, self.reshard.after), groups, strict=True)]  # fmt: skip
        # Names of senders are left of the table, with their colours.
        margin = max(text_width(name, self.font) for name in names[0]) + _HEADER + 10
        first = self.left + margin, top + 1.8 * self.font + _HEADER
        cell = min((self.width - margin) / len(names[1]), _CELL * self.style.factor), 1.7 * self.font
        # Darkness is relative to the largest transfer of this table.
        most = max(int(moved.max(initial=0)), 1)
        for (row, column), amount in np.ndenumerate(moved):
            box = first[0] + column * cell[0], first[1] + row * cell[1], *cell
            self._cell(box, int(amount), int(kept[row, column]), most, f"dev {names[0][row]} → dev {names[1][column]}")
        self._sides(names, groups, first, cell)
        return first[1] + len(names[0]) * cell[1]

    def _sides(
        self,
        names: list[list[str]],
        groups: list[list[tuple[int, int]]],
        first: tuple[float, float],
        cell: tuple[float, float],
    ) -> None:
        """Add numbers and colours of senders at the left, and of receivers above."""
        (x, y), (wide, high), font = first, cell, self.font
        colours = colours_of(self.reshard.before, self.reshard.after)
        # So many columns for each number that numbers do not run into one another.
        step = next((n for n in range(1, len(names[1]) + 1)
                     if n * wide >= max(text_width(name, font) for name in names[1]) + 4), len(names[1]))  # fmt: skip
        for at, (name, group) in enumerate(zip(names[1], groups[1], strict=True)):
            self.rows.box(
                "sharding_copies", x + at * wide, y - _HEADER, wide - 1, _HEADER - 2, fill=colours[1][group[0]]
            )
            if at % step == 0:
                self.rows.word(x + (at + 0.5) * wide, y - _HEADER - 0.7 * font, name)
        for at, (name, group) in enumerate(zip(names[0], groups[0], strict=True)):
            self.rows.box(
                "sharding_copies", x - _HEADER, y + at * high, _HEADER - 2, high - 1, fill=colours[0][group[0]]
            )
            self.rows.word(x - _HEADER - 4, y + (at + 0.5) * high, name, "right")

    def _cell(self, box: tuple[float, ...], amount: int, kept: int, most: int, what: str) -> None:
        """Add one cell: its bytes, hatching if its devices keep something."""
        x, y, wide, high = box
        fill = palette.pale(palette.heat(amount / most)) if amount else ""
        if amount:
            about = {"what": what, "amount": size(amount) + (f", {size(kept)} stay" if kept else "")}
            self.rows.box("sharding_moves", x, y, wide - 1, high - 1, fill=fill, **about)
        # What also moves has its amount and is not hatched; the tooltip tells what stays.
        if kept and not amount:
            self.rows.box("sharding_stays", x, y, wide - 1, high - 1)
        text = size(amount) if amount else ""
        if text and text_width(text, self.font) <= wide - 3:
            self.rows.add("sharding_marks", x=x + wide / 2, y=y + high / 2, text=text)


def _groups(count: int) -> list[tuple[int, int]]:
    """Return neighbours that share a row, as the first and the one after the last."""
    each = -(-count // MOST_CELLS)
    return [(first, min(first + each, count)) for first in range(0, count, each)]


def _summed(rows: np.ndarray, groups: list[list[tuple[int, int]]]) -> np.ndarray:
    """Return the bytes between each two groups of devices."""
    each = [found[0][1] for found in groups]
    amounts = np.zeros([len(found) for found in groups], np.int64)
    # Several pairs may fall into one cell, and ``+=`` with an index would count only the last of them.
    np.add.at(amounts, (rows[:, 0] // each[0], rows[:, 1] // each[1]), rows[:, 2])
    return amounts
