"""Runs for trace viewers: one process an island, our lanes' order, arrows of transfers, counters; both formats alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pathways_nb.results.chrome_trace import to_chrome
from pathways_nb.results.perfetto_trace import to_perfetto
from pathways_nb.results.trace_tracks import tracks_of
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.summary import summarise
from pathways_widgets.timeline.lanes import Lanes

ISLANDS = (12, 2)
MAKE = Label("compute", "make", "p", "ann", node=0, place="left", island=0, devices=12)
MOVE = Label("transfer", "left → right", "p", "ann", node=1, island=1, devices=2, bytes=64, parents=(0,), route="DCN")
READ = Label("compute", "read", "p", "ann", node=2, place="right", island=1, devices=2, parents=(1,))
HELD = Label("memory", "held", client="ann", island=1, devices=2, bytes=512)
LOAD = Label("host", "load", "p", island=0)
ENQUEUE = Label("enqueue", "p", "p")


@pytest.fixture
def events() -> Events:
    """A value that is made, moved and read, twice; beginning before the recording did."""
    rows = [Row(ENQUEUE, -1.0, -0.5, 0), Row(HELD, 1.0, 3.0, 0), Row(LOAD, 0.0, 1.0, 0)]
    for run in range(2):
        rows += [
            Row(MAKE, run, run + 0.5, run),
            Row(MOVE, run + 0.5, run + 1.25, run),
            Row(READ, run + 1.25, run + 2.0, run),
        ]
    return Events.from_rows(rows)


def chrome(events: Events, path: Path) -> list[dict[str, Any]]:
    to_chrome(events, ISLANDS, path)
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["traceEvents"]
    return rows


def test_tracks_are_in_the_order_of_our_lanes(events: Events) -> None:
    drawn = tracks_of(events, ISLANDS)
    assert list(drawn.processes.values()) == ["controller", "island 0", "island 1", "transfers"]
    assert list(drawn.processes) == sorted(drawn.processes)
    assert list(drawn.tracks) == sorted(drawn.tracks)
    labels = [label for _, label in sorted(Lanes(ISLANDS, hosts=(0,)).labels.items()) if label != "busy"]
    plain = [(drawn.processes[process], " ".join(name.split())) for process, name in drawn.tracks.values()]
    assert labels == [
        "controller",
        *(f"{process} · {name.replace('host work', 'host')}" for process, name in plain if "island" in process),
        "transfers",
    ]
    # Where a viewer sorts by name, nothing changes.
    for process in drawn.processes:
        names = [name for of, name in drawn.tracks.values() if of == process]
        assert names == sorted(names)


def test_bars_of_one_track_do_not_overlap_and_begin_at_zero_or_later(events: Events) -> None:
    drawn = tracks_of(events, ISLANDS)
    assert min(bar.start for bar in drawn.bars) == 0.0, "viewers know no earlier time"
    ends: dict[int, float] = {}
    for bar in drawn.bars:
        assert bar.start >= ends.get(bar.track, 0.0)
        ends[bar.track] = bar.end
    # The second transfer begins before the first has ended.
    assert [name for process, name in drawn.tracks.values() if process == 4000] == [
        "to island 0", "to island 1"
    ]  # fmt: skip


def test_arrows_lead_from_the_maker_to_the_transfer_and_on_to_the_reader(events: Events) -> None:
    drawn = tracks_of(events, ISLANDS)
    names = [tuple(drawn.bars[end].event["name"] for end in arrow) for arrow in drawn.arrows]
    assert sorted(names) == [("left → right", "read")] * 2 + [("make", "left → right")] * 2
    assert all(drawn.bars[source].end <= drawn.bars[target].start for source, target in drawn.arrows)


def test_the_area_under_the_counter_of_utilisation_is_that_of_the_summary(events: Events) -> None:
    drawn, summary = tracks_of(events, ISLANDS), summarise(events, ISLANDS)
    for island, told in enumerate(summary.utilisation):
        (one,) = [one for one in drawn.counters if one.name == "utilisation" and one.process == 1000 * (2 + island)]
        area = float((one.levels[:-1] * (one.times[1:] - one.times[:-1])).sum()) / 100
        assert area / summary.makespan == pytest.approx(told)
    (held,) = [one for one in drawn.counters if one.unit == "bytes"]
    assert (held.name, held.levels.tolist()) == ("memory of dev 0–1: ann", [512, 0])


def test_names_are_written_as_they_are(events: Events, tmp_path: Path) -> None:
    rows = chrome(events, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text("utf-8")
    assert "\\u" not in text
    assert "left → right" in text
    flows = [(row["ph"], row["id"]) for row in rows if row["ph"] in "sf"]
    assert sorted(flows) == sorted((phase, number) for number in range(4) for phase in "sf")


def test_a_half_of_a_surrogate_pair_can_be_written_and_read(tmp_path: Path) -> None:
    events = Events.from_rows([Row(Label("compute", "\udc80", island=0, devices=1), 0.0, 1.0)])
    (bar,) = [row for row in chrome(events, tmp_path / "a.json") if row["ph"] == "X"]
    assert bar["name"] == "\udc80"


def test_perfettos_format_says_the_same(events: Events, tmp_path: Path) -> None:
    drawn = tracks_of(events, ISLANDS)
    to_perfetto(events, ISLANDS, tmp_path / "a.pftrace")
    trace = Trace.FromString((tmp_path / "a.pftrace").read_bytes())
    described = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    assert {
        one.process.pid: one.process.process_name for one in described if one.HasField("process")
    } == drawn.processes
    assert len({one.uuid for one in described}) == len(described)
    tracks = {one.uuid: (one.parent_uuid, one.name) for one in described if one.sibling_order_rank in drawn.tracks}
    assert tracks == drawn.tracks
    assert [(one.name, one.counter.unit_name) for one in described if one.HasField("counter")] == [
        ("utilisation", "%"), ("utilisation", "%"), ("memory of dev 0–1: ann", "")
    ]  # fmt: skip
    said = [(packet.timestamp, packet.track_event) for packet in trace.packet if packet.HasField("track_event")]
    assert [time for time, _ in said] == sorted(time for time, _ in said)
    begun: dict[int, list[tuple[int, str]]] = {}
    bars = []
    for time, one in said:
        if one.type == one.TYPE_SLICE_BEGIN:
            begun.setdefault(one.track_uuid, []).append((time, one.name))
        elif one.type == one.TYPE_SLICE_END:
            bars.append((one.track_uuid, *begun[one.track_uuid].pop(), time))
    nanoseconds = [(bar.track, round(bar.start * 1e9), bar.event["name"], round(bar.end * 1e9)) for bar in drawn.bars]
    assert sorted(bars) == sorted(nanoseconds)
    leaving = [flow for _, one in said for flow in one.flow_ids]
    arriving = [flow for _, one in said for flow in one.terminating_flow_ids]
    assert sorted(leaving) == sorted(arriving) == [1, 2, 3, 4]


def test_a_bar_that_takes_no_time_begins_before_it_ends(tmp_path: Path) -> None:
    events = Events.from_rows([Row(MAKE, 1.0, 1.0, 0), Row(MAKE, 0.0, 1.0, 0), Row(MAKE, 1.0, 2.0, 0)])
    to_perfetto(events, ISLANDS, tmp_path / "a.pftrace")
    depth = 0
    for packet in Trace.FromString((tmp_path / "a.pftrace").read_bytes()).packet:
        one = packet.track_event
        if one.track_uuid == 2001 and packet.HasField("track_event"):
            depth += {one.TYPE_SLICE_BEGIN: 1, one.TYPE_SLICE_END: -1}[one.type]
            assert depth in (0, 1)
