"""Where pictures of schedules lie below one another: a heading, what is said, and for each device a row and its memory.

All heights are pixels from the top of the first heading. Live figures and still pictures are laid out alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pathways_widgets.drawing.scene import text_width, wrapped
from pathways_widgets.drawing.style import Style

_TALLEST = 370.0
"""Pixels of the rows of one picture on a screen, if they may be as low as that."""
_LOWEST = 5.0
"""Pixels of a device at least."""
LINE = 1.45
"""Height of a line of text, in fonts."""
_GAP = 12.0
"""Pixels between two pictures."""


class Drawable(Protocol):
    """A timed schedule as a picture needs it, or the reason why there is none."""

    @property
    def heading(self) -> str:
        """Name and size."""

    @property
    def words(self) -> str:
        """Makespan, bubble and peak beside their closed forms; or the reason."""

    @property
    def devices(self) -> int:
        """Rows; 0 if there is nothing to draw."""

    @property
    def makespan(self) -> float:
        """When the last cell ends."""

    @property
    def boxes(self) -> dict[str, np.ndarray]:
        """A row for each action: see ``pathways_nb.parallel.schedules.boxes``."""

    @property
    def directions(self) -> tuple[str, ...]:
        """Letters of the pipelines."""

    @property
    def shades(self) -> str:
        """What lightness tells apart, in words."""

    @property
    def cap(self) -> float | None:
        """Microbatches of activations that a device has room for."""

    @property
    def peaks(self) -> np.ndarray:
        """The most that each device holds."""

    def memory(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Times, and from each of them on what a device holds."""


@dataclass(frozen=True)
class Board:
    """One picture: pixels of its heading, its words and its first row; the lines of its ``heading`` and of its words.

    A device takes ``unit`` pixels: a row of boxes ``lane`` high, then its memory, ``strip`` high at ``most``.
    """

    top: float
    words: float
    rows: float
    heading: tuple[str, ...]
    lines: tuple[str, ...]
    devices: int
    unit: float
    most: float

    @property
    def lane(self) -> float:
        """Height of a row of boxes."""
        return 0.56 * self.unit

    @property
    def strip(self) -> float:
        """Height of the largest amount of memory."""
        return 0.34 * self.unit

    @property
    def bottom(self) -> float:
        """Where the last device ends."""
        return self.rows + self.devices * self.unit

    def lane_top(self, device: np.ndarray | int) -> Any:
        """Tops of rows of boxes."""
        return self.rows + device * self.unit

    def level(self, device: int, amount: np.ndarray | float) -> Any:
        """Where an amount of memory of a device is."""
        floor = self.rows + (device + 0.94) * self.unit
        return floor - amount / self.most * self.strip


class ScheduleLayout(NamedTuple):
    """All boards, and the height of all in pixels."""

    boards: tuple[Board, ...]
    height: float


def layout_of(pictures: Sequence[Drawable], width: float, style: Style) -> ScheduleLayout:
    """Place pictures below one another; their words are broken to fit ``width`` pixels."""
    most = max([1.0, *(float(max([*one.peaks, one.cap or 0.0])) for one in pictures if one.devices)])
    boards, top, line = list[Board](), 0.0, LINE * style.font
    for one in pictures:
        heading, lines = (_broken(text, width, style) for text in (one.heading, one.words))
        words = top + len(heading) * line
        rows = words + len(lines) * line + 5 * style.factor
        boards.append(Board(top, words, rows, heading, lines, one.devices, _unit(one.devices, style), most))
        top = boards[-1].bottom + _GAP * style.factor
    return ScheduleLayout(tuple(boards), top)


def _broken(text: str, width: float, style: Style) -> tuple[str, ...]:
    return tuple(wrapped(text, lambda words: text_width(words, style.font) <= width))


def _unit(devices: int, style: Style) -> float:
    """Pixels of a device: a lane and its memory, less where there are many."""
    return max(min(1.7 * style.lane, _TALLEST * style.factor / max(devices, 1)), _LOWEST * style.factor)


def labels_of(layout: ScheduleLayout, pictures: Sequence[Drawable], style: Style) -> Iterator[tuple[float, str, str]]:
    """Where devices are named, their names, and what they hold at most; some are left out where rows are low."""
    for board, one in zip(layout.boards, pictures, strict=True):
        step = max(int(np.ceil(1.15 * style.font / board.unit)), 1)
        for device in range(0, board.devices, step):
            peak = one.peaks[device]
            over = one.cap is not None and peak > one.cap + 1e-9
            says = f"{peak:g} > {one.cap:g}" if over else f"peak {peak:g}"
            yield float(board.rows + (device + 0.5) * board.unit), f"device {device}", says
