"""Seconds of one operation of a schedule: work on the chip, a collective, a transfer between slices.

A product takes its FLOPs or its bytes, whichever is longer. A collective takes the bytes that pass the narrowest place
between its participants: links inside a host, its network where it spans several, links of a torus, and there the whole
rest of a mesh exchanges at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hlo.hlo_schedule import HloExchange, LaunchAction
from pathways_nb.cost.launch.constants import LaunchConstants
from pathways_nb.cost.launch.product_rates import product_rate

_NEIGHBOURS = 64
"""Participants beyond which a torus's latency does not grow, as its axes work at the same time."""


@dataclass(frozen=True)
class LaunchPlace:
    """The devices of a launch: what they are, and where each lies.

    Args:
        chip: of all of them.
        places: of each device of the program, in the order of its mesh: ``process``, and of a TPU ``coords`` and
            ``slice``, as ``compilers.CompiledText`` has them.
        per_host: devices of a host.
    """

    chip: Chip
    places: Sequence[Mapping[str, Any]]
    per_host: int

    @cached_property
    def hosts(self) -> np.ndarray:
        """Number of the host of each device."""
        return np.array([one["process"] for one in self.places])

    @cached_property
    def slices(self) -> int:
        """Number of slices."""
        return len({one.get("slice", 0) for one in self.places})

    @cached_property
    def coords(self) -> np.ndarray:
        """Coordinates of each device's chip, one row a device."""
        return np.array([one.get("coords") or (0, 0, 0) for one in self.places])


def price_of(place: LaunchPlace, known: LaunchConstants) -> Callable[[LaunchAction], float]:
    """Return a function of the seconds of actions; each is priced once."""
    found: dict[int, float] = {}

    def price(action: LaunchAction) -> float:
        key = id(action)
        if key not in found:
            found[key] = seconds_of(action, place, known)
        return found[key]

    return price


def seconds_of(action: LaunchAction, place: LaunchPlace, known: LaunchConstants) -> float:
    """Return the seconds of an action that is neither a loop nor the end of one that was started."""
    if action.exchange is not None:
        return exchange_seconds(action.exchange, place, known)
    work, device = action.work, place.chip.device
    if action.queue == "dcn":
        per_host = work.bytes * min(place.per_host, len(place.places))
        return known.latency + per_host * math.log2(max(2, place.slices)) / known.slice_bw
    if action.queue == "host":
        return work.bytes / device.pcie_bw
    moving = work.bytes / (device.hbm_bw * known.hbm)
    if action.queue == "copy":
        return moving
    busy = 0.0
    if work.flops:
        busy += work.flops / (product_rate(work, place.chip).flops * known.matmul)
    if work.attention:
        busy += work.attention / (device.flops("bf16") * known.attention)
    return max(busy, moving) + known.kernel


def exchange_seconds(exchange: HloExchange, place: LaunchPlace, known: LaunchConstants) -> float:
    """Return the seconds of a collective.

    Args:
        exchange: its bytes and groups.
        place: where the participants lie.
        known: constants of the chip.
    """
    size = exchange.size
    if size < 2:
        return 0.0
    kind = BY_NAME[exchange.kind]
    # A shift and a broadcast move all bytes, the others what a participant does not have itself.
    shifts, copies = kind.torus is None, kind.begins_whole and kind.ends_whole and not kind.sums
    moved = exchange.bytes * (1.0 if shifts or copies else (size - 1) / size)
    reduces = kind.begins_whole and kind.ends_whole and kind.sums
    if place.chip.interconnect == "torus":
        return _over_torus(exchange, 2 * moved if reduces else moved, reduces, shifts, place, known)
    hosts = hosts_of(exchange, place)
    latency, bandwidth = known.latency, known.link_bw
    if hosts > 1:
        # All groups of a mesh exchange at once, so one of them has a share of its hosts' network cards.
        ranks = 1 if shifts else max(1, size // hosts)
        bandwidth = min(bandwidth, known.node_bw * ranks / place.per_host)
        latency += known.node_latency * math.log2(hosts)
    return latency + (2 if reduces else 1) * moved / bandwidth  # an all-reduce scatters, then gathers


def hosts_of(exchange: HloExchange, place: LaunchPlace) -> int:
    """Return how many hosts a group of a collective spans at most: an axis need not divide a host.

    Args:
        exchange: its groups.
        place: where the participants lie.
    """
    hosts = np.sort(place.hosts[exchange.groups], 1)  # (groups, participants)
    return 1 + int((hosts[:, 1:] != hosts[:, :-1]).sum(1).max(initial=0))


def _over_torus(
    exchange: HloExchange, moved: float, reduces: bool, shifts: bool, place: LaunchPlace, known: LaunchConstants
) -> float:
    """Return the seconds of a collective over the links of a torus.

    A group that takes every chip of the slice uses both links of each axis for an all-reduce; all else goes round one
    axis both ways.

    Args:
        exchange: its groups.
        moved: bytes that pass a device.
        reduces: whether it is an all-reduce.
        shifts: whether it is a permutation, which goes over one link.
        place: where the participants lie.
        known: constants of the chip.
    """
    coords = place.coords[exchange.groups[0]]
    axes = int((coords != coords[0]).any(axis=0).sum()) or 1
    if shifts:
        return known.latency + moved / known.link_bw
    whole = exchange.size == len(place.places) // place.slices
    links = 2 * axes if reduces and whole else 2
    return known.latency * min(exchange.size, _NEIGHBOURS) + moved / (links * known.link_bw)
