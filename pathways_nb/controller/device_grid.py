"""The grid of a TPU island's devices, and the boxes of it that a program may run on.

A TPU runs a program on an aligned box of its torus and not on any set of devices. Repeated halving of the grid gives
such boxes. Devices are kept in the order in which halving meets them, so that each box is a run of positions: a
placement stays a range (``plan.Placement``), and only the ranges that are boxes are offered. An island of several
slices has a torus for each: the slice is the first coordinate, and a box is within one slice or made of whole ones.

Islands of GPUs and of virtual devices have no grid: any run of positions is as good as another.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_HALVED_FIRST = (2, 0, 1)
"""Of equally long axes the one that is halved first: TPU hosts are 2 × 2 × 1 or 2 × 4 chips, and stay whole longest."""
_WIDEST, _ROWS = 100, 40
"""The largest picture of a grid, in characters and lines."""

Cell = tuple[int, ...]


class GridBox(NamedTuple):
    """A box of a grid, of which every cell has a device.

    Args:
        first: position of its first device.
        size: number of its devices.
        sides: length along each axis.
    """

    first: int
    size: int
    sides: Cell


def in_boxes(cells: Sequence[Cell], host: Cell = (), by_slice: bool = False) -> list[int]:
    """Return the positions of cells in an order in which each box of the grid is a run.

    Args:
        cells: coordinates of each device, all different.
        host: chips of a host along each axis; empty if there is one host.
        by_slice: whether the first coordinate is the slice.
    """
    halves = _halves(cells, range(len(cells)), host, by_slice)
    return [members[0] for members, _, _ in halves if len(members) == 1]


@dataclass(frozen=True)
class DeviceGrid:
    """The grid of an island.

    Args:
        cells: coordinates of each device, in the order of ``in_boxes`` or of a user's own.
        host: chips of a host along each axis; a box is within one host or made of whole ones. Empty: no such rule.
        unit: what a device is called, such as ``"tpu_v5e"``.
        keeps_order: whether meshes take the devices in the order in which they are, which is a user's own.
        by_slice: whether the first coordinate is the slice.
    """

    cells: tuple[Cell, ...]
    host: Cell = ()
    unit: str = "TPU"
    keeps_order: bool = False
    by_slice: bool = False

    @cached_property
    def boxes(self) -> dict[int, dict[int, GridBox]]:
        """The boxes by number of devices, then by first position."""
        found: dict[int, dict[int, GridBox]] = {}
        of_slice = Counter(cell[0] for cell in self.cells) if self.by_slice else {}
        for members, low, sides in _halves(self.cells, range(len(self.cells)), self.host, self.by_slice):
            first, count = min(members), len(members)
            # Of slices those that it touches, else the whole island.
            most = sum(of_slice[low[0] + at] for at in range(sides[0])) if self.by_slice else len(self.cells)
            whole = count == most
            aligned = whole or all(at % side == 0 for at, side in zip(low, sides, strict=True))
            is_run = max(members) - first + 1 == count
            if math.prod(sides) == count and aligned and is_run and (whole or self._keeps_hosts_whole(sides)):
                found.setdefault(count, {})[first] = GridBox(first, count, sides)
        return dict(sorted(found.items()))

    def _keeps_hosts_whole(self, sides: Cell) -> bool:
        pairs = list(zip(sides, self.host, strict=False))
        return all(side <= of for side, of in pairs) or all(side % of == 0 for side, of in pairs)

    @property
    def sides(self) -> Cell:
        """The length of the grid along each axis, holes included."""
        return tuple(max(axis) - min(axis) + 1 for axis in zip(*self.cells, strict=True))

    @property
    def words(self) -> str:
        """It in words, such as ``a 4 × 4 grid of tpu_v5e`` or ``2 slices, each a row of 4 tpu_v5e``."""
        sides = [side for side in self.sides[self.by_slice :] if side > 1]  # axes of length 1 are left out
        text = " × ".join(map(str, sides))
        one = f"a {text} grid of {self.unit}" if len(sides) > 1 else f"a row of {text or 1} {self.unit}"
        return f"{self.sides[0]} slices, each {one}" if self.by_slice else one

    def firsts(self, count: int) -> list[int]:
        """Return the positions at which a box of so many devices begins."""
        return list(self.boxes.get(count, ()))

    def arranged(self, first: int, count: int, shape: Sequence[int]) -> list[int]:
        """Return the positions of a box in the order in which a mesh of some shape takes them, its last axis fastest.

        A mesh with the sides of the box has its axes along those of the grid. Any other takes a ring through the box,
        in which neighbours in the mesh's order are neighbours in the grid.

        Args:
            first: position of the first device.
            count: number of devices.
            shape: of the mesh.
        """
        box = self.boxes.get(count, {}).get(first)
        here = range(first, first + count)
        if box is None or self.keeps_order:
            return list(here)
        if self.by_slice and (slices := box.sides[0]) > 1:
            # The network between slices is the slow one: a mesh takes whole slices, one after another.
            each = count // slices
            inner = [shape[0] // slices, *shape[1:]] if shape[0] % slices == 0 else [each]
            return [at for one in range(first, first + count, each) for at in self.arranged(one, each, inner)]
        at = {self.cells[position]: position for position in here}
        low = tuple(map(min, zip(*at, strict=True)))
        axes = [axis for axis, side in enumerate(box.sides) if side > 1]
        wanted = [size for size in shape if size > 1]
        turned = next((p for p in itertools.permutations(axes) if [box.sides[a] for a in p] == wanted), None)
        if turned is None or len(wanted) < 2:
            turned, path = tuple(axes), ring([box.sides[axis] for axis in axes])
        else:
            path = list(itertools.product(*(range(box.sides[axis]) for axis in turned)))
        path = [_placed(cell, turned, len(low)) for cell in path]
        return [at[tuple(a + b for a, b in zip(low, cell, strict=True))] for cell in path]

    def picture(self, mark: Callable[[int], str]) -> str:
        """Return the grid as lines of text: a row for each step of the first axis, a block for each further layer.

        Args:
            mark: returns what stands for the device at a position.

        Returns:
            The lines, of which a hole has a dot; empty for a grid that is too large to read.
        """
        if self.by_slice:
            parts = [self._picture_of_slice(number, mark) for number in sorted({cell[0] for cell in self.cells})]
            return "\n".join(parts) if all(parts) else ""
        low = tuple(map(min, zip(*self.cells, strict=True)))
        marks = {cell: mark(position) for position, cell in enumerate(self.cells)}
        width = max(map(len, marks.values()))
        rows, columns, *more = *self.sides, 1
        if (width + 1) * columns > _WIDEST or rows * math.prod(more) > _ROWS:
            return ""
        lines: list[str] = []
        for layer in itertools.product(*map(range, more[: len(low) - 2])):
            lines += [f"layer {', '.join(map(str, layer))}:"] if math.prod(more) > 1 else []
            for row in range(rows):
                cells = [(row, column, *layer)[: len(low)] for column in range(columns)]
                found = [marks.get(tuple(a + b for a, b in zip(low, cell, strict=True)), "·") for cell in cells]
                lines.append("  " + " ".join(one.ljust(width) for one in found).rstrip())
        return "\n".join(lines)

    def _picture_of_slice(self, number: int, mark: Callable[[int], str]) -> str:
        mine = [position for position, cell in enumerate(self.cells) if cell[0] == number]
        shown = DeviceGrid(tuple(self.cells[position][1:] for position in mine)).picture(lambda at: mark(mine[at]))
        return f"  slice {number}:\n{shown}" if shown else ""


def ring(sides: Sequence[int]) -> list[Cell]:
    """Return all cells of a box so that neighbours in the list are neighbours in the box.

    The last cell is a neighbour of the first one, too, where the box has such a ring: its volume is even and it has two
    axes longer than 1. Otherwise a torus that wraps may close it.

    Args:
        sides: of the box.
    """
    if len(sides) < 2:
        return [(at,) for at in range(sides[0])] if sides else [()]
    # A path through all axes but the last: together with the last one, a rectangle.
    *others, width = sides
    path = _path(others)
    if len(path) > 1 and len(path) % 2 and width % 2 == 0:
        return [(*path[row], column) for column, row in _cycle(width, len(path))]
    return [(*path[row], column) for row, column in _cycle(len(path), width)]


def _path(sides: Sequence[int]) -> list[Cell]:
    """Return all cells of a box, there and back along one axis after the other."""
    if not sides:
        return [()]
    shorter = _path(sides[:-1])
    turns = itertools.cycle((range(sides[-1]), range(sides[-1] - 1, -1, -1)))
    return [(*cell, at) for cell, turn in zip(shorter, turns, strict=False) for at in turn]


def _cycle(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return the cells of a rectangle as a cycle, which needs an even number of rows; else as a path."""
    if rows == 1 or columns == 1 or rows % 2:
        return [(cell[0], cell[1]) for cell in _path([rows, columns])]
    # Down in the columns behind the first one, there and back, and up in the first one.
    down = [(row, column + 1) for row, column in _path([rows, columns - 1])]
    return [*down, *((row, 0) for row in reversed(range(rows)))]


def _placed(cell: Cell, axes: Sequence[int], rank: int) -> Cell:
    """Return a cell of some axes as one of all axes."""
    where = dict(zip(axes, cell, strict=True))
    return tuple(where.get(axis, 0) for axis in range(rank))


def _halves(
    cells: Sequence[Cell], members: Sequence[int], host: Cell, by_slice: bool
) -> Iterator[tuple[Sequence[int], Cell, Cell]]:
    """Yield the boxes of repeated halving that have a device: its members, its lowest corner, its sides.

    A box comes before its parts, and the parts in the order of their coordinates.
    """
    axes = list(zip(*(cells[one] for one in members), strict=True))
    low, high = tuple(map(min, axes)), tuple(max(axis) + 1 for axis in axes)
    sides = tuple(b - a for a, b in zip(low, high, strict=True))
    yield members, low, sides
    if len(members) == 1:
        return
    # Hosts stay whole as long as there are several.
    hosts = [math.ceil(side / of) for side, of in zip(sides, host or (1,) * len(sides), strict=True)]
    axis = max(range(by_slice, len(sides)), key=lambda at: (hosts[at], sides[at], -_rank(at - by_slice)))
    axis = 0 if by_slice and sides[0] > 1 else axis
    cut = max(range(low[axis] + 1, high[axis]), key=lambda at: at & -at)  # the roundest number in between
    for part in (
        [one for one in members if cells[one][axis] < cut],
        [one for one in members if cells[one][axis] >= cut],
    ):
        yield from _halves(cells, part, host, by_slice)


def _rank(axis: int) -> int:
    return _HALVED_FIRST.index(axis) if axis in _HALVED_FIRST else axis
