"""The client of each box: numbers, colours and names of clients, where several share the devices.

A client's number is its position among the record's clients by name, counted from 1; 0 is work for no client. A record
of one client shows no clients at all: colours that say nothing would distract from those of the kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pathways_nb.trace.metrics import client_name, clients_of
from pathways_nb.trace.record import Events
from pathways_widgets.drawing import palette

TINTS = (palette.NEUTRAL, *palette.CLIENTS)
"""The colours of clients; ``tints`` returns positions in this tuple."""


def sharing(events: Events) -> tuple[str, ...]:
    """Return the clients of a record if there are several, else none."""
    clients = clients_of(events)
    return clients if len(clients) > 1 else ()


def client_numbers(clients: Sequence[str], names: Iterable[str]) -> list[int]:
    """Return the number of each of ``names`` among ``clients``."""
    # 0 is left for work of no client.
    numbers = {name: 1 + position for position, name in enumerate(clients) if name}
    return [numbers.get(name, 0) for name in names]


def tints(numbers: np.ndarray) -> np.ndarray:
    """Return the colours of clients with these numbers, as positions in ``TINTS``."""
    return np.where(numbers, 1 + (numbers - 1) % len(palette.CLIENTS), 0).astype(np.uint8)


def legend_of(events: Events) -> list[tuple[int, str, str]]:
    """Return number, name and colour of each client, for the legend."""
    clients = sharing(events)
    numbers = client_numbers(clients, clients)
    colours = tints(np.array(numbers, int)).tolist()
    return [(number, client_name(name), TINTS[i]) for number, name, i in zip(numbers, clients, colours, strict=True)]
