"""Ranges of indices left of the rows, above the columns and above the panels of a layout's picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.shardings.sharding_columns import DrawnLayout, Rows
from pathways_widgets.shardings.sharding_grid import Digit, Grid, GridAxis, Index


class Captions:
    """The captions of one layout.

    Args:
        layout: what is drawn.
        grid: where its blocks are.
        font: height of text in pixels.
    """

    def __init__(self, layout: DrawnLayout, grid: Grid, font: float):
        self.layout, self.grid, self.font = layout, grid, font

    # ---- captions

    @property
    def has_panels(self) -> bool:
        """Whether there is more than one panel."""
        return len(self.grid.across.digits) > 1 or len(self.grid.down.digits) > 1

    def write(self, rows: Rows, at: Callable[[Index], tuple[float, float]]) -> None:
        """Add the captions, as far as there is room.

        Args:
            rows: where they go.
            at: the left and upper edge of a block.
        """
        across, down, font = self.grid.across, self.grid.down, self.font
        # A row that goes on in the next line has other ranges there, so each line needs captions of its own.
        folded = {digit.dimension for digit in down.digits[:-1]} & {digit.dimension for digit in across.digits[-1:]}
        columns = self._is_split(across)
        captions, first = self._panel_captions(), at((0,) * len(self.grid.roles))
        for corner in self.grid.panels():
            x, y = at(corner)
            has_ticks = bool(folded) or y == first[1]
            for along, text in self._ticks(across, corner, upright=False) if has_ticks else ():
                rows.word(x + along, y - 0.7 * font, text)
            for along, text in self._ticks(down, corner, upright=True) if x == first[0] else ():
                rows.word(x - 5, y + along, text, "right")
            if not folded and self.has_panels:
                above = 1.9 if has_ticks and columns else 0.7
                rows.word(x + across.panel / 2, y - above * font, captions[corner])

    def _ticks(self, axis: GridAxis, corner: Index, upright: bool) -> Iterator[tuple[float, str]]:
        """Yield pixels and ranges of indices along one side of a panel, each for as many blocks as its text needs.

        Args:
            axis: of the side.
            corner: first block of the panel.
            upright: whether texts are below one another.
        """
        digit = axis.digits[-1] if axis.digits else None
        if digit is None or self.grid.roles[digit.dimension] != ("rows" if upright else "columns"):
            return
        if self.has_panels and not self._is_split(axis):
            return
        # From a text for each block to one for all of them: the first that fits without overlap.
        for step in divisors(digit.count):
            starts = range(0, digit.count, step)
            texts = [self._range(digit, corner, first, step) for first in starts]
            widest = 1.2 * self.font if upright else max(text_width(text, self.font) for text in texts) + 8
            if widest <= step * axis.cell:
                yield from (((first + step / 2) * axis.cell, text) for first, text in zip(starts, texts, strict=True))
                return

    def _range(self, digit: Digit, corner: Index, first: int, count: int) -> str:
        """Return the range of indices of some blocks of a level."""
        parts = self.layout.blocks.ranges[digit.dimension]
        begin = corner[digit.dimension] + first * digit.divisor
        last = min(begin + (count - 1) * digit.divisor, len(parts) - 1)
        return f"{parts[min(begin, last)][0]}:{parts[last][1]}"

    def _is_split(self, axis: GridAxis) -> bool:
        """Return whether the dimension within a panel has several parts."""
        return bool(axis.digits) and len(self.layout.blocks.ranges[axis.digits[-1].dimension]) > 1

    def _panel_captions(self) -> dict[Index, str]:
        """Return what tells each panel from the others: ranges of indices, in the longest form that fits all panels."""
        outer = {digit.dimension for axis in (self.grid.across, self.grid.down) for digit in axis.digits[:-1]}
        corners, room = list(self.grid.panels()), self.grid.across.panel + self.grid.across.gap / 2
        texts: dict[Index, str] = {}
        # One form for all panels, so that captions can be compared.
        for form in ("whole", "ranges", "starts"):
            texts = {corner: self._caption(corner, outer, form) for corner in corners}
            if max(text_width(text, self.font) for text in texts.values()) <= room:
                return texts
        return dict.fromkeys(texts, "")

    def _caption(self, corner: Index, outer: set[int], form: str) -> str:
        """Return the ranges of indices of a panel.

        Args:
            corner: its first block.
            outer: the dimensions in which panels differ.
            form: ``"whole"``: of all dimensions; ``"ranges"``: of those of ``outer``; ``"starts"``: their starts.
        """
        inner = {digit.dimension: digit for axis in (self.grid.across, self.grid.down) for digit in axis.digits[-1:]}
        texts = []
        for at in range(len(corner)):
            own = inner.get(at, Digit(at, 1, 1))
            text = self._range(own, corner, 0, own.count) if at in outer else ":"
            if at in outer or form == "whole":
                texts.append(f"{text.split(':')[0]}:" if form == "starts" else text)
        return f"[{', '.join(texts)}]" if form == "whole" else ", ".join(texts)


def divisors(count: int) -> list[int]:
    """Return the divisors of a number, and the number itself if it has few: 7 things form groups of 1, 2, 4 and 7."""
    found = [n for n in range(1, count + 1) if count % n == 0]
    return found if len(found) > 2 else sorted({*found, *(2**power for power in range(count.bit_length()))} - {0})
