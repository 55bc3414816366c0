"""A run laid over its schedule, from made records: plan, order, delays and what is refused."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.parallel.schedules.actions import actions_of
from pathways_nb.parallel.schedules.run_over_schedule import RunOverSchedule
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.drawing import palette
from pathways_widgets.schedules.schedule_view import Schedules
from tests.support.recorded_pipelines import made_run, rows_of, run_of

TIMES = {"F": 1e-3, "I": 1e-3, "W": 1e-3, "transfer": 0.25e-3}
ONE_COPY = [name for name in pw.schedules() if name != "dualpipe"]


def schedule(name: str = "1f1b", devices: int = 2, microbatches: int = 4) -> Schedule:
    return pw.schedule(name, devices, microbatches)


def moved(rows: list[Row], **starts: float) -> list[Row]:
    """Rows with some actions at other starts, in ms, each as long as before."""
    at = {name[1:]: start * 1e-3 for name, start in starts.items()}
    return [one._replace(start=at[one.label.name], end=at[one.label.name] + one.end - one.start)
            if one.label.name in at else one for one in rows]  # fmt: skip


@pytest.mark.parametrize("name", ONE_COPY)
def test_a_run_that_kept_its_plan_is_its_plan(name: str) -> None:
    plan = schedule(name, 4, 8)
    found = RunOverSchedule.of(made_run(plan, **TIMES).events, plan)
    assert (found.first_in_other_order, found.first_late) == (None, None)
    timing = plan.timing(**TIMES)
    np.testing.assert_allclose(found.planned.start, timing.start, atol=1e-12)
    np.testing.assert_allclose(found.ran.makespan, timing.makespan)
    np.testing.assert_allclose(found.ran.bubble, timing.bubble)
    np.testing.assert_allclose(found.table["late"], 0, atol=1e-12)
    assert found.table["action"].tolist() == [str(a) for row in plan.rows for cell in row for a in actions_of(cell)]
    assert (found.table["position"] == found.table["ran_position"]).all()


def test_the_plan_has_the_runs_medians_by_stage_and_no_transfer_where_none_was_recorded() -> None:
    plan = schedule()
    timing = plan.timing(F=[1, 2], I=[0, 0], W=[3, 5])
    rows = rows_of(timing, quality="exact")
    slow = [one._replace(end=one.end + 0.5) if one.label.name == "1F3" else one for one in rows]
    found = RunOverSchedule.of(run_of(slow).events, plan)
    assert found.planned.makespan == timing.makespan, "one microbatch that took longer is no median"
    assert found.times == {"F": 1.5, "I": 2.0, "W": 2.0, "transfer": 0.0}
    assert "planned with medians of the run: F 1.5 s, B 4 s, transfer 0" in found.pictures()[0].words


def test_both_kinds_of_backward_pass_in_one_schedule_have_their_own_medians() -> None:
    plan = Schedule.parse("0F0 0F1 0B0 0I1 0W1")
    found = RunOverSchedule.of(made_run(plan, F=1, I=1, W=2).events, plan)
    assert found.planned.makespan == 8
    shorter = [one._replace(end=one.end - 0.5) if one.label.name == "0B0" else one
               for one in rows_of(plan.timing(F=1, I=1, W=2))]  # fmt: skip
    assert RunOverSchedule.of(run_of(shorter).events, plan).planned.makespan == 7.5


def test_the_first_action_in_another_order_is_named_with_what_was_planned() -> None:
    plan, other = Schedule.parse("0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"), schedule(microbatches=3)
    comparison = pw.compare(made_run(other, **TIMES), plan)
    first = comparison.first_in_other_order
    assert (str(first.action), first.device, first.words) == ("0B0", 0, "as number 3, planned was 0F2")
    table = comparison.table
    at = dict(zip(table["action"].tolist(), table["ran_position"].tolist(), strict=True))
    assert (at["0B0"], at["0F2"]) == (2, 3)


def test_actions_that_begin_together_are_as_planned() -> None:
    plan = Schedule.parse("0F0 0F1 0B1 0B0")
    rows = [one._replace(start=0.0, end=0.0) for one in rows_of(plan.timing())]
    assert pw.compare(run_of(rows, 1), plan).first_in_other_order is None


def test_the_first_late_action_is_named_with_what_both_waited_for() -> None:
    plan = schedule()
    rows = moved(rows_of(plan.timing(**TIMES)), _0B3=30.0, _0F2=4.6)
    comparison = pw.compare(run_of(rows), plan)
    assert comparison.overlay.tolerance == pytest.approx(0.15e-3)
    first = comparison.first_late
    assert str(first.action) == "0B3"
    assert first.device == 0
    assert "; after 1B3 in both, then " in first.words
    assert first.words.endswith("until its launch)")
    (row,) = np.flatnonzero(comparison.table["action"] == "0B3")
    assert comparison.table["run_pause"][row] == pytest.approx(comparison.table["late"][row])


def test_a_transfer_that_took_longer_is_a_cause() -> None:
    plan = schedule()
    edges, cells = plan.dependencies, plan.tasks.cells
    sent = np.where(edges.stage >= 0, 0.25e-3, 0.0)
    sent[[str(cells[source]) == "0F0" for source in edges.source.tolist()] & (edges.stage >= 0)] = 5e-3
    comparison = pw.compare(run_of(rows_of(plan.timing_of(np.full((3, len(cells)), 1e-3), sent))), plan)
    assert str(comparison.first_late.action) == "1F0"
    assert comparison.first_late.words.endswith("after 0F0 in both, whose transfer took longer)")


def test_an_action_that_lasted_longer_is_a_cause() -> None:
    plan = schedule("gpipe")
    parts = np.zeros((3, len(plan.tasks.cells)))
    parts[0] = 1e-3
    parts[0, 1] = 3e-3
    rows = rows_of(plan.timing_of(parts, np.zeros(len(plan.dependencies.source))))
    first = pw.compare(run_of(rows), plan).first_late
    assert str(first.action) == "0F2"
    assert first.words == "by 2 ms (at 4 ms, planned 2 ms; after 0F1 in both, which ended 2 ms later than planned)"


@pytest.mark.parametrize(("quality", "start"), [("estimated", 1.25e-3), ("exact", 1e-4)])
def test_a_start_that_was_inferred_is_moved_to_the_arrival_of_what_was_needed(quality: str, start: float) -> None:
    plan = schedule()
    rows = [one._replace(start=1e-4) if one.label.name == "1F0" else one
            for one in rows_of(plan.timing(**TIMES), quality=quality)]  # fmt: skip
    table = pw.compare(run_of(rows), plan).table
    (row,) = np.flatnonzero(table["action"] == "1F0")
    assert table["run_start"][row] == pytest.approx(start)
    assert table["run_end"][row] == pytest.approx(2.25e-3)


def test_the_last_whole_call_is_taken_or_the_one_asked_for(tmp_path) -> None:
    plan = schedule()
    slow, quick = plan.timing(F=2, I=1, W=1), plan.timing(F=1, I=1, W=1)
    half = [one for one in rows_of(quick, 100, 3) if one.label.name != "1B3"]
    failed = [one._replace(status="failed") if one.label.name == "1B3" else one for one in rows_of(quick, 200, 4)]
    run = run_of([*rows_of(slow, 0, 1), *rows_of(quick, 50, 2), *half, *failed])
    run.save(tmp_path / "a.run")
    for one in (run, pw.load(tmp_path / "a.run")):
        assert pw.compare(one, plan).overlay.ran.makespan == quick.makespan
        assert pw.compare(plan, one, call=0).overlay.ran.makespan == slow.makespan
        assert pw.compare(one, plan, call=-2).overlay.number == "call 1 of 2"
    with pytest.raises(pw.UsageError) as refused:
        pw.compare(run, plan, call=2)
    assert str(refused.value) == (
        "compare: call=2, but run 'made' has 2 calls of schedule '1f1b'. Take a number from 0 to 1, or none for the "
        "last."
    )


def test_two_passes_in_one_program_call_are_two_calls() -> None:
    plan = schedule()
    timing = plan.timing(**TIMES)
    rows = rows_of(timing)
    again = [one._replace(label=replace(one.label, node=one.label.node + 100, parents=()), start=one.start + 1,
                          end=one.end + 1) for one in rows if one.label.kind == "compute"]  # fmt: skip
    run = run_of([*rows, *again])
    assert pw.compare(run, plan).overlay.call.sent == {}
    assert len(pw.compare(run, plan, call=0).overlay.call.sent) > 0


def test_runs_of_another_size_and_without_actions_are_refused() -> None:
    run = made_run(schedule(), **TIMES)
    with pytest.raises(pw.UsageError) as refused:
        pw.compare(run, schedule(microbatches=6))
    assert str(refused.value) == (
        "compare: schedule '1f1b' has 2 stages, 6 microbatches and operations F, B, but the last call of a pipeline in "
        "run 'made' has 2 stages, 4 microbatches and operations F, B: beside the schedule it lacks 0F4, 0F5, 0B4, 0B5, "
        "4 more. Take the schedule that the pipeline ran, pipe.schedule."
    )
    with pytest.raises(pw.UsageError, match=r"operations F, I, W, but .* it lacks 0I0, .* and has 0B0"):
        pw.compare(run, schedule("zb-h1"))
    with pytest.raises(pw.UsageError, match="2 stages, 4 microbatches, 4 token slices and operations F, B, but"):
        pw.compare(run, schedule("terapipe"))
    other = Events.from_rows([Row(Label("compute", "0F0", "p"), 0, 1), Row(Label("compute", "f", "p", stage=0), 0, 1)])
    empty = pw.Run("plain", (1,))
    for one in (empty, run_of([Row(label, 0, 1) for label in other.labels])):
        with pytest.raises(
            pw.UsageError, match=r"has no actions of a pipeline: none of its \d events is named like 0F0"
        ):
            pw.compare(one, schedule())


def test_a_call_of_two_runs_or_schedules_is_refused() -> None:
    plan = schedule()
    with pytest.raises(pw.UsageError, match=r"^compare: call=1 chooses a call of a run beside its schedule; these are"):
        pw.compare(plan, plan, call=1)


# ---- shown, written, said


def late_run() -> pw.Run:
    """One in another order, one late; simulated."""
    rows = moved(rows_of(schedule().timing(**TIMES), quality="simulated"), _0B3=30.0)
    return run_of(moved(rows, _0F1=0.0, _0F0=1.0))


def test_the_summary_says_what_each_is_and_what_came_otherwise(capsys) -> None:
    comparison = pw.compare(late_run(), schedule())
    said = repr(comparison)
    assert said.startswith("<comparison: 1f1b as planned 16 ms · made (simulated, roofline) 32 ms (2.00 times as long)")
    assert "first in another order: 0F1 on device 0 as number 1, planned was 0F0" in said
    assert "first later than planned by more than 150 µs: 0F0 on device 0 by 1 ms (at 1 ms, planned 0 µs; " in said
    comparison.show()
    above, below = capsys.readouterr().out.splitlines()
    assert above.startswith("1f1b as planned, 2 devices × 4 microbatches, in ms: makespan 16 ms · bubble ")
    assert "planned with medians of the run: F 1 ms, B 2 ms, transfer 250 µs" in above
    assert below.startswith("made (simulated, roofline), in ms: makespan 32 ms")
    kept = repr(pw.compare(schedule(), made_run(schedule(), **TIMES)))
    assert kept.endswith("every device kept its order · nothing began more than 150 µs later than planned>")
    assert "made (real, estimated) 16 ms (1.00 times as long)" in kept


def test_both_marks_are_outlines_in_both_pictures_and_in_the_legend() -> None:
    pictures = pw.compare(late_run(), schedule()).overlay.pictures()
    view = Schedules(2)
    view.update(pictures)
    boxes = view.sources["schedules_boxes"]
    for kind, microbatch in (("order", 1), ("late", 0)):
        outlined = view.sources[f"schedules_first_{kind}"]
        rows = [int(np.flatnonzero((boxes["left"] == left) & (boxes["top"] == top))[0])
                for left, top in zip(outlined["left"], outlined["top"], strict=True)]  # fmt: skip
        assert [(int(boxes["microbatch"][row]), int(boxes["operation"][row])) for row in rows] == [(microbatch, 0)] * 2
        assert view.properties[f"schedules_key_{kind}"] == {"visible": True}
    alone = Schedules(1)
    alone.update(pw.compare(made_run(schedule(), **TIMES), schedule()).overlay.pictures()[:1])
    assert not any(alone.properties[f"schedules_key_{kind}"]["visible"] for kind in ("order", "late"))


def test_the_still_picture_and_the_table(tmp_path) -> None:
    comparison = pw.compare(late_run(), schedule())
    comparison.savefig(tmp_path / "a.svg", cap=1)
    svg = (tmp_path / "a.svg").read_text()
    words = ("first in another order", "first later than planned", "exceeds the cap of 1", "made (simulated, roofline)")
    assert all(one in svg for one in (*words, palette.OTHER_ORDER, palette.LATE))
    comparison.to_csv(tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert len(rows) == 16
    assert list(rows[0]) == [
        *("device", "position", "ran_position", "action", "planned_start", "planned_end", "run_start", "run_end"),
        *("late", "planned_after", "run_after", "run_pause"),
    ]
    by_name = {row["action"]: row for row in rows}
    assert (by_name["0F1"]["planned_after"], by_name["0F1"]["run_after"]) == ("0F0", "")
    assert by_name["1F0"]["planned_after"] == "0F0"
    with pytest.raises(pw.UsageError, match="^cap=-1 is no number of microbatches"):
        comparison.show(cap=-1)


# ---- in the explorer


def test_the_explorer_draws_a_run_below_its_schedule_until_another_is_chosen() -> None:
    explorer = pw.explore_schedules("1f1b", "gpipe", devices=2, microbatches=4)
    explorer.overlay(late_run())
    above, below = explorer.pictures
    assert below.heading == "made (simulated, roofline), in ms"
    assert (explorer.F, explorer.I, explorer.W, explorer.transfer) == pytest.approx((1, 1, 1, 0.25))
    assert above.makespan == pytest.approx(16)
    assert set(below.marks) == {"order", "late"}
    explorer.step = explorer.steps
    assert explorer.why.startswith("Step 32 of 32. made, device 0: 0B3 from 30 to 32: waited for 1B3 on device 1")
    explorer.transfer, explorer.cap = 0, -1
    assert "cap=-1.0 is no number" in explorer.pictures[1].words
    explorer.cap = None
    assert explorer.pictures[1].makespan == pytest.approx(32)
    explorer.second_name = "zb-h1"
    assert explorer.pictures[1].name == "zb-h1"


def test_the_explorer_refuses_what_is_no_run_of_the_schedule_above() -> None:
    explorer = pw.explore_schedules("1f1b", devices=2)
    with pytest.raises(pw.UsageError, match=r"^overlay takes a run, of pw.record, .*; this is an int"):
        explorer.overlay(3)
    with pytest.raises(pw.UsageError, match="2 stages, 8 microbatches"):
        explorer.overlay(late_run())
    assert explorer.laid is None
