"""Closed forms of collectives in the alpha-beta model: seconds of latency, seconds of bandwidth.

Symbols: ``n`` bytes of the *full logical array* (result of an all-gather, input of a reduce-scatter, the buffer of
an all-reduce or broadcast, the global array of an all-to-all or permute); ``N`` participants; ``W`` bytes/s one way,
of a side's links on a torus, of a device at a switch; ``a`` seconds a hop or step.

Torus: shards are cut in as many parts as there are ways in, and each part visits the axes in another order, so all
links of the worst placed chip carry at once (Scaling Book, chapter on sharding, with the factor (N-1)/N kept). Switch:
rings, and the forms that halve or double (Thakur, Rabenseifner, Gropp 2005; Sanders et al. 2009).

At a switch the cheapest of several algorithms is taken. Which form is that of which kind is said in ``kinds``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pathways_nb.cost.hardware.topology import Axis


class Cost(NamedTuple):
    """Seconds, and the formula that gave them.

    ``latency`` and ``bandwidth`` are the two terms of the formula. They add up to ``seconds`` where a step starts
    when the last one has ended; where hops and bytes overlap (torus), ``seconds`` is the larger. A sum of several has
    ``parts``.
    """

    seconds: float
    formula: str
    latency: float = 0.0
    bandwidth: float = 0.0
    parts: tuple[Cost, ...] = ()


FREE = Cost(0.0, "nothing to move")

TorusForm = Callable[[float, Sequence[Axis], float, float], Cost]
"""A closed form over links, of ``n``, the axes, ``W`` and ``a``."""
SwitchForm = Callable[[float, int, float, float], Cost]
"""A closed form at a switch or over NICs, of ``n``, ``N``, ``W`` and ``a``."""


def summed(formula: str, latency: float, bandwidth: float) -> Cost:
    """Return the cost of latency followed by bytes."""
    return Cost(latency + bandwidth, formula, latency, bandwidth)


def overlapped(formula: str, latency: float, bandwidth: float) -> Cost:
    """Return the cost of bytes that flow while hops are taken: the slower of both."""
    return Cost(max(latency, bandwidth), formula, latency, bandwidth)


def in_sequence(formula: str, *parts: Cost) -> Cost:
    """Return the cost of parts one after another; those that cost nothing are left out."""
    real = tuple(part for part in parts if part.seconds)
    if len(real) == 1:
        return real[0]
    # ``fsum``, so that the sum does not depend on the order of the parts.
    sums = (math.fsum(getattr(part, name) for part in real) for name in ("seconds", "latency", "bandwidth"))
    seconds, latency, bandwidth = sums
    return Cost(seconds, formula, latency, bandwidth, real) if real else FREE


def twice(cost: Cost, formula: str) -> Cost:
    """Return the cost of a reduce-scatter and the all-gather of its results."""
    return Cost(2 * cost.seconds, formula, 2 * cost.latency, 2 * cost.bandwidth)


def torus_gather(n: float, axes: Sequence[Axis], W: float, a: float) -> Cost:
    """Return the cost of an all-gather or reduce-scatter: ``max(a · hops, (N-1)/N · n / (ways · W))``."""
    N, ways, hops = _size(axes)
    return overlapped(_shape_name(axes), hops * a, (N - 1) / N * n / (ways * W))


def torus_all_reduce(n: float, axes: Sequence[Axis], W: float, a: float) -> Cost:
    """Return the cost of a reduce-scatter and an all-gather."""
    return twice(torus_gather(n, axes, W, a), _shape_name(axes))


def torus_all_to_all(n: float, axes: Sequence[Axis], W: float, a: float) -> Cost:
    """Return the cost on the busiest link under shortest ways, axis after axis.

    On an axis of ``X`` chips a link carries ``n · ⌊X/2⌋ · ⌈X/2⌉ / (P · X)``, half of it where the axis wraps; with an
    even ``X`` and wrap that is ``n · X / (8 · P)``.
    """
    P, _, hops = _size(axes)
    # The link in the middle of an axis is the busiest. An axis of one chip has no link and no load.
    loads = [(x.length // 2) * ((x.length + 1) // 2) / (P * x.length * x.ways) for x in axes if x.ways]
    return overlapped(_shape_name(axes), hops * a, n * max(loads) / W)


def torus_broadcast(n: float, axes: Sequence[Axis], W: float, a: float) -> Cost:
    """Return the cost in pieces along every way out of the root, or whole by the shortest ways; the cheaper."""
    _, ways, hops = _size(axes)
    around = sum(axis.length - 1 for axis in axes)
    pieces = summed(f"{_shape_name(axes)}, in pieces by every way", around * a, n / (ways * W))
    return _cheapest([pieces, summed(f"{_shape_name(axes)}, by the shortest ways", hops * a, n / W)])


def switch_gather(n: float, N: int, W: float, a: float) -> Cost:
    """Return the cost of an all-gather or reduce-scatter: ``⌈log2 N⌉`` steps if N is a power of two, else a ring."""
    moved = (N - 1) / N * n / W
    ring = summed("ring", (N - 1) * a, moved)
    return min(ring, summed("recursive doubling", _log2(N) * a, moved)) if _is_power_of_two(N) else ring


def switch_all_reduce(n: float, N: int, W: float, a: float) -> Cost:
    """Return the least cost of ring, halving and doubling, recursive doubling, and double binary tree.

    Halving and doubling, and recursive doubling, need a power of two.
    """
    # A ring moves (N-1)/N of the array twice in 2 (N-1) steps: little to move, but many steps. Trees have few steps and
    # move all of it.
    moved, steps = (N - 1) / N * n / W, _log2(N)
    forms = [
        summed("ring", 2 * (N - 1) * a, 2 * moved),
        summed("double binary tree", 2 * steps * a, 2 * n / W),
    ]
    if _is_power_of_two(N):
        forms += [
            summed("halving and doubling", 2 * steps * a, 2 * moved),
            summed("recursive doubling", steps * a, steps * n / W),
        ]
    return _cheapest(forms)


def switch_all_to_all(n: float, N: int, W: float, a: float) -> Cost:
    """Return the cost of every pair on its own: ``(N-1) a + (N-1)/N² · n / W``."""
    return summed("pairs", (N - 1) * a, (N - 1) / N**2 * n / W)


def switch_broadcast(n: float, N: int, W: float, a: float) -> Cost:
    """Return the least cost of binomial tree, scatter and all-gather, and a chain in its best number of pieces."""
    steps = _log2(N)
    forms = [
        summed("binomial tree", steps * a, steps * n / W),
        summed("scatter and all-gather", (steps + N - 1) * a, 2 * (N - 1) / N * n / W),
    ]
    if N > 2:
        # The number of pieces at which the derivative of (N - 2 + k)(a + n / (k W)) by k is zero.
        pieces = max(1, round(math.sqrt((N - 2) * n / (a * W)))) if a * n else 1
        count = N - 2 + pieces
        forms.append(summed(f"chain in {pieces} pieces", count * a, count * n / (pieces * W)))
    return _cheapest(forms)


def _cheapest(forms: Sequence[Cost]) -> Cost:
    """Return the form that takes the fewest seconds."""
    return min(forms, key=lambda cost: cost.seconds)


def _size(axes: Sequence[Axis]) -> tuple[int, int, int]:
    """Return the number of chips, of ways into the worst placed one, and of hops to the farthest."""
    return math.prod(x.length for x in axes), sum(x.ways for x in axes), sum(x.hops for x in axes)


def _shape_name(axes: Sequence[Axis]) -> str:
    """Return the name of a torus part: ring, line, torus or mesh."""
    real = [axis for axis in axes if axis.length > 1]
    if len(real) == 1:
        return "ring both ways" if real[0].wrap else "line"
    return f"{len(real)}-D {'torus' if all(axis.wrap for axis in real) else 'mesh'}"


def _log2(N: int) -> int:
    """Return ``⌈log2 N⌉``."""
    return (N - 1).bit_length()


def _is_power_of_two(N: int) -> bool:
    """Return whether N is a power of two."""
    return N & (N - 1) == 0
