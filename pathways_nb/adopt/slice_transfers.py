"""What a step sends between slices of TPUs: collectives that the compiler carries out by the hosts' network (DCN).

It writes them as ``send`` and ``recv`` of each device's part, with the kind of the collective beside.
"""

from __future__ import annotations

import re

import numpy as np

from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.hlo.hlo_schedule import HloExchange
from pathways_nb.cost.hlo.hlo_text import HloModule
from pathways_nb.cost.launch.op_seconds import LaunchPlace

BETWEEN_SLICES = "between slices, by the hosts' network"
_KIND = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENAMED = {"one-to-one": "permute"}
"""Kinds of collectives by the compiler's words for them, where those are others."""


def sent_between_slices(module: HloModule, place: LaunchPlace) -> dict[str, HloExchange]:
    """Return the collectives between slices, by the instruction that sends.

    Args:
        module: scheduled.
        place: the devices, slice by slice.
    """
    if place.slices < 2:
        return {}
    groups = np.arange(len(place.places)).reshape(place.slices, -1).T
    found = {}
    for computation in module.computations.values():
        for one in computation.instructions.values():
            if one.opcode == "send" and "xla_megascale_runtime" in one.attributes:
                said = _KIND.search(one.attributes)
                kind = said[1].lower().replace("_", "-") if said else "one-to-one"
                kind = _RENAMED.get(kind, kind)
                shape = max(one.shapes, key=lambda shape: shape.bytes)
                # What a device holds after an all-gather is what all of its group sent.
                parts = place.slices if kind in BY_NAME and BY_NAME[kind].counts_result else 1
                found[one.name] = HloExchange(kind, parts * shape.bytes, groups, shape.dtype, 1)
    return found
