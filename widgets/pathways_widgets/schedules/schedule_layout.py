"""Positions of pictures of schedules: each has a heading, some text, and for each device a row of boxes and its memory.

Pictures are below one another. All heights are pixels from the top of the first heading, because text needs the same
space whatever the number of devices. Live figures and still pictures share this layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from pathways_nb.errors import three_digits
from pathways_widgets.drawing.still_text import text_width, wrapped
from pathways_widgets.drawing.style import Style

_TALLEST = 370.0
"""Height in pixels of the rows of one picture on a screen, as far as ``_LOWEST`` allows."""
_LOWEST = 5.0
"""Least height of a device in pixels."""
LINE = 1.45
"""Height of a line of text, in heights of text."""
_GAP = 12.0
"""Space between two pictures in pixels."""


class Drawable(Protocol):
    """A timed schedule as a picture needs it, or the reason why there is none."""

    @property
    def heading(self) -> str:
        """Name and size."""

    @property
    def words(self) -> str:
        """Makespan, bubble and peak, each with its closed form; or the reason."""

    @property
    def devices(self) -> int:
        """Number of rows; 0 if there is nothing to draw."""

    @property
    def makespan(self) -> float:
        """End of the last cell."""

    @property
    def bubble(self) -> float:
        """Idle time of all devices over all their time."""

    @property
    def boxes(self) -> dict[str, np.ndarray]:
        """A row for each action; see ``pathways_nb.parallel.schedules.boxes``."""

    @property
    def directions(self) -> tuple[str, ...]:
        """Letters of the pipelines."""

    @property
    def shades(self) -> str:
        """What lightness distinguishes, in words."""

    @property
    def cap(self) -> float | None:
        """Microbatches of activations that fit on a device; ``None`` for no bound."""

    @property
    def peaks(self) -> np.ndarray:
        """The most that each device holds."""

    @property
    def marks(self) -> Mapping[str, int]:
        """Rows of ``boxes`` to mark, by a kind of ``schedule_columns.MARKS``."""

    def memory(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Return times, and what a device holds from each of them on."""


@dataclass(frozen=True)
class Board:
    """The position of one picture, in pixels.

    A device takes ``unit`` pixels: a row of boxes of the height ``lane``, then its memory, up to the height ``strip``.

    Args:
        top: upper edge of the heading.
        words: upper edge of the text.
        rows: upper edge of the first device.
        heading: lines of the heading.
        lines: lines of the text.
        devices: number of devices.
        unit: height of a device.
        most: amount of memory at the height ``strip``, the same in all pictures.
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
        """Lower edge of the last device."""
        return self.rows + self.devices * self.unit

    def lane_top(self, device: np.ndarray | int) -> Any:
        """Return the upper edge of the row of boxes of a device, or of several."""
        return self.rows + device * self.unit

    def level(self, device: int, amount: np.ndarray | float) -> Any:
        """Return the position of an amount of memory.

        Args:
            device: the device.
            amount: a number or an array.
        """
        # A little above the next row, so that memory does not touch it.
        floor = self.rows + (device + 0.94) * self.unit
        return floor - amount / self.most * self.strip


class ScheduleLayout(NamedTuple):
    """The positions of all pictures, and the height of the whole in pixels."""

    boards: tuple[Board, ...]
    height: float


def layout_of(pictures: Sequence[Drawable], width: float, style: Style) -> ScheduleLayout:
    """Return the positions of pictures one below the other, with text broken to fit a width.

    Args:
        pictures: the schedules.
        width: width of the text in pixels.
        style: sizes of text and lines.
    """
    # One scale of memory for all pictures, with room for caps, so that peaks can be compared.
    most = max([1.0, *(float(max([*one.peaks, one.cap or 0.0])) for one in pictures if one.devices)])
    boards, top, line = list[Board](), 0.0, LINE * style.font
    for one in pictures:
        heading, lines = (
            tuple(wrapped(text, lambda words: text_width(words, style.font) <= width))
            for text in (one.heading, one.words)
        )
        words = top + len(heading) * line
        rows = words + len(lines) * line + 5 * style.factor
        # A lane and its memory; less where there are many devices, but never so little that colours merge.
        unit = max(min(1.7 * style.lane, _TALLEST * style.factor / max(one.devices, 1)), _LOWEST * style.factor)
        boards.append(Board(top, words, rows, heading, lines, one.devices, unit, most))
        top = boards[-1].bottom + _GAP * style.factor
    return ScheduleLayout(tuple(boards), top)


def labels_of(layout: ScheduleLayout, pictures: Sequence[Drawable], style: Style) -> Iterator[tuple[float, str, str]]:
    """Yield for each device its position, its name and its peak; where rows are low, some devices are left out.

    Args:
        layout: the positions of the pictures.
        pictures: the schedules.
        style: sizes of text and lines.
    """
    for board, one in zip(layout.boards, pictures, strict=True):
        # Every device has a row, but only so many labels fit one below the other.
        step = max(int(np.ceil(1.15 * style.font / board.unit)), 1)
        for device in range(0, board.devices, step):
            peak = one.peaks[device]
            over = one.cap is not None and peak > one.cap + 1e-9
            says = f"{three_digits(peak)} > {one.cap:g}" if over else f"peak {three_digits(peak)}"
            yield float(board.rows + (device + 0.5) * board.unit), f"device {device}", says
