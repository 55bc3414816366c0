"""Seconds of one operation of a schedule: work on the chip, a collective, a transfer between slices.

A product takes its FLOPs or its bytes, whichever is longer. A collective takes the bytes that pass the narrowest place
between its participants: links inside a host, its network where it spans several, links of a torus, and there the whole
rest of a mesh exchanges at the same time. Between slices of TPUs it is the network card of a host (DCN).
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
from pathways_nb.cost.hlo.exchanges import SLICE_NUMBERS, HloExchange
from pathways_nb.cost.hlo.hlo_schedule import LaunchAction
from pathways_nb.cost.launch.constants import LaunchConstants
from pathways_nb.cost.launch.product_rates import product_rate

_NEIGHBOURS = 64
"""Participants beyond which a torus's latency does not grow, as its axes work at the same time."""


@dataclass(frozen=True)
class LaunchPlace:
    """The devices of a launch: what they are, and where each lies.

    Args:
        chip: of all of them.
        places: of each device of the program, in the order of its mesh: ``process``, and of a TPU ``coords``, ``core``
            and ``slice``, as ``compilers.CompiledText`` has them.
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

    @cached_property
    def _numbered(self) -> np.ndarray:
        """Positions in the mesh of the devices of each slice, a row each, in the order of the compiler's numbers."""
        slices, cores = ([one.get(key) or 0 for one in self.places] for key in ("slice", "core"))
        return np.lexsort((cores, *self.coords.T, slices)).reshape(self.slices, -1)

    def located(self, exchange: HloExchange) -> HloExchange:
        """Return a collective between slices with the positions of its participants for the compiler's numbers."""
        slices, chips = np.divmod(exchange.groups, SLICE_NUMBERS)
        return exchange._replace(groups=self._numbered[slices - 1, chips])


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
    if action.queue == "dcn":
        return known.latency + _between_slices(action, place) / known.slice_bw
    if action.exchange is not None:
        return exchange_seconds(action.exchange, place, known)
    work, device = action.work, place.chip.device
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


def host_bytes(exchange: HloExchange, place: LaunchPlace) -> float:
    """Return the bytes that the busiest host sends to others in a collective between slices.

    Each participant sends its own bytes, also where the chips of a slice hold the same ones. With one chip of each of s
    slices in a group an all-reduce sends 2 (s - 1)/s of them, as parts are brought together and sent back; all others
    (s - 1)/s, and a permutation all. Counters of the network cards of TPU v6e and TPU7x show these bytes of
    all-reduces, for 2 and 4 slices (github.com/elbertwang/google_support, dcn/v6e).

    Args:
        exchange: its groups are the compiler's numbers of chips.
        place: where the participants lie.
    """
    found, kind = place.located(exchange), BY_NAME[exchange.kind]
    shifts, reduces = kind.torus is None, kind.begins_whole and kind.ends_whole and kind.sums
    hosts = np.unique(place.hosts, return_inverse=True)[1]
    senders = found.groups[:, 0] if shifts else found.groups.ravel()
    # A share and no number, as the compiler may count fewer chips to a host than share its network card.
    share = float((np.bincount(hosts[senders], minlength=hosts.max() + 1) / np.bincount(hosts)).max())
    # An all-to-all has all chips of several slices in one group, and what stays on a host crosses no network.
    beside = np.bincount(hosts[found.groups[0]]) / exchange.size
    away = 1.0 if shifts else (1 - float((beside**2).sum())) * (2 if reduces else 1)
    return share * _chips_of_host(place) * away * exchange.bytes


def _chips_of_host(place: LaunchPlace) -> int:
    """Return how many devices of a slice share a network card."""
    return min(place.per_host, len(place.places) // place.slices)


def _between_slices(action: LaunchAction, place: LaunchPlace) -> float:
    """Return the bytes that a host could send to one other slice in the time that a transfer takes.

    The more slices a host exchanges with, the slower it is: the time of an all-reduce grows with log2(s), where its
    bytes grow with 2 (s - 1)/s only. For the same bytes on each chip of TPU7x 2, 4, 8, 10 slices took 1, 2.2, 3.1, 3.7,
    and 1, 2.2, 2.9, 4.2 for a reduce-scatter and an all-gather (DP-SCALING.md there).
    """
    if action.exchange is None:  # the text does not say who takes part
        return action.work.bytes * _chips_of_host(place)
    slices = max(2, len(set(action.exchange.groups[0] // SLICE_NUMBERS)))
    return host_bytes(action.exchange, place) * slices * math.log2(slices) / (2 * (slices - 1))
