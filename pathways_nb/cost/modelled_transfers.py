"""What the cost model says of a transfer that was recorded: its seconds on the same route, with as many bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pathways_nb.cost.model import CostModel
from pathways_nb.errors import PathwaysError
from pathways_nb.trace.rows import Label


def modelled_seconds(model: CostModel, label: Label, islands: Sequence[int], senders: int) -> float:
    """Return the seconds that a transfer takes by a model; 0 if the model says nothing of it.

    Args:
        model: of the devices.
        label: of the transfer.
        islands: number of devices of each island.
        senders: number of devices that it comes from; 0 for as many as it goes to.
    """
    if not label.bytes or label.route not in ("host", "ICI", "DCN") or not 0 <= label.island < len(islands):
        return 0.0
    receivers = label.devices or islands[label.island]
    with contextlib.suppress(PathwaysError):  # such as a route that these devices do not have
        topology = model.topology(islands[label.island])
        return model.transfer(label.bytes, label.route, topology, senders or receivers, receivers).seconds
    return 0.0
