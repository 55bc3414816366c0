"""Two runs on one axis: the same program matches event for event, a difference is where it was made."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

import pathways_nb as pw

v = np.arange(8, dtype=np.float32)


@pytest.fixture
def runs(a, b) -> tuple[pw.Run, pw.Run]:
    """One program under both ways of dispatch."""
    both = pw.program(lambda v: b(a(b(a(v)))), name="both")
    found = []
    for dispatch in ("parallel", "sequential"):
        with pw.attach("cpu", islands=2, devices_per_island=4, dispatch=dispatch), pw.record(dispatch) as run:
            both(v).result()
        found.append(run)
    return found[0], found[1]


def test_the_same_program_matches_event_for_event(runs) -> None:
    comparison = pw.compare(*runs)
    computed = [len(run.events.of_kind("compute", "transfer")) for run in runs]
    assert len(comparison.difference) == computed[0] == computed[1]
    assert (comparison.difference.only_a, comparison.difference.only_b) == (0, 0)
    assert set(comparison.table["name"]) >= {"double", "increment"}
    np.testing.assert_allclose(
        comparison.table["longer"].sum(),
        sum((r.events.of_kind("compute", "transfer")["end"] - r.events.of_kind("compute", "transfer")["start"]).sum() * s
            for r, s in zip(runs, (-1, 1), strict=True)), atol=1e-9,
    )  # fmt: skip


def test_both_controllers_stay_in_the_picture(runs) -> None:
    events = pw.compare(*runs).events
    for controller, islands, run in ((-1, (0, 1), runs[0]), (-3, (2, 3), runs[1])):
        enqueued = events.of_kind("enqueue")["island"].tolist()
        assert sum(map(enqueued.count, islands)) == len(run.events.of_kind("enqueue"))
        assert events.of_kind("wait", "fetch")["island"].tolist().count(controller), "Python waited for the result"


def test_a_comparison_is_shown_kept_and_said(runs, tmp_path, capsys) -> None:
    comparison = pw.compare(*runs)
    comparison.to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header[:3] == ["kind", "program", "name"]
    assert len(rows) == len(comparison.difference)
    comparison.savefig(tmp_path / "a.svg")
    svg = (tmp_path / "a.svg").read_text()
    assert "parallel (real) 0 · dev 3" in svg
    assert re.search("(parallel|sequential) (is .* times as fast as|and .* take the same time)", svg), "the verdict"
    assert all(f"{name} (real) · controller<" in svg for name in ("parallel", "sequential"))
    (size,) = {float(found) for found in re.findall(r'font-size="([\d.]+)"[^>]*>sequential \(real\) 1 · dev 3<', svg)}
    assert 7 < size < 11, "a name that is too long for its line is set in smaller type"
    comparison.show()
    text = capsys.readouterr().out
    assert text.startswith("parallel (real) above, sequential (real) below: parallel (real, cpu devices) ")
    assert "events matched, 0 and 0 without partner" in text


def test_runs_of_one_name_are_told_apart(runs) -> None:
    assert pw.compare(runs[0], runs[0]).island_names[0] == "parallel (a, real) 0"
    assert pw.compare(runs[0], runs[0]).table["longer"].tolist() == [0.0] * len(pw.compare(runs[0], runs[0]).difference)


def test_loaded_runs_compare_with_those_recorded_here(runs, tmp_path) -> None:
    runs[0].save(tmp_path / "a.run")
    assert pw.compare(pw.load(tmp_path / "a.run"), runs[0]).difference.only_a == 0


def test_what_is_no_run_is_refused(runs) -> None:
    with pytest.raises(pw.UsageError, match=r"^compare: the second argument is an int, not a run"):
        pw.compare(runs[0], 3)


def test_views_that_two_runs_do_not_share_are_refused(runs, tmp_path) -> None:
    comparison = pw.compare(*runs)
    refused = (
        r"^show='graph': two runs have no common view 'graph'; choose from timeline, ops, memory, categories or none$"
    )
    with pytest.raises(ValueError, match=refused):
        comparison.show("graph")
    with pytest.raises(ValueError, match=refused):
        comparison.savefig(tmp_path / "both.svg", show=["graph"])
    for one in (comparison, runs[0]):
        with pytest.raises(ValueError, match=r"^show=\(3,\): write names of views: "):
            one.show(3)


def test_what_is_simulated_says_so_in_the_picture_and_in_the_table(tmp_path) -> None:
    place = pw.virtual_slice(2, island=0)
    step = pw.program(pw.work(1e-3, on=place, name="step"), name="step")
    with pw.attach("cpu", islands=1, devices_per_island=2):
        real = step.run(v)
    with pw.attach("sim:tpu_v3:1x2"):
        simulated = step.run(v)
    for again in (simulated, _reloaded(simulated, tmp_path)):
        comparison = pw.compare(real, again)
        assert comparison.island_names == ("step (real) 0", "step (simulated) 0")
        assert comparison.name == "step (real) above, step (simulated) below"
        assert re.match(
            r"step \(real, cpu devices\) .* · step \(simulated, tpu_v3 devices\) ", comparison.summary_line()
        )
        assert set(comparison.table["origin_a"]) <= {"real, estimated", "real, interpolated", "real, exact"}
        of_step = comparison.table["name"] == "step"
        assert comparison.table["origin_b"][of_step].tolist() == ["simulated, declared"]
        comparison.savefig(tmp_path / "a.svg")
        svg = (tmp_path / "a.svg").read_text()
        assert all(words in svg for words in ("step (real) 0", "step (simulated) 0", "simulated, tpu_v3 devices"))
        comparison.to_csv(tmp_path / "a.csv")
        assert (tmp_path / "a.csv").read_text().splitlines()[0].endswith(",origin_a,origin_b")


def _reloaded(run: pw.Run, tmp_path) -> pw.Run:
    run.save(tmp_path / "a.run")
    return pw.load(tmp_path / "a.run")


def test_this_machine_as_calibrated_is_named(runs) -> None:
    twin = runs[1]
    twin.about["options"] |= {"kind": "sim", "chip": "here"}
    assert "sequential (simulated, this machine as calibrated)" in pw.compare(runs[0], twin).summary_line()
