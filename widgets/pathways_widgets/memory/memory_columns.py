"""Columns of the picture of memory: the rows, the steps of each client or category, budgets and peaks.

A row is a group of devices with the same history. It is one unit high, counted from the top, and its bytes grow upwards
from its lower edge; all rows have one scale, so they can be compared. Where there are more steps than pixels, each
pixel shows one: the fullest of those in it. An average would hide the peak, which is what decides whether a program
fits. Histories come from ``trace.memory_history``; Bokeh draws the columns in ``memory_view``.
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
from pathways_widgets.drawing.views import SIDES, Columns, Window, Words

MOST_ROWS = 8
MOST_STEPS = 4000
"""Largest number of boxes of all rows and layers together."""
IN_SIGHT = 10
"""A budget that exceeds the highest peak by more than this factor is not drawn: the levels would be too low to see."""
WORDS_ABOVE = 0.55
"""Space between a peak and its label, in heights of text."""
BUDGET = "budget of a device"
NO_CLIENT, NO_CATEGORY = "no client", "no category"
SOURCES = {
    "memory_levels": [*SIDES, "fill", "client", "bytes", "start", "end", "where"],
    "memory_labels": ["y", "text"],
    "memory_budgets": ["x", "y", "name"],
    "memory_peaks": ["x", "y", "text", "align", "text_y"],
    "memory_clients": [*SIDES, "fill", "client"],
}


class Layer(NamedTuple):
    """A client or a category, as the picture shows it.

    Args:
        name: as in a ``MemoryHistory``.
        label: its name in the legend.
        colour: of its boxes.
    """

    name: str
    label: str
    colour: str


class Strip(NamedTuple):
    """A row of the picture.

    Args:
        name: its label.
        where: island and devices, for tooltips.
        held: what its devices held.
        hbm: bytes of memory of a device; 0 if unknown.
    """

    name: str
    where: str
    held: MemoryHistory
    hbm: int


@dataclass(frozen=True)
class MemoryLayout:
    """How the rows share the picture.

    Args:
        strips: the rows, from the top.
        chosen: which devices are shown, in words; empty if all are.
        row: height of a row in pixels.
        font: height of text in pixels.
        top: bytes at the upper end of the scale.
    """

    strips: Sequence[Strip]
    chosen: str
    row: float
    font: float
    top: float

    @property
    def head(self) -> float:
        """Share of a row above the scale, for its name and the label of its peak."""
        return 2.6 * self.font / self.row

    def y(self, position: int, held: Any) -> Any:
        """Return the position on the vertical axis of some bytes.

        Args:
            position: position of the row.
            held: bytes, a number or an array.
        """
        return position + 1 - held / self.top * (1 - self.head)

    def words_y(self, position: int) -> float:
        """Return where the label of a row's peak is: at the peak, or at the budget if its line would cross the text."""
        strip = self.strips[position]
        # The label is just above its peak: the line of a budget at its height would cross it.
        peak, budget = (self.y(position, held) for held in (strip.held.peak.bytes, strip.hbm))
        crosses = self.in_sight(strip) and 0 <= (peak - budget) * self.row < (1.3 + WORDS_ABOVE) * self.font
        return float(budget if crosses else peak)

    def in_sight(self, strip: Strip) -> bool:
        """Return whether the budget of a row is drawn."""
        return 0 < strip.hbm <= self.top

    @property
    def steps(self) -> list[float]:
        """The bytes that the scale names."""
        return round_steps(0.0, self.top, max(int(self.row * (1 - self.head) / (1.6 * self.font)), 1))

    @property
    def labels(self) -> dict[float, str]:
        """Position on the vertical axis -> the name of a row, or bytes."""
        found = {}
        for position, strip in enumerate(self.strips):
            found[position + self.head / 2] = strip.name
            found |= {self.y(position, step): size(step) if step else "0" for step in self.steps}
        return found


def layout_of(
    found: Sequence[MemoryHistory], names: Sequence[str], hbm: Sequence[int], lane: float, font: float
) -> MemoryLayout:
    """Return the rows: one for each group of equal devices, or if these are many one for each island.

    Args:
        found: what each group of devices held.
        names: names of the islands.
        hbm: bytes of memory of a device of each island; 0 if unknown.
        lane: height in pixels of a device in the timeline.
        font: height of text in pixels.
    """
    budgets, chosen = dict(enumerate(hbm)), ""
    # Of more rows than can be read, the fullest devices stay: they decide whether a program fits.
    if len(found) > MOST_ROWS:
        fullest = _fullest(found)
        chosen = f"the fullest device of {'each island' if len(fullest) <= MOST_ROWS else f'{MOST_ROWS} islands'}"
        kept = sorted(fullest, key=lambda held: -held.peak.bytes)[:MOST_ROWS]
        found = [held for held in fullest if held in kept]
    strips = [_strip(held, names, budgets.get(held.island, 0), bool(chosen)) for held in found]
    # One scale for all rows, and up to the budget, unless it is so high that levels could not be seen.
    highest = max((strip.held.peak.bytes for strip in strips), default=1)
    top = max([highest, *(strip.hbm for strip in strips if strip.hbm <= IN_SIGHT * highest)])
    return MemoryLayout(strips, chosen, lane * (4 if len(strips) <= 4 else 3), font, float(top))


def columns_of(
    layout: MemoryLayout, layers: Sequence[Layer], window: Window, around: Window, pixels: float
) -> dict[str, Columns]:
    """Return the columns of every source.

    Args:
        layout: the rows.
        layers: the clients or the categories, in the order of the legend.
        window: the visible part of the time axis.
        around: the part for which steps are drawn.
        pixels: width of ``window``.
    """
    strips = layout.strips
    shown = [layer for layer in layers if any(layer.name in strip.held.names for strip in strips)]
    budgets = [layout.y(i, strip.hbm) for i, strip in enumerate(strips) if layout.in_sight(strip)]
    # Boxes at no position are drawn nowhere, but Bokeh makes entries of the legend from them.
    nowhere = np.full(len(shown), np.nan)
    return {
        "memory_levels": _levels(layout, layers, around, pixels * (around[1] - around[0]) / (window[1] - window[0])),
        "memory_labels": {"y": list(layout.labels), "text": list(layout.labels.values())},
        "memory_budgets": {"x": [np.nan] * len(budgets), "y": budgets, "name": [BUDGET] * len(budgets)},
        "memory_peaks": _peaks(layout, window),
        "memory_clients": dict.fromkeys(SIDES, nowhere)
        | {"fill": [layer.colour for layer in shown], "client": [layer.label for layer in shown]},
    }


def clients_as_layers(names: Sequence[str]) -> list[Layer]:
    """Return the clients with these names, ``""`` for no client last; colours are by position."""
    named = list(filter(None, names))
    found = [Layer(name, name, palette.client_colour(position)) for position, name in enumerate(named)]
    return [*found, Layer("", NO_CLIENT, palette.NEUTRAL)]


def categories_as_layers() -> list[Layer]:
    """Return all categories; ``""`` is what an older file does not divide."""
    found = [Layer(name, name, colour) for name, colour in palette.CATEGORIES.items()]
    return [*found, Layer("", NO_CATEGORY, palette.NEUTRAL)]


def _fullest(found: Sequence[MemoryHistory]) -> list[MemoryHistory]:
    """Return for each island the devices with the highest peak."""
    best: dict[int, MemoryHistory] = {}
    for held in found:
        if held.island not in best or held.peak.bytes > best[held.island].peak.bytes:
            best[held.island] = held
    return list(best.values())


def _strip(held: MemoryHistory, names: Sequence[str], hbm: int, fullest: bool) -> Strip:
    """Return the row of some devices.

    Args:
        held: what they held.
        names: names of the islands.
        hbm: bytes of memory of a device.
        fullest: whether they stand for their island.
    """
    ranges = [f"{low}" if high - low == 1 else f"{low}–{high - 1}" for low, high in held.devices]
    island, devices = names[held.island], f"dev {', '.join(ranges)}"
    if len(ranges) > 2:
        # Of devices in many ranges only their number fits in the label.
        devices = f"{sum(high - low for low, high in held.devices)} dev"
    where = f"{island}, {devices}"
    return Strip(f"{island}, fullest" if fullest else where, where, held, hbm)


def _levels(layout: MemoryLayout, layers: Sequence[Layer], around: Window, pixels: float) -> Columns:
    """Return the boxes of all rows, the layers of a row stacked in the order of its history.

    Args:
        layout: the rows.
        layers: the clients or the categories.
        around: the part of the time axis to draw.
        pixels: its width.
    """
    # The boxes that a browser can draw are shared by all layers of all rows, at least a hundred for each.
    stacked = sum(len(strip.held.names) for strip in layout.strips)
    most = int(min(pixels, max(MOST_STEPS / max(stacked, 1), 100)))
    numbers = {layer.name: number for number, layer in enumerate(layers)}
    # (9, boxes): left, right, top, bottom, bytes, since, until, number of the layer, number of the row.
    parts = [np.zeros((9, 0))]
    for position, strip in enumerate(layout.strips):
        # (steps,) seconds where each begins and ends, and its position in the history.
        left, right, steps = _seen(strip.held, around, most)
        for number, name in enumerate(strip.held.names):
            # (steps,) bytes of the layers below this one, on which it stands.
            below = strip.held.levels[steps, :number].sum(1)
            level = strip.held.levels[:, number]
            first, last = _joined(left, right, below, level[steps])
            bottom, size = below[first], level[steps[first]]
            since, until = _span(strip.held.times, level, steps[first], steps[last])
            ends = layout.y(position, bottom + size), layout.y(position, bottom)
            whose = (np.full(len(first), number) for number in (numbers[name], position))
            parts.append(np.stack([left[first], right[last], *ends, size, since, until, *whose]))
    table = np.concatenate(parts, 1)
    # A layer that holds nothing at a step has no box there.
    table = table[:, table[4] > 0]
    who, where = table[7].astype(np.uint32), table[8].astype(np.uint32)
    return dict(zip((*SIDES, "bytes", "start", "end"), table, strict=False)) | {
        "fill": Words([layer.colour for layer in layers], who),
        "client": Words([layer.label for layer in layers], who),
        "where": Words([strip.where for strip in layout.strips], where),
    }


def _seen(held: MemoryHistory, window: Window, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps to draw: their left ends, their right ends, and their positions in the history.

    Args:
        held: what some devices held.
        window: the part of the time axis to draw.
        most: number of steps above which it is cut into as many parts, each of which shows its fullest step.
    """
    times = held.times
    first = max(int(np.searchsorted(times, window[0], "right")) - 1, 0)
    last = min(int(np.searchsorted(times, window[1])), len(times) - 1)  # the last step is always empty
    if last - first <= most:
        return times[first:last], times[first + 1 : last + 1], np.arange(first, max(last, first))
    edges = np.linspace(*window, most + 1)
    # Parts before the first step would show a level that nobody had.
    edges = edges[max(int(np.searchsorted(edges, times[0], "right")) - 1, 0) :]
    # (parts,) first step of each part, which may have begun before it, and the step after its last; at least one.
    begin = np.maximum(np.searchsorted(times, edges[:-1], "right") - 1, 0)
    end = np.maximum(np.searchsorted(times, edges[1:]), begin + 1)
    # The fullest step of a part is the one with the highest rank by bytes: one maximum for each part, without a loop.
    rank = np.full(len(times) + 1, -1)  # one more: a part may end beyond the last step
    rank[held.by_total] = np.arange(len(times))
    # Every second result is a part; those between are the steps from the end of one to the begin of the next.
    fullest = np.maximum.reduceat(rank, np.stack([begin, end], 1).ravel())[::2]
    return edges[:-1], edges[1:], held.by_total[fullest]


def _joined(left: np.ndarray, right: np.ndarray, below: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last step of each box; neighbouring steps that look alike share one."""
    # (steps - 1,) whether each step goes on where the one before it ends, at the same height and as high.
    alike = (left[1:] == right[:-1]) & (below[1:] == below[:-1]) & (level[1:] == level[:-1])
    first = np.flatnonzero(np.concatenate([np.ones(min(len(left), 1), bool), ~alike]))
    return first, np.append(first[1:], len(left))[: len(first)] - 1


def _span(times: np.ndarray, level: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return since when and until when a layer had what it has at these steps, for tooltips.

    Args:
        times: when something changed.
        level: the layer's bytes from each of ``times`` on.
        first: first step of each box.
        last: last step of each box.
    """
    # A step begins when any layer changes; this one may have had the same bytes for longer.
    changes = np.concatenate([[0], np.flatnonzero(np.diff(level)) + 1])
    after = np.append(changes, len(times) - 1)[np.searchsorted(changes, last, "right")]
    return times[changes[np.searchsorted(changes, first, "right") - 1]], times[after]


def _peaks(layout: MemoryLayout, window: Window) -> Columns:
    """Return a marker and a label for the peak of each row."""
    peaks = [strip.held.peak for strip in layout.strips]
    # (rows,) seconds: the middle of the time during which the peak lasted.
    x = [(peak.start + peak.end) / 2 for peak in peaks]
    shares = [(time - window[0]) / (window[1] - window[0]) for time in x]
    return {
        "x": x,
        "y": [layout.y(position, peak.bytes) for position, peak in enumerate(peaks)],
        "text": [f"peak {of_budget(strip.held.peak.bytes, strip.hbm)}" for strip in layout.strips],
        "text_y": [layout.words_y(position) for position in range(len(peaks))],
        # aligned by thirds, so that labels of up to two thirds of the page's width stay on it
        "align": ["left" if share < 1 / 3 else "right" if share > 2 / 3 else "center" for share in shares],
    }
