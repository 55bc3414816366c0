"""ZB-H1, ZB-H2, V-half, V-min and 1F1B-V: sound, as good as the authors' in time and memory, and as theory says."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.parallel.schedules import v_1f1b, v_shaped
from pathways_nb.parallel.schedules.actions import actions_of
from pathways_nb.parallel.schedules.closed_forms import Times
from pathways_nb.parallel.schedules.registry import kind_of

PEERS = Path(__file__).with_name("zero_bubble_peers.csv")
FAMILY = "zb-h1", "zb-h2", "v-half", "v-min", "1f1b-v"
TIMES = Times(1, 1, 1), Times(2, 2, 2), Times(2, 3, 2), Times(1, 2, 3), Times(3, 1, 2), Times(1, 4, 1), Times(2, 5, 3)
PUBLISHED = {  # of 4 devices and 8 microbatches, F = I = W = 1: makespan, peak if freed after W
    "zb-h1": (27.0, 4.0),
    "zb-h2": (27.0, 7.0),
    "v-half": (26.5, 3.0),
    "v-min": (29.5, 2.0),
    "1f1b-v": (31.5, 3.0),
}
ONE_V = """
0F0 0F1 0F2 0F3 0F4 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 0B0 0F5 7F4 7B4 0B1 0F6 7F5 7B5 0B2 0F7 7F6 7B6 0B3 7F7 7B7 0B4 0B5 0B6 0B7
1F0 1F1 1F2 1F3 6F0 6F1 6B0 6F2 6B1 1F4 6B2 6F3 1B0 6B3 6F4 1F5 1B1 6B4 6F5 1F6 1B2 6B5 6F6 1F7 1B3 6B6 6F7 1B4 6B7 1B5 1B6 1B7
2F0 2F1 2F2 5F0 5F1 5F2 5B0 2F3 5B1 2F4 2B0 5F3 5B2 2B1 5F4 5B3 2F5 2B2 5F5 5B4 2F6 2B3 5F6 5B5 2F7 2B4 5F7 5B6 2B5 5B7 2B6 2B7
3F0 4F0 3F1 4F1 3F2 4F2 4B0 3B0 3F3 4F3 4B1 3B1 3F4 4F4 4B2 3B2 3F5 4F5 4B3 3B3 3F6 4F6 4B4 3B4 3F7 4F7 4B5 3B5 4B6 3B6 4B7 3B7
"""


class Peer(NamedTuple):
    """What the authors' schedule of a size takes; see the head of the file.

    Args:
        makespan: of all. span: of the device that is at it longest. peaks: after W, after I, and half after each.
    """

    makespan: float
    span: float
    peaks: tuple[list[float], ...]


@cache
def peers() -> dict[tuple[str, int, int], Peer]:
    lines = (line for line in PEERS.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    found = {}
    for row in csv.DictReader(lines):
        peaks = tuple([float(peak) for peak in row[column].split()] for column in ("after_w", "after_i", "half"))
        size = row["schedule"], int(row["devices"]), int(row["microbatches"])
        found[size] = Peer(float(row["makespan"]), float(row["span"]), peaks)
    return found


@cache
def made(name: str, devices: int, microbatches: int) -> pw.Schedule:
    """A schedule, once for all tests."""
    return pw.schedule(name, devices, microbatches)


def sizes(name: str, most: int = 16) -> list[tuple[int, int]]:
    return [(devices, many) for kind, devices, many in peers() if kind == name and devices <= most]


def spans(schedule: pw.Schedule) -> list[float]:
    """Of each device, from its first start to its last end."""
    timing = schedule.timing()
    first = schedule.tasks.first
    return [float(timing.end[b - 1] - timing.start[a]) for a, b in zip(first[:-1], first[1:], strict=True)]


@pytest.mark.parametrize("name", FAMILY)
def test_as_fast_and_as_small_as_the_authors(name: str) -> None:
    for devices, microbatches in sizes(name):
        mine, theirs = made(name, devices, microbatches), peers()[name, devices, microbatches]
        timing, size = mine.timing(), f"{name} {devices} x {microbatches}"
        assert timing.makespan <= theirs.makespan, size
        for release, peaks in zip(("W", "I", "half"), theirs.peaks, strict=True):
            assert (timing.peaks_if(release) <= peaks).all(), f"{size}, freed after {release}"


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2"])
def test_no_device_is_at_it_longer_than_the_authors(name: str) -> None:
    for devices, microbatches in sizes(name):
        assert max(spans(made(name, devices, microbatches))) <= peers()[name, devices, microbatches].span


def test_zb_v_is_as_good_as_the_authors_where_it_fills_the_v() -> None:
    for devices, microbatches in sizes("zb-v", most=12):
        if microbatches >= 2 * devices - 1:
            timing, theirs = pw.schedule("zb-v", devices, microbatches).timing(), peers()["zb-v", devices, microbatches]
            assert timing.makespan <= theirs.makespan
            assert (timing.peaks <= theirs.peaks[0]).all()


@pytest.mark.parametrize("name", FAMILY)
def test_published_values(name: str) -> None:
    schedule = pw.schedule(name, 4, 8)
    assert (schedule.makespan(), schedule.peak) == PUBLISHED[name]


def test_zb_h2_has_no_bubble_between_the_first_and_the_last_action_of_a_device() -> None:
    assert spans(pw.schedule("zb-h2", 4, 8)) == [24.0] * 4
    assert spans(pw.schedule("zb-h2", 5, 9)) == [27.0] * 5


def test_1f1b_v_is_the_authors_list() -> None:
    assert pw.schedule("1f1b-v", 4, 8) == pw.Schedule.parse(ONE_V)


@pytest.mark.parametrize("name", FAMILY)
def test_closed_forms(name: str) -> None:
    kind, held = kind_of(name), 0
    assert kind.bubble
    assert kind.peak
    for devices, microbatches in sizes(name, most=8):
        schedule = made(name, devices, microbatches)
        for times in TIMES:
            if kind.bubble.where(schedule.size, times):
                held += 1
                bubble = schedule.makespan(*times) - microbatches * sum(times)
                assert bubble == pytest.approx(kind.bubble.value(schedule.size, times)), (devices, microbatches, times)
        if kind.peak.where(schedule.size, Times()):
            held += 1
            expected = [kind.peak.value(schedule.size, device) for device in range(devices)]
            np.testing.assert_allclose(schedule.timing().peaks, expected, err_msg=f"{devices} x {microbatches}")
    assert held > 50


@given(st.sampled_from(FAMILY), st.integers(1, 12), st.integers(1, 30))
def test_everything_once_and_in_an_order_that_can_run(name: str, devices: int, microbatches: int) -> None:
    schedule = pw.schedule(name, devices, microbatches)
    schedule.check()
    stages = devices * schedule.size.chunks
    backward = "B" if name == "1f1b-v" else "IW"
    everything = {(s, kind, i) for s in range(stages) for kind in "F" + backward for i in range(microbatches)}
    done = [action[:3] for row in schedule.rows for cell in row for action in actions_of(cell)]
    assert len(done) == len(everything)
    assert set(done) == everything


@pytest.mark.parametrize("name", FAMILY[2:])
def test_a_v_has_two_stages_on_each_device(name: str) -> None:
    for device, row in enumerate(pw.schedule(name, 3, 5).rows):
        assert {action.stage for cell in row for action in actions_of(cell)} == {device, 5 - device}
    with pytest.raises(pw.UsageError, match=rf"schedule '{name}': chunks=3, but .* Take chunks=2\."):
        pw.schedule(name, 4, 8, chunks=3)


@given(st.sampled_from(("v-half", "v-min", "1f1b-v")), st.integers(1, 14), st.integers(1, 60))
def test_the_steady_phase_repeats_what_was_done_before(name: str, devices: int, microbatches: int) -> None:
    made = pw.schedule(name, devices, microbatches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v_shaped, "_repeat", lambda devices, number, before: None)
        patch.setattr(v_1f1b.Moving, "_repeat", lambda self, slot, before: slot)
        assert pw.schedule(name, devices, microbatches).rows == made.rows
