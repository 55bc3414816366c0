"""The measurements of a calibration, before anything is fitted: seconds of nodes, moves and the controller's own work.

Plain data, made by ``pathways_nb.calibration``; every fit and its test starts from it. It separates measuring, which
needs devices and half a minute, from fitting, which needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pathways_nb.cost.jaxpr.node_work import Work


@dataclass(frozen=True)
class Sample:
    """One node, measured as one of a chain on every island at once.

    Args:
        kind: class of operations, or collective.
        work: of the node on each device.
        seconds: of one node.
        noise: distance of the quartiles of the repeats, over their median.
        bytes: of a transfer, the whole array's.
    """

    kind: str
    work: Work
    seconds: float
    noise: float
    bytes: int = 0

    @property
    def size(self) -> float:
        """The order of samples of one kind: operations, bytes, and bytes exchanged."""
        # Only an order: operations and bytes of one kind grow together, so their sum has a meaning as that.
        exchanged = sum(one.whole_bytes for one in self.work.collectives)
        return self.work.flops + self.work.read + self.work.written + exchanged + self.bytes


@dataclass(frozen=True)
class Chain:
    """One program of so many tiny nodes on each island, all times in seconds.

    Args:
        nodes: number of nodes on each island.
        total: from the call until the client knows.
        call: until the call returned.
        sent: from there until the last island's host began to enqueue.
        noise: distance of the quartiles of ``total``, over the median.
    """

    nodes: int
    total: float
    call: float
    sent: float
    noise: float


@dataclass(frozen=True)
class Parted:
    """Work done in one node, and in several: what nodes take in addition to their work, on a device that is never idle.

    Args:
        nodes: number of parts.
        whole: seconds of the program with one node.
        parts: seconds of the program with several.
    """

    nodes: int
    whole: float
    parts: float

    @property
    def seconds(self) -> float:
        """Seconds of each node in addition to its work."""
        # The same work in more nodes: what the parts take longer is due to the nodes between them.
        return max(0.0, (self.parts - self.whole) / (self.nodes - 1))


@dataclass(frozen=True)
class Measured:
    """All that a calibration has measured.

    Args:
        devices: number of devices of each island.
        islands: number of islands, all at work at the same time.
        memory_bytes: of one device.
        shared: whether devices of an island share cores, as virtual ones do.
        chains: of different lengths, on all islands.
        solo: the same on one island.
        parted: on all islands.
        parted_solo: on one island.
        samples: by class of operations or collective.
        alone: pairs of seconds of one node on one device of each island, and on all of them.
        host_to_island: programs of one move.
        island_to_island: programs of one move; empty where there is one island.
    """

    devices: int
    islands: int
    memory_bytes: float
    shared: bool
    chains: Sequence[Chain]
    solo: Sequence[Chain]
    parted: Parted
    parted_solo: Parted
    samples: Mapping[str, Sequence[Sample]]
    alone: Sequence[tuple[float, float]]
    host_to_island: Sequence[Sample]
    island_to_island: Sequence[Sample]
