"""The event record: columns, limits, ids, and pauses of Python."""

from __future__ import annotations

import gc
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.errors import UsageError
from pathways_nb.results.chrome_trace import from_chrome, to_chrome
from pathways_nb.runtime.gc_pauses import Pauses
from pathways_nb.timing.waits import LANE
from pathways_nb.trace.record import COLUMNS, Events, Record
from pathways_nb.trace.rows import Label, Row, RowRange

label = Label("compute", "f", island=1, devices=2, bytes=8)


def rows(count: int) -> list[Row]:
    return [Row(label, float(i), i + 0.5, i) for i in range(count)]


def test_columns_say_what_the_rows_said() -> None:
    other = Label("wait", "y")
    events = Events.from_rows([Row(label, 1.0, 2.0, 3, "exact", "failed"), Row(other, 2.0, 4.0)])
    assert [dict(event)["name"] for event in events] == ["f", "y"]
    first, second = events
    assert set(first) == set(COLUMNS)
    assert (first["start"], first["end"], first["run"], first["bytes"], first["quality"], first["status"]) == (
        1.0, 2.0, 3, 8, "exact", "failed",
    )  # fmt: skip
    assert (second["kind"], second["quality"], second["status"], second["run"]) == ("wait", "estimated", "ok", -1)
    assert len(events.of_kind("wait")) == 1
    with pytest.raises(KeyError, match="'stop' is no column of events; choose from id, kind"):
        events["stop"]


def test_times_count_from_the_origin() -> None:
    record = Record(origin=100.0)
    record.add(Row(label, 101.0, 103.0))
    assert (record.events()["start"][0], record.events()["end"][0]) == (1.0, 3.0)


def test_columns_given_out_stay_as_they_were() -> None:
    record = Record()
    seen = []
    for count in (1, 2, 40, 400):
        for row in rows(count):
            record.add(row)
        seen.append((record.events(), record.events()["start"].copy()))
    record.clear()
    record.add(Row(label, -1.0, -1.0))
    record.events()
    for events, start in seen:
        np.testing.assert_array_equal(events["start"], start)


@pytest.mark.parametrize("polled", [False, True])
def test_a_limit_is_kept_and_ids_go_on(polled: bool) -> None:
    record = Record(limit=10)
    for i, row in enumerate(rows(1000)):
        record.add(row)
        if polled and i % 15 == 0:
            assert len(record.events()) <= 36
    events = record.events()
    assert 10 <= len(events) <= 30
    assert list(events["run"]) == list(range(1000 - len(events), 1000))
    if polled:
        assert list(events["id"]) == list(events["run"])


@given(st.integers(2, 12) | st.none(), st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=20))
def test_a_range_is_its_events_one_by_one(limit: int | None, sizes: list[tuple[int, bool]]) -> None:
    together, one_by_one = Record(limit), Record(limit)
    for run, (size, read) in enumerate(sizes):
        times = np.linspace(run, run + 1, size + 1)
        labels = [label if at % 3 else Label("wait", "y") for at in range(size)]
        whys = LANE if read else [at % 8 for at in range(size)]
        some = RowRange(labels, times[:-1], times[1:], run, "simulated", "ok", whys)
        together.add_range(some)
        for row in some:
            one_by_one.add(row)
        for record in (together, one_by_one):
            record.add(Row(label, run + 1.0, run + 2.0, run))
            if read:
                record.events()
    assert list(together.events()) == list(one_by_one.events())


def test_a_bad_row_loses_no_others() -> None:
    record = Record()
    record.add(rows(1)[0])
    record.add(Row(label, 0.0, 1.0, 0, "guessed"))
    for _ in range(2):
        with pytest.raises(ValueError, match="tuple.index"):
            record.events()


def test_a_pause_of_python_is_recorded_and_can_come_at_any_time() -> None:
    record = Record(limit=3)
    pauses = Pauses(time.perf_counter, record.add)
    before = gc.get_threshold()
    try:
        pauses.SHORTEST = 0.0
        gc.set_threshold(1, 1, 1)
        for row in rows(50):
            record.add(row)
            record.events()
        gc.collect()
    finally:
        gc.set_threshold(*before)
        pauses.stop()
    found = record.events().of_kind("stall")
    assert len(found)
    assert set(found["name"]) == {"Python's garbage collection"}
    assert pauses._notice not in gc.callbacks


def changed(trace: dict[str, Any], bar: int, **values: Any) -> dict[str, Any]:
    trace["traceEvents"][bar]["args"].update(values)
    return trace


def test_a_trace_that_was_damaged_is_refused_by_its_field(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    to_chrome(Events.from_rows(rows(2)), [2, 4], path)
    assert len(from_chrome(path)) == 2
    whole = path.read_text()
    bar = next(at for at, row in enumerate(json.loads(whole)["traceEvents"]) if row["ph"] == "X")
    where = f"traceEvents[{bar}].args"
    for values, why in (
        ({"start": "a"}, f"{where}.start is 'a', not a number from -1e+12 to 1e+12"),
        ({"end": float("inf")}, f"{where}.end is inf, not a number from -1e+12 to 1e+12"),
        ({"bytes": -1}, f"{where}.bytes is -1, not a whole number from 0 to"),
        ({"kind": "dance"}, f"{where}.kind is 'dance', not one of trace, lower"),
        ({"status": None}, f"{where}.status is None, not text"),
    ):
        path.write_text(json.dumps(changed(json.loads(whole), bar, **values)))
        with pytest.raises(UsageError, match=re.escape(f"trace.json is no trace that run.to_chrome wrote: {why}")):
            from_chrome(path)
    for text, why in (("[]", "it is [], not an object"), ("[" * 100_000, "brackets are nested"), ("{", "not JSON")):
        path.write_text(text)
        with pytest.raises(UsageError, match=re.escape(f"no trace that run.to_chrome wrote: {why}")):
            from_chrome(path)
