"""Runs leave and come back: files, Chrome traces, tables; damaged and foreign files are refused."""

from __future__ import annotations

import csv
import json
import pickle
import random
import re
import zipfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.results import saved_run
from pathways_nb.results.chrome_trace import from_chrome
from pathways_nb.trace.record import COLUMNS, STORED, Events
from pathways_nb.trace.rows import Label, Row
from tests.core.results import damaged_runs
from tests.core.results.test_saved_runs import put, rewritten

v = np.arange(8, dtype=np.float32)


@pytest.fixture
def run(a, b) -> pw.Run:
    """Two programs, one of them twice, over two islands."""
    both = pw.program(lambda v: b(a(v)), name="both")
    with pw.record("mine", source="y = both(both(v))") as run:
        both(both(v)).result()
        a(v)
    return run


def equal(left: Events, right: Events, exact: bool = True) -> None:
    for name in COLUMNS:
        if exact or name not in ("start", "end"):
            assert left[name].tolist() == right[name].tolist(), name
        else:
            np.testing.assert_allclose(left[name], right[name], rtol=1e-12, err_msg=name)


def test_a_saved_run_comes_back_whole(run, tmp_path) -> None:
    run.save(tmp_path / "a.run")
    again = pw.load(tmp_path / "a.run")
    equal(again.events, run.events)
    assert (again.name, again.islands, again.finished) == ("mine", (4, 4), True)
    assert str(again.summary()) == str(run.summary())
    assert [(p.graph.name, p.runs, len(p.graph.nodes)) for p in again.programs] == [
        (p.graph.name, p.runs, len(p.graph.nodes)) for p in run.programs
    ]
    for mine, theirs in zip(again.programs, run.programs, strict=True):
        assert mine.routes == theirs.routes
        assert mine.layouts == theirs.layouts
        assert theirs.layouts
        assert sorted(mine.where.values()) == sorted(theirs.where.values())
        assert mine.graph.values == theirs.graph.values
        assert list(mine.graph.edges()) == list(theirs.graph.edges())
    assert again.about["source"] == "y = both(both(v))"
    assert again.about["options"]["kind"] == "cpu"
    assert again.about["machine"]["jax"]


def test_a_saved_run_saved_again_is_the_same(run, tmp_path) -> None:
    run.save(tmp_path / "a.run")
    pw.load(tmp_path / "a.run").save(tmp_path / "b.run")
    equal(pw.load(tmp_path / "b.run").events, run.events)


def test_a_recording_within_another_is_part_of_it(a, b) -> None:
    both = pw.program(lambda v: b(a(v)), name="both")
    with pw.record("outer") as outer:
        a(v)
        inner = both.run(v)
        a(v)
    assert len(inner.events.of_kind("compute")) == 2
    assert sorted(outer.events.of_kind("compute")["program"]) == ["both", "both", "double", "double"]
    assert [(p.graph.name, p.runs) for p in outer.programs if p.graph.name == "both"] == [("both", 1)]
    shift = inner.record.origin - outer.record.origin
    mine = outer.events.select(outer.events.is_("program", "both"))
    np.testing.assert_allclose(mine["end"], inner.events.select(inner.events.is_("program", "both"))["end"] + shift)


def test_a_saved_run_opens_without_devices(run, tmp_path, fresh_python) -> None:
    run.save(tmp_path / "a.run")
    done = fresh_python(f"""
    import pathways_nb as pw
    run = pw.load({str(tmp_path / "a.run")!r})
    print(len(run.events), [p.graph.name for p in run.programs])
    run.show()
    """)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = done.stdout.splitlines()
    assert first == f"{len(run.events)} ['both', 'double']"
    assert second.startswith("mine: makespan")


def test_an_empty_run_is_a_run(controller, tmp_path) -> None:
    with pw.record("nothing") as run:
        pass
    run.save(tmp_path / "a.run")
    assert len(pw.load(tmp_path / "a.run").events) == 0


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("damage", ["empty", "text", "pickle", "object array", "other npz", "truncated", "newer"])
def test_damaged_and_foreign_files_are_refused_and_execute_nothing(run, tmp_path, monkeypatch, damage) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.run"
    run.save(path)
    data = path.read_bytes()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("a,b,c\n1,2,3\n")
        case "pickle":
            path.write_bytes(pickle.dumps(Evil()))
        case "object array":
            with path.open("wb") as file:
                np.savez(file, meta=np.array([Evil()], object))
        case "other npz":
            with path.open("wb") as file:
                np.savez(file, weights=v)
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "newer":
            with np.load(path) as archive:
                parts = dict(archive)
            meta = json.loads(parts["meta"].tobytes()) | {"version": 99}
            with path.open("wb") as file:
                np.savez(file, **parts | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
    with pytest.raises(
        pw.UsageError, match=r"^load\('.*a\.run'\): this is not a run saved by run\.save\(path\), or it is"
    ) as e:
        pw.load(path)
    assert ("version 99 is newer than 1" in str(e.value)) == (damage == "newer")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_file_that_is_cut_short_says_so(run, tmp_path, kept: float) -> None:
    path = tmp_path / "a.run"
    run.save(path)
    data = path.read_bytes()
    size = int(kept * len(data))
    path.write_bytes(data[:size])
    with pytest.raises(
        pw.UsageError, match=rf"damaged: the file is cut short: it ends after {size} bytes, before its dir"
    ):
        pw.load(path)


def test_numbers_that_look_like_the_end_of_an_archive_are_not_taken_for_it(tmp_path) -> None:
    path = tmp_path / "a.run"
    path.write_bytes(b"PK\x03\x04" + bytes(100) + b"PK\x05\x06" + bytes(100))
    with pytest.raises(pw.UsageError, match="damaged: the file is cut short: it ends after 208 bytes, before its dir"):
        pw.load(path)


@pytest.mark.parametrize(("junk", "said"), [(b"\n", "1 byte follow"), (bytes(100_000), "100000 bytes follow")])
def test_a_file_with_something_appended_is_refused(run, tmp_path, junk: bytes, said: str) -> None:
    path = tmp_path / "a.run"
    run.save(path)
    with path.open("ab") as file:
        file.write(junk)
    with pytest.raises(pw.UsageError, match=f"or it is damaged: {said}"):
        pw.load(path)


def test_whatever_byte_is_damaged_the_file_is_refused_or_whole(run, tmp_path) -> None:
    path = tmp_path / "a.run"
    run.save(path)
    data = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(60):
        place = rng.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :])
        try:
            equal(pw.load(path).events, run.events)
        except pw.UsageError:
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"label": np.zeros(3, np.int32)}, r"its columns are not equally long: label 3, start \d+, end"),
        ({"label": np.zeros((2, 3), np.int32)}, "column 'label' does not begin as a column of numbers does"),
        ({"run": np.zeros(3, np.int64)}, r"column 'run' is 3 × '<i8' in 152 bytes, not '<i4'"),
        ({"start": "drop"}, "there is no column 'start'"),
        ({"quality": "big"}, "column 'quality' has numbers from 9 to 9, of 4"),
        ({"start": "nan"}, "start of event 0 is nan s, not a time within 1e[+]12 s"),
        ({"end": "far"}, "end of event 0 is -1e[+]308 s, not a time within 1e[+]12 s"),
    ],
)
def test_columns_that_contradict_are_refused(run, tmp_path, change, reason) -> None:
    path = tmp_path / "a.run"
    run.save(path)
    with np.load(path) as archive:
        parts = dict(archive)
    for name, value in change.items():
        if isinstance(value, np.ndarray):
            parts[name] = value
        elif value == "drop":
            del parts[name]
        else:
            parts[name] = np.full_like(parts[name], {"big": 9, "nan": np.nan, "far": -1e308}[value])
    with path.open("wb") as file:
        np.savez(file, **parts)
    with pytest.raises(pw.UsageError, match=reason):
        pw.load(path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_chrome_trace_follows_the_rules_and_comes_back(run, tmp_path, name) -> None:
    run.to_chrome(tmp_path / name)
    equal(from_chrome(tmp_path / name), run.events, exact=False)


def test_a_chrome_trace_has_a_process_per_island_and_bars_that_do_not_overlap(run, tmp_path) -> None:
    run.to_chrome(tmp_path / "trace.json")
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {row["pid"]: row["args"]["name"] for row in rows if row["ph"] == "M" and row["name"] == "process_name"}
    assert named == {1000: "controller", 2000: "island 0", 3000: "island 1", 4000: "transfers"}
    threads = {(row["pid"], row["tid"]) for row in rows if row["ph"] == "M" and row["name"] == "thread_name"}
    tracks = defaultdict(list)
    for row in rows:
        if row["ph"] == "X":
            assert row["pid"] in named
            assert (row["pid"], row["tid"]) in threads
            assert row["dur"] >= 0
            tracks[row["pid"], row["tid"]].append((row["ts"], row["ts"] + row["dur"]))
    for bars in tracks.values():
        bars.sort()
        assert all(after[0] >= before[1] for before, after in zip(bars, bars[1:], strict=False))
    gang = [row for row in rows if row["ph"] == "X" and row["cat"] == "compute"]
    assert len(gang) == 4 * len(run.events.of_kind("compute"))


def test_a_table_has_a_row_for_each_event(run, tmp_path) -> None:
    run.to_csv(tmp_path / "events.csv")
    with (tmp_path / "events.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert [row[header.index("name")] for row in rows] == run.events["name"].tolist()
    assert [float(row[header.index("end")]) for row in rows] == run.events["end"].tolist()


def test_pandas_is_optional(run, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(pw.UsageError, match=r"^to_pandas needs pandas: pip install pandas"):
        run.to_pandas()


def test_the_builder_of_perfetto_is_optional(run, tmp_path, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    with pytest.raises(
        pw.UsageError,
        match=re.escape(
            "to_perfetto needs the package perfetto: pip install 'pathways_nb[perfetto]', or use run.to_chrome(path), "
            "which Perfetto opens, too."
        ),
    ):
        run.to_perfetto(tmp_path / "a.pftrace")
    assert not (tmp_path / "a.pftrace").exists()


def test_the_archive_holds_no_pickle(run, tmp_path) -> None:
    run.save(tmp_path / "a.run")
    with zipfile.ZipFile(tmp_path / "a.run") as archive:
        for name in archive.namelist():
            assert b"|O" not in archive.read(name)[:128]


def test_how_long_nodes_are_declared_to_last_comes_back(controller, left, tmp_path) -> None:
    work, add = pw.work(1e-3, on=left, name="work"), pw.jit(lambda x: x + 1, on=left)
    run = pw.program(lambda x: add(work(x)), name="both").run(v)
    run.save(tmp_path / "a.run")
    (mine,), (again,) = run.programs, pw.load(tmp_path / "a.run").programs
    assert [node.seconds for node in again.graph.nodes] == [node.seconds for node in mine.graph.nodes]
    assert 1e-3 in [node.seconds for node in again.graph.nodes]


@pytest.mark.parametrize("lacks", ["links", "category", "host", "stream"])
def test_a_file_from_before_labels_knew_their_links_categories_hosts_or_streams_opens(run, tmp_path, lacks) -> None:
    run.save(tmp_path / "a.run")
    with np.load(tmp_path / "a.run") as archive:
        parts = dict(archive)
    meta = json.loads(parts["meta"].tobytes())
    meta["labels"] = [values[: COLUMNS.index(lacks) - 1] for values in meta["labels"]]
    parts["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with open(tmp_path / "a.run", "wb") as file:
        np.savez(file, **parts)
    again = pw.load(tmp_path / "a.run").events
    assert set(again["host"]) == {-1}
    absent = {} if lacks in ("host", "stream") else {"category": ""}
    assert all(set(again[name]) == {value} for name, value in absent.items())
    labels = [replace(label, **absent) for label in run.events.labels]
    equal(again, Events(labels, {name: run.events.stored(name) for name in STORED}, run.events["id"]))


# ---- files of version 1, and what is damaged in them


@pytest.mark.parametrize("path", damaged_runs.SAMPLES, ids=lambda path: path.stem)
def test_files_of_the_first_version_open_and_work(path, tmp_path) -> None:
    run = pw.load(path)
    assert [program.graph.name for program in run.programs][:2] == ["both", "<lambda>"]
    damaged_runs.use(run, run, tmp_path)


def test_what_many_calls_took_may_be_more_than_one_array_has(tmp_path) -> None:
    run = pw.load(rewritten(tmp_path / "a.run", put([600, 2**54], "about", "taken_as_placed")))
    assert (run.summary().taken, run.summary().taken_bytes) == (600, 2**54)
    assert "600 abstract arguments" in str(run.summary())


def test_a_run_that_could_not_be_loaded_is_not_saved(tmp_path, monkeypatch) -> None:
    run = pw.load(damaged_runs.SAMPLES[0])
    monkeypatch.setattr(saved_run, "MOST_EVENTS", 3)
    with pytest.raises(pw.UsageError, match=r"events and \d+ bytes of labels and graphs; pw.load reads up to 3 and"):
        run.save(tmp_path / "a.run")
    late = Row(Label("compute", "late", island=0, devices=1), 0.0, 1e300)
    monkeypatch.undo()
    run.record.add(late)
    with pytest.raises(
        pw.UsageError, match=r"end of event \d+ is 1e\+300 s, not a time within 1e\+12 s, which pw.load"
    ):
        run.save(tmp_path / "a.run")
    assert not (tmp_path / "a.run").exists()


@pytest.mark.parametrize("name", ["\ud800", 5, None], ids=ascii)
def test_a_name_that_is_no_text_is_not_saved(tmp_path, name) -> None:
    run = pw.load(damaged_runs.SAMPLES[0])
    run.name = name
    with pytest.raises(pw.UsageError, match=r"the run's name is .*, not text, which pw.load refuses"):
        run.save(tmp_path / "a.run")
    assert not (tmp_path / "a.run").exists()
