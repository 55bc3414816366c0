"""Arrangements of islands: which axes, which of them wrap, how many hosts, and what does not exist."""

from __future__ import annotations

import math

import pytest

import pathways_nb as pw
from pathways_nb.cost.hardware.tables import names
from pathways_nb.cost.hardware.topology import Axis, make_topology


@pytest.mark.parametrize(
    ("name", "devices", "shape", "wraps", "hosts"),
    [
        ("tpu_v3", 32, (4, 4), "..", 4),
        ("tpu_v3", 256, (8, 16), "..", 32),
        ("tpu_v3", 1024, (16, 32), ".w", 128),
        ("tpu_v3", 2048, (32, 32), "ww", 256),
        ("tpu_v3", 1, (1, 1), "..", 1),
        ("tpu_v5e", 256, (16, 16), "ww", 32),
        ("tpu_v5e", 128, (8, 16), ".w", 16),
        ("tpu_v5e", 32, (4, 8), "..", 4),
        ("tpu_v4", 64, (4, 4, 4), "www", 16),
        ("tpu_v4", 16, (2, 2, 4), "..w", 4),
        ("tpu_v5p", 8960, (16, 20, 28), "www", 2240),
        ("tpu_v5p", 512, (8, 8, 8), "www", 128),
        ("tpu_v7", 128, (4, 4, 4), "www", 16),
        ("gpu_v100_sxm2", 8, (8,), "w", 1),
        ("gpu_h100_sxm", 4, (4,), ".", 1),
        ("gpu_h100_sxm", 64, (8,), ".", 8),
        ("gpu_gb200_nvl72", 144, (72,), ".", 36),
    ],
)
def test_islands_are_nearly_square_and_wrap_by_their_chips_rule(name, devices, shape, wraps, hosts) -> None:
    island = make_topology(pw.chip(name), devices)
    assert island.shape == shape
    assert "".join(".w"[axis.wrap] for axis in island.axes) == wraps
    assert island.hosts == hosts
    assert island.domains == math.ceil(devices / island.domain)


@pytest.mark.parametrize("name", [name for name in names("chips") if name.startswith("tpu")])
def test_every_arrangement_holds_its_chips_and_fits_a_pod(name) -> None:
    chip = pw.chip(name)
    for chips in range(1, 257):
        try:
            shape = make_topology(chip, chips * chip.devices_per_chip).shape
        except pw.PlaceError:
            assert any(chips % p == 0 for p in range(max(chip.pod) + 1, chips + 1)), "a factor longer than any axis"
            continue
        assert math.prod(shape) == chips
        assert all(n <= limit for n, limit in zip(sorted(shape), sorted(chip.pod), strict=True))


def test_axes_of_v4_wrap_where_whole_cubes_stand_in_a_row() -> None:
    island = make_topology(pw.chip("tpu_v4"), 4 * 6 * 8, topology=(4, 6, 8))
    assert [axis.wrap for axis in island.axes] == [True, False, True]


def test_an_explicit_topology_and_hosts_of_another_size() -> None:
    island = make_topology(pw.chip("tpu_v5e"), 32, topology=[2, 16], devices_per_host=4)
    assert (island.axes, island.hosts) == ((Axis(2, False), Axis(16, True)), 8)
    assert make_topology(pw.chip("tpu_v3"), 2048, devices_per_host=4).hosts == 512


def test_the_network_is_that_of_the_chip_unless_another_is_named() -> None:
    chip, slow = pw.chip("tpu_v3"), pw.network("tpu_dcn").replace(rtt=1.0)
    assert make_topology(chip, 8).network == chip.network
    assert make_topology(chip, 8, network=slow).network is slow


V3 = "tpu_v3 has 2 devices a chip"


@pytest.mark.parametrize(
    ("name", "devices", "topology", "message"),
    [
        ("tpu_v3", 32, (8, 4), "topology=(8, 4) has 32 chips, but devices_per_island=32: 16 chips of 2 devices; "
         "write devices_per_island=64 or topology=(4, 4)."),
        ("tpu_v5e", 32, (4, 4), "topology=(4, 4) has 16 chips, but devices_per_island=32: 32 chips; "
         "write devices_per_island=16 or topology=(4, 8)."),
        ("tpu_v3", 8, (2, 2, 1), "topology=(2, 2, 1): 3 axes, but tpu_v3 is a torus of 2; write 2 numbers, such as (32, 32)."),
        ("tpu_v4", 8, 8, "topology=8: 1 axis, but tpu_v4 is a torus of 3; write 3 numbers, such as (16, 16, 16)."),
        ("tpu_v5e", 64, (2, 32), "topology=(2, 32): a pod of tpu_v5e has 16 × 16 chips; use several islands."),
        ("tpu_v5e", 64, (8, 8.0), "topology=(8, 8.0): write whole numbers of at least 1, such as (16, 16)."),
        ("tpu_v3", 4096, None, "devices_per_island=4096: 2048 chips of 2 devices, a pod of tpu_v3 has 32 × 32 (2048 devices); "
         "use several islands of up to devices_per_island=2048."),
        ("tpu_v3", 74, None, "devices_per_island=74: 37 chips of 2 devices, which fill no torus within 32 × 32; "
         "write 72 (6 × 6 chips) or 76 (2 × 19 chips)."),
        ("tpu_v3", 7, None, f"devices_per_island=7: {V3}; write 6 or 8."),
        ("tpu_v4", True, None, "devices_per_island=True: write a whole number of at least 1."),
        ("tpu_v4", 0, None, "devices_per_island=0: write a whole number of at least 1."),
        ("gpu_b200", 8, (2, 4), "topology=(2, 4): gpu_b200 is joined by a switch of 8, not by a torus; leave topology= out."),
    ],
)  # fmt: skip
def test_impossible_islands_are_refused_with_numbers_and_a_fix(name, devices, topology, message) -> None:
    with pytest.raises(pw.PlaceError) as error:
        make_topology(pw.chip(name), devices, topology=topology)
    assert str(error.value) == message


def test_hosts_of_no_devices_are_refused() -> None:
    with pytest.raises(pw.PlaceError, match="^devices_per_host=-1: write a whole number of at least 1.$"):
        make_topology(pw.chip("tpu_v4"), 8, devices_per_host=-1)


def test_hops_count_the_links_of_the_shortest_way() -> None:
    notify_all = make_topology(pw.chip("tpu_v5e"), 256)
    assert [notify_all.hops(0, other) for other in (0, 1, 15, 8, 16, 17, 255, 136)] == [0, 1, 1, 8, 1, 2, 2, 16]
    cores = make_topology(pw.chip("tpu_v3"), 32)
    assert [cores.hops(0, other) for other in (1, 2, 7, 8, 31)] == [0, 1, 3, 1, 6]
    assert make_topology(pw.chip("gpu_b200"), 8).hops(0, 5) == 1


@pytest.mark.parametrize(
    ("size", "axes"),
    [
        (256, "16w 16w"),
        (16, "1. 16w"),
        (64, "4. 16w"),
        (8, "1. 8."),
        (1, "1. 1."),
        (25, "5. 5."),
        (17, "17."),
        ((2, 16), "2. 16w"),
    ],
)
def test_a_group_takes_whole_axes_first(size, axes) -> None:
    group = make_topology(pw.chip("tpu_v5e"), 256).group(size)
    shown = [f"{axis.length}{'.w'[axis.wrap]}" for axis in group.axes]
    assert sorted(shown) == sorted(axes.split())
    assert group.devices == (size if isinstance(size, int) else math.prod(size))


def test_groups_of_gpus_cross_domains() -> None:
    island = make_topology(pw.chip("gpu_h100_sxm"), 64)
    assert island.group()[1:] == (8, 64, 8)
    assert island.group(4)[1:] == (1, 4, 4)
    assert island.group(32)[1:] == (4, 32, 8)
    assert island.group((1, 8))[1:] == (8, 8, 1)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (257, "a group of 257 devices: the island has 256; write 1 to 256."),
        (0, "a group of 0 devices: the island has 256; write 1 to 256."),
        (True, "a group of True devices: the island has 256; write 1 to 256."),
        ((32, 8), "a group of (32, 8): the island has 16 × 16 (chips along its axes); write as many, none larger."),
        ((16,), "a group of (16,): the island has 16 × 16 (chips along its axes); write as many, none larger."),
    ],
)
def test_groups_that_the_island_does_not_have(size, message) -> None:
    with pytest.raises(pw.PlaceError) as error:
        make_topology(pw.chip("tpu_v5e"), 256).group(size)
    assert str(error.value) == message
