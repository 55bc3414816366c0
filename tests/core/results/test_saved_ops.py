"""Ops inside launches in saved runs: kept, absent from older files, and refused where they are damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.results import saved_ops
from pathways_nb.trace.launch_ops import Op, Ops
from tests.core.results import damaged_runs

OPS = [Op("all-gather.1", "jit(f)/g/all_gather", "collective", "f", "step", 1, 4, 0, 1, 0.5, 0.75),
       Op("fusion", "", "compute", "f", "step", 1, 4, 1, 0, 0.75, 1.0)]  # fmt: skip


def saved(path: Path) -> Path:
    """A file with two ops on islands of two devices."""
    run = pw.Run("a", (2, 2))
    run.ops = Ops.from_rows(OPS)
    run.save(path)
    return path


def test_they_come_back_as_they_were(tmp_path) -> None:
    assert list(pw.load(saved(tmp_path / "a.run")).ops) == OPS


@pytest.mark.parametrize("sample", damaged_runs.SAMPLES, ids=lambda path: path.stem)
def test_a_file_of_an_older_version_has_none(sample) -> None:
    assert len(pw.load(sample).ops) == 0


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("op_label", 2, "column 'op_label' has 2 at 1, which is out of range"),
        ("op_island", 2, "column 'op_island' has 2 at 1, which is out of range"),
        ("op_device", -1, "column 'op_device' has -1 at 1, which is out of range"),
        ("op_run", -2, "column 'op_run' has -2 at 1, which is out of range"),
        ("op_end", np.nan, "end of event 1 is nan s, not a time within"),
    ],
)
def test_numbers_out_of_range_are_named(tmp_path, name, value, reason) -> None:
    parts = damaged_runs.parts_of(saved(tmp_path / "a.run"))
    parts[name][1] = value
    damaged_runs.write(tmp_path / "a.run", parts)
    with pytest.raises(pw.UsageError, match=re.escape(reason)):
        pw.load(tmp_path / "a.run")


def test_labels_and_missing_columns_are_named(tmp_path) -> None:
    parts = damaged_runs.parts_of(saved(tmp_path / "a.run"))
    meta = json.loads(parts["meta"].tobytes())
    meta["ops"][0][2] = "fusion"
    text = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    damaged_runs.write(tmp_path / "b.run", parts | {"meta": text})
    with pytest.raises(pw.UsageError, match=r"ops\[0\]\[2\] is 'fusion', not one of 'compute', 'collective', 'copy'"):
        pw.load(tmp_path / "b.run")
    del parts["op_start"]
    damaged_runs.write(tmp_path / "c.run", parts)
    with pytest.raises(pw.UsageError, match="there is no column 'op_start'"):
        pw.load(tmp_path / "c.run")


def test_more_than_can_be_read_is_not_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(saved_ops, "MOST_EVENTS", 1)
    with pytest.raises(pw.UsageError, match="it has 2 ops, more than 1, which pw.load would refuse"):
        saved(tmp_path / "a.run")
