"""Logs of every driver are played again without devices, from memory, from saved runs and from the doctor's files."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.errors import PathwaysError
from pathways_nb.session.diagnosis import log_of
from tests.support.hosts_in_process import hosts_in_process

X = np.ones((512, 512), np.float32)
DRIVERS: dict[str, Any] = {
    "sim": {"chip": "tpu_v3", "islands": 2, "devices_per_island": 2},
    "cpu": {"islands": 2, "devices_per_island": 2},
    "hosts": None,
}


def busy() -> pw.Run:
    """Two tenants with shares, recorded while programs of nobody are under way."""
    here, there = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    a, f = pw.jit(lambda x: x + 1, on=here), pw.jit(lambda x: x * 2, on=there)
    program = pw.program(lambda x: f(a(f(x))))
    y = program(X)
    under_way = [program(y) for _ in range(3)]
    with pw.record() as run, pw.client("ann", share=3) as ann, pw.client("bob") as bob:
        for _ in range(4):
            with ann.acting():
                one = program(y)
            with bob.acting():
                other = program(y)
        pw.wait((one, other, under_way))
    return run


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("options", [{}, {"hbm": 30e6}, {"dispatch": "sequential"}], ids=str)
def test_what_a_driver_was_told_gives_the_same_instructions_again(watchdog, driver, options, tmp_path) -> None:
    with ExitStack() as stack:
        if DRIVERS[driver] is None:
            stack.enter_context(hosts_in_process(2, 2, 2, **options))
        else:
            stack.enter_context(pw.attach(driver, **DRIVERS[driver], **options))
        run = busy()
        path = pw.doctor()
    run.save(tmp_path / "a.run")
    for log in (run.log, pw.load(tmp_path / "a.run").log, log_of(path)):
        assert log is not None
        kinds = {type(entry.event).__name__ for entry, _, _ in log.replay()}
        assert {"Submitted", "Completed", "Opened"} <= kinds


def test_a_log_of_lost_devices_and_cancelled_programs_is_played_again() -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2) as controller:
        place = pw.virtual_slice(2, island=0)
        program = pw.program(lambda x: pw.jit(lambda v: v + 1, on=place)(x))
        with pw.record() as run:
            pw.wait([program(X)])
            controller.remove(island=0)
            with suppress(PathwaysError):
                program(X).result()
            controller.add(island=0)
        kinds = [type(entry.event).__name__ for entry, _, _ in run.log.replay()]  # type: ignore[union-attr]
    assert {"Removed", "Added"} <= set(kinds)


def test_an_older_file_has_no_log_and_a_damaged_one_says_so(tmp_path) -> None:
    with pw.attach("sim", **DRIVERS["sim"]):
        run = busy()
    run.kept_log = b""
    run.save(tmp_path / "a.run")
    assert pw.load(tmp_path / "a.run").log is None
    run.kept_log = b'{"snapshot": 3}'
    run.save(tmp_path / "b.run")
    loaded = pw.load(tmp_path / "b.run")
    with pytest.raises(pw.UsageError, match="the log of the run 'run' is damaged: "):
        _ = loaded.log
    assert loaded.critical_path().segments, "all else can be used"


def test_a_runs_decisions_are_the_same_from_its_file(watchdog, tmp_path) -> None:
    with pw.attach("sim", **DRIVERS["sim"]):
        run = busy()
    found = run.steps()
    assert {one.client for one in found} >= {"ann", "bob"}
    assert {name for one in found for names in one.enqueued.values() for name in names} >= {"a", "f"}
    starts = run.events.select(run.events.is_("client", "ann"))["start"]
    assert 0 <= min(one.at for one in found if one.client == "ann") <= starts.min()
    run.save(tmp_path / "busy.run")
    assert pw.load(tmp_path / "busy.run").steps() == found
