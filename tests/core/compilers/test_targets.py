"""What compilers are told: every chip of the table, tori with their rings, hosts of GPUs; and what they cannot be told."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from pathways_datasets import compilers, hardware
from pathways_nb.compilers.targets import chip_text, kind_of, target
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.errors import UsageError


@pytest.mark.parametrize("name", hardware()["chips"])
def test_every_chip_of_the_table_has_a_compiler(name):
    chip = pw.chip(name)
    assert kind_of(chip) == name.split("_")[0]
    devices = 8 * chip.devices_per_chip
    assert target(make_topology(chip, devices)).devices == devices


@pytest.mark.parametrize(
    ("chip", "devices", "name", "wrap"),
    [("tpu_v5p", 16, "v5p:2x2x4", [False, False, True]), ("tpu_v5p", 64, "v5p:4x4x4", [True, True, True]),
     ("tpu_v5e", 256, "v5e:16x16", [True, True, False]), ("tpu_v6e", 8, "v6e:2x4", [False, False, False])],
)  # fmt: skip
def test_a_torus_closes_where_its_links_do(chip, devices, name, wrap):
    found = target(make_topology(pw.chip(chip), devices)).arguments
    assert (found["topology_name"], found["wrap"]) == (name, wrap)


def test_a_v4_counts_each_chip_as_one_device():
    assert target(make_topology(pw.chip("tpu_v4"), 16)).arguments["chip_config_name"] == "megacore"


def test_a_torus_that_hosts_of_four_chips_do_not_fill_has_smaller_hosts():
    assert target(make_topology(pw.chip("tpu_v5p"), 1)).arguments["chips_per_host_bounds"] == [1, 1, 1]
    assert target(make_topology(pw.chip("tpu_v5e"), 15)).arguments["chips_per_host_bounds"] == [1, 1, 1]
    assert "chips_per_host_bounds" not in target(make_topology(pw.chip("tpu_v5p"), 16)).arguments


def test_islands_of_tpus_are_slices_and_those_of_gpus_more_hosts():
    slices = target(make_topology(pw.chip("tpu_v5e"), 16), islands=4)
    assert (slices.arguments["num_slices"], slices.devices) == (4, 64)
    gpus = target(make_topology(pw.chip("gpu_h100_sxm"), 16), islands=4)
    assert (gpus.arguments["topology"], gpus.devices) == ("1x8x8", 64)


def test_hosts_have_as_many_gpus_as_they_are_given():
    assert target(make_topology(pw.chip("gpu_h100_sxm"), 8, devices_per_host=4)).arguments["topology"] == "1x2x4"
    assert target(make_topology(pw.chip("gpu_h100_sxm"), 2)).arguments["topology"] == "1x1x2"


def test_hosts_that_are_not_full_are_refused_with_numbers_that_work():
    with pytest.raises(UsageError, match=r"12 devices in hosts of 8: .* write devices_per_host=4, or 8 devices\."):
        target(make_topology(pw.chip("gpu_h100_sxm"), 12))


def test_a_chip_of_ones_own_is_compiled_for_as_the_one_it_was_made_from():
    mine = pw.chip("gpu_h100_sxm").replace(name="mine", hbm_bytes=40e9)
    assert kind_of(mine) == "gpu"
    assert "device_memory_size: 40000000000\n" in chip_text(mine)
    assert f"device_memory_size: {compilers()['gpu']['h100_sxm']['device_memory_size']}\n" in chip_text(
        pw.chip("gpu_h100_sxm")
    )


def test_a_chip_without_a_compiler_is_refused_with_those_that_have_one():
    unknown = pw.chip("tpu_v5p").replace(name="mine", compiler=None)
    assert kind_of(unknown) is None
    with pytest.raises(
        UsageError, match=r"mine: no compiler knows this chip \(compiler=None\); the compilers know .*h100_sxm.*v5p"
    ):
        target(make_topology(unknown, 8))


def test_a_chip_that_names_a_compiler_of_the_other_kind_has_none():
    assert kind_of(pw.chip("gpu_h100_sxm").replace(compiler="v5p")) is None
    assert kind_of(pw.chip("tpu_v5p").replace(compiler=pw.chip("gpu_h100_sxm").compiler)) is None
