"""Transfers on a timeline: an arrow from what made a value to what reads it, and the bandwidth, achieved and modelled.

The modelled bandwidth is that of the cost model with which this machine was calibrated, on the same route and with as
many bytes. A simulated transfer takes what the model says, so there is nothing to compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways_nb.cost.modelled_transfers import modelled_seconds
from pathways_nb.errors import size
from pathways_nb.trace.causality.dependencies import transfer_edges
from pathways_nb.trace.metrics import WORK
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.legends import Swatch
from pathways_widgets.drawing.line_marks import LineMark
from pathways_widgets.drawing.point_marks import DotMark
from pathways_widgets.drawing.tooltips import Tooltip
from pathways_widgets.drawing.views import ENDS, Columns, RunLike, Window
from pathways_widgets.timeline.level_of_detail import Boxes, Digest

ARROWS = "timeline_arrows"
"""The source of the arrows; ``box`` is the box of their transfer."""
MOST_ARROWS = 200
"""Largest number of arrows; of more transfers the longest in sight have them."""
MOST_SHOWN = 12
"""Number of arrows that are shown at once, besides those of the box under the pointer, or of selected ones."""
_MOST_TOLD = 4
"""Number of transfers that a tooltip tells where several end at one place."""
_MOST_EVENTS = 100_000
"""Number of events up to which it is looked up what reads what."""
_BENT = ("cx0", "cy0", "cx1", "cy1")
_WORDS = ("name", "maker", "reader", "route", "modelled", "beside")
_BOXES = ("box", "maker_box", "reader_box")
SOURCES = {ARROWS: [*ENDS, *_BENT, *_WORDS, "bytes", "takes", "rate", *_BOXES]}
_TOOLTIP = Tooltip(
    (
        ("transfer", "@name"),
        ("from", "@maker"),
        ("to", "@reader"),
        ("moves", "@bytes{custom} @route"),
        ("takes", "@takes{custom}"),
        ("achieved", "@rate{custom}"),
        ("modelled", "@modelled"),
        ("here", "@beside"),
    ),
    seconds=("takes",),
    sizes=("bytes",),
    rates=("rate",),
    optional=("from", "moves", "achieved", "modelled", "here"),
    most=_MOST_TOLD,
    in_toolbar=False,
)
ARROW_LINE = LineMark(source=ARROWS, renderer="timeline_arrow_lines", line=palette.ARROW, line_width=1.5, is_bent=True)
ARROW_HEAD = DotMark(
    source=ARROWS, renderer="timeline_arrow_heads", x="x1", y="y1", shape="arrow", size=8.0, fill=palette.ARROW,
    tooltip=_TOOLTIP,
)  # fmt: skip
ARROW_SWATCH = Swatch("from producer to consumer", LineMark(line=palette.ARROW, line_width=1.5), "timeline_key_arrows")


def modelled_words(run: RunLike, events: Events) -> list[str]:
    """Return for each label how fast a transfer is by the model; nothing for what is no transfer, or not modelled."""
    if not any(label.kind == "transfer" for label in events.labels):
        return [""] * len(events.labels)
    devices = {(one.program, one.client, one.node): one.devices for one in events.labels if one.node >= 0}
    return [_modelled(run, label, devices) for label in events.labels]


def _modelled(run: RunLike, label: Label, devices: dict[tuple[str, str, int], int]) -> str:
    if label.kind != "transfer" or not label.bytes:
        return ""
    if label.links:
        return "the same: this transfer is simulated"
    if run.link_model is None:
        return ""
    senders = max((devices.get((label.program, label.client, node), 0) for node in label.parents), default=0)
    seconds = modelled_seconds(run.link_model, label, run.islands, 0 if label.route == "host" else senders)
    return f"{size(label.bytes / seconds)}/s" if seconds else ""


def longest_arrows(columns: Columns) -> Columns:
    """Return the arrows that are shown while nothing is tapped."""
    return {name: column[:MOST_SHOWN] for name, column in columns.items()}


def arrow_key(columns: Columns, has_taps: bool = True) -> dict[str, Any]:
    """Return the properties of the entry of the legend for these arrows; nobody taps a still picture."""
    count, taps = len(columns["x0"]), "; point at a box, or tap it, for its own" if has_taps else ""
    more = f": the {MOST_SHOWN} longest{taps}" if count > MOST_SHOWN else ""
    return {"visible": count > 0, "label": {"value": f"{ARROW_SWATCH.text}{more}"}}


class TransferArrows:
    """The arrows of one run that is over; what reads what is looked up once."""

    def __init__(self) -> None:
        self._made: tuple[int, Digest] | None = None
        # (arrows, 3) positions of a transfer, of what made its value (-1 if nothing did) and of what reads it.
        self._arrows = np.zeros((0, 3), np.int64)

    def columns(
        self, is_over: bool, events: Events, digest: Digest, boxes: Boxes, window: Window, modelled: Sequence[str]
    ) -> Columns:
        """Return the arrows of the transfers that have boxes of their own.

        Args:
            is_over: whether the run is.
            events: its events that have boxes.
            digest: their lanes.
            boxes: the boxes.
            window: the visible part of the time axis, in seconds.
            modelled: for each label how fast a transfer is by the model (``modelled_words``).
        """
        if not is_over or len(events) > _MOST_EVENTS:
            return {name: [] for name in SOURCES[ARROWS]}
        if self._made != (len(events), digest):
            self._made, self._arrows = (len(events), digest), _arrows(events)
        row_of = np.full(len(events), -1, np.int32)
        row_of[boxes.alone] = np.arange(len(boxes.alone))
        drawn = self._arrows[row_of[self._arrows[:, 0]] >= 0]
        move, maker, reader = drawn.T
        out_of_sight = (digest.start[reader] < window[0]) | (digest.start[move] > window[1])
        order = np.lexsort((digest.start[move] - digest.end[move], out_of_sight))[:MOST_ARROWS]
        boxes_of = (row_of[move], np.where(maker >= 0, row_of[maker], -1), row_of[reader])
        columns = _columns(drawn[order], events, digest, modelled)
        return columns | {name: rows[order] for name, rows in zip(_BOXES, boxes_of, strict=True)}


def _arrows(events: Events) -> np.ndarray:
    """Return the positions of each transfer, of what made its value, and of each event that reads it."""
    order = np.argsort(events["start"], kind="stable")
    moves = events.is_("kind", "transfer")
    made: dict[int, int] = {}
    read: list[tuple[int, int]] = []
    for at, into in transfer_edges(events.select(order)):
        one, other = int(order[at]), int(order[into])
        if moves[other]:
            made[other] = one
        else:
            read.append((one, other))
    found = [(move, made.get(move, -1), reader) for move, reader in read]
    return np.array(found, np.int64).reshape(-1, 3)


def _columns(arrows: np.ndarray, events: Events, digest: Digest, modelled: Sequence[str]) -> Columns:
    move, maker, reader = arrows.T
    # What came from the host begins at its own box, which is in the lane of transfers.
    begin = np.where(maker >= 0, maker, move)
    middle = (np.array(digest.top) + np.array(digest.bottom)) / 2 if digest.top else np.zeros(0)
    x0, x1 = np.minimum(digest.end[begin], digest.start[reader]), digest.start[reader]
    y0, y1 = (middle[digest.track[rows]] if len(rows) else np.zeros(0) for rows in (begin, reader))
    half = (x0 + x1) / 2
    columns: Columns = dict(zip((*ENDS, *_BENT), (x0, y0, x1, y1, half, y0, half, y1), strict=True))
    labels = [events.labels[number] for number in events.label[move].tolist()]
    takes = digest.end[move] - digest.start[move]
    count = np.array([label.bytes for label in labels], float)
    columns |= {"name": [label.name for label in labels], "route": [label.route for label in labels]}
    columns |= {"maker": [_name(events, row) for row in maker.tolist()]}
    columns |= {"reader": [_name(events, row) for row in reader.tolist()]}
    columns |= {"modelled": [modelled[number] for number in events.label[move].tolist()]}
    ends = list(zip(x1.tolist(), y1.tolist(), strict=True))
    many = Counter(ends)
    columns |= {"beside": [f"{many[end]} transfers end" if many[end] > _MOST_TOLD else "" for end in ends]}
    return columns | {"bytes": count, "takes": takes, "rate": rates(count, takes)}


def rates(count: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return bytes per second; 0 where no time passed."""
    return np.divide(count, seconds, out=np.zeros(len(count)), where=seconds > 0)


def _name(events: Events, row: int) -> str:
    """Return the name and the place of an event; nothing for a row of -1."""
    if row < 0:
        return ""
    label = events.labels[events.label[row]]
    return f"{label.name} on island {label.island}" if label.island >= 0 and label.kind in WORK else label.name
