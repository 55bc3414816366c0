"""The curve of busy devices under each island's lanes, as columns of boxes; several clients are stacked.

Heights are shares of the island's devices per bin, from ``trace.metrics.busy_between``, the function behind the
summary's utilisation. So the area under the curve is the number that the summary prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pathways_nb.trace.metrics import BUSY, busy_between, client_name
from pathways_nb.trace.record import Events
from pathways_widgets.drawing.views import Columns, Window, Words
from pathways_widgets.timeline.client_shares import client_numbers, sharing, tints
from pathways_widgets.timeline.lanes import Lanes

BINS = 300
"""Bins of the curve; fewer where more than ``_FEW`` clients share it, so that the number of boxes stays the same."""
_FEW = 4
BUSY_COLUMNS = ("left", "right", "top", "bottom", "share", "island", "client", "tint", "whose")


def busy_columns(events: Events, lanes: Lanes, window: Window) -> Columns:
    """Return boxes whose heights say how many devices of each island are busy, in total and for each client.

    Args:
        events: the events of the run.
        lanes: positions of the lanes.
        window: the part of the time axis that is cut into bins, in seconds.
    """
    clients = sharing(events)
    edges = np.linspace(*window, BINS * _FEW // max(len(clients), _FEW) + 1)
    # An event that begins before the window may still be busy in it.
    near = (events["end"] > window[0]) & (events["start"] < window[1]) & events.is_("kind", *BUSY)
    parts = [
        part
        for island in range(len(lanes.islands))
        for part in _island(events.select(near & events.is_("island", island)), lanes, island, edges, clients)
    ]
    columns: Columns = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, int)
        for name in BUSY_COLUMNS
        if name not in ("tint", "whose")
    }
    words = [f" by {client_name('')}" if clients else "", *(f" by {name}" for name in clients if name)]
    return columns | {"tint": tints(columns["client"]), "whose": Words(words, columns["client"])}


def _island(events: Events, lanes: Lanes, island: int, edges: np.ndarray, clients: Sequence[str]) -> Iterator[Columns]:
    """Yield the boxes of one island, client by client, the first one's lowest.

    Args:
        events: the events of the island.
        lanes: positions of the lanes.
        island: its index.
        edges: the edges of the bins, in seconds.
        clients: the clients that share the devices; empty if there is one only.
    """
    devices, (top, bottom) = lanes.islands[island], lanes.busy(island)
    used = busy_between(events, devices, edges)
    parts = [busy_between(events.select(events.is_("client", name)), devices, edges) for name in clients] or [used]
    # Estimated stamps of two clients may overlap, so their sum may exceed the busy time; a device counts once.
    share = used / np.maximum(np.diff(edges) * devices, 1e-30) / np.maximum(np.sum(parts, axis=0), 1e-30)
    # (bins,) share of the devices that the clients below already take.
    floor = np.zeros(len(used))
    for number, part in zip(client_numbers(clients, clients) or [0], parts, strict=True):
        ceiling = floor + share * part
        # Bins without work need no boxes, and there are many of these in a sparse run.
        some = part > 0
        box = {"left": edges[:-1], "right": edges[1:], "share": ceiling - floor}
        box |= {"top": bottom - ceiling * (bottom - top), "bottom": bottom - floor * (bottom - top)}
        whole = {"island": np.full(some.sum(), island), "client": np.full(some.sum(), number)}
        yield {name: values[some] for name, values in box.items()} | whole
        floor = ceiling
