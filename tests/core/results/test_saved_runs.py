"""Saved runs without devices: damaged and foreign files are refused."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.results import saved_run
from pathways_nb.trace.record import LABEL_COLUMNS, STORED, UNKNOWN
from tests.core.results import damaged_runs
from tests.support.examples import examples


def rewritten(path: Path, change) -> Path:
    """A sample with its description changed."""
    parts = damaged_runs.parts_of(damaged_runs.SAMPLES[0])
    meta = json.loads(parts["meta"].tobytes())
    change(meta)
    damaged_runs.write(path, parts | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
    return path


def put(value, *keys):
    """A change of the description: ``value`` at the end of ``keys``."""

    def change(meta) -> None:
        for key in keys[:-1]:
            meta = meta[key]
        meta[keys[-1]] = value

    return change


def test_a_file_that_has_lost_columns_is_not_read_as_an_older_one(tmp_path) -> None:
    pw.load(damaged_runs.SAMPLES[0]).save(tmp_path / "whole.run")
    parts = damaged_runs.parts_of(tmp_path / "whole.run")
    damaged_runs.write(tmp_path / "a.run", {name: part for name, part in parts.items() if name not in UNKNOWN})
    with pytest.raises(pw.UsageError, match=r"or it is damaged: there is no column 'why'"):
        pw.load(tmp_path / "a.run")
    rewritten(tmp_path / "old.run", lambda meta: meta.pop("columns", None))
    assert not pw.load(tmp_path / "old.run").events["why"].any(), "a file from before has no causes"


def test_a_run_saved_without_layouts_has_none(tmp_path) -> None:
    assert not any(program.layouts for program in pw.load(damaged_runs.SAMPLES[0]).programs)
    found = pw.load(rewritten(tmp_path / "a.run", put([[0, 1, "float32[8] as P('x')"]], "programs", 0, "layouts")))
    assert found.programs[0].layouts == {(0, 1): "float32[8] as P('x')"}


def test_what_is_no_path_or_no_archive_is_refused_without_bad_advice(tmp_path) -> None:
    (tmp_path / "a.svg").write_text("<svg></svg>")
    with pytest.raises(
        pw.UsageError, match=r"or it is damaged: it is no archive of columns \(File is not a zip file\)\.$"
    ):
        pw.load(tmp_path / "a.svg")
    with pytest.raises(pw.UsageError, match=r"load\(None\): a NoneType is no path"):
        pw.load(None)  # type: ignore[arg-type]


def test_a_file_that_is_not_there_is_not_there(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        pw.load(tmp_path / "nothing.run")


def test_damaged_files_are_refused_in_our_words_or_work(tmp_path) -> None:
    """``python -m tests.core.results.damaged_runs --count 2500`` tries more."""
    count = examples(300).max_examples
    found = damaged_runs.run(count, 20, tmp_path)  # seeds of which some few files still work
    assert not found.failed
    assert found.worked > count / 15
    assert found.refused.total() > count / 1.5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put([], "programs", 0, "nodes", 1, "outputs"), "programs[0].nodes[2] reads the value 1, which no node before"),
        (put([9], "programs", 0, "nodes", 1, "inputs"), "programs[0].nodes[1].inputs[0] is 9, not a whole number from 0"),
        (put([0], "programs", 0, "nodes", 2, "outputs"), "programs[0].nodes[2] makes the value 0, which another node mak"),
        (put([1, 1], "programs", 0, "nodes", 1, "outputs"), "programs[0].nodes[1] makes one value twice: (1, 1)"),
        (put(3, "programs", 0, "nodes", 2, "id"), "programs[0].nodes[2].id is 3, not its position 2"),
        (put(7, "programs", 0, "nodes", 1, "place"), "programs[0].nodes[1].place is 7, a place that the file does not"),
        (put(None, "programs", 0, "nodes", 1, "place"), "programs[0].nodes[1] is of kind 'computation' and has no place"),
        (put("node", "programs", 0, "nodes", 1, "kind"), "nodes[1].kind is 'node', not one of 'argument', 'computation'"),
        (put(1, "programs", 0, "values", 0, "id"), "programs[0].values[0].id is 1, not its position 0"),
        (put([[0, 99, "DCN"]], "programs", 0, "routes"), "programs[0].routes[0][1] is 99, not a whole number from 0 to 6"),
        (put([[9, 0, "P()"]], "programs", 0, "layouts"), "programs[0].layouts[0][0] is 9, not a whole number from 0 to 6"),
        (put([[0, 1, 5]], "programs", 0, "layouts"), "programs[0].layouts[0][2] is 5, not text"),
        (put([0], "programs", 0, "places", "0", 0), "programs[0].places.0[0][0] is 0, not a whole number from 1"),
        (put(["x", "y"], "programs", 0, "places", "0", 1), "places.0 has the shape (2,) and the axes ('x', 'y'), not a na"),
        (put(None, "about", "options"), "about.options is None, not an object"),
        (put(5, "about", "options", "chip"), "about.options.chip is 5, not text"),
        (put([1], "about", "hbm"), "about.hbm is [1], not a list of 2 values"),
        (put([1], "about", "taken_as_placed"), "about.taken_as_placed is [1], not a list of 2 values"),
        (put(["x", 1], "about", "taken_as_placed"), "about.taken_as_placed[0] is 'x', not a whole number from 0 to"),
        (put([1, -1], "about", "taken_as_placed"), "about.taken_as_placed[1] is -1, not a whole number from 0 to"),
        (put([2, 99999999], "islands"), "islands[1] is 99999999, not a whole number from 1 to 1048576"),
        (put([1048576, 1], "islands"), "islands are 2 of 1048577 devices, not up to 1048576"),
        (put(5, "labels", 11, LABEL_COLUMNS.index("island")), "labels[11], of kind 'transfer', is on island 5 of 2"),
        (put(2, "labels", 12, LABEL_COLUMNS.index("device")), "is on devices 2 to 3 of island 0, which has 2"),
        (put("\ud800", "labels", 0, 1), "labels[0].name is '\\ud800', not text"),
        (put(2**40, "labels", 0, LABEL_COLUMNS.index("node")), "labels[0].node is 1099511627776, not a whole number"),
        (put(True, "labels", 0, LABEL_COLUMNS.index("bytes")), "labels[0].bytes is True, not a whole number from 0 to"),
        (put("one", "version"), "version is 'one', not a whole number from 1 to"),
        (put(10**400, "programs", 0, "runs"), "programs[0].runs is a number of about 400 digits, not a whole number"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_description_is_named(tmp_path, change, reason) -> None:
    path = rewritten(tmp_path / "a.run", change)
    with pytest.raises(pw.UsageError, match=re.escape(reason)) as error:
        pw.load(path)
    assert str(error.value).startswith(f"load({str(path)!r}): this is not a run saved by run.save(path), or it is dam")


@pytest.mark.parametrize(
    ("inserted", "reason"),
    [
        ("[" * 100_000, "it is damaged: brackets are nested more deeply than Python can read."),
        ("[" + "9" * 5000 + "]", "it is damaged: a number has more digits than Python reads (4300)."),
    ],
)
def test_descriptions_that_python_cannot_read_are_refused(tmp_path, inserted, reason) -> None:
    parts = damaged_runs.parts_of(damaged_runs.SAMPLES[0])
    damaged_runs.write(tmp_path / "a.run", parts | {"meta": np.frombuffer(inserted.encode(), np.uint8)})
    with pytest.raises(pw.UsageError, match=re.escape(reason)):
        pw.load(tmp_path / "a.run")


def spied(monkeypatch) -> list[str]:
    """The names of what is unpacked from now on."""
    unpacked: list[str] = []
    whole = zipfile.ZipFile.read

    def read(self, name, *rest):
        unpacked.append(name.filename)
        return whole(self, name, *rest)

    monkeypatch.setattr(zipfile.ZipFile, "read", read)
    return unpacked


def test_only_what_a_run_consists_of_is_unpacked(tmp_path, monkeypatch) -> None:
    """An array that nobody asked for may be as large as it likes."""
    path = tmp_path / "a.run"
    path.write_bytes(damaged_runs.SAMPLES[0].read_bytes())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("extra.npy", bytes(1 << 20))
    unpacked = spied(monkeypatch)
    assert len(pw.load(path).events)
    assert sorted(unpacked) == sorted(
        f"{name}.npy" for name in ("meta", *STORED) if name not in UNKNOWN
    )  # an older file


@pytest.mark.parametrize(
    ("bound", "most", "reason"),
    [
        ("MOST_TEXT", 100, r"it declares 8991 bytes of labels and graphs; at most 100 are read\.$"),
        ("MOST_EVENTS", 3, r"it declares \d+ events; at most 3 are read\.$"),
    ],
)
def test_what_is_larger_than_a_run_is_refused_before_it_is_unpacked(monkeypatch, bound, most, reason) -> None:
    monkeypatch.setattr(saved_run, bound, most)
    unpacked = spied(monkeypatch)
    with pytest.raises(pw.UsageError, match=reason):
        pw.load(damaged_runs.SAMPLES[0])
    assert unpacked == ["meta.npy"] * (bound == "MOST_EVENTS")


def test_columns_whose_declared_sizes_contradict_each_other_are_refused(tmp_path) -> None:
    """A header that promises more than the archive's directory."""
    path = tmp_path / "a.run"
    with zipfile.ZipFile(damaged_runs.SAMPLES[0]) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, data.replace(b"(63,)", b"(9999999,)") if "start" in info.filename else data)
    with pytest.raises(pw.UsageError, match="column 'start' "):
        pw.load(path)
