"""Columns of the timeline's picture: boxes, what is written on them, and the patterns over them."""

from __future__ import annotations

from bisect import bisect
from typing import NamedTuple

import numpy as np

from pathways_nb.trace.record import QUALITIES, STATUSES, Events, Label
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Columns, Words, node_id
from pathways_widgets.timeline.busy_devices import BUSY_COLUMNS
from pathways_widgets.timeline.client_shares import numbered, sharing, tints
from pathways_widgets.timeline.lanes import MARGIN
from pathways_widgets.timeline.level_of_detail import MOST_CELLS, Boxes, Digest

MOST_MARKS = 500
MOST_IDS = 32
"""Nodes that a merged box names one by one."""
_NARROW = 3
"""Pixels below which a box has no line around it."""
_SEEN = 3
"""Pixels of the pattern of a bad end at least: what failed before it was launched has no duration."""
_STRIP = 4
"""Pixels of the strip in its client's colour along the bottom of a box, of which it takes a third at most."""
SIDES = ("left", "right", "top", "bottom")
SOURCES = {
    "timeline_boxes": [
        *SIDES,
        "code",
        "edge",
        "client",
        "tint",
        "strip",
        "duration",
        "bytes",
        "run",
        "name",
        "kind",
        "place",
        "program",
        "route",
        "line",
        "status",
        "quality",
        "id",
    ],
    "timeline_busy": list(BUSY_COLUMNS),
    "timeline_marks": ["x", "y", "text", "code", "client"],
    **{f"timeline_{name}": [*SIDES, "code", "client"] for name in palette.HATCHES},
}


class TimelineScale(NamedTuple):
    """What one pixel is worth: seconds along the time axis, lanes along the other; and the height of text in pixels."""

    seconds: float
    lanes: float
    font: float


def columns_of(digest: Digest, boxes: Boxes, events: Events, scale: TimelineScale) -> dict[str, Columns]:
    """The columns of every source; ``scale`` decides what has room on a box."""
    columns = _boxes(digest, boxes, events)
    wide = columns["duration"] >= _NARROW * scale.seconds
    columns["edge"] = np.where(wide, len(palette.KINDS), columns["code"]).astype(np.uint8)
    high = np.minimum(_STRIP * scale.font / 11 * scale.lanes, (columns["bottom"] - columns["top"]) / 3)
    columns["strip"] = (columns["bottom"] - np.where(columns["tint"], high, 0)).astype(np.float32)
    hatched = {f"timeline_{name}": _hatched(columns, name, wide, scale.seconds) for name in palette.HATCHES}
    return {"timeline_boxes": columns, "timeline_marks": _marks(columns, boxes, events, scale), **hatched}


def title_of(boxes: Boxes, events: Events) -> str:
    """How many events there are or, if some share a box, are in sight and as how many boxes; how they are known."""
    seen = np.concatenate([boxes.alone, boxes.members])
    quality = events.stored("quality")[seen]
    simulated = np.count_nonzero(quality == QUALITIES.index("simulated"))
    estimated = np.count_nonzero(quality != QUALITIES.index("exact")) - simulated
    words = f"{len(events):,} event{'' if len(events) == 1 else 's'}"
    if len(boxes.track):
        words = f"{len(seen):,} of {words} as {len(boxes):,} boxes"
    words += f" · {simulated:,} simulated" if simulated else ""
    return f"{words} · {estimated:,} without exact stamps" if estimated else words


def _boxes(digest: Digest, boxes: Boxes, events: Events) -> Columns:
    top, bottom, code = np.array(digest.top), np.array(digest.bottom), np.array(digest.code, np.uint8)
    track = np.concatenate([digest.track[boxes.alone], boxes.track])
    start = np.concatenate([digest.start[boxes.alone], boxes.start])
    lasts = np.concatenate([digest.end[boxes.alone] - digest.start[boxes.alone], boxes.busy])
    codes = code[track] if len(track) else np.zeros(0, np.uint8)
    bands = (top[track], bottom[track]) if len(track) else (np.zeros(0), np.zeros(0))
    numbers = np.array(numbered(sharing(events), digest.client), np.int32)
    clients = numbers[track] if len(track) else np.zeros(0, np.int32)
    columns: Columns = {"left": start, "right": start + lasts, "duration": lasts, "code": codes}
    columns |= {"top": bands[0].astype(np.float32), "bottom": bands[1].astype(np.float32)}
    columns |= {"client": clients, "tint": tints(clients)}
    return columns | _details(boxes, events, codes)


def _details(boxes: Boxes, events: Events, codes: np.ndarray) -> Columns:
    alone, merged = boxes.alone, len(boxes.track)
    used, which = np.unique(events.label[alone], return_inverse=True)
    labels = [events.labels[number] for number in used.tolist()]

    def text(of_labels: list[str], of_merged: list[str]) -> Words:
        first = len(of_labels)
        words = {word: first + number for number, word in enumerate(dict.fromkeys(of_merged))}
        numbers = np.fromiter((words[word] for word in of_merged), np.uint32, len(of_merged))
        return Words([*of_labels, *words], np.concatenate([which, np.resize(numbers, merged)]).astype(np.uint32))

    columns: Columns = {"kind": Words([kind.name for kind in palette.KINDS], codes)}
    columns["name"] = text([label.name for label in labels], [f"{count:,} events" for count in boxes.count.tolist()])
    columns["place"] = text([_where(label) for label in labels], [""])
    columns["program"] = text([_whose(label) for label in labels], ["several"])
    columns["route"] = text([label.route for label in labels], [""])
    columns["line"] = text([label.line for label in labels], [""])
    for name, words, filler in (("status", STATUSES, "ok"), ("quality", (*QUALITIES, "merged"), "merged")):
        numbers = np.concatenate([events.stored(name)[alone], np.full(merged, words.index(filler), np.uint8)])
        columns[name] = Words(words, numbers)
    columns["id"] = text([node_id(label.program, label.node) for label in labels], _merged_ids(boxes, events))
    columns["bytes"] = np.concatenate([np.array([label.bytes for label in labels], float)[which], np.zeros(merged)])
    columns["run"] = np.concatenate([events["run"][alone], np.full(merged, -1, np.int32)])
    return columns


def _merged_ids(boxes: Boxes, events: Events) -> list[str]:
    """The nodes that each merged box stands for; for more than ``MOST_IDS`` of them ``program#*``."""
    found: list[list[str]] = [[] for _ in boxes.track]
    ids = [node_id(label.program, label.node) for label in events.labels]
    wholes = [id and f"{id.rpartition('#')[0]}#*" for id in ids]
    words = list(dict.fromkeys(wholes))
    whole_of = np.array([words.index(whole) for whole in wholes], np.int64)
    numbers = events.label[boxes.members]
    box, node = _pairs(boxes.box_of, numbers, len(found), len(ids))
    is_dense = np.bincount(box, minlength=len(found)) > MOST_IDS
    few = ~is_dense[box]
    for position, number in zip(box[few].tolist(), node[few].tolist(), strict=True):
        found[position].append(ids[number])
    if is_dense.any():
        box, whole = _pairs(boxes.box_of, whole_of[numbers], len(found), len(words))
        for position, number in zip(box[is_dense[box]].tolist(), whole[is_dense[box]].tolist(), strict=True):
            found[position].append(words[number])
    return [" ".join(filter(None, one)) for one in found]


def _pairs(one: np.ndarray, other: np.ndarray, ones: int, others: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of two columns of numbers below ``ones`` and ``others``."""
    pairs = one * others + other
    if ones * others <= MOST_CELLS:  # for few of them a table is quicker than sorting
        table = np.zeros(ones * others, bool)
        table[pairs] = True
        pairs = np.flatnonzero(table)
    else:
        pairs = np.unique(pairs)
    return pairs // max(others, 1), pairs % max(others, 1)


def _whose(label: Label) -> str:
    """Program and client in words."""
    return f"{label.program} of {label.client}" if label.client else label.program


def _where(label: Label) -> str:
    """Place and devices in words."""
    last = f"–{label.device + label.devices - 1}" if label.devices > 1 else ""
    devices = f", dev {label.device}{last}" if label.devices else ""
    where = f"island {label.island}{devices}" if label.island >= 0 else "controller"
    return f"{label.place} · {where}" if label.place else where


def _hatched(columns: Columns, name: str, wide: np.ndarray, pixel: float) -> Columns:
    """The boxes under one pattern: all of a bad end, wide enough to be seen, and of a kind those that are wide."""
    if name in STATUSES:
        which = np.flatnonzero(columns["status"].numbers == STATUSES.index(name))
    else:
        codes = [palette.CODES[kind.name] for kind in palette.KINDS if kind.pattern == name]
        which = np.flatnonzero(np.isin(columns["code"], codes) & wide)
    found = {column: columns[column][which] for column in (*SIDES, "code", "client")}
    return found | {"right": np.maximum(found["right"], found["left"] + _SEEN * pixel)} if name in STATUSES else found


def _marks(columns: Columns, boxes: Boxes, events: Events, scale: TimelineScale) -> Columns:
    """Letters, microbatches and names, where a box is wide enough to hold them."""
    alone = slice(0, len(boxes.alone))
    wide = columns["duration"][alone] / scale.seconds
    high = (columns["bottom"] - columns["top"])[alone] / scale.lanes
    order = np.argsort(-wide, kind="stable")[:MOST_MARKS]
    chosen = order[(wide[order] >= scale.font) & (high[order] >= scale.font)]
    numbers = events.label[boxes.alone[chosen]].tolist()
    texts = [
        _mark(columns, events.labels[number].microbatch, i, wide[i], scale.font)
        for number, i in zip(numbers, chosen.tolist(), strict=True)
    ]
    middle = (columns["left"] + columns["right"])[chosen] / 2
    free = _without_overlap(columns["top"][chosen], middle / scale.seconds, texts, scale.font)
    chosen, middle, texts = chosen[free], middle[free], [texts[i] for i in free.tolist()]
    top, bottom = columns["top"][chosen], columns["bottom"][chosen]
    half = (bottom - top) / 2
    lane = top + np.where(half > 0.5, np.floor(half) + 0.5 - MARGIN, half)  # of a gang, a lane near its middle
    marks: Columns = {"x": middle, "y": lane.astype(np.float32), "text": texts}
    return marks | {name: columns[name][chosen] for name in ("code", "client")}


def _without_overlap(top: np.ndarray, middle: np.ndarray, texts: list[str], font: float) -> np.ndarray:
    """Which texts can be written, the first first, such that none of a lane covers another; in pixels."""
    taken: dict[float, list[tuple[float, float]]] = {}
    found = []
    for i, (lane, x, text) in enumerate(zip(top.tolist(), middle.tolist(), texts, strict=True)):
        left, right = x - 0.3 * font * len(text), x + 0.3 * font * len(text)
        row = taken.setdefault(lane, [])
        place = bisect(row, (left, right))
        if (place == 0 or row[place - 1][1] <= left) and (place == len(row) or right <= row[place][0]):
            row.insert(place, (left, right))
            found.append(i)
    return np.array(found, int)


def _mark(columns: Columns, microbatch: int, i: int, pixels: float, font: float) -> str:
    letter, name = palette.KINDS[columns["code"][i]].letter, columns["name"][i]
    short = f"{letter}{microbatch}" if microbatch >= 0 else letter
    for text in (f"{short} {name}", short):
        if len(text) * 0.6 * font < pixels - 4:
            return text
    return letter
