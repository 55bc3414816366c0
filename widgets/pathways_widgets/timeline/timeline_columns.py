"""Columns of the timeline's picture: boxes, the text on them, and the patterns over them.

``level_of_detail`` has chosen the boxes. Text columns are ``Words``, indices into few different texts, so that a
million events cost numbers, not strings. What merged boxes stand for is in ``merged_events``.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pathways_nb.timing.waits import WHY
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import HOST_KIND, QUALITIES, STATUSES, Label
from pathways_nb.util.words import plural
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import SIDES, Columns, Window, Words, node_id
from pathways_widgets.timeline.busy_devices import BUSY_COLUMNS
from pathways_widgets.timeline.client_shares import client_numbers, sharing, tints
from pathways_widgets.timeline.lanes import MARGIN
from pathways_widgets.timeline.level_of_detail import Boxes, Digest
from pathways_widgets.timeline.merged_events import (
    clusters,
    facts_column,
    first_labels,
    guesses,
    joined_columns,
    merged_ids,
    programs_of,
)
from pathways_widgets.timeline.transfer_columns import rates

MOST_MARKS = 500
_NARROW = 3
"""Width in pixels below which a box has no border."""
_SEEN = 3
"""Least width in pixels of the pattern of a bad end: what failed before its launch has no duration."""
_STRIP = 4
"""Height in pixels of the strip in the client's colour along the lower edge of a box; at most a third of the box."""
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
        "rate",
        "modelled",
        "run",
        "name",
        "kind",
        "place",
        "program",
        "route",
        "line",
        "basis",
        "why",
        "status",
        "quality",
        "id",
        "facts",
        "shortest",
        "longest",
    ],
    "timeline_busy": list(BUSY_COLUMNS),
    "timeline_labels": ["y", "text"],
    "timeline_marks": ["x", "y", "text", "long", "letter", "seconds", "box"],
    **{f"timeline_{name}": [*SIDES, "box"] for name in (*palette.HATCHES, *palette.DASHES)},
}


class TimelineScale(NamedTuple):
    """The size of a pixel.

    Args:
        seconds: along the time axis.
        lanes: along the vertical axis.
        font: height of text in pixels.
        window: the visible part of the time axis, in seconds.
    """

    seconds: float
    lanes: float
    font: float
    window: Window = (-math.inf, math.inf)


def columns_of(
    digest: Digest,
    boxes: Boxes,
    events: Events,
    scale: TimelineScale,
    modelled: Sequence[str],
    islands: Sequence[str] = (),
) -> dict[str, Columns]:
    """Return the columns of every source.

    Args:
        digest: the events as numbers.
        boxes: the boxes to draw.
        events: the events.
        scale: size of a pixel, which decides what fits on a box.
        modelled: for each label how fast a transfer is by the model (``transfer_columns.modelled_words``).
        islands: names of the islands; empty for numbers.
    """
    columns = _boxes(digest, boxes, events, modelled, islands)
    # (boxes,) whether a box is wide enough for a border or a pattern.
    wide = columns["duration"] >= _NARROW * scale.seconds
    known = guesses(boxes, events)
    guessed = {name: known == QUALITIES.index(name) for name in palette.DASHES}
    # A dashed edge takes the place of the solid one.
    solid = wide & ~np.any(list(guessed.values()), 0)
    # A quad always has a border: that of a narrow box has the colour of the box itself.
    columns["edge"] = np.where(solid, len(palette.KINDS), columns["code"]).astype(np.uint8)
    # (boxes,) lanes: a strip in the colour of the client must leave the colour of the kind visible.
    high = np.minimum(_STRIP * scale.font / 11 * scale.lanes, (columns["bottom"] - columns["top"]) / 3)
    columns["strip"] = (columns["bottom"] - np.where(columns["tint"], high, 0)).astype(np.float32)
    hatched = {f"timeline_{name}": _hatched(columns, name, wide, scale.seconds) for name in palette.HATCHES}
    # Of boxes too narrow for an edge, groups have one.
    apart = _NARROW * scale.seconds
    dashed = {
        f"timeline_{name}": joined_columns(
            _rows(columns, np.flatnonzero(which & wide)), clusters(columns, np.flatnonzero(which & ~wide), apart)
        )
        for name, which in guessed.items()
    }
    return {"timeline_boxes": columns, "timeline_marks": _marks(columns, boxes, events, scale), **hatched, **dashed}


def title_of(boxes: Boxes, events: Events) -> str:
    """Return the title: the number of events, of boxes if some are merged, and how exact their stamps are."""
    # The events that are drawn, alone or merged; others are outside of the window.
    seen = np.concatenate([boxes.alone, boxes.members])
    quality = events.stored("quality")[seen]
    simulated = np.count_nonzero(quality == QUALITIES.index("simulated"))
    estimated = np.count_nonzero(quality != QUALITIES.index("exact")) - simulated
    words = f"{len(events):,} {plural(len(events), 'event')}"
    if len(boxes.track):
        words = f"{f'{len(seen):,} of ' * (len(seen) < len(events))}{words} as {len(boxes):,} boxes"
    words += f" · {simulated:,} simulated" if simulated else ""
    return f"{words} · {estimated:,} without exact stamps" if estimated else words


def _boxes(digest: Digest, boxes: Boxes, events: Events, modelled: Sequence[str], islands: Sequence[str]) -> Columns:
    """Return the columns of the boxes."""
    top, bottom, code = np.array(digest.top), np.array(digest.bottom), np.array(digest.code, np.uint8)
    track = np.concatenate([digest.track[boxes.alone], boxes.track])
    # Times keep 64 bits: within hours of a run, 32 cannot tell microseconds apart. Lanes need only 32.
    start = np.concatenate([digest.start[boxes.alone], boxes.start])
    durations = np.concatenate([digest.end[boxes.alone] - digest.start[boxes.alone], boxes.busy])
    codes = code[track] if len(track) else np.zeros(0, np.uint8)
    bands = (top[track], bottom[track]) if len(track) else (np.zeros(0), np.zeros(0))
    numbers = np.array(client_numbers(sharing(events), digest.client), np.int32)
    clients = numbers[track] if len(track) else np.zeros(0, np.int32)
    columns: Columns = {"left": start, "right": start + durations, "duration": durations, "code": codes}
    columns |= {"top": bands[0].astype(np.float32), "bottom": bands[1].astype(np.float32)}
    columns |= {"client": clients, "tint": tints(clients)}
    every = (digest.end - digest.start)[boxes.members]
    for name, pick, filler in (("shortest", np.minimum, np.inf), ("longest", np.maximum, 0.0)):
        merged = np.full(len(boxes.track), filler)
        pick.at(merged, boxes.box_of, every)
        columns[name] = np.concatenate([durations[: len(boxes.alone)], merged])
    columns["facts"] = facts_column(boxes, events, islands)
    columns |= _details(boxes, events, codes, modelled, programs_of(columns["facts"], len(boxes.track)))
    moved = np.where(codes == palette.CODES["transfer"], columns["bytes"], 0.0)
    return columns | {"rate": rates(moved, durations)}


def _details(boxes: Boxes, events: Events, codes: np.ndarray, modelled: Sequence[str], programs: list[str]) -> Columns:
    """Return the columns that tooltips and links need; ``programs`` are those of merged boxes."""
    alone, merged = boxes.alone, len(boxes.track)
    # (alone,) position of the label of each box among those that occur: texts are made once for each label.
    used, which = np.unique(events.label[alone], return_inverse=True)
    labels = [events.labels[number] for number in used.tolist()]

    def text(of_labels: list[str], of_merged: list[str]) -> Words:
        first = len(of_labels)
        # Words of labels come first, those of merged boxes after them.
        words = {word: first + number for number, word in enumerate(dict.fromkeys(of_merged))}
        # One word may stand for all merged boxes: ``np.resize`` repeats it.
        numbers = np.fromiter((words[word] for word in of_merged), np.uint32, len(of_merged))
        return Words([*of_labels, *words], np.concatenate([which, np.resize(numbers, merged)]).astype(np.uint32))

    columns: Columns = {"kind": Words([kind.name for kind in palette.KINDS], codes)}
    columns["name"] = text(
        [label.name for label in labels], [f"{count:,} {plural(count, 'event')} here" for count in boxes.count.tolist()]
    )
    firsts = first_labels(boxes, events)
    wheres = {number: _where(replace(events.labels[number], place="")) for number in set(firsts)}
    columns["place"] = text([_where(label) for label in labels], [wheres[number] for number in firsts])
    columns["program"] = text([_whose(label) for label in labels], programs)
    columns["route"] = text([label.route for label in labels], [""])
    columns["line"] = text([label.line for label in labels], [""])
    columns["modelled"] = text([modelled[number] for number in used.tolist()], [""])
    columns["basis"] = text([label.basis for label in labels], [""])
    for name, words, filler in (("status", STATUSES, "ok"), ("quality", (*QUALITIES, "merged"), "merged")):
        numbers = np.concatenate([events.stored(name)[alone], np.full(merged, words.index(filler), np.uint8)])
        columns[name] = Words(words, numbers)
    columns["why"] = _reasons(events, alone, merged)
    columns["id"] = text([node_id(label.program, label.node) for label in labels], merged_ids(boxes, events))
    columns["bytes"] = np.concatenate([np.array([label.bytes for label in labels], float)[which], np.zeros(merged)])
    columns["run"] = np.concatenate([events["run"][alone], np.full(merged, -1, np.int32)])
    return columns


def _reasons(events: Events, alone: np.ndarray, merged: int) -> Words:
    """Return why events began, as far as it was told, with what released them: ``"turn, after f"``."""
    why, by = (events.stored(name)[alone].astype(int) for name in ("why", "released_label"))
    # Few pairs of reason and releasing label occur, however many events there are.
    pairs, which = np.unique(np.stack([why, by]), axis=1, return_inverse=True)
    words = []
    for reason, label in pairs.T.tolist():
        after = f", after {events.labels[label].name}" if label >= 0 else ""
        words.append(f"{WHY[reason]}{after}" if reason >= 0 else "")
    return Words([*words, ""], np.concatenate([which.ravel(), np.full(merged, len(words))]).astype(np.uint32))


def _whose(label: Label) -> str:
    """Return program and client as text."""
    return f"{label.program} of {label.client}" if label.client else label.program


def _where(label: Label) -> str:
    """Return virtual slice, island and devices as text."""
    last = f"–{label.device + label.devices - 1}" if label.devices > 1 else ""
    devices = f", dev {label.device}{last}" if label.devices else ""
    devices = ", host" if label.kind == HOST_KIND else devices
    devices = f", host {label.host}{devices}" if label.host >= 0 and label.kind != HOST_KIND else devices
    where = f"island {label.island}{devices}" if label.island >= 0 else "controller"
    return f"{label.place} · {where}" if label.place else where


def _rows(columns: Columns, which: np.ndarray) -> Columns:
    """Return the sides of some boxes, and which these are, for the filter."""
    return {side: columns[side][which] for side in SIDES} | {"box": which.astype(np.int32)}


def _hatched(columns: Columns, name: str, wide: np.ndarray, pixel: float) -> Columns:
    """Return the boxes under one pattern.

    A pattern for a bad end covers all such boxes, each wide enough to be visible; a pattern for a kind covers only
    boxes that are wide enough for it.

    Args:
        columns: the columns of the boxes.
        name: a key of ``palette.HATCHES``.
        wide: which boxes are wide enough for a pattern.
        pixel: seconds of one pixel.
    """
    if name in STATUSES:
        # Every bad end, however narrow its box: it is what a reader looks for.
        which = np.flatnonzero(columns["status"].numbers == STATUSES.index(name))
    else:
        # On a narrow box a pattern would hide the colour.
        codes = [palette.CODES[kind.name] for kind in palette.KINDS if kind.pattern == name]
        which = np.flatnonzero(np.isin(columns["code"], codes) & wide)
    found = _rows(columns, which)
    return found | {"right": np.maximum(found["right"], found["left"] + _SEEN * pixel)} if name in STATUSES else found


def _marks(columns: Columns, boxes: Boxes, events: Events, scale: TimelineScale) -> Columns:
    """Return letters, microbatches and names where a box is wide enough; the widest boxes come first."""
    alone = slice(0, len(boxes.alone))
    wide = columns["duration"][alone] / scale.seconds
    high = (columns["bottom"] - columns["top"])[alone] / scale.lanes
    far = (columns["right"][alone] < scale.window[0]) | (columns["left"][alone] > scale.window[1])
    # Those in sight and the widest first, since only so many texts are written; stable, so equals keep their order.
    order = np.lexsort((-wide, far))[:MOST_MARKS]
    chosen = order[(wide[order] >= scale.font) & (high[order] >= scale.font)]
    numbers = events.label[boxes.alone[chosen]].tolist()
    texts = [
        _mark(columns, events.labels[number].microbatch, i, wide[i], scale.font)
        for number, i in zip(numbers, chosen.tolist(), strict=True)
    ]
    middle = (columns["left"] + columns["right"])[chosen] / 2
    # A text may be wider than its box, so neighbours in a lane could meet.
    free = _without_overlap(columns["top"][chosen], middle / scale.seconds, texts, scale.font)
    chosen, middle, texts = chosen[free], middle[free], [texts[i] for i in free.tolist()]
    top, bottom = columns["top"][chosen], columns["bottom"][chosen]
    # The middle of a gang of an even number of devices is the line between two lanes.
    half = (bottom - top) / 2
    lane = top + np.where(half > 0.5, np.floor(half) + 0.5 - MARGIN, half)  # for a gang, a lane near its centre
    # A page may be narrower than the one that texts are fitted to: ``figure.js`` then writes the letter, or nothing.
    letters = [_letter(columns, i) for i in chosen.tolist()]
    marks: Columns = {"x": middle, "y": lane.astype(np.float32), "text": texts, "long": texts, "letter": letters}
    marks["seconds"] = columns["duration"][chosen]
    return marks | {"box": chosen.astype(np.int32)}


def _without_overlap(top: np.ndarray, middle: np.ndarray, texts: list[str], font: float) -> np.ndarray:
    """Return the texts that can be written, earlier ones first, such that none covers another in its lane.

    Args:
        top: upper edge of each box, which identifies its lane.
        middle: centre of each text, in pixels.
        texts: the texts.
        font: height of text in pixels.
    """
    taken: dict[float, list[tuple[float, float]]] = {}
    found = []
    for i, (lane, x, text) in enumerate(zip(top.tolist(), middle.tolist(), texts, strict=True)):
        left, right = x - 0.3 * font * len(text), x + 0.3 * font * len(text)
        # The intervals that are taken in a lane are sorted and do not overlap: only both neighbours need a look.
        row = taken.setdefault(lane, [])
        place = bisect(row, (left, right))
        if (place == 0 or row[place - 1][1] <= left) and (place == len(row) or right <= row[place][0]):
            row.insert(place, (left, right))
            found.append(i)
    return np.array(found, int)


def _mark(columns: Columns, microbatch: int, i: int, pixels: float, font: float) -> str:
    """Return the longest text that fits on a box: letter, microbatch and name; letter and microbatch; or the letter.

    The name of a pipeline's action, such as ``2W0``, contains its own letter and microbatch, and is written whole: a
    part of it, such as ``W0``, reads as a name that is cut.
    """
    letter, name = _letter(columns, i), columns["name"][i]
    short = f"{letter}{microbatch}" if microbatch >= 0 else letter
    texts = [f"{short} {name}", short]
    if palette.is_action(name):
        texts = [name]
    for text in texts:
        if len(text) * 0.6 * font < pixels - 4:
            return text
    return letter


def _letter(columns: Columns, i: int) -> str:
    """Return the letter of a box: that of its kind, or of the pipeline's action that it is."""
    name = columns["name"][i]
    return name.lstrip("0123456789")[0] if palette.is_action(name) else palette.KINDS[columns["code"][i]].letter
