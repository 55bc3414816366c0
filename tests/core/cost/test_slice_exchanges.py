"""Collectives between slices of TPUs: as XLA writes them, the bytes over a host's network card, and their seconds."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.cost.hlo.exchanges import HloExchange
from pathways_nb.cost.hlo.hlo_schedule import LaunchAction, schedule_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.hlo.hlo_work import OpWork
from pathways_nb.cost.launch.constants import constants
from pathways_nb.cost.launch.op_seconds import LaunchPlace, host_bytes, seconds_of

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
  %send = (f32[64,512], u32[], token[]) send(%bitcast, %after), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-gather.1_0",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_GATHER"}
  %send-done = token[] send-done(%send), channel_id=1
  %recv = (f32[2,64,512], u32[], token[]) recv(%after), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-gather.1_0",_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_GATHER"}
  %recv-done = (f32[2,64,512], token[]) recv-done(%recv), channel_id=2
  %both = f32[2,64,512] get-tuple-element(%recv-done), index=0
  ROOT %whole = f32[128,512] all-gather(%both), replica_groups=[2,4]<=[8], dimensions={0}
}
"""
N = 1e6
"""Bytes of a chip's operand; of an all-gather of its result."""


def sent(text: str = TEXT) -> HloExchange:
    """What the text sends."""
    (found,) = (one.exchange for one, _ in schedule_of(parse(text), 8).runs() if one.exchange and one.queue == "dcn")
    return found


def slices(count: int, chips: int, per_host: int = 4, chip: str = "tpu_v5e") -> LaunchPlace:
    """Slices of chips in a row, in hosts."""
    places = [
        {"process": at // per_host, "coords": (at % chips, 0, 0), "slice": at // chips} for at in range(count * chips)
    ]
    return LaunchPlace(pw.chip(chip), places, per_host)


def exchange(kind: str, count: int, chips: int) -> HloExchange:
    """A collective of all chips of some slices."""
    return HloExchange(kind, N, np.arange(chips)[:, None] + 100_000 * np.arange(1, count + 1), "bf16", 1)


def test_what_is_sent_to_other_slices_has_its_kind_its_bytes_who_takes_part_and_the_line_of_what_is_sent():
    found = sent()
    assert (found.kind, found.bytes, found.size) == ("all-gather", 2 * 64 * 512 * 4, 2)
    assert np.array_equal(slices(2, 4).located(found).groups, [[0, 4], [1, 5], [2, 6], [3, 7]])
    actions = {action.name: action for action, _ in schedule_of(parse(TEXT), 8).runs()}
    assert actions["send"].line == actions["whole"].line == "train.py:30"
    assert actions["send"].words == "all-gather of 262 KB, 4 groups of 2"
    assert actions["recv"].exchange is None
    assert schedule_of(parse(TEXT), 8).slices == 2


@pytest.mark.parametrize(
    ("target", "kind", "groups"),
    [
        ('"{1,2,4}x{0:1,3}"', "ALL_REDUCE", [[0, 4, 12], [1, 5, 13], [3, 7, 15]]),
        ("{{100000,200000},{300001,400001}}", "ALL_TO_ALL", [[0, 4], [9, 13]]),
        ("{{100002->200000},{100003->200001}}", "ONE_TO_ONE", [[2, 4], [3, 5]]),
    ],
)
def test_who_takes_part_is_written_in_three_ways(target, kind, groups):
    text = TEXT.replace('"{1,2}x{0:3}"', target).replace('"ALL_GATHER"', f'"{kind}"')
    assert np.array_equal(slices(4, 4).located(sent(text)).groups, groups)
    assert sent(text).kind == {"ONE_TO_ONE": "permute"}.get(kind, kind.lower().replace("_", "-"))


def test_participants_in_another_way_are_refused_and_a_text_without_them_counts_all_chips():
    with pytest.raises(ValueError, match=r"Chips of slices written in a way that is not known: 'all of \{1,2\}'\."):
        sent(TEXT.replace('"{1,2}x{0:3}"', '"all of {1,2}"'))
    schedule = schedule_of(parse(TEXT.replace('_xla_megascale_target="{1,2}x{0:3}",', "")), 8)
    assert schedule.slices is None
    (send, _), *_ = ((one, times) for one, times in schedule.runs() if one.queue == "dcn")
    known = constants("tpu_v5e")
    found = seconds_of(send, slices(2, 4), known)
    assert found == pytest.approx(known.latency + 4 * 64 * 512 * 4 / known.slice_bw)


def test_chips_are_numbered_along_x_and_lie_anywhere_in_the_mesh():
    coords = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (2, 0, 0), (3, 0, 0), (2, 1, 0), (3, 1, 0)]
    places = [{"process": 0, "coords": where, "slice": at} for at in range(2) for where in coords]
    found = LaunchPlace(pw.chip("tpu_v5e"), places, 8).located(exchange("all-reduce", 2, 8))
    assert list(found.groups[:, 0]) == [0, 1, 4, 5, 2, 3, 6, 7]
    cores = [{"process": 0, "coords": (0, 0, 0), "core": core, "slice": at} for core in (1, 0) for at in (1, 0)]
    found = LaunchPlace(pw.chip("tpu_v7"), cores, 8).located(exchange("all-reduce", 2, 2))
    assert np.array_equal(found.groups, [[3, 2], [1, 0]])


@pytest.mark.parametrize(
    ("kind", "count", "share"),
    [
        ("all-reduce", 2, 1), ("all-reduce", 4, 2 * 3 / 4), ("all-reduce", 32, 2 * 31 / 32),
        ("all-gather", 2, 1 / 2), ("all-gather", 4, 3 / 4), ("reduce-scatter", 4, 3 / 4), ("all-to-all", 4, 3 / 4),
    ],
)  # fmt: skip
def test_over_a_hosts_network_card_go_the_bytes_of_all_its_chips(kind, count, share):
    # Of a two-slice all-reduce of n bytes with k chips a host: k n, as NICs of hosts of TPU v6e counted.
    assert host_bytes(exchange(kind, count, 8), slices(count, 8)) == pytest.approx(4 * share * N)
    # A slice that does not fill a host has only its own chips there.
    assert host_bytes(exchange(kind, count, 2), slices(count, 2, per_host=2)) == pytest.approx(2 * share * N)
    few = slices(count, 2, per_host=2)
    assert host_bytes(exchange(kind, count, 2), LaunchPlace(few.chip, few.places, 8)) == pytest.approx(2 * share * N)


def test_of_an_all_to_all_of_whole_slices_what_stays_on_a_host_crosses_no_network():
    numbers = np.array([[100_000, 100_001, 100_002, 100_003, 200_000, 200_001, 200_002, 200_003]])
    whole = HloExchange("all-to-all", N, numbers, "bf16", 1)
    assert host_bytes(whole, slices(2, 4)) == pytest.approx(4 * N / 2)
    assert host_bytes(whole, slices(2, 4, per_host=2)) == pytest.approx(2 * N * 3 / 4)
    action, known = LaunchAction("a", "dcn", "start", OpWork(), whole), constants("tpu_v5e")
    assert seconds_of(action, slices(2, 4), known) == pytest.approx(known.latency + 2 * N / known.slice_bw)


def test_hosts_that_share_a_network_card_count_together():
    # The compiler sees two hosts of 4 chips where the table has one of 8.
    place = LaunchPlace(pw.chip("tpu_v5e"), slices(2, 16).places, 8)
    assert host_bytes(exchange("all-reduce", 2, 16), place) == pytest.approx(8 * N)


def test_of_a_permutation_only_the_busiest_hosts_chips_send():
    pairs = np.array([[100_002, 200_000], [100_003, 200_001], [100_004, 200_002]])
    assert host_bytes(HloExchange("permute", N, pairs, "bf16", 1), slices(2, 8)) == pytest.approx(2 * N)


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_a_transfer_between_slices_grows_with_each_doubling(kind):
    known = constants("tpu_v5e")
    for count in (2, 4, 32):
        action = LaunchAction("a", "dcn", "start", OpWork(bytes=N), exchange(kind, count, 8))
        times = 4 * math.log2(count) / (1 if kind == "all-reduce" else 2)
        assert seconds_of(action, slices(count, 8), known) == pytest.approx(known.latency + times * N / known.slice_bw)


def test_pairs_of_slices_and_permutations_take_no_longer_where_there_are_more_slices():
    known = constants("tpu_v5e")
    pairs = HloExchange("all-reduce", N, np.array([[100_000, 300_000], [200_000, 400_000]]), "bf16", 1)
    ring = HloExchange("permute", N, np.array([[100_000, 200_000], [400_000, 100_000]]), "bf16", 1)
    for one in (pairs, ring):
        action = LaunchAction("a", "dcn", "start", OpWork(bytes=N), one)
        assert seconds_of(action, slices(4, 4), known) == pytest.approx(known.latency + N / known.slice_bw)


def test_an_all_reduce_takes_as_long_as_the_two_transfers_that_it_is_without_sums_on_hosts():
    known = constants("tpu_v7")
    whole, parts = (
        [LaunchAction("a", "dcn", "start", OpWork(), exchange(kind, 8, 4)) for kind in kinds]
        for kinds in (["all-reduce"], ["all-to-all", "all-gather"])
    )
    taken = [sum(seconds_of(one, slices(8, 4), known) - known.latency for one in each) for each in (whole, parts)]
    assert taken[0] == pytest.approx(taken[1])


def test_time_grows_over_slices_as_was_measured():
    # Bus bandwidth in Gbit/s of all-reduces over 2, 4, 8 and 10 slices of TPU7x.
    known, measured = constants("tpu_v7"), {2: 169.1, 4: 113.8, 8: 95.1, 10: 82.0}
    for count, rate in measured.items():
        place = slices(count, 8, per_host=8, chip="tpu_v7")
        action = LaunchAction("a", "dcn", "start", OpWork(), exchange("all-reduce", count, 8)._replace(bytes=1e9))
        took = host_bytes(action.exchange, place) / (rate * 1e9 / 8)
        assert seconds_of(action, place, known) == pytest.approx(took, rel=0.12)
