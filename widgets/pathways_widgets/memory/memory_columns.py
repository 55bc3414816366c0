"""Columns of the picture of memory: which devices are its rows, the steps of each client, budgets and peaks.

A row is one unit high, counted from the top, and its bytes grow upwards from its lower edge; all rows have one scale.
More steps than pixels become one for each pixel: the fullest of those that it stands for, so no peak is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.trace.memory_history import MemoryHistory
from pathways_nb.trace.metrics import of_budget, size
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.time_axis import round_steps
from pathways_widgets.drawing.views import Columns, Window, Words

MOST_ROWS = 8
MOST_STEPS = 4000
"""Boxes of all rows and clients together."""
IN_SIGHT = 10
"""A budget that is more than so many times the highest peak is not drawn, or nothing else could be seen."""
WORDS_ABOVE = 0.55
"""Heights of text between a peak and its words."""
BUDGET = "budget of a device"
NO_CLIENT = "no client"
SIDES = ("left", "right", "top", "bottom")
SOURCES = {
    "memory_levels": [*SIDES, "fill", "client", "bytes", "start", "end", "where"],
    "memory_labels": ["y", "text"],
    "memory_budgets": ["x", "y", "name"],
    "memory_peaks": ["x", "y", "text", "align", "text_y"],
    "memory_clients": [*SIDES, "fill", "client"],
}


class Strip(NamedTuple):
    """A row of the picture: what it is called, more exactly where that is, what was held of how many bytes."""

    name: str
    where: str
    held: MemoryHistory
    hbm: int


@dataclass(frozen=True)
class MemoryLayout:
    """How the rows share the picture.

    Args:
        strips: from the top.
        chosen: which devices are shown, in words; none if all are.
        row, font: pixels of each, and of the height of text.
        top: bytes at the upper end of the scale.
    """

    strips: Sequence[Strip]
    chosen: str
    row: float
    font: float
    top: float

    @property
    def head(self) -> float:
        """Share of a row above the scale, for its name and the words at its peak."""
        return 2.6 * self.font / self.row

    def y(self, position: int, held: Any) -> Any:
        """Where so many bytes are in the row at this position."""
        return position + 1 - held / self.top * (1 - self.head)

    def words_y(self, position: int) -> float:
        """Where the words at a row's peak stand: on it, or above the budget if they would lie across its line."""
        strip = self.strips[position]
        peak, budget = (self.y(position, held) for held in (strip.held.peak.bytes, strip.hbm))
        crosses = self.in_sight(strip) and 0 <= (peak - budget) * self.row < (1.3 + WORDS_ABOVE) * self.font
        return float(budget if crosses else peak)

    def in_sight(self, strip: Strip) -> bool:
        """Whether its budget is drawn."""
        return 0 < strip.hbm <= self.top

    @property
    def steps(self) -> list[float]:
        """The bytes that the scale names."""
        return round_steps(0.0, self.top, max(int(self.row * (1 - self.head) / (1.6 * self.font)), 1))

    @property
    def labels(self) -> dict[float, str]:
        """Position on the vertical axis -> a row's name, or bytes."""
        found = {}
        for position, strip in enumerate(self.strips):
            found[position + self.head / 2] = strip.name
            found |= {self.y(position, step): size(step) if step else "0" for step in self.steps}
        return found


def layout_of(
    found: Sequence[MemoryHistory], names: Sequence[str], hbm: Sequence[int], lane: float, font: float
) -> MemoryLayout:
    """The rows for what devices held: one for each group of equal devices, or where these are many one for each island.

    Args:
        found: what each group held. names: what the islands are called. hbm: bytes per device of each, or 0.
        lane: height in pixels of a device in the timeline. font: of the text.
    """
    budgets, chosen = dict(enumerate(hbm)), ""
    if len(found) > MOST_ROWS:
        fullest = _fullest(found)
        chosen = f"the fullest device of {'each island' if len(fullest) <= MOST_ROWS else f'{MOST_ROWS} islands'}"
        kept = sorted(fullest, key=lambda held: -held.peak.bytes)[:MOST_ROWS]
        found = [held for held in fullest if held in kept]
    strips = [_strip(held, names, budgets.get(held.island, 0), bool(chosen)) for held in found]
    highest = max((strip.held.peak.bytes for strip in strips), default=1)
    top = max([highest, *(strip.hbm for strip in strips if strip.hbm <= IN_SIGHT * highest)])
    return MemoryLayout(strips, chosen, lane * (4 if len(strips) <= 4 else 3), font, float(top))


def columns_of(
    layout: MemoryLayout, clients: Sequence[str], window: Window, around: Window, pixels: float
) -> dict[str, Columns]:
    """The columns of every source.

    Args:
        layout: the rows. clients: those of the run, by whose position colours are chosen.
        window: what is in sight of the time axis. around: what steps are drawn for. pixels: the width of ``window``.
    """
    strips = layout.strips
    holders = [client for client in clients if any(client in strip.held.clients for strip in strips)]
    budgets = [layout.y(i, strip.hbm) for i, strip in enumerate(strips) if layout.in_sight(strip)]
    nowhere = np.full(len(holders), np.nan)
    return {
        "memory_levels": _levels(layout, clients, around, pixels * (around[1] - around[0]) / (window[1] - window[0])),
        "memory_labels": {"y": list(layout.labels), "text": list(layout.labels.values())},
        "memory_budgets": {"x": [np.nan] * len(budgets), "y": budgets, "name": [BUDGET] * len(budgets)},
        "memory_peaks": _peaks(layout, window),
        "memory_clients": dict.fromkeys(SIDES, nowhere)
        | {"fill": [colour_of(client, clients) for client in holders], "client": list(map(called, holders))},
    }


def called(client: str) -> str:
    """What a client is called; ``""`` is nobody in particular."""
    return client or NO_CLIENT


def colour_of(client: str, clients: Sequence[str]) -> str:
    """The colour of one of ``clients``."""
    named = [other for other in clients if other]
    return palette.client_colour(named.index(client)) if client else palette.NEUTRAL


def _fullest(found: Sequence[MemoryHistory]) -> list[MemoryHistory]:
    """Of each island the devices with the highest peak."""
    best: dict[int, MemoryHistory] = {}
    for held in found:
        if held.island not in best or held.peak.bytes > best[held.island].peak.bytes:
            best[held.island] = held
    return list(best.values())


def _strip(held: MemoryHistory, names: Sequence[str], hbm: int, fullest: bool) -> Strip:
    ranges = [f"{low}" if high - low == 1 else f"{low}–{high - 1}" for low, high in held.devices]
    island, devices = names[held.island], f"dev {', '.join(ranges)}"
    if len(ranges) > 2:
        devices = f"{sum(high - low for low, high in held.devices)} dev"
    where = f"{island}, {devices}"
    return Strip(f"{island}, fullest" if fullest else where, where, held, hbm)


def _levels(layout: MemoryLayout, clients: Sequence[str], around: Window, pixels: float) -> Columns:
    layers = sum(len(strip.held.clients) for strip in layout.strips)
    most = int(min(pixels, max(MOST_STEPS / max(layers, 1), 100)))
    parts = [np.zeros((9, 0))]
    for position, strip in enumerate(layout.strips):
        left, right, steps = _seen(strip.held, around, most)
        for number, client in enumerate(strip.held.clients):
            below = strip.held.levels[steps, :number].sum(1)
            level = strip.held.levels[:, number]
            first, last = _joined(left, right, below, level[steps])
            bottom, size = below[first], level[steps[first]]
            since, until = _span(strip.held.times, level, steps[first], steps[last])
            ends = layout.y(position, bottom + size), layout.y(position, bottom)
            whose = (np.full(len(first), number) for number in (clients.index(client), position))
            parts.append(np.stack([left[first], right[last], *ends, size, since, until, *whose]))
    table = np.concatenate(parts, 1)
    table = table[:, table[4] > 0]
    who, where = table[7].astype(np.uint32), table[8].astype(np.uint32)
    return dict(zip((*SIDES, "bytes", "start", "end"), table, strict=False)) | {
        "fill": Words([colour_of(client, clients) for client in clients], who),
        "client": Words([called(client) for client in clients], who),
        "where": Words([strip.where for strip in layout.strips], where),
    }


def _seen(held: MemoryHistory, window: Window, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From where to where which step is drawn: those in ``window``, or of each of ``most`` parts of it the fullest."""
    times = held.times
    first = max(int(np.searchsorted(times, window[0], "right")) - 1, 0)
    last = min(int(np.searchsorted(times, window[1])), len(times) - 1)  # the last of all holds nothing
    if last - first <= most:
        return times[first:last], times[first + 1 : last + 1], np.arange(first, max(last, first))
    edges = np.linspace(*window, most + 1)
    edges = edges[max(int(np.searchsorted(edges, times[0], "right")) - 1, 0) :]
    begin = np.maximum(np.searchsorted(times, edges[:-1], "right") - 1, 0)
    end = np.maximum(np.searchsorted(times, edges[1:]), begin + 1)
    rank = np.full(len(times) + 1, -1)  # one more, because the end of a part may be beyond the last
    rank[held.by_total] = np.arange(len(times))
    fullest = np.maximum.reduceat(rank, np.stack([begin, end], 1).ravel())[::2]
    return edges[:-1], edges[1:], held.by_total[fullest]


def _joined(left: np.ndarray, right: np.ndarray, below: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last step of each box: neighbours that look alike are one."""
    alike = (left[1:] == right[:-1]) & (below[1:] == below[:-1]) & (level[1:] == level[:-1])
    first = np.flatnonzero(np.concatenate([np.ones(min(len(left), 1), bool), ~alike]))
    return first, np.append(first[1:], len(left))[: len(first)] - 1


def _span(times: np.ndarray, level: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Since and until when a client held what it did at these steps."""
    changes = np.concatenate([[0], np.flatnonzero(np.diff(level)) + 1])
    after = np.append(changes, len(times) - 1)[np.searchsorted(changes, last, "right")]
    return times[changes[np.searchsorted(changes, first, "right") - 1]], times[after]


def _peaks(layout: MemoryLayout, window: Window) -> Columns:
    peaks = [strip.held.peak for strip in layout.strips]
    x = [(peak.start + peak.end) / 2 for peak in peaks]
    shares = [(time - window[0]) / (window[1] - window[0]) for time in x]
    return {
        "x": x,
        "y": [layout.y(position, peak.bytes) for position, peak in enumerate(peaks)],
        "text": [f"peak {of_budget(strip.held.peak.bytes, strip.hbm)}" for strip in layout.strips],
        "text_y": [layout.words_y(position) for position in range(len(peaks))],
        # by thirds, so that words of up to two thirds of any page's width stay on it
        "align": ["left" if share < 1 / 3 else "right" if share > 2 / 3 else "center" for share in shares],
    }
