"""What runs say of themselves: critical path, what if, who used the devices."""

from __future__ import annotations

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.trace.causality.critical_path import critical_path, slack
from tests.core.trace.test_critical_path import tiles


def test_a_run_of_two_tenants_says_what_each_had(controller, left) -> None:
    f = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    program = pw.program(lambda x: f(x), name="p")
    v = np.arange(8, dtype=np.float32)
    program(v).wait()
    with pw.record() as run:
        for name in ("ann", "bob"):
            with pw.client(name):
                pw.wait([program(v) for _ in range(3)])
    shares = run.summary().clients
    assert set(shares) == {"ann", "bob"}
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("dispatch", ["parallel", "sequential"])
@pytest.mark.parametrize("latency", [0.0, 2e-3])
def test_paths_of_real_runs_tile_their_makespan(dispatch: str, latency: float) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2, dispatch=dispatch, dcn_latency=latency):
        left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        one, two, three = pw.work(2e-3, on=left), pw.work(3e-3, on=right), pw.work(1e-3, on=left)
        step = pw.program(lambda x: three(two(one(x))))
        y = np.float32(1)
        with pw.record() as run:
            for _ in range(4):
                y = step(y)
                float(y)
    tiles(run.events, run.islands)
    path, found = critical_path(run.events), slack(run.events)
    on_path = np.isin(found.events["id"], list(path.events))
    assert on_path.any()
    assert (found.seconds[on_path] < 1e-8).all()


def test_a_run_answers_for_itself(controller: pw.Controller) -> None:
    left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    one, two = pw.work(1e-3, on=left), pw.work(1e-3, on=right)
    run = pw.program(lambda x: two(one(x))).run(np.float32(1))
    makespan = run.summary().makespan
    assert run.critical_path().length == pytest.approx(makespan)
    assert sum(run.idle().seconds.values()) == pytest.approx(makespan * sum(run.islands))
    assert len(run.slack().seconds) == len(run.slack().events) > 2
    found = run.what_if(node="work", faster=2)
    assert found.before == pytest.approx(makespan)
    assert found.after <= makespan, "no less where dispatching took longer than both"
    with pytest.raises(pw.UsageError, match="did you mean 'transfer'"):
        run.what_if(kind="transfr", faster=2)


def _tenants(faster: float = 1.0) -> pw.Run:
    """Two tenants whose programs wait for room and for each other, and then one that waits for each of its answers."""
    place = pw.virtual_slice(8)
    a, b = pw.work(4e-3, on=place, name="a"), pw.work(3e-3 / faster, on=place, name="b")
    ann, bob = pw.program(lambda: a(a(a(b(a()))))), pw.program(lambda: b(a(b(b()))))
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=8, policy="fifo"):
        pw.wait((ann(), bob()))
        with pw.record() as run, pw.client("ann") as one, pw.client("bob") as other:
            for _ in range(6):
                with one.acting():
                    last = ann()
                with other.acting():
                    bob()
            with one.acting():
                last.wait()
                for _ in range(5):
                    ann().wait()
    return run


def test_messages_that_were_held_follow_what_made_room_for_them() -> None:
    run = _tenants()
    for faster in (0.5, 2.0, 4.0):
        found = run.what_if(node="b", faster=faster)
        assert found.after == pytest.approx(_tenants(faster).summary().makespan, rel=1e-6)
    path = run.critical_path().seconds
    assert path["compute"] > 0.98 * run.summary().makespan, path
