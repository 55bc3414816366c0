"""The timeline with the ops inside launches: what each device really ran, below the launches that contain it.

Below each island's devices is one lane per device for compute and one for collectives, and one for each other queue
that has ops: copies, the host, other slices. Ops are drawn as events of the kinds in ``palette.OPS``, so that the
timeline's boxes, text and merging apply to them; the tooltip of an op names its line, phase and source, its work, and
behind what it is hidden. Where each island is one lane, its ops have a lane for each queue, in which each device has
its share of the height.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pathways_nb.trace.launch_ops import OpLabel, Ops
from pathways_nb.trace.metrics import BUSY
from pathways_nb.trace.op_hiding import exposed_seconds, hidden_behind
from pathways_nb.trace.record import STORED, UNKNOWN, Events
from pathways_nb.trace.rows import QUALITIES, STATUSES, Label
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Columns, Moment, RunLike, Window
from pathways_widgets.timeline.lanes import MARGIN, Lanes
from pathways_widgets.timeline.level_of_detail import PIXELS, Digest
from pathways_widgets.timeline.timeline_view import Timeline

_ROWS = {
    **dict.fromkeys(("op compute", "op backward", "op copy", "op wait"), "compute"),
    **dict.fromkeys(("op collective", "op gather", "op reduce"), "collectives"),
    **{"op prefetch": "copies", "op host": "host", "op dcn": "other slices"},
}
"""The lane of each kind of op."""
_ALWAYS = ("compute", "collectives")
"""Lanes that are there without ops, too."""
_HALVES = {"op gather": (0.0, 0.5), "op reduce": (0.5, 1.0)}
"""Collectives on streams of their own share the lane: gathers above, reductions below."""


@dataclass(frozen=True)
class OpLanes(Lanes):
    """The lanes of runs on given islands, with those of their ops."""

    queues: tuple[str, ...] = _ALWAYS
    """The lanes of the ops of each device."""
    op_devices: tuple[tuple[tuple[int, int], ...], ...] | None = None
    """By island, the devices that have lanes for ops, and for how many each stands; ``None``: all, each for itself."""

    @property
    def grown(self) -> bool:
        """Whether there are other lanes than for any run on these islands."""
        return super().grown or self.queues != _ALWAYS or self.op_devices is not None

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        """Upper edges of the controller's lane, each island and the transfers, then the lower edge of the whole."""
        heights = [
            self._own_height(island) + self._op_height(island) + self.below(island)
            for island in range(len(self.islands))
        ]
        return self._bounds(heights)

    def devices(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of an island's devices."""
        top = self.whole(island)[0]
        return top, top + self._own_height(island)

    def ops(self, island: int) -> tuple[float, float]:
        """Return the upper and lower edge of an island's ops."""
        top = self.devices(island)[1]
        return top, top + self._op_height(island)

    @property
    def labels(self) -> dict[float, str]:
        """Centre of each lane -> its label."""
        found = super().labels
        for island in range(len(self.islands)):
            top, bottom = self.ops(island)
            named = [""] if self.grouped else [
                f"dev {device} · " if count == 1 else f"dev {device}–{device + count - 1} · "
                for device, count in self._op_devices(island)
            ]  # fmt: skip
            rows = [f"{name}{row}" for name in named for row in self.queues]
            unit = (bottom - top) / max(len(rows), 1)
            found |= {top + (number + 0.5) * unit: row for number, row in enumerate(rows)}
        return found

    def band(self, kind: str, island: int, device: int, devices: int, stream: str = "") -> tuple[float, float]:
        """Return the upper and lower edge of the box of an event or an op.

        Args:
            kind: kind of the event, or one of ``palette.OPS``.
            island: index of its island; -1 for none.
            device: its first device.
            devices: number of devices; 0 means all of the island.
            stream: of the device; empty for all of it.
        """
        if kind not in palette.OPS:
            return super().band(kind, island, device, devices, stream)
        (top, bottom), row = self.ops(island), self.queues.index(_ROWS[kind])
        first, last = _HALVES.get(kind, (0.0, 1.0))
        firsts = [first for first, _ in self._op_devices(island)]
        size, count = max(self.islands[island] if self.grouped else len(firsts), 1), len(self.queues)
        unit = (bottom - top) / (count * size)
        # Grouped: all devices of one kind of op share a lane. Else the lanes of a device are neighbours, and an op that
        # stands for several devices is in that of the first.
        number, high = row * size + device, max(devices, 1)
        if not self.grouped:
            number, high = count * firsts.index(device) + row, 1
        margin = MARGIN * min(1.0, unit)
        return top + (number + first * high) * unit + margin, top + (number + last * high) * unit - margin

    def _op_height(self, island: int) -> float:
        return len(self.queues) * (self._grouped_height if self.grouped else len(self._op_devices(island)))

    def _op_devices(self, island: int) -> tuple[tuple[int, int], ...]:
        """Return the devices of an island that have lanes for ops, and for how many each stands."""
        return (
            tuple((device, 1) for device in range(self.islands[island]))
            if self.op_devices is None
            else self.op_devices[island]
        )


_WORDS = {"line": "line or source", "basis": "work or basis"}
"""What rows of the tooltip are called where ops are among the events."""


class OpTimeline(Timeline):
    """A timeline with lanes for the ops of each device.

    Args:
        islands: number of devices of each island.
        pixels: width to which text is fitted.
        names: names of the islands; empty for numbers.
    """

    tooltips: ClassVar = [(_WORDS.get(what, what), value) for what, value in Timeline.tooltips]

    def __init__(self, islands: tuple[int, ...], pixels: float = PIXELS, names: tuple[str, ...] = ()):
        super().__init__(islands, pixels, names)
        self.lanes: OpLanes = OpLanes(islands, names, self.style.lane)
        self._digest = Digest(self.lanes)
        self._known: tuple[Events, Ops, Events] | None = None

    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return what the timeline draws, with the boxes of ops.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        moment = Moment.of(run)
        # Joining ops and events takes long; while the user pans, both are the same objects.
        if self._known is None or self._known[0] is not moment.events or self._known[1] is not moment.ops:
            self._known = moment.events, moment.ops, with_ops(moment.events, moment.ops)
        super().update(replace(moment, events=self._known[2]), window)
        title = self.properties["timeline_title"]
        said = "no ops: record with pw.profile"
        if count := len(moment.ops):
            said = f"{count:,} are ops, the source of {moment.ops.joined_words} of their time known"
            said += f"; {moment.ops.note}" if moment.ops.note else ""
        title["text"] = f"{title['text']} · {said}"
        return self.sources

    def _set_lanes(self, events: Events, is_over: bool) -> None:
        """Add the lanes of queues that have ops, beside those of every timeline; then place events anew."""
        super()._set_lanes(events, is_over)
        used = {_ROWS[label.kind] for label in events.labels if label.kind in _ROWS}
        queues = tuple(row for row in dict.fromkeys(_ROWS.values()) if row in used or row in self.lanes.queues)
        devices = _devices_with_ops(events, len(self.lanes.islands))
        self._place(replace(self.lanes, queues=queues, op_devices=devices))


def _devices_with_ops(events: Events, islands: int) -> tuple[tuple[tuple[int, int], ...], ...] | None:
    """Return by island the devices with ops, and for how many each stands; ``None`` if each has its own.

    Args:
        events: with ops among them.
        islands: number of islands.
    """
    found: list[dict[int, int]] = [{} for _ in range(islands)]
    for label in events.labels:
        if label.kind in _ROWS:
            own = found[label.island]
            own[label.device] = max(own.get(label.device, 1), label.devices)
    # A device without ops among such that have their own was idle, and its lanes show that.
    alone = all(count == 1 for own in found for count in own.values())
    return None if alone else tuple(tuple(sorted(own.items())) for own in found)


def with_ops(events: Events, ops: Ops) -> Events:
    """Return the events of a run, followed by its ops as events on one device each.

    Args:
        events: of the run.
        ops: inside its launches.
    """
    if not len(ops):
        return events
    clients = list(dict.fromkeys(label.client for label in events.labels))
    said = hidden_behind(ops, exposed_seconds(ops))
    words = {text: number for number, text in enumerate(dict.fromkeys(said))}
    hiding = np.array([words[text] for text in said])
    # (ops, 5) what makes a label as an event: label of the op, client, what hides it, island, device. Few different
    # ones occur.
    launches = _launches(events, ops)
    whose = np.array([clients.index(label.client) for label in events.labels], np.int32)[events.label[launches]]
    keys = np.stack([ops["label"], whose, hiding, ops["island"], ops["device"]], 1)
    used, label = np.unique(keys, axis=0, return_inverse=True)
    texts = list(words)
    labels = [_label(ops.labels[op], clients[client], texts[by], *where) for op, client, by, *where in used.tolist()]
    stored = {"label": label.reshape(-1) + len(events.labels), **{name: ops[name] for name in ("start", "end", "run")}}
    # Of a simulated launch one device stands for all of them; beside it may be a real one, of which each has its own.
    simulated = QUALITIES.index("simulated")
    is_simulated = events.stored("quality")[launches] == simulated
    if is_simulated.any():
        spans = {(one.program, one.node, one.island): one.devices for one in events.labels if one.kind in BUSY}
        for number in np.unique(label[is_simulated]).tolist():
            one = labels[number]
            labels[number] = replace(one, devices=spans.get((one.program, one.node, one.island), 1))
    # What a profiler saw is exact, whatever is known of the launch itself; what was predicted is not.
    stored |= {"quality": np.where(is_simulated, simulated, QUALITIES.index("exact"))}
    stored |= {"status": np.full(len(ops), STATUSES.index("ok"))}
    stored |= {name: np.full(len(ops), unknown) for name, unknown in UNKNOWN.items()}
    both = {name: np.concatenate([events.stored(name), stored[name].astype(STORED[name])]) for name in STORED}
    ids = np.concatenate([events["id"], -1 - np.arange(len(ops))])  # of no event of a record
    return Events([*events.labels, *labels], both, ids)


def _launches(events: Events, ops: Ops) -> np.ndarray:
    """Return for each op the position of the first launch of its run, which says its client and whether it was real."""
    launched = np.flatnonzero(events.is_("kind", *BUSY))
    # On its own island: two runs that are compared count alike.
    islands = 1 + max((label.island for label in events.labels), default=0)
    keys = events["run"][launched].astype(np.int64) * islands + events["island"][launched]
    runs, first = np.unique(keys, return_index=True)
    found: np.ndarray = launched[first][np.searchsorted(runs, ops["run"].astype(np.int64) * islands + ops["island"])]
    return found


def _label(op: OpLabel, client: str, hiding: str, island: int, device: int) -> Label:
    """Return the label of an op as an event; its line, phase and source take the place of the line of Python."""
    kind = "backward" if (op.kind, op.phase) == ("compute", "backward") else op.kind
    line = " · ".join(filter(None, (op.line, op.phase, op.source)))
    about: dict[str, Any] = {"line": line, "basis": ", ".join(filter(None, (op.work, hiding)))}
    about |= {"place": f"in {op.launch}", "island": island, "device": device, "devices": 1}
    return Label(f"op {kind}", op.name, op.program, client, op.node, **about)
