"""The devices that a step is adopted for: a topology behind the chip's name, slices, what does not exist."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.adopt.asked_devices import asked_devices, nearest_tori
from pathways_nb.adopt.slice_transfers import sent_between_slices
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.cost.hlo.hlo_schedule import schedule_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.launch.op_seconds import LaunchPlace


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


TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=30 end_line=30 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main (x: f32[64,512]) -> f32[128,512] {
  %x = f32[64,512] parameter(0)
  %y = f32[64,512] negate(%x), metadata={op_name="jit(step)/mlp/neg" stack_frame_id=1}
  %bitcast = f32[64,512] bitcast(%y)
  %after = token[] after-all()
  %send = (f32[64,512], u32[], token[]) send(%bitcast, %after), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-gather.1_0",_xla_megascale_transfer_type="ALL_GATHER"}
  %send-done = token[] send-done(%send), channel_id=1
  %recv = (f32[2,64,512], u32[], token[]) recv(%after), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-gather.1_0",_xla_megascale_transfer_type="ALL_GATHER"}
  %recv-done = (f32[2,64,512], token[]) recv-done(%recv), channel_id=2
  %both = f32[2,64,512] get-tuple-element(%recv-done), index=0
  ROOT %whole = f32[128,512] all-gather(%both), replica_groups=[2,4]<=[8], dimensions={0}
}
"""


def test_what_is_sent_to_other_slices_has_its_kind_its_bytes_and_the_line_of_what_is_sent():
    module = parse(TEXT)
    places = [{"process": at // 4, "slice": at // 4} for at in range(8)]
    ((name, found),) = sent_between_slices(module, LaunchPlace(pw.chip("tpu_v5e"), places, 4)).items()
    assert (name, found.kind, found.bytes) == ("send", "all-gather", 2 * 64 * 512 * 4)
    assert np.array_equal(found.groups, [[0, 4], [1, 5], [2, 6], [3, 7]])
    assert not sent_between_slices(module, LaunchPlace(pw.chip("tpu_v5e"), places[:4], 4))
    other = parse(TEXT.replace('_transfer_type="ALL_GATHER"', '_transfer_type="ONE_TO_ONE"'))
    assert sent_between_slices(other, LaunchPlace(pw.chip("tpu_v5e"), places, 4))["send"].kind == "permute"
    lines = {action.name: action.line for action, _ in schedule_of(module, 8).runs()}
    assert lines["send"] == lines["whole"] == "train.py:30"
