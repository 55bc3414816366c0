"""What the controller cost in runs on real devices: in one process, and on hosts that report to it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import pathways_nb as pw
from tests.support.hosts_in_process import hosts_in_process

NODES, CALLS = 16, 6


def recorded(island: int = 0) -> pw.Run:
    """Calls of a chain, after one that has compiled it."""
    place = pw.virtual_slice(4, island=island)
    step = pw.jit(lambda x: x @ x, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))

    def body(x):
        for _ in range(NODES):
            x = step(x)
        return x

    program = pw.program(body, name="chain")
    start = pw.put(np.eye(32, dtype=np.float32), on=place, shardings=pw.P("x"))
    program(start).wait()
    with pw.record(name="cost") as run:
        pw.wait([program(start) for _ in range(CALLS)])
    return run


def test_a_run_on_devices_says_it_in_its_summary_and_its_file(controller, tmp_path: Path) -> None:
    run = recorded()
    found, summary = run.overhead(), run.summary()
    assert summary.overhead == found
    assert summary.dispatch == found.dispatch
    assert summary.launches == NODES * CALLS
    # One dispatcher launched all: its seconds for each node are all of them.
    assert found.node == pytest.approx(found.dispatch / summary.launches)
    assert found.hidden_from >= found.node * (1 - 1e-9)
    assert 0 <= found.share < 1
    assert found.makespan == pytest.approx(summary.makespan)
    assert re.search(
        r"dispatch [\d.]+ .?s \([\d.]+ .?s a node, .*\d% of the makespan\); nodes of .* hide it \(est", str(run)
    )
    assert "dispatch for a node" in repr(found)
    run.save(tmp_path / "cost.run")
    assert pw.load(tmp_path / "cost.run").overhead() == found
    assert pw.load(tmp_path / "cost.run").summary_line() == run.summary_line()


def test_each_host_of_an_island_dispatches_its_own_part(watchdog) -> None:
    with hosts_in_process(1, 4, 2):
        found = recorded().overhead()
    assert found.measured
    assert 0 < found.node <= found.dispatch / (NODES * CALLS) * 2
    assert found.hidden_from >= found.node * (1 - 1e-9)
