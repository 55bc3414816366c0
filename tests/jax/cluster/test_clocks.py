"""Clocks of hosts, without hosts: how far off they are, how exactly that is known, and which estimate is kept."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import pathways_nb as pw
from pathways_nb.runtime.cluster.host_island import HostDied, HostIsland
from pathways_nb.runtime.cluster.island_maker import ClockEstimate, IslandMaker

AHEAD = 1000.0
"""Seconds by which the host's clock is ahead."""


class Link:
    """A link to a host whose clock is ahead, and which takes its time to answer."""

    def __init__(self, takes: float = 0.0):
        self.takes, self.set_to, self.time = takes, list[float](), 0.0
        self.facts: Any = SimpleNamespace(name="far", process=7, kind="cpu")

    def ask(self, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if method == "set_clock":
            self.set_to += args
            answer.set_result(None)
        elif self.takes < 0:
            answer.set_exception(HostDied("gone"))
        else:
            self.time += self.takes / 4  # the way there is shorter than the way back
            answer.set_result(self.time + AHEAD)
            self.time += self.takes * 3 / 4
        return answer


def maker(*links: Any) -> IslandMaker:
    made = IslandMaker(None, 2, clock=lambda: links[-1].time)
    made.islands[0] = HostIsland(0, links, 2)
    return made


def test_an_offset_is_known_to_half_the_time_of_an_answer() -> None:
    link = Link(1e-3)
    made = maker(link)
    made.synchronise()
    found = made.clocks[0, 0]
    assert found.error == pytest.approx(0.5e-3)
    assert found.offset + AHEAD == pytest.approx(0.25e-3)
    assert link.set_to == [found.offset]


def test_a_worse_estimate_does_not_replace_a_better_one() -> None:
    made = maker(Link(5e-3))
    known = made.clocks[0, 0] = ClockEstimate(-AHEAD, 1e-6, 0.0)
    made.synchronise()
    assert made.clocks[0, 0] is known


def test_an_old_estimate_is_replaced_because_clocks_drift() -> None:
    link = Link(1e-3)
    made = maker(link)
    old = made.clocks[0, 0] = ClockEstimate(-AHEAD, 1e-6, -3600.0)
    assert 0.01 < old.error_at(0.0) < 1.0
    made.synchronise()
    assert made.clocks[0, 0] is not old
    assert len(link.set_to) == 1


def test_a_dead_host_does_not_keep_the_others_from_being_asked() -> None:
    made = maker(Link(-1), Link())
    made.synchronise()
    assert set(made.clocks) == {(0, 1)}


def test_devices_belong_to_hosts_where_there_are_several() -> None:
    assert [HostIsland(0, (Link(), Link()), 2).host_of(device) for device in range(4)] == [0, 0, 1, 1]
    assert HostIsland(0, (Link(),), 4).host_of(3) == -1


def test_a_controller_without_hosts_says_how_to_get_some() -> None:
    with pw.attach("cpu", islands=1, devices_per_island=1) as controller:
        with pytest.raises(pw.UsageError, match=r"hosts\(\): .* has no hosts, because its devices are of this process"):
            controller.hosts()
        assert "host 0 of island" not in controller.status()
    with (
        pw.attach("sim", islands=1, devices_per_island=1, chip="tpu_v5p") as controller,
        pytest.raises(pw.UsageError, match=r"simulated\. Islands of hosts are made by pw\.attach\(\"ray\""),
    ):
        controller.hosts()
