"""Simulated hosts without cores of their own slow devices down, only while no island is idle."""

from __future__ import annotations

import pytest

import pathways_nb as pw
from pathways_nb.cost.hardware.host_costs import HOST
from pathways_nb.cost.model import CostModel

TAKES, TAKEN, NODES = 1e-2, 1e-3, 3


def _seconds(count: int, interference: float) -> list[float]:
    """Of the nodes of a chain on each of so many islands of two."""
    model = CostModel.of("tpu_v3", host=HOST.replace(interference=interference, message=1e-4))
    with pw.attach("sim", chip=model, islands=2, devices_per_island=2):
        works = [pw.work(TAKES, on=pw.virtual_slice(2, island=island)) for island in range(count)]

        def chains(x):
            ends = [x] * count
            for _ in range(NODES):
                ends = [work(end) for work, end in zip(works, ends, strict=True)]
            return ends

        events = pw.program(chains).run(1.0).events.of_kind("compute")
        return sorted((events["end"] - events["start"]).tolist())


def test_one_island_alone_is_left_alone() -> None:
    assert _seconds(1, TAKEN) == pytest.approx([TAKES] * NODES)


def test_while_both_work_each_node_lasts_longer_but_the_one_that_was_first() -> None:
    assert _seconds(2, 0.0) == pytest.approx([TAKES] * 2 * NODES)
    assert _seconds(2, TAKEN) == pytest.approx([TAKES] + [TAKES + TAKEN] * (2 * NODES - 1))
