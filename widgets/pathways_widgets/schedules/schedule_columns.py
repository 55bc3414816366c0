"""Columns of pictures of schedules: boxes, bubbles, pairs, texts, memory, peaks and caps.

Along is time, in the unit of the times given; down are the pixels of ``schedule_layout``. All pictures share each
source, so a change of one control is a few blocks of bytes. A hover finds all it says in ``schedules_boxes``, as
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Columns, Window
from pathways_widgets.schedules.schedule_layout import Board, Drawable, ScheduleLayout

SIDES = ("left", "right", "top", "bottom")
LEVELS = 5
"""Shades of one operation; more chunks or slices than that share them."""
COLOURS = [palette.shade(operation, level / (LEVELS - 1)) for operation in range(4) for level in range(LEVELS)]
MOST_MARKS = 2000
_NARROW = 4.0
"""Pixels below which a box has no line around it."""
_FACTS = ("stage", "microbatch", "token_slice", "device")
_CELL = ("begin", "end", "idle", "by", "wire", "pair")
SOURCES = {
    "schedules_idle": list(SIDES),
    "schedules_boxes": [*SIDES, "code", "operation", "direction", *_FACTS, *_CELL],
    **{f"schedules_fill{code}": list(SIDES) for code in range(len(COLOURS))},
    "schedules_lanes": ["x", "y", "dw", "dh", "image"],
    "schedules_edges": list(SIDES),
    "schedules_pairs": list(SIDES),
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
    """What a pixel is worth along the time axis, and the height of text in pixels."""

    time: float
    font: float


Placed = tuple[Board, Drawable]


class CellPointer(NamedTuple):
    """One cell to point at: of which picture, and its position among the cells of that."""

    picture: int
    cell: int


def boxes_columns(pictures: Sequence[Drawable], layout: ScheduleLayout) -> Columns:
    """All boxes, picture by picture; ``by`` and ``pair`` are rows of these columns, or -1."""
    parts, first = [], 0
    for board, one in zip(layout.boards, pictures, strict=True):
        if one.devices:
            parts.append(_boxes(one, board, first))
            first += len(one.boxes["cell"])
    return _joined(parts, SOURCES["schedules_boxes"])


def _boxes(one: Drawable, board: Board, first: int) -> Columns:
    boxes = one.boxes
    top = board.lane_top(boxes["device"])
    last = max(int(boxes["shade"].max()), 1)
    level = np.rint(boxes["shade"] / last * (LEVELS - 1))
    code = (boxes["operation"] * LEVELS + level).astype(np.uint8)
    letters = np.array([ord(letter) if letter else 0 for letter in one.directions], np.uint8)
    columns: Columns = {"left": boxes["start"], "right": boxes["end"], "top": top, "bottom": top + board.lane}
    columns |= {"begin": boxes["cell_start"], "end": boxes["cell_end"], "idle": boxes["idle"], "wire": boxes["wire"]}
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    columns |= {"operation": boxes["operation"].astype(np.uint8), "code": code}
    columns |= {name: boxes[name].astype(np.int32) for name in _FACTS} | {"direction": letters[boxes["direction"]]}
    row = np.searchsorted(boxes["cell"], boxes["by"])
    columns["by"] = np.where(boxes["by"] < 0, -1, first + row).astype(np.int32)
    return columns | {"pair": _partners(boxes, first)}


def _partners(boxes: dict[str, np.ndarray], first: int) -> np.ndarray:
    rows, cell = np.arange(len(boxes["cell"])), boxes["cell"]
    other = np.where(rows > np.searchsorted(cell, cell), rows - 1, rows + 1)
    return np.where(boxes["pair"], first + other, -1).astype(np.int32)


def ground_columns(pictures: Sequence[Drawable], layout: ScheduleLayout) -> dict[str, Columns]:
    """What lies under the boxes (idle until shown otherwise), peaks and caps."""
    shown, capped = _shown(pictures, layout)
    return {
        "schedules_idle": _joined([_idle(*both) for both in shown], SIDES),
        "schedules_peaks": _joined([_peaks(*both) for both in shown], "xy"),
        "schedules_caps": _joined([_caps(*both) for both in capped], SOURCES["schedules_caps"]),
    }


def memory_columns(pictures: Sequence[Drawable], layout: ScheduleLayout, scale: ScheduleScale) -> dict[str, Columns]:
    """What each device holds, and what of it is above the cap."""
    shown, capped = _shown(pictures, layout)
    above = [_steps(board, one, _above(one.cap), scale) for board, one in capped]
    held = [_steps(board, one, lambda held: held, scale) for board, one in shown]
    return {"schedules_held": _joined(held, "xy"), "schedules_over": _joined(above, "xy")}


def _shown(pictures: Sequence[Drawable], layout: ScheduleLayout) -> tuple[list[Placed], list[Placed]]:
    """Pictures that there are, each with its place; and those of them that have a cap."""
    shown = [(board, one) for board, one in zip(layout.boards, pictures, strict=True) if one.devices]
    return shown, [(board, one) for board, one in shown if one.cap is not None]


def _above(cap: float | None) -> Callable[[np.ndarray], np.ndarray]:
    return lambda held: np.maximum(held, cap or 0.0)


def _idle(board: Board, one: Drawable) -> Columns:
    top = board.lane_top(np.arange(one.devices))
    ends = np.zeros(one.devices), np.full(one.devices, one.makespan)
    return dict(zip(SIDES, (*ends, top, top + board.lane), strict=True))


def fullest(times: np.ndarray, held: np.ndarray, pixel: float) -> tuple[np.ndarray, np.ndarray]:
    """The same course; where it has more steps than pixels, only the most and the last of each pixel."""
    if len(times) * pixel > times[-1] - times[0]:
        at = np.floor(times / pixel)
        first = np.flatnonzero(np.diff(at, prepend=np.nan))
        before = np.concatenate([[0.0], held[first[1:] - 1]])
        most = np.maximum(np.maximum.reduceat(held, first), before)
        times = np.minimum(np.stack([at[first], at[first] + 1], axis=1).ravel() * pixel, times[-1])
        held = np.stack([most, np.append(before[1:], held[-1])], axis=1).ravel()
        lasting = np.append(np.diff(times) > 0, True)
        times, held = times[lasting], held[lasting]
    changes = np.diff(held, prepend=np.nan) != 0
    return times[changes], held[changes]


def _steps(board: Board, one: Drawable, amount: Callable[[np.ndarray], np.ndarray], scale: ScheduleScale) -> Columns:
    """The outline of what each device holds, a gap between two devices."""
    xs, ys = [], []
    for device in range(one.devices):
        times, held = fullest(*one.memory(device), scale.time)
        x, levels = np.repeat(np.append(times, one.makespan), 2)[1:-1], np.repeat(held, 2)
        y = board.level(device, amount(levels))
        floor = board.level(device, float(amount(np.zeros(1))[0]))
        xs.append(np.concatenate([x[:1], x, x[-1:], [np.nan]]))
        ys.append(np.concatenate([[floor], y, [floor, np.nan]]))
    return {"x": np.concatenate(xs).astype(np.float32), "y": np.concatenate(ys).astype(np.float32)}


def _peaks(board: Board, one: Drawable) -> Columns:
    found = [(times[np.argmax(held)], held.max()) for times, held in map(one.memory, range(one.devices))]
    levels = [board.level(device, held) for device, (_, held) in enumerate(found)]
    return {"x": np.array([time for time, _ in found]), "y": np.array(levels)}


def _caps(board: Board, one: Drawable) -> Columns:
    y = [board.level(device, one.cap or 0.0) for device in range(one.devices)]
    return {"x0": np.zeros(one.devices), "x1": np.full(one.devices, one.makespan), "y": np.array(y)}


def pair_columns(boxes: Columns) -> Columns:
    """Borders around overlapped pairs."""
    one = np.flatnonzero((boxes["pair"] >= 0) & (boxes["left"] == boxes["begin"]))
    ends = {"left": boxes["begin"][one], "right": boxes["end"][one]}
    return ends | {name: boxes[name][one] for name in ("top", "bottom")}


def fill_columns(boxes: Columns, window: Window) -> dict[str, Columns]:
    """The boxes of each colour: drawn colour by colour, they take a browser a fraction of the time."""
    seen = (boxes["right"] >= window[0]) & (boxes["left"] <= window[1])
    of_code = [seen & (boxes["code"] == code) for code in range(len(COLOURS))]
    return {f"schedules_fill{code}": {side: boxes[side][mine] for side in SIDES} for code, mine in enumerate(of_code)}


def edge_columns(boxes: Columns, scale: ScheduleScale, window: Window) -> Columns:
    """Borders of boxes in sight that are wide enough for one and not of a pair."""
    wide = boxes["right"] - boxes["left"] >= _NARROW * scale.time
    seen = (boxes["pair"] < 0) & (boxes["right"] >= window[0]) & (boxes["left"] <= window[1])
    return {side: boxes[side][wide & seen] for side in SIDES}


def mark_columns(boxes: Columns, scale: ScheduleScale, window: Window) -> Columns:
    """What is written on boxes in sight: operation, microbatch and slice, or less where there is no room."""
    wide = (boxes["right"] - boxes["left"]) / scale.time
    high = boxes["bottom"] - boxes["top"]
    seen = (wide >= 0.6 * scale.font + 1) & (high >= 0.95 * scale.font)
    seen &= (boxes["right"] >= window[0]) & (boxes["left"] <= window[1])
    rows = np.flatnonzero(seen)[:MOST_MARKS]
    facts = (boxes[name][rows].tolist() for name in ("operation", "microbatch", "token_slice"))
    widths = (wide[rows] - 2) / (0.62 * scale.font)
    texts = [_mark(*one) for one in zip(widths.tolist(), *facts, strict=True)]
    x, y = ((boxes[a][rows] + boxes[b][rows]) / 2 for a, b in (SIDES[:2], SIDES[2:]))
    return {"x": x, "y": y, "text": texts}


def _mark(characters: float, operation: int, microbatch: int, part: int) -> str:
    full = f"{microbatch}.{part}" if part >= 0 else f"{microbatch}"
    choices = (palette.OPERATIONS[operation].letter + full, full, f"{microbatch}")
    return next((text for text in choices if len(text) <= characters), "")


def step_columns(pictures: Sequence[Drawable], layout: ScheduleLayout, step: CellPointer | None) -> dict[str, Columns]:
    """A border around one cell and around what released it, a line between them, and a veil over all that is later."""
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
        later = [_veil(b, one, cell["right"]) for b, one in zip(layout.boards, pictures, strict=True) if one.devices]
    parts = {"schedules_now": now, "schedules_later": later, "schedules_wire": wire}
    return {name: {key: np.array([row[key] for row in rows]) for key in SOURCES[name]} for name, rows in parts.items()}


def _cell(boxes: dict[str, np.ndarray], board: Board, cell: int) -> dict[str, float]:
    row = int(np.searchsorted(boxes["cell"], cell))
    top = float(board.lane_top(boxes["device"][row]))
    ends = float(boxes["cell_start"][row]), float(boxes["cell_end"][row])
    return dict(zip(SIDES, (*ends, top, top + board.lane), strict=True))


def _veil(board: Board, one: Drawable, time: float) -> dict[str, float]:
    return dict(zip(SIDES, (min(time, one.makespan), one.makespan, board.rows, board.bottom), strict=True))


def nothing(source: str) -> Columns:
    """No rows of a source."""
    return dict.fromkeys(SOURCES[source], np.zeros(0, np.float32))


def _joined(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    empty: Any = np.zeros(0, np.float32)
    return {name: np.concatenate([part[name] for part in parts]) if parts else empty for name in names}
