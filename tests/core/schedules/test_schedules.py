"""Schedules as data: notation, checker, timing and memory, against a plain simulation of random schedules."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.__main__ import main
from pathways_nb.parallel.schedules import export, registry
from pathways_nb.parallel.schedules.actions import Action, Cell, Overlap, actions_of
from pathways_nb.parallel.schedules.schedule import Schedule
from tests.support.examples import examples

ONE = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"
OTHERS = json.loads((Path(__file__).parent / "schedules_of_others.json").read_text())
"""Schedules of other implementations: what each device (``ranks``) does, and what came of it there (``sim``)."""

# A second implementation, as plain as can be: what each action needs, and devices that do one thing after the other.


def needs(action: Action, stages: int, slices: int) -> Iterator[tuple[tuple[str, Action], bool]]:
    """What an action needs, (part, action), and whether it comes from another stage."""
    stage, part = action.stage, action.token_slice or 0
    if action.operation == "F":
        if stage:
            yield ("F", action._replace(stage=stage - 1)), True
        if part:
            yield ("F", action._replace(token_slice=part - 1)), False
    if action.operation in "IB":
        yield ("F", action._replace(operation="F")), False
        if stage + 1 < stages:
            yield ("I", action._replace(operation="F", stage=stage + 1)), True
        if part + 1 < slices:
            yield ("I", action._replace(operation="F", token_slice=part + 1)), False
    if action.operation == "W":
        yield ("I", action._replace(operation="F")), False


def plainly(schedule: Schedule, last: dict[str, np.ndarray], sent: float = 0.0) -> list[list[float]] | None:
    """When each cell starts, device by device; None if some device waits for ever."""
    stages, slices = last["F"].shape
    owner = {a.stage: d for d, row in enumerate(schedule.rows) for cell in row for a in actions_of(cell)}
    free, done = [0.0] * len(schedule.rows), dict[tuple[str, Action], float]()
    starts: list[list[float]] = [[] for _ in schedule.rows]
    moved = True
    while moved:
        moved = False
        for device, row in enumerate(schedule.rows):
            if len(starts[device]) == len(row):
                continue
            cell = row[len(starts[device])]
            wanted = [(need, far, a) for a in actions_of(cell) for need, far in needs(a, stages, slices)]
            if any(need not in done for need, _, _ in wanted):
                continue
            far = [sent if over and owner[need[1].stage] != owner[a.stage] else 0.0 for need, over, a in wanted]
            ready = [done[need] + seconds for (need, _, _), seconds in zip(wanted, far, strict=True)]
            starts[device].append(max([free[device], *ready]))
            free[device] = starts[device][-1] + sum(lasts(a, last) for a in actions_of(cell))
            for action in actions_of(cell):
                for part in {"B": "IW"}.get(action.operation, action.operation):
                    done[part, action._replace(operation="F")] = free[device]
            moved = True
    return starts if all(len(s) == len(row) for s, row in zip(starts, schedule.rows, strict=True)) else None


def lasts(action: Action, last: dict[str, np.ndarray]) -> float:
    at = action.stage, action.token_slice or 0
    return float(sum(last[part][at] for part in {"B": "IW"}.get(action.operation, action.operation)))


def random_rows(seed: int) -> tuple[list[list[Cell]], int, int]:
    """A sound schedule: whatever can be done next is done next, at random, on stages placed at random."""
    rng = random.Random(seed)
    devices, microbatches, slices = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 3)
    stages = devices * rng.randint(1, 2)
    placed = [*range(devices), *(rng.randrange(devices) for _ in range(stages - devices))]
    rng.shuffle(placed)
    split = rng.random() < 0.5
    todo = [
        Action(stage, operation, microbatch, part)
        for stage in range(stages) for microbatch in range(microbatches) for part in range(slices)
        for operation in ("FIW" if split else "FB")
    ]  # fmt: skip
    rows: list[list[Cell]] = [[] for _ in range(devices)]
    done: set[tuple[str, Action]] = set()
    while todo:
        able = [a for a in todo if all(need in done for need, _ in needs(a, stages, slices))]
        action = rng.choice(able)
        other = next((a for a in able if {a.operation, action.operation} == set("FB")
                      and placed[a.stage] == placed[action.stage]), None)  # fmt: skip
        pair = sorted((action, other), key=lambda a: a.operation == "B") if other and rng.random() < 0.3 else []
        rows[placed[action.stage]].append(Overlap(*pair) if pair else action)
        for one in pair or [action]:
            todo.remove(one)
            done |= {(part, one._replace(operation="F")) for part in {"B": "IW"}.get(one.operation, one.operation)}
    return rows, stages, slices


def made(rows: list[list[Cell]]) -> Schedule:
    return Schedule(tuple(map(tuple, rows)))


def times(seed: int, stages: int, slices: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 5, (stages, slices)).astype(float) for name in "FIW"}


@examples(150)
@given(seed=st.integers(0, 10**6), sent=st.sampled_from([0.0, 0.5, 3.0]))
def test_times_memory_and_idle_time_are_those_of_a_plain_simulation(seed: int, sent: float) -> None:
    rows, stages, slices = random_rows(seed)
    schedule, last = made(rows), times(seed, stages, slices)
    schedule.check()
    timing = schedule.timing(**last, transfer=sent * slices)
    starts = plainly(schedule, last, sent)
    assert starts is not None
    np.testing.assert_allclose(timing.start, np.concatenate(starts))
    np.testing.assert_allclose(timing.idle.total, timing.makespan - timing.busy)
    assert all((part >= 0).all() for part in timing.idle)
    path = timing.critical_path
    assert path[0].start == 0
    assert path[-1].end == timing.makespan
    for before, after in zip(path, path[1:], strict=False):
        assert before.end + after.transfer == after.start
    for device in range(len(rows)):
        curve = timing.memory(device)
        assert max(curve[1]) <= timing.peaks[device] + 1e-9  # boxes of no length are no level on the curve
        assert curve[1][-1] == pytest.approx(0)


@examples(150)
@given(seed=st.integers(0, 10**6))
def test_a_schedule_is_refused_just_if_a_plain_simulation_of_it_gets_stuck(seed: int) -> None:
    rows, stages, slices = random_rows(seed)
    rng = random.Random(seed)
    row = rng.choice(rows)
    first, second = rng.randrange(len(row)), rng.randrange(len(row))
    row[first], row[second] = row[second], row[first]
    schedule = made(rows)
    if plainly(schedule, times(seed, stages, slices)) is None:
        with pytest.raises(pw.ScheduleError):
            schedule.check()
    else:
        schedule.check()


@pytest.mark.parametrize("reference", OTHERS, ids=lambda reference: reference["name"])
def test_schedules_of_other_implementations_have_their_times_and_peaks(reference: dict[str, Any]) -> None:
    schedule = Schedule.parse("\n".join(reference["ranks"]))
    schedule.check()
    ours, theirs = export.document(schedule.name, schedule.timing()), reference["sim"]
    for name in ("p", "microbatches", "n_stages", "stage_to_rank", "chunks_per_rank", "seq_slices"):
        assert ours[name] == reference[name]
    assert [" ".join(row) for row in ours["ranks"]] == reference["ranks"]
    for name in set(theirs) & set(ours["sim"]) - {"by", "start_times"}:
        np.testing.assert_allclose(ours["sim"][name], theirs[name], atol=1e-6)
    for mine, their in zip(ours["sim"]["start_times"], theirs["start_times"], strict=True):
        np.testing.assert_allclose(mine, their)


def test_a_schedule_is_read_and_written_in_one_notation() -> None:
    schedule = Schedule.parse(ONE)
    assert schedule == Schedule.parse("0F0, 0F1, 0B0, 0B1\n1F0 1B0  1F1 1B1\n") == Schedule.parse(str(schedule))
    assert schedule.rows[1][1] == Action(1, "B", 0)
    sliced = Schedule.parse("0F0.0 0F0.1 0B0.1 0I0.0 0W0.0")
    assert sliced.rows[0][1] == Action(0, "F", 0, 1)
    assert sliced.size == (1, 1, 1, 2)
    pair = "a0F0 a0B0 b0F0 (a0F1;b0B0)OVERLAP_F_B a0B1"
    assert str(Schedule.parse(pair)) == pair
    assert Schedule.parse(pair).size == (1, 3, 1, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0 0G0", r"line 1, action 2: '0G0' is no action. Write stage, operation and microbatch, as in 0F0"),
        ("0F0\n1F0;", r"line 2, action 1: '1F0;' is no action"),
        (
            "0F0 0F1 (0B0;0B1)OVERLAP_F_B",
            r"line 1, action 3: '\(0B0;0B1\)OVERLAP_F_B' overlaps no forward with a backward",
        ),
        (" \n", r"No schedule: write a line for each device"),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(pw.UsageError, match=said):
        Schedule.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0 0B0 0F1 0B1\n1F0 1F1 1B1", r"1I0 is missing \(as I or as a part of B\): with 2 stages, 2 microbatches"),
        ("0F0 0F0 0B0", r"0F0 is done 2 times .*: device 0, action 1; device 0, action 2. Do it once"),
        ("0F0 0B0 0W0", r"0W0 is done 2 times \(B is I and W at once\): device 0, action 2; device 0, action 3"),
        ("0F0 1F0 1B0\n0B0", r"Stage 0 stands on devices 0 and 1: its weights are on one device. Move its actions"),
        ("0B0 0F0", r"Device 0: 0B0 \(action 1\) needs 0F0, which comes only as action 2. Put 0F0 before 0B0"),
        ("(0F0;0B0)OVERLAP_F_B", r"Device 0: of \(0F0;0B0\)OVERLAP_F_B \(action 1\) one pass needs the other, so they "
         r"cannot overlap. Write them as two actions"),
        ("0F0 0B0 0F999999999999999 0B0", r"0I0 is done 2 times"),
        ("0F0 0B0 0F999999999999999 0B1", r"0F1 is missing: with 1 stage, 1000000000000000 microbatches every stage"),
        ("0F0 0B0\n\n1F0 1B0", r"Device 1 has nothing to do. Give it actions, or leave its line away"),
        ("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1", r"1F1 waits for 0F1 \(whose output it needs\); 0F1 waits for "
         r"0B0 \(before it on device 0\); 0B0 waits for 1B0 \(whose output it needs\); 1B0 waits for 1F1 \(before"),
        ("0F0.0 0F0.1 0B0.0 0B0.1", r"0B0.0 \(action 3\) needs 0B0.1, which comes only as action 4"),
    ],
)  # fmt: skip
def test_the_first_broken_dependency_is_named(text: str, said: str) -> None:
    with pytest.raises(pw.ScheduleError, match=said):
        Schedule.parse(text).check()


def test_a_proof_says_what_was_proved() -> None:
    said = repr(pw.schedule("1f1b", devices=4, microbatches=8).check())
    assert "1f1b, 4 devices × 8 microbatches: sound.\n64 actions and 80 dependencies, all in order" in said
    assert "it takes 33; bubble 27.3% (as (p−1)(F+B) says);\npeak 4 microbatches" in said
    assert "on device 0 (as min(m, p−r) says)" in said


def test_the_idle_time_of_gpipe_by_phase() -> None:
    """Two devices, two microbatches: device 0 waits from 2 to 6 for 1B0, which ended at 5.5; device 1 ends at 7.5."""
    idle = pw.schedule("gpipe", devices=2, microbatches=2).timing(transfer=0.5).idle
    np.testing.assert_allclose(idle.warm_up, [3.5, 1])
    np.testing.assert_allclose(idle.transfer, [0.5, 0.5])
    np.testing.assert_allclose(idle.cool_down, [0, 2.5])
    np.testing.assert_allclose(idle.steady, [0, 0])


def test_what_let_a_cell_start_is_said() -> None:
    timing = pw.schedule("1f1b", devices=2, microbatches=2).timing(transfer=0.5)
    assert timing.why(0) == "nothing to wait for"
    assert timing.why(1) == "device 0 was busy with 0F0"
    assert timing.why(2) == "waited for 1B0 on device 1, 0.5 on the way"


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"F": -1}, r"F=-1 is no time. Give a number of at least 0"),
        ({"W": "long"}, r"W='long' is no time"),
        ({"transfer": 1e308}, r"transfer=1e\+308 is no time"),
        ({"F": float("nan")}, r"F=nan is no time"),
        ({"I": [1, 2, 3]}, r"I of shape \(3,\) does not fit 2 stages and 1 token slice. Give a number, or an array of "
         r"shape \(2,\) or \(2, 1\)"),
        ({"F": [[1], [1, 2]]}, r"F=\[\[1\], \[1, 2\]\] has rows of different lengths"),
        ({"transfer": [1, 1]}, r"transfer of shape \(2,\) does not fit 1 pair of stages"),
    ],
)  # fmt: skip
def test_times_that_do_not_fit_are_refused(times: dict[str, object], said: str) -> None:
    with pytest.raises(pw.UsageError, match=said):
        Schedule.parse(ONE).makespan(**times)  # type: ignore[arg-type]


@pytest.fixture
def own(own_schedules: None) -> str:
    """A schedule of the user's, registered for one test."""

    @pw.register_schedule("mine")
    def mine(devices: int, microbatches: int) -> list[str]:
        """Each microbatch alone."""
        return [" ".join(f"{stage}F{m} {stage}B{m}" for m in range(microbatches)) for stage in range(devices)]

    return "mine"


def test_a_users_schedule_is_one_of_them(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = pw.schedule(own, devices=2, microbatches=3)
    assert schedule.makespan() == 3 * 6
    assert "mine" in pw.schedules()
    assert registry.kind_of(own).about == "Each microbatch alone."
    assert main(["schedule", own, "--devices", "2", "--microbatches", "3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ranks"] == [[str(cell) for cell in row] for row in schedule.rows]
    assert printed["sim"]["makespan"] == 18


def test_a_generator_that_returns_something_else_is_named(own: str) -> None:
    pw.register_schedule(own)(lambda devices, microbatches: [["0F0", "x"]])
    with pytest.raises(pw.UsageError, match=r"schedule 'mine', device 0, action 2: 'x' is no action"):
        pw.schedule(own, 1, 1)
    with pytest.raises(pw.UsageError, match=r"schedule 'mine' returned 1 row: return a list for each of 2 devices"):
        pw.schedule(own, 2, 1)
    with pytest.raises(pw.UsageError, match=r"register_schedule\('x'\): .* lacks the parameter 'microbatches'; add it"):
        pw.register_schedule("x")(lambda devices: [])
    with pytest.raises(
        pw.UsageError, match=r"give 'chunks' the number that is meant if nobody says one, as in chunks=2"
    ):
        pw.register_schedule("x")(lambda devices, microbatches, chunks: [])
    pw.register_schedule(own)(lambda devices, microbatches: "0F0 0B0")
    with pytest.raises(pw.UsageError, match=r"schedule 'mine' returned 1 row: return a list for each of 2 devices"):
        pw.schedule(own, 2, 1)
    pw.register_schedule(own)(lambda devices, microbatches: [None])
    with pytest.raises(pw.UsageError, match=r"schedule 'mine', device 0: None is no list of actions"):
        pw.schedule(own, 1, 1)
    pw.register_schedule(own)(lambda devices, microbatches: "0F0 x")
    with pytest.raises(pw.UsageError, match=r"schedule 'mine', device 0, action 2: 'x' is no action"):
        pw.schedule(own, 1, 1)
    with pytest.raises(pw.UsageError, match=r"register_schedule\('gpipe'\): that is a built-in schedule; give yours"):
        pw.register_schedule("gpipe")(lambda devices, microbatches: [])
    with pytest.raises(pw.UsageError, match=r"write a name, as in @pw.register_schedule\('mine'\)"):
        pw.register_schedule("")


def test_a_generator_is_held_to_what_it_was_asked_for(own: str) -> None:
    pw.register_schedule(own)(lambda devices, microbatches: ["0F0 0F1 0B0 0B1"])
    assert pw.schedule(own, 1, 2).makespan() == 6
    less = pw.schedule(own, 1, 8)
    for wrong in (less.check, less.timing, lambda: less.bubble):
        with pytest.raises(
            pw.ScheduleError, match="'mine' was asked for microbatches=8 and made one of microbatches=2"
        ):
            wrong()


def test_chunks_are_counted_even_if_the_generator_does_not_say_how_many_it_makes(own: str) -> None:
    pw.register_schedule(own)(lambda devices, microbatches: pw.schedule("zb-v", devices, microbatches).rows)
    made = pw.schedule(own, 4, 8)
    assert (made.size.chunks, made.makespan(), made.peak) == (2, 25.5, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("1f1", 4, 8), r"There is no schedule '1f1'. Did you mean 1f1b"),
        (("1f1b", 0, 8), r"schedule '1f1b': devices=0 is no whole number above 0"),
        (("1f1b", 4, 8.5), r"microbatches=8.5 is no whole number"),
        (("gpipe", 10, 10**9), r"would have 10,000,000,000 forward passes; at most 2,000,000 are made. Take fewer"),
        (("1f1b", 4, 8, 2), r"schedule '1f1b' knows no chunks, so chunks=2 cannot be had; leave it away"),
    ],
)
def test_sizes_that_do_not_exist_are_refused(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(pw.UsageError, match=said):
        pw.schedule(*arguments)  # type: ignore[arg-type]


def test_a_table_of_when_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pw.schedule("1f1b", devices=2, microbatches=2).to_csv(tmp_path / "s.csv")
    assert main(["schedule", "1f1b", "--devices", "2", "--microbatches", "2", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == (tmp_path / "s.csv").read_text().splitlines()
    assert lines[0] == "device,position,cell,start,end,released_by"
    assert lines[3] == "0,2,0B0,4.0,6.0,1B0"


def test_the_command_line_reads_a_users_file_and_says_what_is_wrong(
    own_schedules: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import pathways_nb as pw\n@pw.register_schedule('from a file')\n"
        "def mine(devices, microbatches):\n    return '0F0 0B0'\n"
    )
    arguments = ["--devices", "1", "--microbatches", "1"]
    assert main(["schedule", "from a file", *arguments, "--load", str(file)]) == 0
    assert capsys.readouterr().out.startswith(
        "0F0 0B0\nfrom a file, 1 device × 1 microbatch: sound.\n2 actions and 1 dependency, all"
    )
    assert main(["schedule", "1f1c", *arguments]) == 1
    assert "error: There is no schedule '1f1c'. Did you mean 1f1b" in capsys.readouterr().err


def test_what_is_sent_and_how_many_devices_each_stage_stands_on() -> None:
    p, m = 4, 8
    crossings = {"1f1b": p - 1, "dualpipe": p - 1, "seq1f1b": p - 1, "interleaved-1f1b": 2 * p - 1, "zb-v": 2 * (p - 1)}
    for name, each_way in crossings.items():
        schedule = pw.schedule(name, devices=p, microbatches=m)
        assert schedule.sent == 2 * m * each_way
        assert schedule.copies == (2 if name == "dualpipe" else 1)


def test_a_timing_says_what_it_found() -> None:
    assert repr(pw.schedule("1f1b", devices=4, microbatches=8).timing()) == (
        "makespan 33, bubble 27.3%, peak 4 microbatches of activations on device 0\n"
        "idle time of all devices together: warm-up 18, steady 0, cool-down 18, transfer 0"
    )


def test_a_schedule_is_short_in_print_and_a_broken_one_says_in_a_cell_what_to_mend(capsys) -> None:
    assert repr(pw.schedule("1f1b", devices=4, microbatches=8)) == "<schedule 1f1b: 4 devices, 64 actions>"
    pw.Schedule.parse("0F0 0F1 0B0 0B1\n1F0 1B1 1F1 1B0")._ipython_display_()
    assert capsys.readouterr().out == (
        "<schedule own: 2 devices, 8 actions>\n"
        "Device 1: 1B1 (action 2) needs 1F1, which comes only as action 3. Put 1F1 before 1B1.\n"
    )


def test_memory_is_the_same_however_short_passes_are() -> None:
    timing = pw.schedule("1f1b", devices=2, microbatches=3).timing(F=0, I=0, W=0)
    for device in range(2):
        held = timing.memory(device)[1]
        assert (held.min(), held.max(), held[-1]) == (0, timing.peaks[device], 0)
