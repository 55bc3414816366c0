"""Whose a box is: clients as numbers, colours and names, where several share the devices; where not, nothing is said.

A client's number is its position among the record's clients by name, counted from 1; 0 is work for no client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pathways_nb.trace.metrics import clients_of, named
from pathways_nb.trace.record import Events
from pathways_widgets.drawing import palette

TINTS = (palette.NEUTRAL, *palette.CLIENTS)
"""The colours that ``tints`` gives positions in."""


def sharing(events: Events) -> tuple[str, ...]:
    """The clients of a record if there are several; else none."""
    clients = clients_of(events)
    return clients if len(clients) > 1 else ()


def numbered(clients: Sequence[str], names: Iterable[str]) -> list[int]:
    """The number of each of ``names`` among ``clients``."""
    numbers = {name: 1 + position for position, name in enumerate(clients) if name}
    return [numbers.get(name, 0) for name in names]


def tints(numbers: np.ndarray) -> np.ndarray:
    """The colours of clients with these numbers, as positions in ``TINTS``."""
    return np.where(numbers, 1 + (numbers - 1) % len(palette.CLIENTS), 0).astype(np.uint8)


def legend_of(events: Events) -> list[tuple[int, str, str]]:
    """Number, name and colour of each client: what a picture explains its colours with."""
    clients = sharing(events)
    numbers = numbered(clients, clients)
    colours = tints(np.array(numbers, int)).tolist()
    return [(number, named(name), TINTS[i]) for number, name, i in zip(numbers, clients, colours, strict=True)]
