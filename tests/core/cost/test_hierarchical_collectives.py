"""Collectives that span several levels, shifts and transfers: each is its parts, written out."""

from __future__ import annotations

import math

import pytest

import pathways_nb as pw
from pathways_nb.cost.collectives.formulas import Cost
from pathways_nb.cost.collectives.pricing import COLLECTIVES, collective, over_dcn, over_links, over_pcie
from pathways_nb.cost.hardware.topology import make_topology

GB = 1e9


def test_nodes_of_gpus_are_the_sum_of_their_parts() -> None:
    """Reduce-scatter in the node, all-reduce of an eighth per GPU over the NICs, all-gather in the node."""
    island, n, d, m = make_topology(pw.chip("gpu_h100_sxm"), 64), 10 * GB, 8, 8
    chip = island.chip
    W1, W2 = 18 * 25e9 * 0.822, 400e9 / 8
    cost = collective("all_reduce", n, island)
    start, hierarchy = cost.parts
    assert (start.seconds, cost.formula) == (chip.start_latency, "start and domains over NICs")
    assert [part.formula for part in hierarchy.parts] == [
        "recursive doubling", "halving and doubling of 8 over NICs", "recursive doubling"
    ]  # fmt: skip
    inside, across, _ = hierarchy.parts
    assert inside.bandwidth == pytest.approx((d - 1) / d * n / W1)
    assert across.bandwidth == pytest.approx(2 * (m - 1) / m * (n / d) / W2)
    assert across.latency == pytest.approx(2 * 3 * chip.nic_rtt / 2)
    assert cost.seconds == pytest.approx(start.seconds + 2 * inside.seconds + across.seconds)


def test_all_to_all_of_nodes_is_bound_by_a_nodes_nics() -> None:
    island, n, M = make_topology(pw.chip("gpu_h100_sxm"), 64), 10 * GB, 8
    across, inside = collective("all_to_all", n, island).parts[1].parts
    assert across.bandwidth == pytest.approx(n * (M - 1) / (M**2 * 400e9))
    assert inside.bandwidth == pytest.approx(7 / 64 * (n / M**2) / island.switch_bw)


def test_a_rack_leaves_by_all_its_hosts() -> None:
    racks = make_topology(pw.chip("gpu_gb200_nvl72"), 144)
    across = collective("all_reduce", 100 * GB, racks).parts[1].parts[1]
    assert across.bandwidth == pytest.approx(2 * 1 / 2 * 100 * GB / 3.6e12)


def test_one_gpu_of_every_node_gets_its_share_of_the_nic() -> None:
    island = make_topology(pw.chip("gpu_h100_sxm"), 64)
    across = collective("all_gather", GB, island, (1, 8)).parts[1]
    assert across.bandwidth == pytest.approx(7 / 8 * GB / (400e9 / 8))


@pytest.mark.parametrize("flows", [1, 3])
def test_two_islands_exchange_through_all_their_hosts(flows) -> None:
    """Pathways, section 5.3: the gradient of a host's part over its own NIC, shared by who else sends."""
    island, n = make_topology(pw.chip("tpu_v3"), 512), 10 * GB
    cost = collective("all_reduce", n, island, islands=2, flows=flows)
    scatter, across, gather = cost.parts
    assert cost.formula == "islands over DCN"
    assert across.bandwidth == pytest.approx(flows * n / (island.hosts * 25e9))
    assert scatter == collective("reduce_scatter", n, island)
    assert gather == collective("all_gather", n, island)
    assert cost.seconds == pytest.approx(scatter.seconds + across.seconds + gather.seconds)


def test_small_islands_of_one_host_have_its_whole_nic() -> None:
    island = make_topology(pw.chip("tpu_v3"), 2)
    across = collective("all_gather", GB, island, islands=2).parts[0]
    assert across.bandwidth == pytest.approx(GB / 2 / 25e9)


def test_gathers_go_across_first_and_scatters_last() -> None:
    island = make_topology(pw.chip("tpu_v4"), 64)
    gather, scatter = (collective(kind, GB, island, islands=4) for kind in ("all_gather", "reduce_scatter"))
    assert "NICs" in gather.parts[0].formula
    assert gather.parts == scatter.parts[::-1]


def test_two_cores_of_a_chip_exchange_through_its_memory() -> None:
    cost = collective("all_gather", GB, make_topology(pw.chip("tpu_v3"), 2))
    assert cost.formula == "on one chip, recursive doubling"
    assert cost.seconds == pytest.approx(GB / 2 / 225e9)


def test_a_permute_moves_a_shard_over_one_link() -> None:
    island = make_topology(pw.chip("tpu_v4"), 64)
    near, far = (collective("permute", 64 * GB, island, hops=hops) for hops in (1, 3))
    assert near.seconds == pytest.approx(1e-6 + GB / 45e9)
    assert far.seconds == pytest.approx(3e-6 + 3 * GB / 45e9)


def test_a_permute_over_nodes_takes_the_slower_of_switch_and_nic() -> None:
    nodes, n = make_topology(pw.chip("gpu_h100_sxm"), 64), 64 * GB
    _, near = collective("permute", n, nodes).parts
    assert near.formula == "shift by a switch"
    assert near.seconds == pytest.approx(1.5e-6 + GB / nodes.switch_bw)
    _, shared = collective("permute", n, nodes, flows=2).parts
    assert shared.formula == "shift by 1 over NICs"
    assert shared.seconds == pytest.approx(15.5e-6 + 2 * GB / 400e9)
    _, all_cross = collective("permute", n, nodes, hops=8).parts
    assert all_cross.bandwidth == pytest.approx(8 * GB / 400e9)


def test_transfers() -> None:
    v4 = make_topology(pw.chip("tpu_v4"), 64)
    assert over_links(GB, v4, hops=v4.hops(0, 42)).seconds == pytest.approx(6e-6 + GB / 45e9)
    assert over_links(GB, v4, hops=2, ways=2).seconds == pytest.approx(2e-6 + GB / 90e9)
    assert over_links(GB, v4, hops=0) == Cost(GB / 600e9, "copy on one chip", 0.0, GB / 600e9)
    gpus = make_topology(pw.chip("gpu_a100_80"), 8)
    assert over_links(GB, gpus).seconds == pytest.approx(3.4e-6 + GB / 300e9)
    assert over_pcie(GB, v4.chip, flows=2).seconds == pytest.approx(v4.chip.pcie_latency + 2 * GB / 16e9)
    network = pw.network("tpu_dcn").replace(rtt=2e-3)
    assert over_dcn(GB, network).seconds == pytest.approx(1e-3 + GB / 25e9)
    assert over_dcn(GB, network, hosts=4, flows=2).seconds == pytest.approx(1e-3 + GB / 50e9)


def test_nonsense_is_refused() -> None:
    island = make_topology(pw.chip("tpu_v4"), 64)
    for call, message in [
        (lambda: collective("psum", 1, island), f"collective('psum'): choose one of {', '.join(map(repr, COLLECTIVES))}."),
        (lambda: collective("permute", -1, island), "permute: bytes is -1; write a finite number of bytes, 0 or more."),
        (lambda: collective("all_gather", math.nan, island), "all_gather: bytes is nan; write a finite number of bytes, 0 or more."),
        (lambda: collective("all_gather", 1, island, islands=0), "all_gather: islands is 0; write a whole number of at least 1."),
        (lambda: over_links(1, island, hops=-1), "over_links: hops is -1; write a whole number of at least 1."),
        (lambda: over_dcn(1, island.network, flows=True), "over_dcn: flows is True; write a whole number of at least 1."),
    ]:  # fmt: skip
        with pytest.raises(pw.UsageError) as error:
            call()
        assert str(error.value) == message
