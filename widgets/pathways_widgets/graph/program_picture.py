"""The picture of one program: the rows of its tables, in pixels, and the same in strips for a page that is narrower.

A page that cannot be dragged shows a wide graph in strips, cut between layers, one below the other: made smaller as a
whole, its texts could not be read.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pathways_widgets.graph.graph_labels import EdgeCurve

_BETWEEN = 14.0
"""Pixels between two strips."""
_PIECES = 16
"""Straight pieces of a curve that is cut."""


@dataclass
class ProgramPicture:
    """One program, drawn with its upper left corner at (0, 0).

    Args:
        rows: the rows of each source.
        width: width in pixels.
        height: height in pixels.
        cuts: where it can be cut: just before each layer but the first, behind the labels of edges that lead there.
    """

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0
    cuts: Sequence[float] = ()

    def add(self, source: str, **row: object) -> None:
        """Add one row to ``source``."""
        self.rows.setdefault(source, []).append(row)


def in_strips(whole: ProgramPicture, widest: float) -> ProgramPicture:
    """Return a picture cut between its layers into strips, one below the other.

    An edge over a cut leaves its strip at the right and goes on at the left of the next one, at the same height.

    Args:
        whole: the picture.
        widest: width in pixels that a strip has at most, unless one layer is wider.
    """
    starts = [0.0]
    for cut, following in pairwise([*whole.cuts, whole.width]):
        if following - starts[-1] > widest:
            starts.append(cut)
    if len(starts) == 1:
        return whole
    down = whole.height + _BETWEEN
    found = ProgramPicture(width=max(b - a for a, b in pairwise([*starts, whole.width])))
    found.height = len(starts) * down - _BETWEEN
    for source, rows in whole.rows.items():
        for row in rows:
            for x, piece in _pieces(row, starts):
                strip = max(bisect(starts, x) - 1, 0)
                found.add(source, **moved(piece, -starts[strip], strip * down))
    return found


def moved(row: Mapping[str, Any], right: float, down: float) -> dict[str, Any]:
    """Return the row with all its x and y coordinates moved, those of curves (``x0``, ``cy1``) and texts included."""
    by = {"x": right, "y": down, "name_y": down, "sub_y": down}
    return {name: value + by[name.strip("c01")] if name.strip("c01") in by else value for name, value in row.items()}


def _pieces(row: Mapping[str, Any], starts: Sequence[float]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield a row with the place that decides about its strip; a curve over a cut as short straight pieces."""
    if "x" in row:
        yield row["x"], row
        return
    ends = [row[name] for name in ("x0", "cx0", "cx1", "x1") if name in row]
    if bisect(starts, min(ends)) == bisect(starts, max(ends)) or "cx0" not in row:
        yield sum(ends) / len(ends), row
        return
    curve = EdgeCurve(*(row[name] for name in EdgeCurve._fields))
    for (x0, y0), (x1, y1) in pairwise(curve.at(step / _PIECES) for step in range(_PIECES + 1)):
        line = EdgeCurve(x0, y0, x1, y1, x0, y0, x1, y1)
        yield (x0 + x1) / 2, {**row, **line._asdict()}
