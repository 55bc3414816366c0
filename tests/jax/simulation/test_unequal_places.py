"""A simulated move between places of unlike sizes is priced by the bytes that cross, which are those of real devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.cost.collectives.formulas import FREE
from tests.support.simulated import NO_HOSTS

x = np.zeros((1 << 10, 12), np.float32)
WHOLE, ROWS = pw.P(), pw.P("x")


def moved(source: int, target: int, made: pw.P, read: pw.P, far: bool = True) -> tuple[int, float]:
    """The bytes of the move, and the seconds that it took."""
    one, two = pw.virtual_slice(source, island=0), pw.virtual_slice(target, island=int(far))
    make = pw.jit(lambda v: v * 2, on=one, in_shardings=made, out_shardings=made)
    use = pw.jit(lambda v: v + 1, on=two, in_shardings=read)
    with pw.record() as run:
        pw.wait(pw.program(lambda v: use(make(v)))(x))
    (row,) = [row for row in run.events.of_kind("transfer") if row["route"] != "host"]
    return int(row["bytes"]), float(row["end"] - row["start"])


def attached(islands: int = 2, devices: int = 16, **options: Any) -> pw.Controller:
    return pw.attach("sim", chip=NO_HOSTS, islands=islands, devices_per_island=devices, **options)


@pytest.mark.parametrize(("made", "read"), [(ROWS, ROWS), (ROWS, WHOLE), (WHOLE, ROWS), (WHOLE, WHOLE)])
@pytest.mark.parametrize(("source", "target"), [(4, 2), (2, 4), (4, 1), (1, 4)])
def test_the_bytes_are_those_of_real_devices(watchdog, source, target, made, read) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=4):
        real, _ = moved(source, target, made, read)
    with attached(devices=4):
        simulated, seconds = moved(source, target, made, read)
    assert real == simulated == x.nbytes * (target if read == WHOLE else 1)
    assert seconds > 0


@pytest.mark.parametrize(("source", "target"), [(16, 8), (8, 16)])
def test_what_is_sharded_takes_the_time_of_one_copy(watchdog, source, target) -> None:
    with attached() as controller:
        topology = controller.driver.attachment.islands[1].topology
        _, seconds = moved(source, target, ROWS, ROWS)
    assert seconds == pytest.approx(NO_HOSTS.transfer(x.nbytes, "DCN", topology, source, target).seconds)


def test_devices_of_one_host_share_what_comes_over_dcn(watchdog) -> None:
    with attached(devices_per_host=8) as controller:
        topology = controller.driver.attachment.islands[1].topology
        sent, seconds = moved(8, 16, ROWS, WHOLE)
    assert sent == 16 * x.nbytes
    assert seconds == pytest.approx(NO_HOSTS.transfer(2 * x.nbytes, "DCN", topology, 8, 16).seconds)


def test_what_devices_hold_already_takes_no_time(watchdog) -> None:
    with attached(1, 4) as controller:
        topology = controller.driver.attachment.islands[0].topology
        assert moved(4, 2, WHOLE, ROWS, far=False) == (0, FREE.seconds)
        sent, seconds = moved(4, 2, ROWS, ROWS, far=False)
    assert sent == x.nbytes * 3 // 4
    assert seconds == pytest.approx(NO_HOSTS.transfer(sent, "ICI", topology, 4, 2, shared=2).seconds)


def test_between_places_that_share_devices_no_network_is_taken(watchdog) -> None:
    """Their devices were counted twice, so that one domain of 8 GPUs seemed too small for 8 and 4 of them."""
    with pw.attach("sim", chip="gpu_h100_sxm", islands=1, devices_per_island=8):
        one, two = pw.virtual_slice(8), pw.virtual_slice(4)
        make, use = (pw.jit(lambda v: v * 2, on=at, in_shardings=ROWS, out_shardings=ROWS) for at in (one, two))
        moves = pw.program(lambda v: use(make(v))).run(x).events.of_kind("transfer")
    assert [each["basis"] for each in moves if each["route"] == "ICI"] == ["through a switch"]


def test_memory_is_that_of_the_shards(watchdog) -> None:
    """Replicated on the way, the value would take as much as the argument, on each device."""
    with attached(devices=4):
        one, two = pw.virtual_slice(4, island=0), pw.virtual_slice(2, island=1)
        make, use = (pw.jit(lambda v: v * 2, on=at, in_shardings=ROWS, out_shardings=ROWS) for at in (one, two))
        peaks = {peak.where.island: peak.bytes for peak in pw.program(lambda v: use(make(v))).peaks(x)}
    assert peaks[0] == 2 * x.nbytes // 4
    assert peaks[1] == 2 * x.nbytes // 2
