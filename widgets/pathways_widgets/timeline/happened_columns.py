"""What happened to all, as tags in a lane of their own: devices lost and back, failures, waits for memory, turns.

The lane is there only if something has happened. Lanes of devices that are lost look lost until they are back. Of tags
that would cover each other only the first is drawn, which tells of the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pathways_nb.trace.metrics import client_name, duration
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import STATUSES, WAITS_FOR_MEMORY, WAITS_ITS_TURN, Label
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark, Hatching
from pathways_widgets.drawing.legends import Swatch
from pathways_widgets.drawing.picture_marks import Column, Role
from pathways_widgets.drawing.point_marks import TextMark
from pathways_widgets.drawing.time_axis import last_end
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import SIDES, Columns, Window
from pathways_widgets.timeline.lanes import HAPPENED_HEIGHT, Lanes

HAPPENED, LOST = "timeline_happened", "timeline_lost"
SOURCES: dict[str, Any] = {HAPPENED: ("x", "y", "letter", "colour", "words", "text"), LOST: SIDES}
"""The tags, and the lanes of lost devices for as long as they are lost."""


class _Tag(NamedTuple):
    name: str
    letter: str
    colour: str
    words: str


_TAGS = (
    _Tag("lost", "−", palette.GREY, "devices are lost"),
    _Tag("back", "+", palette.MINT, "devices are back"),
    _Tag("failed", "!", palette.VERMILION, "failure"),
    _Tag("memory", "M", palette.YELLOW, "wait for memory"),
    _Tag("turn", ">", palette.PALE_BLUE, "a client's turn"),
)
_CODES = {tag.name: code for code, tag in enumerate(_TAGS)}
_NEAR, _MOST, _TOLD = 30.0, 300, 3
"""Pixels below which two tags are one; number of tags at most; number of events that a tag tells before it counts."""
_PLAIN = Hatching(Role("soft"), 0.4, gap=12.0)
SHADE = BoxMark(source=LOST, name=f"{LOST}_box", fill=Role("grid"), hatch="/", hatching=_PLAIN)
"""How the lanes of lost devices look."""
TAG = TextMark(
    source=HAPPENED,
    text="letter",
    renderer=f"{HAPPENED}_tags",
    background=Column("colour"),
    padding=3,
    is_bold=True,
    tooltip=Tooltip((("happened", "@text"),)),
)
LEGEND = tuple(Swatch(tag.words, BoxMark(fill=tag.colour), letter=tag.letter) for tag in _TAGS)
"""What the tags mean, for still pictures; a page shows the words of the tags that there are."""


def has_happened(events: Events) -> bool:
    """Return whether a record needs the lane."""
    failed = events.stored("status") == STATUSES.index("failed")
    return any(map(_code, events.labels)) or bool(failed.any())


def happened_columns(events: Events, lanes: Lanes, window: Window | None, pixel: float) -> dict[str, Columns]:
    """Return the columns of ``SOURCES``.

    Args:
        events: all of the run.
        lanes: the lanes; without one for what happens there are no tags.
        window: the part of the time axis that is drawn, in seconds; ``None`` for all of it.
        pixel: seconds of one pixel.
    """
    if not lanes.happened:
        return {name: {column: np.zeros(0) for column in columns} for name, columns in SOURCES.items()}
    rows, times = _happened(events, window or (-np.inf, np.inf))
    # (tags,) the first of those that would cover each other, and how many these are.
    first, near = list[int](), _NEAR * pixel
    for row in np.unique((times - times[:1]) // near, return_index=True)[1].tolist() if near else ():
        if not first or times[row] - times[first[-1]] >= near:
            first.append(row)
    counts = np.diff([*first, len(rows)])
    first = first[:_MOST]
    tags = [(float(times[at]), *_tag(events, int(rows[at]))) for at in first]
    columns: Columns = {"x": np.array([time for time, *_ in tags], float)}
    columns["y"] = np.full(len(tags), HAPPENED_HEIGHT / 2)
    columns["letter"] = [_TAGS[code].letter for _, code, _ in tags]
    columns["colour"] = [_TAGS[code].colour for _, code, _ in tags]
    columns["words"] = [_TAGS[code].words for _, code, _ in tags]
    columns["text"] = [
        _told([text, *(_tag(events, row)[1] for row in rows[at + 1 : at + min(count, _TOLD)].tolist())], count)
        for (*_, text), at, count in zip(tags, first, counts.tolist(), strict=False)
    ]
    return {HAPPENED: columns, LOST: _lost(events, lanes)}


def _told(texts: list[str], count: int) -> str:
    return " · ".join(texts) + (f" · and {count - len(texts):,} more" if count > len(texts) else "")


def _code(label: Label) -> str:
    """Return what an event tells by its label alone; empty for nothing."""
    if label.kind in ("lost", "back"):
        return label.kind
    if label.kind != "stall" or label.route:
        return ""
    if label.name == WAITS_ITS_TURN:
        return "turn"
    return "memory" if label.name.startswith(WAITS_FOR_MEMORY) else ""


def _happened(events: Events, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return the events that are told, by when, and these times in seconds."""
    codes = [_code(label) for label in events.labels]
    failed = events.stored("status") == STATUSES.index("failed")
    told = np.array([code != "" for code in codes], bool)[events.label] | failed
    # A wait for memory is told when it begins; a turn, or a failure, when it comes.
    at_start = np.array([code in ("lost", "back", "memory") for code in codes], bool)[events.label] & ~failed
    times = np.where(at_start, events["start"], events["end"])
    rows = np.flatnonzero(told & (times >= window[0]) & (times <= window[1]))
    rows = rows[np.argsort(times[rows], kind="stable")]
    return rows, times[rows]


def _tag(events: Events, row: int) -> tuple[int, str]:
    """Return the code of an event's tag, and what it tells."""
    label, seconds = events.labels[events.label[row]], float(events["end"][row] - events["start"][row])
    if events["status"][row] == "failed":
        where = f" on island {label.island}" if label.island >= 0 else ""
        # A program that fails as a whole is a stall that says so.
        return _CODES["failed"], label.name if label.kind == "stall" else f"{label.name} failed{where}"
    if (code := _code(label)) == "turn":
        return _CODES[code], f"{client_name(label.client)} has its turn, after {duration(seconds)}"
    if code == "memory":
        who = label.client or label.program or "Python"
        return _CODES[code], f"{who} waits {duration(seconds)}: {label.name}"
    return _CODES[code], label.name


def _lost(events: Events, lanes: Lanes) -> Columns:
    """Return the lanes of lost devices, from when they are lost until any of their island is back."""
    found: Columns = {side: [] for side in SIDES}
    back, last = events.of_kind("back"), last_end(events)
    returns = list(zip(back["island"].tolist(), back["start"].tolist(), strict=True))
    for event in events.of_kind("lost"):
        until = min(
            (time for island, time in returns if island == event["island"] and time >= event["start"]), default=last
        )
        if 0 <= event["island"] < len(lanes.islands) and until > event["start"]:
            sides = event["start"], until, *lanes.band("compute", event["island"], event["device"], event["devices"])
            for side, value in zip(SIDES, sides, strict=True):
                found[side].append(value)
    return {side: np.array(values, float) for side, values in found.items()}
