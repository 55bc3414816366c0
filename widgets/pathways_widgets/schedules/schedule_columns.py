"""Columns of pictures of schedules: boxes, bubbles, pairs, texts, memory, peaks and caps.

The horizontal axis is time, in the unit of the times given; the vertical axis is the pixels of ``schedule_layout``. All
pictures share each source, so a change of one control is sent as a few blocks of bytes. Tooltips read numbers from
``schedules_boxes`` and turn them into words in the browser (``schedule_view``): the text of every box would be many
times as large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import SIDES, Columns, Window
from pathways_widgets.schedules.schedule_layout import Board, Drawable, ScheduleLayout

LEVELS = 5
"""Shades of one operation; chunks or slices beyond that number share them."""
COLOURS = [palette.shade(operation, level / (LEVELS - 1)) for operation in range(4) for level in range(LEVELS)]
MOST_MARKS = 2000
_NARROW = 4.0
"""Width in pixels below which a box has no border."""
MARKS = {"order": palette.OTHER_ORDER, "late": palette.LATE}
"""Outlines of marked actions, by the kind of mark."""
_FACTS = ("stage", "microbatch", "token_slice", "device")
_CELL = ("begin", "end", "idle", "by", "wire", "pair")
SOURCES = {
    "schedules_idle": list(SIDES),
    "schedules_boxes": [*SIDES, "code", "operation", "direction", *_FACTS, *_CELL],
    **{f"schedules_fill{code}": list(SIDES) for code in range(len(COLOURS))},
    "schedules_lanes": ["x", "y", "dw", "dh", "image"],
    "schedules_edges": list(SIDES),
    "schedules_pairs": list(SIDES),
    **{f"schedules_first_{kind}": list(SIDES) for kind in MARKS},
    "schedules_marks": ["x", "y", "text"],
    "schedules_held": ["x", "y"],
    "schedules_over": ["x", "y"],
    "schedules_peaks": ["x", "y"],
    "schedules_caps": ["x0", "x1", "y"],
    "schedules_labels": ["y", "device", "peak"],
    "schedules_now": list(SIDES),
    "schedules_later": list(SIDES),
    "schedules_wire": ["x0", "y0", "x1", "y1"],
}  # fmt: skip


class ScheduleScale(NamedTuple):
    """The size of a pixel along the time axis, and the height of text in pixels."""

    time: float
    font: float


Placed = tuple[Board, Drawable]


class CellPointer(NamedTuple):
    """One cell to point at.

    Args:
        picture: position of its picture.
        cell: position among the cells of that picture.
    """

    picture: int
    cell: int


def boxes_columns(pictures: Sequence[Drawable], layout: ScheduleLayout) -> Columns:
    """Return all boxes, picture by picture; ``by`` and ``pair`` are rows of these columns, or -1.

    Args:
        pictures: the schedules.
        layout: their positions.
    """
    parts, first = [], 0
    for board, one in zip(layout.boards, pictures, strict=True):
        if one.devices:
            parts.append(_boxes(one, board, first))
            # Rows that point at others, such as ``by``, count through all pictures.
            first += len(one.boxes["cell"])
    return _joined(parts, SOURCES["schedules_boxes"])


def _boxes(one: Drawable, board: Board, first: int) -> Columns:
    """Return the boxes of one picture, whose first row is ``first`` in the columns of all pictures."""
    boxes = one.boxes
    top = board.lane_top(boxes["device"])
    last = max(int(boxes["shade"].max()), 1)
    # (boxes,) shades spread over the levels that there are: of more chunks, neighbours share one.
    level = np.rint(boxes["shade"] / last * (LEVELS - 1))
    code = (boxes["operation"] * LEVELS + level).astype(np.uint8)
    # Letters as numbers of a byte: a column of text would be sent with its words.
    letters = np.array([ord(letter) if letter else 0 for letter in one.directions], np.uint8)
    columns: Columns = {"left": boxes["start"], "right": boxes["end"], "top": top, "bottom": top + board.lane}
    columns |= {"begin": boxes["cell_start"], "end": boxes["cell_end"], "idle": boxes["idle"], "wire": boxes["wire"]}
    # (boxes,) 32 bits: half as much to send, and finer than a pixel of any window.
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    columns |= {"operation": boxes["operation"].astype(np.uint8), "code": code}
    columns |= {name: boxes[name].astype(np.int32) for name in _FACTS} | {"direction": letters[boxes["direction"]]}
    # Rows are in the order of cells, so bisection finds the first row of a cell, also of a pair.
    row = np.searchsorted(boxes["cell"], boxes["by"])
    columns["by"] = np.where(boxes["by"] < 0, -1, first + row).astype(np.int32)
    return columns | {"pair": _partners(boxes, first)}


def _partners(boxes: dict[str, np.ndarray], first: int) -> np.ndarray:
    """Return the row of the other box of each overlapped pair; -1 for boxes that are not in a pair."""
    rows, cell = np.arange(len(boxes["cell"])), boxes["cell"]
    # Both boxes of a pair are neighbours and have one cell: the second has its partner before it, the first after it.
    other = np.where(rows > np.searchsorted(cell, cell), rows - 1, rows + 1)
    return np.where(boxes["pair"], first + other, -1).astype(np.int32)


def ground_columns(pictures: Sequence[Drawable], layout: ScheduleLayout) -> dict[str, Columns]:
    """Return what is under the boxes and does not depend on the zoom: bubbles, peaks and caps.

    The whole of a device's row is drawn as a bubble and boxes are drawn over it, so that idle time is never computed
    here.
    """
    shown, capped = _shown(pictures, layout)
    return {
        "schedules_idle": _joined([_idle(*both) for both in shown], SIDES),
        "schedules_peaks": _joined([_peaks(*both) for both in shown], "xy"),
        "schedules_caps": _joined([_caps(*both) for both in capped], SOURCES["schedules_caps"]),
    }


def memory_columns(pictures: Sequence[Drawable], layout: ScheduleLayout, scale: ScheduleScale) -> dict[str, Columns]:
    """Return what each device holds, and the part of it above the cap.

    Args:
        pictures: the schedules.
        layout: their positions.
        scale: size of a pixel; steps finer than that are merged.
    """
    shown, capped = _shown(pictures, layout)
    above = [_steps(board, one, _above(one.cap), scale) for board, one in capped]
    held = [_steps(board, one, lambda held: held, scale) for board, one in shown]
    return {"schedules_held": _joined(held, "xy"), "schedules_over": _joined(above, "xy")}


def _shown(pictures: Sequence[Drawable], layout: ScheduleLayout) -> tuple[list[Placed], list[Placed]]:
    """Return the pictures that have boxes, each with its board, and those of them that have a cap."""
    shown = [(board, one) for board, one in zip(layout.boards, pictures, strict=True) if one.devices]
    return shown, [(board, one) for board, one in shown if one.cap is not None]


def _above(cap: float | None) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that raises amounts to the cap, so that an outline has an area only above it."""
    return lambda held: np.maximum(held, cap or 0.0)


def _idle(board: Board, one: Drawable) -> Columns:
    """Return the row of each device, as one box over the whole time."""
    top = board.lane_top(np.arange(one.devices))
    # From the start to the end of the whole schedule: a device that ends early is idle until then.
    ends = np.zeros(one.devices), np.full(one.devices, one.makespan)
    return dict(zip(SIDES, (*ends, top, top + board.lane), strict=True))


def fullest(times: np.ndarray, held: np.ndarray, pixel: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the course of an amount with at most two steps for each pixel: the most in it, and the last.

    An average would hide peaks, and the last amount is needed where the next pixel begins.

    Args:
        times: when the amount changes.
        held: the amount from each of ``times`` on.
        pixel: time of one pixel.
    """
    if len(times) * pixel > times[-1] - times[0]:
        # (changes,) the pixel in which each change is.
        at = np.floor(times / pixel)
        # (pixels,) the first change in each pixel that has one.
        first = np.flatnonzero(np.diff(at, prepend=np.nan))
        # (pixels,) what is held when the pixel begins, which counts in it as well.
        before = np.concatenate([[0.0], held[first[1:] - 1]])
        most = np.maximum(np.maximum.reduceat(held, first), before)
        times = np.minimum(np.stack([at[first], at[first] + 1], axis=1).ravel() * pixel, times[-1])
        held = np.stack([most, np.append(before[1:], held[-1])], axis=1).ravel()
        # At the end of the schedule both steps of a pixel may fall on one time: the later one holds.
        lasting = np.append(np.diff(times) > 0, True)
        times, held = times[lasting], held[lasting]
    changes = np.diff(held, prepend=np.nan) != 0
    return times[changes], held[changes]


def _steps(board: Board, one: Drawable, amount: Callable[[np.ndarray], np.ndarray], scale: ScheduleScale) -> Columns:
    """Return the outline of what each device holds, as polygons separated by NaN.

    Args:
        board: position of the picture.
        one: the schedule.
        amount: what is drawn of an amount: all of it, or the part above the cap.
        scale: size of a pixel.
    """
    xs, ys = [], []
    for device in range(one.devices):
        times, held = fullest(*one.memory(device), scale.time)
        # An amount holds until the next change, so each step has two corners of the outline.
        x, levels = np.repeat(np.append(times, one.makespan), 2)[1:-1], np.repeat(held, 2)
        y = board.level(device, amount(levels))
        floor = board.level(device, float(amount(np.zeros(1))[0]))
        # Down to the floor at both ends; what is no number ends the polygon.
        xs.append(np.concatenate([x[:1], x, x[-1:], [np.nan]]))
        ys.append(np.concatenate([[floor], y, [floor, np.nan]]))
    return {"x": np.concatenate(xs).astype(np.float32), "y": np.concatenate(ys).astype(np.float32)}


def _peaks(board: Board, one: Drawable) -> Columns:
    """Return the first peak of each device."""
    # argmax finds the first of several equal peaks.
    found = [(times[np.argmax(held)], held.max()) for times, held in map(one.memory, range(one.devices))]
    levels = [board.level(device, held) for device, (_, held) in enumerate(found)]
    return {"x": np.array([time for time, _ in found]), "y": np.array(levels)}


def _caps(board: Board, one: Drawable) -> Columns:
    """Return the line of the cap on each device."""
    y = [board.level(device, one.cap or 0.0) for device in range(one.devices)]
    return {"x0": np.zeros(one.devices), "x1": np.full(one.devices, one.makespan), "y": np.array(y)}


def pair_columns(boxes: Columns) -> Columns:
    """Return borders around overlapped pairs."""
    # The box that begins with the cell stands for the pair, so that there is one border around both.
    one = np.flatnonzero((boxes["pair"] >= 0) & (boxes["left"] == boxes["begin"]))
    ends = {"left": boxes["begin"][one], "right": boxes["end"][one]}
    return ends | {name: boxes[name][one] for name in ("top", "bottom")}


def outline_columns(boxes: Columns, pictures: Sequence[Drawable]) -> dict[str, Columns]:
    """Return the outlines of marked actions.

    Args:
        boxes: of all pictures, from ``boxes_columns``.
        pictures: the schedules.
    """
    counts = [len(one.boxes["cell"]) if one.devices else 0 for one in pictures]
    # (pictures,) first row of each picture in the columns of all.
    first = np.cumsum([0, *counts[:-1]])
    found = {}
    for kind in MARKS:
        rows = [start + one.marks[kind] for start, one in zip(first, pictures, strict=True) if kind in one.marks]
        found[f"schedules_first_{kind}"] = {side: boxes[side][np.array(rows, int)] for side in SIDES}
    return found


def fill_columns(boxes: Columns, window: Window) -> dict[str, Columns]:
    """Return the boxes in ``window`` by colour; a browser draws one colour after another in a fraction of the time."""
    seen = (boxes["right"] >= window[0]) & (boxes["left"] <= window[1])
    # A browser sets the colour once for all boxes of a table.
    of_code = [seen & (boxes["code"] == code) for code in range(len(COLOURS))]
    return {
        f"schedules_fill{code}": {side: boxes[side][chosen] for side in SIDES} for code, chosen in enumerate(of_code)
    }


def edge_columns(boxes: Columns, scale: ScheduleScale, window: Window) -> Columns:
    """Return borders of the boxes in ``window`` that are wide enough for one; a pair has a border of its own."""
    # Borders of narrow boxes would hide their colours.
    wide = boxes["right"] - boxes["left"] >= _NARROW * scale.time
    seen = (boxes["pair"] < 0) & (boxes["right"] >= window[0]) & (boxes["left"] <= window[1])
    return {side: boxes[side][wide & seen] for side in SIDES}


def mark_columns(boxes: Columns, scale: ScheduleScale, window: Window) -> Columns:
    """Return the text on boxes in ``window``: operation, microbatch and slice, or less where there is no room."""
    wide = (boxes["right"] - boxes["left"]) / scale.time
    high = boxes["bottom"] - boxes["top"]
    seen = (wide >= 0.6 * scale.font + 1) & (high >= 0.95 * scale.font)
    seen &= (boxes["right"] >= window[0]) & (boxes["left"] <= window[1])
    # Texts are what a browser draws slowest.
    rows = np.flatnonzero(seen)[:MOST_MARKS]
    facts = (boxes[name][rows].tolist() for name in ("operation", "microbatch", "token_slice"))
    # (texts,) characters that fit: a margin of a pixel on each side, and a letter is 0.62 of its height wide.
    widths = (wide[rows] - 2) / (0.62 * scale.font)
    longest = len(str(int(boxes["microbatch"].max(initial=0))))
    texts = [_mark(longest, *one) for one in zip(widths.tolist(), *facts, strict=True)]
    x, y = ((boxes[a][rows] + boxes[b][rows]) / 2 for a, b in (SIDES[:2], SIDES[2:]))
    return {"x": x, "y": y, "text": texts}


def _mark(longest: int, characters: float, operation: int, microbatch: int, part: int) -> str:
    """Return the longest text that fits: operation, microbatch and slice; without the operation; the microbatch.

    All numbers count as long as the longest: labels that stop at 9 would look as if no more microbatches followed.
    """
    characters -= longest - len(str(microbatch))
    # Without token slices the number after the point would say nothing.
    full = f"{microbatch}.{part}" if part >= 0 else f"{microbatch}"
    choices = (palette.OPERATIONS[operation].letter + full, full, f"{microbatch}")
    return next((text for text in choices if len(text) <= characters), "")


def step_columns(pictures: Sequence[Drawable], layout: ScheduleLayout, step: CellPointer | None) -> dict[str, Columns]:
    """Return the columns that point at one cell.

    They are a border around it and around the cell that released it, a line between the two, and a veil over later
    time.

    Args:
        pictures: the schedules.
        layout: their positions.
        step: the cell; ``None`` for none.
    """
    now: list[dict[str, float]] = []
    later, wire = list[dict[str, float]](), list[dict[str, float]]()
    if step is not None:
        board, boxes = layout.boards[step.picture], pictures[step.picture].boxes
        cell = _cell(boxes, board, step.cell)
        now.append(cell)
        if (by := int(boxes["by"][np.searchsorted(boxes["cell"], step.cell)])) >= 0:
            source = _cell(boxes, board, by)
            now.append(source)
            middle = [(one["top"] + one["bottom"]) / 2 for one in (source, cell)]
            wire.append({"x0": source["right"], "y0": middle[0], "x1": cell["left"], "y1": middle[1]})
        # Over all pictures, because they share the time axis.
        later = [_veil(b, one, cell["right"]) for b, one in zip(layout.boards, pictures, strict=True) if one.devices]
    parts = {"schedules_now": now, "schedules_later": later, "schedules_wire": wire}
    return {name: {key: np.array([row[key] for row in rows]) for key in SOURCES[name]} for name, rows in parts.items()}


def _cell(boxes: dict[str, np.ndarray], board: Board, cell: int) -> dict[str, float]:
    """Return the box of a whole cell, both parts of a pair included."""
    row = int(np.searchsorted(boxes["cell"], cell))
    top = float(board.lane_top(boxes["device"][row]))
    ends = float(boxes["cell_start"][row]), float(boxes["cell_end"][row])
    return dict(zip(SIDES, (*ends, top, top + board.lane), strict=True))


def _veil(board: Board, one: Drawable, time: float) -> dict[str, float]:
    """Return the box over everything in a picture that is later than ``time``."""
    return dict(zip(SIDES, (min(time, one.makespan), one.makespan, board.rows, board.bottom), strict=True))


def nothing(source: str) -> Columns:
    """Return the columns of a source without rows."""
    return dict.fromkeys(SOURCES[source], np.zeros(0, np.float32))


def _joined(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    """Return the columns of several pictures as one."""
    empty: Any = np.zeros(0, np.float32)
    return {name: np.concatenate([part[name] for part in parts]) if parts else empty for name in names}
