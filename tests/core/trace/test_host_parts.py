"""Events on islands of several hosts: counted once, matched with events of one host, and grouped by host."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pathways_nb.results.chrome_trace import from_chrome, to_chrome
from pathways_nb.runtime.hosts.reports import HostRow, OtherRow, Reports, RunRecord, StepRows
from pathways_nb.trace.causality.critical_path import critical_path
from pathways_nb.trace.formats import to_csv
from pathways_nb.trace.host_parts import counted_once, devices_per_host
from pathways_nb.trace.matching import compare_events
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.summary import summarise

F = Label("compute", "f", "p", node=1, place="left", island=0, devices=4, bytes=64, flops=8.0)
G = Label("collective", "g", "p", node=2, place="left", island=0, devices=4, parents=(1,))
X = Label("transfer", "x → left", "p", node=0, place="left", island=0, devices=4, route="host", bytes=32)
MESSAGE = Label("stall", "message to island 0 on its way", "p", island=0, route="DCN")
ENQUEUE = Label("enqueue", "p", "p", island=0)


def parts(label: Label) -> list[Label]:
    """Return the labels of what two hosts with two devices each do together."""
    if not label.devices:
        return [replace(label, host=host) for host in range(2)]
    return [
        replace(label, host=host, device=2 * host, devices=2, bytes=label.bytes // 2, flops=label.flops / 2)
        for host in range(2)
    ]


def on_two_hosts(late: float = 0.0) -> Events:
    """Return two runs of two launches; the second host gets its messages ``late``."""
    labels = {label.name + label.kind: parts(label) for label in (F, G, X, MESSAGE, ENQUEUE)}
    rows = []
    for run in range(2):
        for host in range(2):
            at = 10.0 * run + host * late
            message, enqueue, x, f, g = (labels[k][host] for k in (
                "message to island 0 on its waystall", "penqueue", "x → lefttransfer", "fcompute", "gcollective"))  # fmt: skip
            rows += [Row(message, 10.0 * run, at + 1, run), Row(enqueue, at + 1, at + 2, run)]
            rows += [Row(x, at + 1, at + 2, run), Row(f, at + 2, at + 4, run), Row(g, at + 4, at + 5, run)]
    return Events.from_rows(rows)


def on_one_host() -> Events:
    rows = []
    for run in range(2):
        at = 10.0 * run
        rows += [Row(MESSAGE, at, at + 1, run), Row(ENQUEUE, at + 1, at + 2, run), Row(X, at + 1, at + 2, run)]
        rows += [Row(F, at + 2, at + 4, run), Row(G, at + 4, at + 5, run)]
    return Events.from_rows(rows)


def test_a_launch_on_two_hosts_is_one_launch_and_keeps_each_device_busy_once() -> None:
    one, two = summarise(on_one_host(), (4,)), summarise(on_two_hosts(), (4,))
    assert (two.launches, two.transfers, two.transfer_bytes) == (4, 2, 64)
    assert two == one


def test_the_devices_of_a_late_host_are_idle_meanwhile() -> None:
    two = summarise(on_two_hosts(late=1.0), (4,))
    assert two.launches == 4
    assert two.makespan == pytest.approx(16.0)
    assert two.utilisation == pytest.approx((6 / 16,))
    assert two.messages == pytest.approx(4.0)


def test_different_microbatches_places_and_islands_are_not_one_launch() -> None:
    differing = [replace(F, host=1, **change) for change in ({}, {"microbatch": 1}, {"island": 1}, {"place": "b"})]
    events = Events.from_rows([Row(label, 0, 1) for label in [replace(F, host=0), *differing]])
    assert counted_once(events).tolist() == [True, False, True, True, True]


def test_labels_without_a_host_all_count() -> None:
    events = Events.from_rows([Row(F, 0, 1), Row(replace(F), 1, 2)])
    assert counted_once(events).all()


def test_runs_on_one_host_and_on_two_match_event_by_event() -> None:
    difference = compare_events(on_one_host(), on_two_hosts(late=1.0))
    assert (len(difference), difference.only_a, difference.only_b) == (6, 0, 0)
    assert difference.table["occurrence"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(difference.table["longer"], 1.0)


def test_a_host_waits_for_its_own_message() -> None:
    """The path to the end of the late host goes over its message, not over the early host's enqueue."""
    events = on_two_hosts(late=1.5)
    events = events.select(events["run"] == 0)
    path = critical_path(events)
    hosts = dict(zip(events["id"].tolist(), events["host"].tolist(), strict=True))
    assert {hosts[segment.event] for segment in path.segments if segment.event >= 0} == {1}
    assert path.segments[0].name == MESSAGE.name
    assert path.segments[0].end == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([(0, 0, 2), (1, 2, 2)], 2),
        ([(1, 3, 1)], 2),
        ([(0, 0, 1)], 2),
        ([(0, 0, 1), (1, 1, 1)], 1),
        ([(-1, 0, 4)], 0),
    ],
)
def test_the_devices_of_a_host_follow_from_its_events(seen: list[tuple[int, int, int]], expected: int) -> None:
    labels = [replace(F, host=host, device=device, devices=devices) for host, device, devices in seen]
    assert devices_per_host(labels, (4, 4)) == (expected, 0)


def test_csv_and_chrome_keep_the_host(tmp_path: Path) -> None:
    events = on_two_hosts()
    to_csv(events, tmp_path / "run.csv")
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    assert [int(row["host"]) for row in rows] == events["host"].tolist()
    to_chrome(events, (4,), tmp_path / "run.json")
    assert from_chrome(tmp_path / "run.json")["host"].tolist() == events["host"].tolist()
    traced = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    names = [one["args"]["name"] for one in traced if one["name"] == "thread_name" and one["pid"] == 2000]
    assert names == [f"host {n // 2} · dev {n}" for n in range(4)]


def test_a_host_reports_messages_and_enqueues_without_their_labels() -> None:
    reports = Reports()
    record = RunRecord(reports, 7, {id(F): 3}, (2, 2))
    record.arrived(5.0, 4.9)  # this host's clock is early
    record.add(Row(ENQUEUE, 5.0, 6.0, 7, "exact"))
    record.add(Row(F, 6.0, 7.0, 7))
    record.add(Row(MESSAGE, 0.0, 1.0, 7))
    message, enqueue, step, other = reports.collect(0.0)
    assert message == HostRow(7, "stall", 5.0, 5.0, 2)
    assert enqueue == HostRow(7, "enqueue", 5.0, 6.0, 2)
    assert step == StepRows(7, [(3, 6.0, 7.0, "estimated", "ok", 2, 2, "", 0, -1)])
    assert isinstance(other, OtherRow)
