"""Where the blocks of an array of any rank are drawn: a grid of the last two dimensions, repeated for the others.

A dimension before the last two gets a panel for each of its parts, side by side and one below the other in turn. A
dimension in one part takes no space. A row of too many blocks goes on in the next line, as text does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Index = tuple[int, ...]
UNSPLIT = "not split"
"""Role of a dimension that takes no space."""


@dataclass(frozen=True)
class Digit:
    """One level of an axis: of part ``i`` of ``dimension``, the position ``i // divisor % count``."""

    dimension: int
    divisor: int
    count: int

    def of(self, block: Index) -> int:
        """Return the position of a block on this level."""
        return block[self.dimension] // self.divisor % self.count


@dataclass(frozen=True)
class GridAxis:
    """The horizontal or the vertical axis of the blocks.

    Args:
        digits: its levels, the outermost first; the last one is within a panel.
        cell: pixels of a block.
        gap: pixels between two panels of the innermost level; twice as many between those of the next.
    """

    digits: tuple[Digit, ...]
    cell: float = 0.0
    gap: float = 0.0

    @property
    def count(self) -> int:
        """Number of blocks along the whole axis."""
        return math.prod(digit.count for digit in self.digits)

    @property
    def inner(self) -> int:
        """Number of blocks along one panel."""
        return self.digits[-1].count if self.digits else 1

    @property
    def extent(self) -> float:
        """Pixels of the whole axis."""
        return self._sizes()[0]

    @property
    def panel(self) -> float:
        """Pixels of a panel."""
        return self.inner * self.cell

    def at(self, block: Index) -> float:
        """Return the pixel where a block begins."""
        sizes = self._sizes()
        gaps = self._gaps()
        return sum(
            digit.of(block) * (size + gap) for digit, size, gap in zip(self.digits, sizes[1:], gaps, strict=True)
        )

    def length(self, block: Index, count: int) -> float:
        """Return the pixels of up to ``count`` blocks of a panel, from a given one on."""
        # A group of blocks ends with its panel: it never crosses a gap.
        left = self.digits[-1].count - self.digits[-1].of(block) if self.digits else 1
        return min(count, left) * self.cell

    def fitted(self, room: float, most: float, gap: float) -> GridAxis:
        """Return the axis with the largest cells that fit.

        Args:
            room: pixels for the whole axis.
            most: pixels of a cell at most.
            gap: pixels between panels, less if they would take more than a third of the room.
        """
        # With cells of no size, the extent is that of all gaps.
        gaps = GridAxis(self.digits, 0.0, gap).extent
        gap *= min(room / 3 / gaps, 1.0) if gaps else 1.0
        taken = GridAxis(self.digits, 0.0, gap).extent
        return GridAxis(self.digits, min((room - taken) / self.count, most), gap)

    def _gaps(self) -> list[float]:
        """Return the pixels between two positions of each level."""
        levels = len(self.digits)
        # Outer levels are further apart, so that groups of panels are seen as such; within a panel there is no gap.
        return [self.gap * min(levels - 1 - level, 3) for level in range(levels)]

    def _sizes(self) -> list[float]:
        """Return the pixels of the whole axis, of one position of the first level, and so on, down to a cell."""
        sizes = [self.cell]
        # From a cell outwards: a level has as many positions of the next one as it counts, and gaps between them.
        for digit, gap in zip(reversed(self.digits), reversed(self._gaps()), strict=True):
            sizes.append(digit.count * sizes[-1] + (digit.count - 1) * gap)
        return sizes[::-1]


class Grid(NamedTuple):
    """Both axes, and how each dimension is drawn."""

    across: GridAxis
    down: GridAxis
    roles: tuple[str, ...]

    def panels(self) -> Iterator[Index]:
        """Yield the first block of each panel, as far as dimensions differ between panels."""
        outer = [*self.across.digits[:-1], *self.down.digits[:-1]]
        corner = [0] * len(self.roles)
        for number in range(math.prod(digit.count for digit in outer)):
            # The number of a panel, read level by level like the digits of a number.
            found = list(corner)
            for digit in outer:
                found[digit.dimension] += number % digit.count * digit.divisor
                number //= digit.count
            yield tuple(found)


def grid_of(parts: Sequence[int], columns: int, rows: int) -> Grid:
    """Return the axes for an array.

    Args:
        parts: number of parts of each dimension.
        columns: blocks side by side from which on a row goes on in the next line.
        rows: blocks below one another from which on a column goes on to the right of it.
    """
    rank = len(parts)
    across = [Digit(rank - 1, 1, parts[-1])] if rank else []
    down = [Digit(rank - 2, 1, parts[-2])] if rank > 1 else []
    roles = [UNSPLIT] * max(rank - 2, 0) + ["rows"] * (rank > 1) + ["columns"] * (rank > 0)
    split = [dimension for dimension in range(rank - 2) if parts[dimension] > 1]
    # In turns across and down from the innermost on, so that neither side grows much longer than the other.
    for turn, dimension in enumerate(reversed(split)):
        (down if turn % 2 else across).insert(0, Digit(dimension, 1, parts[dimension]))
        roles[dimension] = "panels down" if turn % 2 else "panels across"
    _fold(across, down, columns, rows)
    _fold(down, across, rows, columns)
    return Grid(GridAxis(tuple(across)), GridAxis(tuple(down)), tuple(roles))


def _fold(long: list[Digit], other: list[Digit], most: int, most_other: int) -> None:
    """Move a part of an axis that is too long to the other one, if that has room; both are changed.

    Args:
        long: levels of the axis.
        other: levels of the other axis.
        most: positions that an axis should have at most.
        most_other: the same of the other one.
    """
    count, other_count = (math.prod(digit.count for digit in digits) for digits in (long, other))
    room = most_other // other_count
    # With room for one line only, folding would gain nothing.
    if count <= most or room < 2:
        return
    first = long[0]
    # Blocks in a line: at least so many that the lines fit, and wanted not more than fit side by side.
    least, wanted = -(-first.count // room), max(most * first.count // count, 1)
    # A divisor makes all lines equally long. A prime number has none: its last line is shorter.
    divisors = [n for n in range(least, first.count) if first.count % n == 0]
    fitting = [n for n in divisors if n <= wanted]
    line = max(fitting) if fitting else min(divisors, default=max(least, wanted))
    if line >= first.count:
        return
    long[0] = Digit(first.dimension, first.divisor, line)
    # The lines themselves become a level of the other axis, as panels are.
    other.insert(0, Digit(first.dimension, first.divisor * line, -(-first.count // line)))
    if len(other) == 1:  # a level within a panel, of one block
        other.append(Digit(first.dimension, first.divisor * first.count, 1))
