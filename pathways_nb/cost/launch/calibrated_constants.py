"""The constants of launches on devices that a calibration has measured, in place of those of the table."""

from __future__ import annotations

from pathways_nb.cost.collectives.kinds import KINDS
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.launch.constants import LaunchConstants
from pathways_nb.cost.model import CostModel

_KERNEL = 2e-6
"""Seconds that an operation takes at least; assumed, as no calibration measures single operations."""


def calibrated_constants(model: CostModel, topology: Topology) -> LaunchConstants:
    """Return the constants of measured devices while all of them work.

    Args:
        model: of the devices, from their calibration.
        topology: of those of the launch.
    """
    share = model.efficiency
    # Virtual devices share cores: each has a part of what it has alone.
    part = 1 / share.oversubscription(topology.devices)
    exchanged = [getattr(share, kind.share) for kind in KINDS if kind.begins_whole or kind.ends_whole]
    link = part * model.chip.link_bw_effective * sum(exchanged) / len(exchanged)
    return LaunchConstants(
        matmul=part * share.matmul,
        attention=part * share.matmul,
        hbm=part * share.elementwise,
        kernel=_KERNEL,
        link_bw=link,
        node_bw=link,
        replica_bw=link,
        latency=model.chip.start_latency,
        node_latency=0.0,
        slice_bw=link,
        shard_latency=0.0,
    )
