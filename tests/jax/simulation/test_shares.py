"""Shares of device time: what two threads ask for is what they get while both have calls queued, or a line says why not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.results.run import Run

CALLS, MIDDLE = 60, slice(10, 50)
"""Calls of each client, and gangs during which both still have some to make."""


@pytest.fixture
def pod() -> pw.Controller:
    made = pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4)
    made.reset()  # or it would remember the clients of the test before
    return made


@pytest.fixture
def work(pod: pw.Controller) -> pw.Computation:
    """A computation of a millisecond on simulated devices."""
    made = pw.work(1e-3, on=pw.virtual_slice(4), name="gang")
    made().wait()
    return made


def compete(call: Callable[[], Any], ahead: int) -> tuple[Run, float]:
    """Two threads with shares 1 and 3 that call ``ahead`` times before they wait; the run, and bob's part of the gangs."""

    def client(name: str, share: float) -> None:
        with pw.client(name, share=share):
            waiting = []
            for _ in range(CALLS):
                waiting.append(call())
                if len(waiting) > ahead:
                    waiting.pop(0).wait()
            pw.wait(waiting)

    with pw.record() as run:
        threads = [threading.Thread(target=client, args=about) for about in (("ann", 1), ("bob", 3))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    gangs = run.events.of_kind("compute")
    order = gangs["client"][np.argsort(gangs["end"], kind="stable")]
    return run, float((order[MIDDLE] == "bob").mean())


@pytest.mark.parametrize("kind", ["computation", "program"])
def test_who_has_calls_queued_gets_the_share_asked_for(work: pw.Computation, kind: str) -> None:
    run, got = compete(work if kind == "computation" else pw.program(lambda: work(), name="p"), ahead=8)
    assert got == pytest.approx(0.75, abs=0.03)
    assert "(asked 25%), bob 7" in run.summary_line()
    assert "no other call queued" not in run.summary_line()


def test_who_waits_for_each_call_is_told_why_the_share_is_another(pod: pw.Controller, work: pw.Computation) -> None:
    run, got = compete(work, ahead=0)
    assert got == 0.5
    told = (
        "while they competed ann 50% (asked 25%), bob 50% (asked 75%); bob had no other call queued at 100% of its "
        "turns, and a share counts only for a client with calls queued: make the next calls before you wait for one"
    )
    assert run.summary_line().endswith(told)
    assert f"  clients {told}" in pod.status()
    with pw.record() as alone:
        work().wait()
    assert "competed" not in alone.summary_line()
