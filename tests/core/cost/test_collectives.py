"""Closed forms against what they stand for: rings stepped by hand, links counted, published figures of pods."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.cost.collectives import formulas
from pathways_nb.cost.collectives.formulas import FREE, Cost
from pathways_nb.cost.collectives.pricing import COLLECTIVES, collective
from pathways_nb.cost.hardware.topology import Axis, make_topology

GB = 1e9
W, A = 50e9, 1e-6
ISLANDS = {
    "line of 4": ("tpu_v5e", 4),
    "mesh": ("tpu_v5e", 32),
    "ring and line": ("tpu_v5e", 128),
    "torus": ("tpu_v5e", 256),
    "cube": ("tpu_v4", 64),
    "cores": ("tpu_v3", 32),
    "one chip": ("tpu_v3", 2),
    "hybrid mesh": ("gpu_v100_sxm2", 8),
    "switch": ("gpu_h100_sxm", 8),
    "nodes": ("gpu_a100_80", 64),
    "racks": ("gpu_gb200_nvl72", 144),
}
islands = st.sampled_from(sorted(ISLANDS)).map(lambda name: make_topology(pw.chip(ISLANDS[name][0]), ISLANDS[name][1]))
kinds = st.sampled_from(COLLECTIVES)
amounts = st.floats(0, 1e12)


def stepped_ring(n: float, N: int, wrap: bool) -> float:
    """An all-gather, shard by shard: each step every chip hands on what came last from either side.

    Where the ring closes and N is even, the shard of the opposite chip comes half from each side.
    """
    have = [{chip: 1.0} for chip in range(N)]
    going = {(chip, way): {chip: 1.0} for chip in range(N) for way in (-1, 1)}
    seconds = 0.0
    while any(part < 1 for chip in have for part in [sum(chip.values()) / N]):
        arriving: dict[tuple[int, int], dict[int, float]] = {}
        busiest = 0.0
        for (chip, way), shards in going.items():
            to = (chip + way) % N if wrap else chip + way
            if 0 <= to < N:
                new = {s: min(p, 1 - have[to].get(s, 0.0)) for s, p in shards.items() if have[to].get(s, 0.0) < 1}
                opposite = wrap and N % 2 == 0
                new = {s: 0.5 if opposite and (s - to) % N == N // 2 else p for s, p in new.items()}
                arriving[to, way] = new
                busiest = max(busiest, sum(new.values()))
        for (chip, _), shards in arriving.items():
            for shard, part in shards.items():
                have[chip][shard] = have[chip].get(shard, 0.0) + part
        going = arriving
        seconds += max(A, busiest * n / N / W)
    return seconds


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("N", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("n", [1.0, 100 * GB])
def test_an_all_gather_on_a_ring_or_line_is_the_stepped_one(N, wrap, n) -> None:
    """Where hops decide, and where bytes do."""
    if not (wrap and N == 2):
        found = formulas.torus_gather(n, [Axis(N, wrap)], W, A)
        assert found.seconds == pytest.approx(stepped_ring(n, N, wrap))
        assert found.formula == ("ring both ways" if wrap else "line")


def busiest_link(axes: list[Axis]) -> float:
    """Every pair sends one unit, axis after axis by the shortest way; where both ways are, half by each."""
    load: defaultdict[tuple, float] = defaultdict(float)
    chips = list(itertools.product(*(range(axis.length) for axis in axes)))
    for source, target in itertools.product(chips, chips):
        here = list(source)
        for i, (axis, goal) in enumerate(zip(axes, target, strict=True)):
            right, left = (goal - here[i]) % axis.length, (here[i] - goal) % axis.length
            if not axis.wrap:
                ways = [(1 if goal > here[i] else -1, abs(goal - here[i]), 1.0)]
            elif right == left:
                ways = [(1, right, 0.5), (-1, left, 0.5)]
            else:
                ways = [(1, right, 1.0) if right < left else (-1, left, 1.0)]
            for way, steps, share in ways:
                for step in range(steps):
                    at = (*here[:i], (here[i] + way * step) % axis.length, *here[i + 1 :])
                    load[at, i, way] += share
            here[i] = goal
    return max(load.values())


@pytest.mark.parametrize(
    "axes",
    [
        [Axis(8, True)], [Axis(16, True)], [Axis(8, True)] * 2, [Axis(4, True)] * 3, [Axis(16, True), Axis(4, True)],
        [Axis(8)], [Axis(5)], [Axis(5, True)], [Axis(4), Axis(8)], [Axis(2), Axis(3), Axis(4, True)], [Axis(6), Axis(1)],
    ],
    ids=lambda axes: "x".join(f"{a.length}{'w' if a.wrap else ''}" for a in axes),
)  # fmt: skip
def test_an_all_to_all_is_bound_by_its_busiest_link(axes) -> None:
    P = math.prod(axis.length for axis in axes)
    n = 1000 * GB
    counted = busiest_link(axes) * n / P**2 / W
    assert formulas.torus_all_to_all(n, axes, W, A).bandwidth == pytest.approx(counted)


@pytest.mark.parametrize(("axes", "longest"), [([Axis(16, True)] * 2, 16), ([Axis(4, True), Axis(8, True)], 8)])
def test_an_all_to_all_is_the_published_bound_on_even_tori(axes, longest) -> None:
    P = math.prod(axis.length for axis in axes)
    assert formulas.torus_all_to_all(GB, axes, W, A).bandwidth == pytest.approx(GB * longest / (8 * P * W))
    notify_all = [Axis(16, True)]
    quarter = formulas.torus_all_to_all(GB, notify_all, W, A).bandwidth
    assert quarter * 4 == pytest.approx(formulas.torus_gather(GB, notify_all, W, A).bandwidth * 16 / 15)


def nominal(name: str) -> pw.Chip:
    return pw.chip(name).replace(link_efficiency=1.0)


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [("tpu_v4", 1.1e15, 0.01), ("tpu_v5e", 51.2e12, 1e-9), ("tpu_v6e", 102.4e12, 1e-9)],
)
def test_all_reduce_of_a_pod_reaches_the_published_bandwidth(name, published, within) -> None:
    """Google Cloud's figure per pod. Not tested on v3: its link speed is derived from that figure."""
    pod = make_topology(nominal(name), math.prod(pw.chip(name).pod))
    N, n = pod.devices, 1e6 * GB
    bus = 2 * (N - 1) / N * n / collective("all_reduce", n, pod).seconds
    assert N * bus == pytest.approx(published, rel=within)


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [("tpu_v3", 6.4e12, 0.18), ("tpu_v4", 24e12, 0.05), ("tpu_v5e", 1.6e12, 1e-9), ("tpu_v6e", 3.2e12, 1e-9)],
)
def test_bisection_of_a_pod_is_near_the_published_one(name, published, within) -> None:
    """On v3 the two published figures give links of 83 and 100 GB/s; the table has the first."""
    chip = nominal(name)
    pod = make_topology(chip, math.prod(chip.pod) * chip.devices_per_chip)
    assert pod.bisection_bw == pytest.approx(published, rel=within)
    n = 1e6 * GB  # half of a global array's halves crosses the middle: n/4 each way
    assert collective("all_to_all", n, pod).bandwidth == pytest.approx(n / 4 / pod.bisection_bw)


def test_h100_reaches_the_bus_bandwidth_that_was_measured() -> None:
    n = 1e4 * GB
    seconds = collective("all_reduce", n, make_topology(pw.chip("gpu_h100_sxm"), 8)).seconds
    assert 2 * 7 / 8 * n / seconds == pytest.approx(370e9, rel=1e-3)


def test_a_torus_broadcasts_in_pieces_by_every_way_or_whole_by_the_shortest() -> None:
    notify_all, square = [Axis(8, True)], [Axis(4), Axis(8, True)]
    much, little = (formulas.torus_broadcast(n, notify_all, W, A) for n in (GB, 1.0))
    assert much.seconds == pytest.approx(7 * A + GB / (2 * W))
    assert little.seconds == pytest.approx(4 * A + 1 / W)
    assert (much.formula, little.formula) == (
        "ring both ways, in pieces by every way",
        "ring both ways, by the shortest ways",
    )
    assert formulas.torus_broadcast(GB, square, W, A).seconds == pytest.approx(10 * A + GB / (3 * W))


def test_a_switch_takes_the_cheapest_form_and_says_which() -> None:
    reduce = formulas.switch_all_reduce
    assert reduce(1.0, 8, W, A).formula == "recursive doubling"
    assert reduce(GB, 8, W, A).formula == "halving and doubling"
    assert reduce(1.0, 72, W, A).formula == "double binary tree"
    assert reduce(100 * GB, 72, W, A).formula == "ring"
    assert formulas.switch_gather(GB, 6, W, A).formula == "ring"
    assert formulas.switch_gather(GB, 8, W, A).formula == "recursive doubling"
    spread = formulas.switch_broadcast
    assert spread(1.0, 16, W, A).formula == "binomial tree"
    assert spread(100 * GB, 16, W, A).formula.startswith("chain in ")


@given(st.floats(1, 1e12), st.integers(2, 100))
def test_a_chain_broadcasts_in_its_best_number_of_pieces(n, N) -> None:
    best = min((N - 2 + c) * (A + n / (c * W)) for c in (1, 2, 5, 10, 100, 1000))
    assert formulas.switch_broadcast(n, N, W, A).seconds <= best * (1 + 1e-9)


@given(kinds, islands, amounts, amounts, st.integers(1, 3))
def test_more_bytes_never_take_less_time(kind, island, n, more, number) -> None:
    less, much = (collective(kind, b, island, islands=number) for b in (n, n + more))
    assert less.seconds <= much.seconds * (1 + 1e-12)


@given(kinds, islands, amounts, st.integers(1, 3))
def test_parts_add_up_and_no_formula_beats_its_own_terms(kind, island, n, number) -> None:
    cost = collective(kind, n, island, islands=number)
    if cost.parts:
        for name in ("seconds", "latency", "bandwidth"):
            assert getattr(cost, name) == pytest.approx(sum(getattr(part, name) for part in cost.parts))
    else:
        assert cost.seconds in (max(cost.latency, cost.bandwidth), cost.latency + cost.bandwidth)
    assert cost.formula


@given(kinds, islands, amounts)
def test_one_device_alone_costs_nothing(kind, island, n) -> None:
    assert collective(kind, n, island, 1) == FREE == Cost(0.0, "nothing to move")


@given(kinds, islands, st.integers(1, 3))
def test_no_bytes_take_latency_and_very_many_take_bandwidth(kind, island, number) -> None:
    empty, huge = (collective(kind, n, island, islands=number) for n in (0.0, 1e21))
    assert empty.seconds == pytest.approx(empty.latency)
    assert empty.bandwidth == 0
    assert huge.seconds == pytest.approx(huge.bandwidth, rel=1e-3)


@given(islands, amounts)
def test_an_all_reduce_is_never_dearer_than_a_reduce_scatter_and_an_all_gather(island, n) -> None:
    both = sum(collective(kind, n, island).seconds for kind in ("reduce_scatter", "all_gather"))
    assert collective("all_reduce", n, island).seconds <= (both - island.chip.start_latency) * (1 + 1e-12)


@given(amounts)
def test_an_all_reduce_on_a_torus_is_exactly_both(n) -> None:
    island = make_topology(pw.chip("tpu_v4"), 64)
    both = [collective(kind, n, island).seconds for kind in ("reduce_scatter", "all_gather")]
    assert collective("all_reduce", n, island).seconds == pytest.approx(sum(both))


@given(kinds.filter(lambda kind: kind != "permute"), islands, st.floats(1e6, 1e12))
def test_nothing_is_faster_than_what_every_chip_must_receive(kind, island, n) -> None:
    """Through all its links at once; the cores of a lone chip through its memory."""
    chip = island.chip
    alone = island.devices <= chip.devices_per_chip
    P = island.devices if alone else island.devices // chip.devices_per_chip
    ways = chip.device.copy_bw if alone else chip.links * chip.link_bw_effective
    least = {"all_to_all": (P - 1) / P**2 * n, "all_reduce": 2 * (P - 1) / P * n, "broadcast": n}
    assert collective(kind, n, island).seconds >= least.get(kind, (P - 1) / P * n) / ways * (1 - 1e-12)
