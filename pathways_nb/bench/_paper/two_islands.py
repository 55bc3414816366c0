"""Figure 12: data parallelism over two islands, which exchange gradients over DCN in every step.

The duration of a step is not published. So the question is reversed: how long must a step be for two islands to reach
the published share of one island of twice the devices, if this many bytes are exchanged? Beside it stands the share for
the duration that the work fitted on Table 2 gives, with an assumed batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import pathways_nb as pw
from pathways_nb.bench._paper.found import Found
from pathways_nb.bench._paper.pods import CHIP, PAPER, PodSetting
from pathways_nb.bench._paper.staged_decoder import CoreWork
from pathways_nb.util.words import counted

POD = PodSetting(128, 4, islands=2)
"""Two islands; the number of hosts of each is assumed."""
CASES = (("not hidden", 1, 25e9), ("hidden", 8, 25e9), ("hidden", 8, 12.5e9))
"""Name, number of buckets into which gradients are cut, each sent as soon as it is computed, and bytes/s of a host."""
_FORWARD = 1 / 3
"""Share of the forward pass in a step."""
TOKENS = 2**20
"""Tokens of a step of both islands, assumed."""
_PARAMETERS = {"64B": 64e9, "136B": 136e9}
_FITTED_PARAMETERS = 3e9
"""Parameters of Table 2's model, on which the work is fitted; the work grows with them."""
_BUCKETS, _BANDWIDTH = 8, 25e9
"""Buckets and bytes/s of a host with which the share is predicted."""
_NO_LIMIT = 1e13
"""Bytes of memory on each device: no limit, since activations and parameters are left out as well."""
_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def step_of(places: list[pw.VirtualSlice], seconds: float, bytes: float, buckets: int) -> pw.Program:
    """Return a program: forward, then backward in buckets, then a sum of each bucket over the islands.

    Args:
        places: one for each island.
        seconds: of a step without any exchange.
        bytes: of all gradients of an island.
        buckets: number of buckets.
    """
    size, each = math.ceil(bytes / buckets), seconds * (1 - _FORWARD) / buckets
    forward = [pw.work(seconds * _FORWARD, on=place, name="forward") for place in places]
    backward = [pw.work(each, on=place, output_bytes=size, name="backward") for place in places]

    def gradients(island: int, x: Any) -> list[Any]:
        """Return the gradients of one island, one array for each bucket."""
        made = [backward[island](forward[island](x))]
        while len(made) < buckets:
            # Each bucket depends on the one before, as layers of a backward pass do.
            made.append(backward[island](made[-1]))
        return made

    def step(x: Any) -> list[Any]:
        made = [gradients(island, x) for island in range(len(places))]
        return jax.tree.leaves(pw.all_reduce(made, across=places, bucket_mb=size / 1e6))

    return pw.program(step, name="data parallel")


def step_seconds(seconds: float, bytes: float, buckets: int, bandwidth: float) -> float:
    """Return the seconds of a step on two islands, from the first launch to the last end.

    Args:
        seconds: of the same step on one island.
        bytes: of all gradients of an island.
        buckets: number of buckets.
        bandwidth: of a host, bytes/s.
    """
    network = pw.chip(CHIP).network.replace(host_bw=bandwidth)
    with POD.attached(network=network, hbm=_NO_LIMIT):
        places = [pw.virtual_slice(POD.devices, island=island) for island in range(POD.islands)]
        run = step_of(places, seconds, bytes, buckets).run(_SCALAR)
    work = run.events.of_kind("compute")
    return float(work["end"].max() - work["start"].min())


def shortest_step(wanted: float, bytes: float, buckets: int, bandwidth: float) -> float:
    """Return the seconds of the shortest step that two islands prolong to at most ``1 / wanted`` times, to 1 %.

    Args:
        wanted: published share of one island's throughput.
        bytes: of all gradients of an island.
        buckets: number of buckets.
        bandwidth: of a host, bytes/s.
    """

    def too_long(seconds: float) -> float:
        return step_seconds(seconds, bytes, buckets, bandwidth) * wanted - seconds

    wait = bytes / POD.hosts / bandwidth
    return _root(too_long, wait / buckets, 2 * wait / (1 - wanted), 0.01)


def _root(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return where a falling function is 0: the method of false position, with the Illinois halving.

    Each value is a simulation, so a method of few evaluations is used; plain false position would keep one end for
    ever.

    Args:
        function: positive at ``low``, negative at ``high``.
        low: lower bound.
        high: upper bound.
        tolerance: relative to the root.
    """
    above, below, point = function(low), function(high), math.inf
    while True:
        before, point = point, low + (high - low) * above / (above - below)
        value = function(point)
        if abs(point - before) <= tolerance * point or value == 0:
            return point
        if value > 0:
            low, above, below = point, value, below / 2
        else:
            high, below, above = point, value, above / 2


def figure_12() -> dict[str, Found]:
    """Return the shortest step for both models and each case of network and overlap; the baseline hides nothing."""
    found = {}
    for model in ("64B", "136B"):
        wanted, bytes = PAPER["figure 12"][model]["value"], PAPER["figure 12"][f"{model} bytes"]["value"] / 2
        for how, buckets, bandwidth in CASES:
            wait = bytes / POD.hosts / bandwidth
            found[f"{model}, {how}, {bandwidth / 1e9:g} GB/s"] = Found(
                shortest_step(wanted, bytes, buckets, bandwidth),
                wait * wanted / (1 - wanted),
                f"s a step, or more; {bytes / POD.hosts / 1e9:.1f} GB a host and direction are {wait * 1e3:.0f} ms, "
                f"sent in {counted(buckets, 'part')}",
            )
    return found


def figure_12_share(work: CoreWork) -> dict[str, Found]:
    """Return two islands' share of the throughput of one with twice the devices; the baseline hides nothing.

    Args:
        work: of Table 2's model.
    """
    found = {}
    for model, parameters in _PARAMETERS.items():
        bytes = PAPER["figure 12"][f"{model} bytes"]["value"] / 2
        cores = POD.devices * POD.islands
        seconds = work.per_token * parameters / _FITTED_PARAMETERS * TOKENS / cores
        wait = bytes / POD.hosts / _BANDWIDTH
        found[model] = Found(
            seconds / step_seconds(seconds, bytes, _BUCKETS, _BANDWIDTH),
            seconds / (seconds + wait),
            f"a step of {seconds:.0f} s on {cores} cores, for an assumed batch of {TOKENS} tokens",
        )
    return found
