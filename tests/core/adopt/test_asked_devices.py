"""The devices that a step is adopted for: a topology behind the chip's name, slices, what does not exist."""

from __future__ import annotations

from itertools import islice

import pytest

import pathways_nb as pw
from pathways_nb.adopt.asked_devices import asked_devices, nearest_tori
from pathways_nb.cost.hardware.topology import make_topology


@pytest.mark.parametrize(
    ("asked", "devices", "shape", "slices"),
    [
        ("tpu_v5e:4x8", 32, (4, 8), 1),
        ("tpu_v5e:16x16*4", 1024, (16, 16), 4),
        ("tpu_v5e", 256, (16, 16), 1),
        ("tpu_v5e", 1024, (16, 16), 4),
        ("tpu_v5e", 384, (12, 16), 2),
        ("gpu_h100_sxm", 1024, (8,), 1),
    ],
)
def test_slices_are_written_or_as_few_as_hold_the_mesh(asked, devices, shape, slices):
    found = asked_devices(asked, devices)
    assert (found.topology.shape, found.slices) == (shape, slices)


@pytest.mark.parametrize(
    ("asked", "devices", "text"),
    [
        ("tpu_v5e:4x4*3", 32, r"'tpu_v5e:4x4\*3'\): this topology has 48 devices, and the mesh 32\. Change one"),
        ("tpu_v5e:4x4*0", 32, r"write the topology as tpu_v5e:4x4x8, or of two slices as tpu_v5e:4x4x8\*2\."),
        (
            "tpu_v5e",
            257,
            r"257 devices are more than a pod of tpu_v5e has \(256\), and 2 slices of it would not be equal\. Write 256 "
            r'devices, or the topology of a slice: chip="tpu_v5e:16x16\*2"\.',
        ),
    ],
)
def test_devices_that_do_not_fit_are_refused_with_numbers_that_do(asked, devices, text):
    with pytest.raises(pw.PlaceError, match=text):
        asked_devices(asked, devices)


def test_the_nearest_tori_have_sides_of_powers_of_two():
    topology = make_topology(pw.chip("tpu_v5e"), 21, topology=(3, 7))
    assert list(islice(nearest_tori(topology), 2)) == [(4, 4), (2, 8)]
