"""Host work in the record: no device is busy, it counts for the makespan, and it explains why devices were idle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pathways_nb.results.chrome_trace import from_chrome, to_chrome
from pathways_nb.trace.causality.breakdown import breakdown, idle
from pathways_nb.trace.causality.critical_path import critical_path
from pathways_nb.trace.causality.what_if import what_if
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import KINDS, Label, Row
from pathways_nb.trace.summary import summarise

LOAD = Label("host", "load", "p", node=0, place="left", island=0)
PUT = Label("transfer", "host 0 → left", "p", node=1, island=0, devices=2, parents=(0,), bytes=8)
STEP = Label("compute", "step", "p", node=1, island=0, devices=2, parents=(0,))


def pipeline(host: float, device: float, calls: int = 4) -> Events:
    """Calls of a program that loads on the host and then computes, each as early as can be."""
    rows: list[Row] = []
    loaded = computed = 0.0
    for run in range(calls):
        begun, loaded = loaded, loaded + host
        start = max(loaded, computed)
        computed = start + device
        rows += [Row(LOAD, begun, loaded, run, "simulated"), Row(PUT, loaded, loaded, run, "simulated")]
        rows += [Row(STEP, start, computed, run, "simulated")]
    return Events.from_rows(rows)


def test_its_kind_is_in_the_table_of_kinds() -> None:
    assert "host" in KINDS


@pytest.mark.parametrize(("host", "device"), [(3.0, 1.0), (1.0, 3.0)])
def test_no_device_is_busy_with_it_and_the_makespan_counts_it(host: float, device: float) -> None:
    summary = summarise(pipeline(host, device), (2, 1))
    assert summary.makespan == host + device + 3 * max(host, device)
    assert summary.utilisation == pytest.approx((4 * device / summary.makespan, 0.0))
    assert summary.launches == 4
    assert summary.clients == {"": 1.0}


@pytest.mark.parametrize(("host", "device"), [(3.0, 1.0), (1.0, 3.0)])
def test_the_critical_path_goes_through_whichever_is_slower(host: float, device: float) -> None:
    path = critical_path(pipeline(host, device))
    spent = {cause: sum(p.end - p.start for p in path.segments if p.cause == cause) for cause in ("host", "compute")}
    assert path.length == host + device + 3 * max(host, device)
    assert spent == ({"host": 4 * host, "compute": device} if host > device else {"host": host, "compute": 4 * device})


@pytest.mark.parametrize(("host", "device"), [(3.0, 1.0), (1.0, 3.0)])
def test_a_faster_host_gives_what_the_pipeline_would_take(host: float, device: float) -> None:
    answer = what_if(pipeline(host, device), kind="host", faster=4)
    faster = host / 4
    assert answer.matched == 4
    assert answer.after == pytest.approx(faster + device + 3 * max(faster, device))
    assert answer.exact


def test_devices_that_wait_for_it_are_idle_because_of_the_host() -> None:
    events = pipeline(3.0, 1.0)
    seconds = idle(events, (2,)).of(0, 0)
    assert (seconds["busy"], seconds["host"]) == (4.0, 9.0)
    assert sum(seconds.values()) == 13.0
    (part,) = breakdown(events, (2,), 0.0, 13.0)
    assert part.seconds["host"] == 9.0


def test_a_chrome_trace_has_a_track_for_host_work_and_reads_back(tmp_path: Path) -> None:
    events = pipeline(3.0, 1.0)
    to_chrome(events, (2, 1), tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    names = {one["tid"]: (one["pid"], one["args"]["name"]) for one in trace if one["name"] == "thread_name"}
    assert [name for pid, name in names.values() if pid == 2000] == ["dev 0", "dev 1", "host work"]
    bars = [one for one in trace if one["ph"] == "X" and one["cat"] == "host"]
    assert {names[bar["tid"]] for bar in bars} == {(2000, "host work")}
    again = from_chrome(tmp_path / "trace.json")
    assert [dict(event) for event in again] == [dict(event) for event in events]
