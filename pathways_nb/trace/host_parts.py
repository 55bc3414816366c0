"""Events on islands of several hosts: each host reports its own part of a launch, on its own devices.

What counts events counts such parts once, and what draws devices groups them by host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label


def counted_once(events: Events) -> np.ndarray:
    """Return a boolean for each event: of what several hosts of an island did together, only one host's part counts.

    All of them launch the same, so the part of the first host among them stands for the whole.
    """
    if all(label.host < 0 for label in events.labels):
        return np.ones(len(events), bool)
    first: dict[tuple[object, ...], int] = {}
    for label in events.labels:
        first[_shared_fields(label)] = min(first.get(_shared_fields(label), label.host), label.host)
    counts = [label.host == first[_shared_fields(label)] for label in events.labels]
    return np.array(counts, bool)[events.label]


def devices_per_host(labels: Iterable[Label], islands: Sequence[int]) -> tuple[int, ...]:
    """Return for each island the devices of each of its hosts; 0 where no event tells of several.

    All hosts of an island have equally many devices: the largest part into which the island divides and which no event
    crosses.

    Args:
        labels: of the events.
        islands: number of devices of each island.
    """
    fitting: dict[int, list[int]] = {}
    for label in labels:
        if label.host < 0 or not 0 <= label.island < len(islands) or not label.devices:
            continue
        count = islands[label.island]
        # Fewer than all: a label names a host only where its island has several.
        known = fitting.get(label.island, [size for size in range(1, count) if count % size == 0])
        low, high = label.device, label.device + label.devices
        fitting[label.island] = [size for size in known if label.host * size <= low and high <= (label.host + 1) * size]
    return tuple(max(fitting.get(island, ()), default=0) for island in range(len(islands)))


def _shared_fields(label: Label) -> tuple[object, ...]:
    """Return what the labels of all hosts' parts of an event have in common, and no others."""
    if label.host < 0:
        # Nothing is shared with another label, so the event always counts.
        return (id(label),)
    return (label.kind, label.program, label.name, label.client, label.node, label.island, label.place,
            label.stage, label.microbatch, label.token_slice)  # fmt: skip
