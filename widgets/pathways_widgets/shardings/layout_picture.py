"""The picture of one layout: blocks coloured by device, padding, strips of copies, and the numbers of devices.

A number that would not fit into every block is written once for a group of blocks with an outline.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from pathways_nb.errors import size
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.style import Style
from pathways_widgets.shardings.panel_captions import Captions, divisors
from pathways_widgets.shardings.sharding_columns import DrawnLayout, Rows
from pathways_widgets.shardings.sharding_grid import UNSPLIT, Grid, Index, grid_of

MOST_BLOCKS = 8192
"""Blocks that are drawn at most."""
TALLEST, HIGHEST, WIDEST, LOWEST = 420.0, 44.0, 150.0, 5.0
"""Pixels of all rows together and of one row; of a column at most; of a row at least."""
_STRIP, _COPIES = 5.0, 16
"""Pixels of the strip that shows copies, and devices in it at most."""


class LayoutPicture:
    """Adds the picture of one layout to rows.

    Args:
        rows: where its boxes and words go.
        layout: what to draw.
        colours: the colour of each device.
        left: pixels of its left edge.
        width: its width in pixels.
        style: sizes of text.
    """

    def __init__(
        self, rows: Rows, layout: DrawnLayout, colours: Sequence[str], left: float, width: float, style: Style
    ):
        self.rows, self.layout, self.colours, self.style = rows, layout, colours, style
        self.left, self.width, self.font = left, width, style.font
        self.parts = parts = _drawn(len(ranges) for ranges in layout.blocks.ranges)
        # The last range of rows has the largest numbers: it decides how much room captions need at the left.
        longest = layout.blocks.ranges[-2][-1][1] if len(parts) > 1 else 0
        self.margin = text_width(f"{longest}:{longest}", self.font) + 8 if longest else 0.0
        room = width - self.margin - self.font
        wide, high = text_width("0000", self.font), 1.4 * self.font
        # As many blocks as have room for a number of four digits, and for a line of text.
        grid = grid_of(parts, max(int(room / wide), 1), max(int(TALLEST / high), 1))
        gap = self.font
        across = grid.across.fitted(room, max(WIDEST, room / 3 if len(parts) < 2 else 0.0), gap)
        # Panels below one another have captions between them, which take height in addition to the rows.
        tall = TALLEST + 2 * self.font * (grid.down.count / grid.down.inner - 1)
        down = grid.down.fitted(tall, HIGHEST * style.factor, 2.2 * gap)
        self.grid = Grid(across, replace(down, cell=max(down.cell, LOWEST)), grid.roles)
        self.captions = Captions(layout, self.grid, self.font)

    def draw(self, top: float) -> float:
        """Add the picture below ``top``, and return where it ends."""
        # Two pictures of a reshard share these rows: what this one adds begins here.
        self.before = {name: len(rows) for name, rows in self.rows.rows.items()}
        top = self._write(top)
        self.top = top + (3.4 if self.captions.has_panels else 2.0) * self.font
        self.captions.write(self.rows, self._corner)
        holders = self.layout.blocks.holders
        drawn = {block: held for block, held in holders.items() if all(map(operator.lt, block, self.parts))}
        for block, held in drawn.items():
            self._block(block, held)
        end = self.top + self.grid.down.extent
        if len(drawn) < len(holders):
            text = f"only {len(drawn)} of {len(holders)} blocks are drawn: the first of each dimension"
            self.rows.word(self.left + self.margin, end + self.font, text, "left")
            end += 1.4 * self.font
        self._label(drawn)
        return self._explain(end + 0.4 * self.font)

    def _explain(self, top: float) -> float:
        """Add what the marks on blocks mean, and return where that ends."""
        shown = {"sharding_copies": "strip: devices with a copy", "sharding_padding": "hatched: padding"}
        added = [name for name in shown if len(self.rows.rows.get(name, [])) > self.before.get(name, 0)]
        texts = ["numbers: devices", *(shown[name] for name in added)]
        self.rows.word(self.left + self.margin, top + 0.7 * self.font, " · ".join(texts), "left")
        return top + 1.4 * self.font

    def _write(self, top: float) -> float:
        """Add the heading and the lines below it, and return where they end."""
        layout = self.layout
        words = [layout.dimension(number) for number in range(len(self.grid.roles))]
        drawn = zip(self.grid.roles, words, strict=True)
        roles = [f"{text}, not drawn" if role == UNSPLIT else f"{role}: {text}" for role, text in drawn]
        lines = [*layout.lines, " · ".join(roles)] if roles else layout.lines
        return self.rows.paragraphs(self.left, top, self.width, self.font, layout.heading, lines)

    # ---- blocks

    def _corner(self, block: Index) -> tuple[float, float]:
        """Return the left and the upper edge of a block."""
        return self.left + self.margin + self.grid.across.at(block), self.top + self.grid.down.at(block)

    def _block(self, block: Index, held: Sequence[int]) -> None:
        """Add one block, its padding, and a strip of the devices that hold a copy."""
        x, y = self._corner(block)
        width, height = self.grid.across.cell, self.grid.down.cell
        wide, high = self._filled(block)
        # Padding below the whole cell; the block is drawn over the rest of it.
        if wide * high < 1:
            self.rows.box("sharding_padding", x, y, width, height)
        # A block on several devices is pale: its strip shows whose it is.
        fill = self.colours[held[0]] if len(held) == 1 else palette.pale(self.colours[held[0]])
        copies = f" ({len(held)} copies)" if len(held) > 1 else ""
        devices = f"dev {self.layout.device_numbers(held, 12)}{copies}"
        about = {"index": self.layout.index(block), "devices": devices, "place": self.layout.place}
        # A device may hold nothing but padding.
        if wide * high == 0:
            return
        self.rows.box("sharding_blocks", x, y, width * wide, height * high, fill=fill, edge=palette.BOX_EDGE,
                      bytes=size(self.layout.bytes_of(block)), **about)  # fmt: skip
        if len(held) > 1 and height >= 2 * _STRIP:
            count = min(len(held), _COPIES)
            each = width * wide / count
            for at in range(count):
                # Of very many copies some are left out, evenly over all devices.
                colour = self.colours[held[at * len(held) // count]]
                self.rows.box("sharding_copies", x + at * each, y + height * high - _STRIP, each, _STRIP, fill=colour)

    def _filled(self, block: Index) -> tuple[float, float]:
        """Return the parts of a cell's width and height that the block takes; the rest is padding."""
        full = [(high - low) / most if (most := self.layout.blocks.shape[at]) else 1.0
                for at, (low, high) in enumerate(parts[i] for parts, i in
                                                 zip(self.layout.blocks.ranges, block, strict=True))]  # fmt: skip
        if not full:
            return 1.0, 1.0
        # The last dimension runs across. All others share the height, so that the area is right.
        return full[-1], math.prod(full[:-1])

    # ---- labels

    def _label(self, holders: Mapping[Index, Sequence[int]]) -> None:
        """Write the devices on each block, or on groups of blocks where a block is too small."""
        # One form for all blocks, the longest that fits everywhere, so that blocks can be compared.
        for most in (4, 2, 1, 0):
            texts = {block: self.layout.device_numbers(held, most) for block, held in holders.items()}
            if self._fits(texts, 1, 1):
                for block, text in texts.items():
                    self._mark(block, text, len(holders[block]) > 1)
                return
        for row in self.rows.rows["sharding_blocks"][self.before.get("sharding_blocks", 0) :]:
            row["edge"] = row["fill"]  # lines would run through the text
        for most in (1, 3):  # devices in one range are preferred to fewer of several ranges
            for wide, high in self._groupings():
                groups = self._grouped(holders, wide, high)
                texts = {corner: self.layout.device_numbers(sorted(held), most) for corner, held in groups.items()}
                if self._fits(texts, wide, high) and not (most == 1 and any("…" in text for text in texts.values())):
                    self._outline(groups, texts, wide, high)
                    return

    def _mark(self, block: Index, text: str, is_copied: bool) -> None:
        """Write a text on a block, above its strip of copies; on its padding if only that has room."""
        (x, y), (wide, high) = self._corner(block), self._filled(block)
        width, height = self.grid.across.cell, self.grid.down.cell
        strip = _STRIP if is_copied and height >= 2 * _STRIP else 0.0
        # A block may be too short for its text although its cell is not: then the text goes onto the padding.
        needed = text_width(text, self.font) + 3, 1.15 * self.font
        if wide * width >= needed[0] and high * height >= needed[1] + strip:
            self.rows.add("sharding_marks", x=x + wide * width / 2, y=y + (high * height - strip) / 2, text=text)
        elif (1 - wide) * width >= needed[0]:
            self.rows.word(x + (1 + wide) * width / 2, y + height / 2, text)
        elif (1 - high) * height >= needed[1]:
            self.rows.word(x + width / 2, y + (1 + high) * height / 2, text)
        elif wide * high < 0.5:
            self.rows.word(x + width / 2, y + height / 2, text)
        else:
            self.rows.add("sharding_marks", x=x + width / 2, y=y + height / 2, text=text)

    def _fits(self, texts: Mapping[Index, str], wide: int, high: int) -> bool:
        """Return whether each text fits on the ``wide`` × ``high`` blocks from its own on."""
        across, down = self.grid.across, self.grid.down
        if any(down.length(corner, high) < 1.15 * self.font for corner in texts):
            return False
        return all(text_width(text, self.font) <= across.length(corner, wide) - 3 for corner, text in texts.items())

    def _groupings(self) -> Iterator[tuple[int, int]]:
        """Yield sizes of groups within a panel, the smallest first."""
        across, down = self.grid.across.inner, self.grid.down.inner
        both = product(divisors(across), divisors(down))
        yield from sorted(both, key=lambda pair: (pair[0] * pair[1], pair[1]))[1:]

    def _grouped(self, holders: Mapping[Index, Sequence[int]], wide: int, high: int) -> dict[Index, set[int]]:
        """Return the devices of each group of ``wide`` × ``high`` blocks, by the group's first block."""
        found: dict[Index, set[int]] = {}
        for block, held in holders.items():
            # The first block of the group: its position within the panel, rounded down to a whole group.
            corner = list(block)
            for axis, step in ((self.grid.across, wide), (self.grid.down, high)):
                for digit in axis.digits[-1:]:
                    corner[digit.dimension] -= digit.of(block) % step * digit.divisor
            found.setdefault(tuple(corner), set()).update(held)
        return found

    def _outline(self, groups: Mapping[Index, set[int]], texts: Mapping[Index, str], wide: int, high: int) -> None:
        """Add the outline and the text of each group."""
        for corner in groups:
            width, height = self.grid.across.length(corner, wide), self.grid.down.length(corner, high)
            x, y = self._corner(corner)
            self.rows.box("sharding_groups", x, y, width, height)
            self.rows.add("sharding_marks", x=x + width / 2, y=y + height / 2, text=texts[corner])


def _drawn(parts: Iterable[int]) -> list[int]:
    """Return the number of parts of each dimension that are drawn: all, unless there would be too many blocks."""
    found = list(parts)
    while (count := math.prod(found)) > MOST_BLOCKS:
        # The longest dimension gives up parts, so that every dimension still shows some.
        longest = max(range(len(found)), key=found.__getitem__)
        found[longest] = max(found[longest] * MOST_BLOCKS // count, 1)
    return found
