"""The constants of a chip under a software stack: shares of its peaks that kernels and collectives really reach.

Every constant is in ``pathways_datasets/launch_constants.json`` with a low and a high value (its spread), the kind of
its origin and its source. Those of a stack are found under ``"chip/stack"``; what is not there is found under the chip,
under the kind of chip (``"gpu"``, ``"tpu"``), in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Self

import pathways_datasets
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.tables import names
from pathways_nb.errors import UsageError


@dataclass(frozen=True)
class LaunchConstants:
    """The constants of a chip under a stack; rates are of one device.

    Args:
        matmul: share of the data sheet's FLOP/s that large matrix products reach.
        attention: share that a kernel of attention reaches, of the FLOPs that a causal mask keeps.
        hbm: share of the memory's bandwidth.
        kernel: seconds that an operation takes at least.
        link_bw: bytes/s of a device to its neighbours: of a GPU all links, of a TPU one link one way.
        node_bw: bytes/s of a host to others, all its devices together.
        replica_bw: the same where parameters are divided inside hosts only and just replicas exchange over the network.
        latency: seconds before a collective moves bytes.
        node_latency: seconds more for each doubling of the number of hosts that it spans.
        slice_bw: bytes/s of a TPU host to one other slice, all its devices together; to more it is slower
            (``op_seconds``).
        shard_latency: seconds for each tensor and each rank that ZeRO-1's updated parameters are sent out by, where a
            stack broadcasts tensor by tensor; 0 where it gathers them at once.
    """

    matmul: float
    attention: float
    hbm: float
    kernel: float
    link_bw: float
    node_bw: float
    replica_bw: float
    latency: float
    node_latency: float
    slice_bw: float
    shard_latency: float

    @property
    def rates(self) -> str:
        """The shares that decide most, in words, for the ``basis`` of what was predicted."""
        return f"{self.matmul:.3g} of the FLOP/s in products, {self.attention:.3g} in attention, {self.hbm:.3g} of HBM"

    def changed(self, **values: float) -> Self:
        """Return a copy with other values."""
        return replace(self, **values)


@dataclass(frozen=True)
class Known:
    """One constant of the table.

    Args:
        value: as it is used.
        low: the lowest value that was seen, or is plausible.
        high: the highest.
        kind: of its origin, as in ``cost.hardware.parameters.KINDS``.
        source: of its origin.
    """

    value: float
    low: float
    high: float
    kind: str
    source: str


@cache
def table(chip: str, stack: str) -> Mapping[str, Known]:
    """Return the constants of a chip under a stack, by name.

    Args:
        chip: its name, such as ``"gpu_h100_sxm"``.
        stack: ``"jax"`` or ``"torch"``.

    Raises:
        UsageError: the table has nothing for such a chip.
    """
    said = pathways_datasets.launch_constants()
    kind = chip.split("_")[0]
    if kind not in said:
        raise UsageError(f"{chip}: there are no constants for launches on a {kind}; there are for gpu and tpu.")
    found: dict[str, Known] = {}
    for key in (kind, f"{kind}/{stack}", chip, f"{chip}/{stack}"):
        found |= {name: Known(*entry) for name, entry in said.get(key, {}).items()}
    return found


def constants(chip: str, stack: str = "jax") -> LaunchConstants:
    """Return the constants of a chip under a stack.

    Args:
        chip: its name.
        stack: ``"jax"`` or ``"torch"``.

    Raises:
        UsageError: the table has nothing for such a chip.
    """
    known = table(chip, stack)
    return LaunchConstants(**{field.name: known[field.name].value for field in fields(LaunchConstants)})


def constants_for(chip: Chip, network: Network) -> LaunchConstants:
    """Return the constants of a chip, with its links and its network as the user has changed them.

    Args:
        chip: of the table, or changed from one of it.
        network: between its hosts.
    """
    like = in_table(chip)
    found = constants(like.name)
    links = chip.link_bw_effective * chip.links / (like.link_bw_effective * like.links)
    rate = network.host_bw_effective / like.network.host_bw_effective
    return found.changed(
        link_bw=found.link_bw * links, node_bw=found.node_bw * rate, replica_bw=found.replica_bw * rate,
        slice_bw=found.slice_bw * rate,
    )  # fmt: skip


def in_table(chip: Chip) -> Chip:
    """Return the chip of the table that a chip was made from, or that the same compiler knows."""
    known = names("chips")
    if chip.base in known:
        return chip_of(chip.base)
    return next(one for one in map(chip_of, known) if one.compiler == chip.compiler)
